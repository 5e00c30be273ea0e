"""Judge: windows of token ids -> the loss of every token that counts, under a causal model of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import ModelError

BUDGET = {"cpu": 2048, "cuda": 16384}  # tokens at a time, padding included: logits of all of them are in memory
SLICE = 2**26  # logits that are float32 at a time


@dataclass(frozen=True)
class Window:
    """Tokens that the judge reads at once, and which of them count. The first never does: nothing stands before it."""

    tokens: list[int]
    counts: list[bool]


@dataclass(frozen=True, eq=False)
class Judge:
    """A causal model with its tokenizer."""

    model: Any
    words: Any  # a tokenizer of transformers
    name: str
    start: int  # the token that a text is read after
    end: int  # the token that ends a document
    context: int  # tokens that it reads at once, at most

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    def ids(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text; `special` adds those that the tokenizer puts around one."""
        found = self.words(text, add_special_tokens=special, verbose=False)["input_ids"]
        return [int(token) for token in found]

    def losses(self, windows: Sequence[Window], budget: int | None = None) -> list[NDArray[np.float64]]:
        """-log p of the tokens of each window that count, in nats; `budget` bounds the tokens read together."""
        most = BUDGET.get(self.device.type, BUDGET["cpu"]) if budget is None else budget
        return [found for some in batches(windows, most) for found in self._read(some)]

    @torch.no_grad()
    def _read(self, windows: Sequence[Window]) -> list[NDArray[np.float64]]:
        widest = max(len(window.tokens) for window in windows)
        padded = [window.tokens + [self.end] * (widest - len(window.tokens)) for window in windows]
        real = [[1] * len(window.tokens) + [0] * (widest - len(window.tokens)) for window in windows]
        tokens = torch.tensor(padded, device=self.device)  # [B, L]; pads follow, so nothing real sees them
        logits = self.model(tokens, attention_mask=torch.tensor(real, device=self.device), use_cache=False).logits
        losses = _losses(logits[:, :-1], tokens[:, 1:]).double().cpu().numpy()  # [B, L - 1]
        if not np.isfinite(losses[np.array(real, dtype=bool)[:, 1:]]).all():
            raise ModelError(f"{self.name} gives a token no finite loss", "try another dtype: float32 has the range")
        rows = zip(losses, windows, strict=True)
        return [row[: len(window.tokens) - 1][np.array(window.counts[1:], dtype=bool)] for row, window in rows]


def _losses(logits: Tensor, targets: Tensor) -> Tensor:  # [B, L, V], [B, L] -> [B, L]
    """Cross-entropy in float32 or better, a slice of positions at a time."""
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    size = max(1, SLICE // flat.shape[1])
    found = [
        torch.nn.functional.cross_entropy(
            _exact(flat[begin : begin + size]), wanted[begin : begin + size], reduction="none"
        )
        for begin in range(0, len(flat), size)
    ]
    return (torch.cat(found) if found else flat.new_zeros(0)).view(targets.shape)


def _exact(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def batches(windows: Sequence[Window], budget: int) -> Iterator[Sequence[Window]]:
    """Neighbours of at most `budget` tokens together, padding included; a longer window is alone."""
    begin = widest = 0
    for place, window in enumerate(windows):
        widest = max(widest, len(window.tokens))
        if place > begin and (place + 1 - begin) * widest > budget:
            yield windows[begin:place]
            begin, widest = place, len(window.tokens)
    if begin < len(windows):
        yield windows[begin:]
