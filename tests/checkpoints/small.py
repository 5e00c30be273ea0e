"""Checkpoints of a few kilobytes, good and damaged, and what loading says of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Fast
from tokenizers import models
from torch import Tensor

from unmask import load
from unmask.core.state import begin
from unmask.errors import ModelError, UnmaskError
from unmask.models import memory
from unmask.models.families.blueprint import Config
from unmask.models.files.checkpoint import INDEX, WEIGHTS, tensor_shapes
from unmask.models.files.directory import FAMILIES, family_of
from unmask.models.transformer import Transformer

RECORDED = Path(__file__).parent.parent / "parity" / "models"
LLADA = FAMILIES["llada"].published.tiny | {
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 2,
    "mlp_hidden_size": 16,
    "vocab_size": 16,
    "embedding_size": 16,
    "mask_token_id": 15,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
QWEN = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 16,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
DREAM = FAMILIES["dream"].published.tiny | QWEN | {"mask_token_id": 15}
CODER = FAMILIES["open-dcoder"].published.tiny | QWEN
ILLADA = FAMILIES["illada"].published.tiny | QWEN
SDAR = FAMILIES["sdar"].published.tiny | QWEN | {"mask_token_id": 15, "head_dim": 6}
FAST_DLLM = FAMILIES["fast-dllm-v2"].published.tiny | QWEN
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
SDAR_MOE = FAMILIES["sdar-moe"].published.tiny | QWEN | EXPERTS | {"mask_token_id": 15, "head_dim": 6}
LLADA_MOE = (
    FAMILIES["llada-moe"].published.tiny
    | QWEN
    | EXPERTS
    | {
        "num_hidden_layers": 2,
        "dense_intermediate_size": 16,
        "expert_intermediate_size": 6,
        "moe_layer_freq": [0, 1],
    }
)
LLADA2 = (
    FAMILIES["llada2"].published.tiny
    | QWEN
    | EXPERTS
    | {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "n_group": 2,
        "topk_group": 1,
    }
)
DIFFCODER = FAMILIES["stable-diffcoder"].published.tiny | QWEN
A2D = FAMILIES["a2d"].published.tiny | QWEN | {"head_dim": 6}
MDLM = FAMILIES["mdlm"].published.tiny | {"hidden_dim": 8, "n_blocks": 1, "n_heads": 2, "cond_dim": 4, "vocab_size": 16}
NATIVE = FAMILIES["native"].published.tiny | {
    "vocabulary": 16,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "inner": 16,
    "condition": 4,
    "mask_token_id": 15,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
MICRO = {
    "llada": LLADA,
    "dream": DREAM,
    "open-dcoder": CODER,
    "illada": ILLADA,
    "sdar": SDAR,
    "sdar-moe": SDAR_MOE,
    "llada-moe": LLADA_MOE,
    "llada2": LLADA2,
    "fast-dllm-v2": FAST_DLLM,
    "stable-diffcoder": DIFFCODER,
    "a2d": A2D,
    "mdlm": MDLM,
    "native": NATIVE,
}
EMBED = "model.transformer.wte.weight"


def weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors as this config wants them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(family_of(dict(config)).read(Config(config)))
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(directory: Path, config: Mapping[str, Any] = LLADA, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """A checkpoint of one file."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(dict(weights(config) if tensors is None else tensors), directory / WEIGHTS)
    return directory


def split(directory: Path, shards: int = 3) -> dict[str, str]:
    """The one file of a checkpoint as several with an index; the index's weight_map."""
    tensors, places = load_file(directory / WEIGHTS), {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number::shards]}
        save_file(part, directory / file)
        places |= dict.fromkeys(part, file)
    (directory / WEIGHTS).unlink()
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def logits(model: Any, length: int = 6) -> Tensor:
    """Logits of a canvas with a few tokens and a few masks."""
    assert isinstance(model, Transformer)
    tokens = torch.tensor([[3, model.vocab.mask, 5, model.vocab.mask, 7, 2][: min(length, model.limit or length)]])
    here = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == model.vocab.mask, here, torch.zeros(1, dtype=torch.int64), model.vocab, 1)
    hidden, _ = model.look(state, torch.tensor([0]))
    assert hidden.shape == (1, tokens.shape[1], model.network.shape.width)
    return model.head.logits(hidden[0])


def refused(directory: str | Path, *words: str, kind: type[UnmaskError] = ModelError, **options: Any) -> None:
    """Loading fails at once, without taking memory, in one line that has these words and a way out."""
    peak, start = memory.host_peak(), time.process_time()
    with pytest.raises(kind) as caught:
        load(directory, **options)
    assert time.process_time() - start < 2
    assert memory.host_peak() - peak < 128 * 2**20
    said = str(caught.value)
    assert said.isprintable() and len(said) < 600, said
    assert caught.value.hint
    for word in words:
        assert word in said


def complaint(directory: Path, **options: Any) -> str:
    """What loading says, where it says anything."""
    try:
        load(directory, **options)
    except ModelError as error:
        return str(error)
    return ""


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self.mark), "w")


def plain() -> Fast:
    """Eight letters."""
    return Fast(models.BPE({letter: number for number, letter in enumerate("abcdefgh")}, []))
