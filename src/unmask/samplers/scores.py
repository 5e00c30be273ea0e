"""Turn -> a score for each candidate position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.beliefs import Drawn
from unmask.core.dice import Purpose
from unmask.core.turn import Turn
from unmask.decoding.background import Background


@dataclass(frozen=True)
class Scored:
    """`order` ranks; `raw` is the published score, which thresholds and the selection temperature use."""

    order: Tensor  # [B, L]
    raw: Tensor  # [B, L]
    drawn: Drawn | None = None  # the proposals, where the score needed them
    exact: bool = False  # `order` has no rounding in it


class Score(Protocol):
    def __call__(self, turn: Turn, where: Tensor, offset: Tensor) -> Scored:
        """Scores at `where` [B, L] bool; `offset` [B, L] counts open positions from the start of the block."""
        ...


def by_dice(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """A random order."""
    noise = turn.state.uniform(turn.step, Purpose.ORDER)
    return Scored(noise, noise, exact=True)


def by_confidence(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """The model's own probability of the proposed token."""
    drawn = turn.draw(where)
    return Scored(drawn.raw, drawn.raw.exp(), drawn)


def by_entropy(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """Low entropy first."""
    return Scored(-turn.raw.entropy, -turn.raw.entropy)


def by_margin(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """The gap between the two most probable tokens."""
    gap = turn.raw.top.exp() - turn.raw.second.exp()
    return Scored(gap, gap)


def by_drawn_probability(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `maskgit_plus`: the probability under the tempered, filtered distribution."""
    drawn = turn.draw(where)
    return Scored(drawn.log, drawn.log.exp(), drawn)


def by_drawn_entropy(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `entropy`: of the tempered, filtered distribution."""
    drawn = turn.draw(where)
    return Scored(-drawn.entropy, -drawn.entropy, drawn)


def by_drawn_margin(turn: Turn, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `topk_margin`: of the tempered, filtered distribution."""
    drawn = turn.draw(where)
    gap = drawn.top.exp() - drawn.second.exp()
    return Scored(gap, gap, drawn)


DRAWN = (by_drawn_probability, by_drawn_entropy, by_drawn_margin)


@dataclass(frozen=True)
class Positional:
    """PC-Sampler: confidence against a background frequency, earlier positions first.

    Ranks in log space: the published product underflows to 0 after 416 positions at decay 0.25.
    """

    background: Background
    decay: float  # the paper's λ of PC-Sampler
    cap: float  # and its α

    def __call__(self, turn: Turn, where: Tensor, offset: Tensor) -> Scored:
        drawn = turn.draw(where)
        surprise = -torch.log(self.background.frequency(drawn.token) + 1e-9)  # 1e-9: as in the public code
        calibrated = (drawn.raw.exp() * surprise).clamp(torch.finfo(torch.float32).tiny, self.cap)
        fall = self.decay * offset.double()
        order = (calibrated.log() - fall).to(drawn.raw.dtype)  # no finer than the numbers it is made of
        return Scored(order, calibrated * torch.exp(-fall), drawn)
