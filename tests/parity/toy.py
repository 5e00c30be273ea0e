"""The recordings' small network as a denoiser."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.core.state import State, Vocab
from unmask.models import Head
from unmask.models.tokenizers import Characters


@dataclass(frozen=True, eq=False)
class Toy:
    """One attention layer, everything in float64, no padding; the mask has no logit."""

    weights: dict[str, Tensor]
    heads: int
    scale: float
    mask: int
    name: str
    limit: int = 64
    cost: int = 1
    timed: bool = False

    @property
    def vocab(self) -> Vocab:
        return Vocab(self.mask)

    @property
    def head(self) -> Head:
        weight, bias = self.weights["vocabulary_weight"], self.weights["vocabulary_bias"]
        return Head(len(weight), self.scale * weight, self.scale * bias, absent=(self.mask,))

    @property
    def tokenizer(self) -> Characters:
        return Characters("".join(chr(0x4E00 + i) for i in range(self.head.width)))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        assert bool(state.attend.all()), "the recorded network knows no padding"
        return self.hidden(state.tokens[rows]), None

    def hidden(self, tokens: Tensor) -> Tensor:  # [R, T] -> [R, T, D]
        w = self.weights
        h = w["token_embedding"][tokens] + w["position_embedding"][: tokens.shape[1]]
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (h @ w["qkv_weight"].T + w["qkv_bias"]).chunk(3, 2)
        )
        mixed = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).softmax(3) @ v
        return h + mixed.transpose(1, 2).flatten(2) @ w["attention_out_weight"].T + w["attention_out_bias"]


@cache
def toy(recordings: Path, name: str) -> Toy:
    about = json.loads((recordings / "toys" / f"{name}.json").read_text())
    weights = load_file(recordings / "toys" / f"{name}.safetensors")
    return Toy(weights, about["heads"], about["scale"], about["mask_id"], name)
