"""Denoisers around denoisers: classifier-free guidance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.models.denoiser import Denoiser, Head, Tokenizer
from unmask.state import State, Vocab


@dataclass(frozen=True, eq=False)
class Guided:
    """Classifier-free guidance: u + (scale + 1)(c - u), u from the row whose given tokens are masked.

    It commutes with a linear head, so hidden states are combined and the vocabulary is applied once.
    """

    inner: Denoiser
    scale: float

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def vocab(self) -> Vocab:
        return self.inner.vocab

    @property
    def head(self) -> Head:
        return self.inner.head

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inner.tokenizer

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def limit(self) -> int | None:
        return self.inner.limit

    @property
    def cost(self) -> int:
        return 2 * self.inner.cost

    @property
    def timed(self) -> bool:
        return self.inner.timed

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        """One call with every row twice: as it is, and with its given tokens masked."""
        twice = state.replace(cache=None).take(torch.cat([rows, rows]))
        blind = twice.tokens.where(twice.writable | ~twice.attend, state.vocab.mask)
        second = torch.arange(2 * len(rows), device=rows.device) >= len(rows)
        both = twice.replace(tokens=blind.where(second[:, None], twice.tokens))
        hidden, _ = self.inner.look(both, torch.arange(2 * len(rows), device=rows.device))
        with_prompt, without = hidden.chunk(2)
        guided = without + (self.scale + 1) * (with_prompt - without)
        return guided.where(without.isfinite(), with_prompt), None  # -inf says nothing about the prompt's influence
