"""StepInput -> a score for each candidate position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.beliefs import Drawn
from unmask.core.dice import Purpose
from unmask.core.sampler import StepInput


@dataclass(frozen=True)
class Scored:
    """`order` ranks; `raw` is the published score, which thresholds and the selection temperature use."""

    order: Tensor  # [B, L]
    raw: Tensor  # [B, L]
    drawn: Drawn | None = None  # the proposals, where the score needed them
    exact: bool = False  # `order` has no rounding in it


class Background(Protocol):
    """Frequencies of tokens in a text."""

    def frequency(self, token: Tensor) -> Tensor:  # any shape, int64 -> float32
        ...


class Score(Protocol):
    def __call__(self, given: StepInput, where: Tensor, offset: Tensor) -> Scored:
        """Scores at `where` [B, L] bool; `offset` [B, L] counts open positions from the start of the block."""
        ...


def by_dice(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """A random order."""
    noise = given.state.uniform(given.step, Purpose.ORDER)
    return Scored(noise, noise, exact=True)


def by_confidence(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """The model's own probability of the proposed token."""
    drawn = given.draw(where)
    return Scored(drawn.model_logp, drawn.model_logp.exp(), drawn)


def by_entropy(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """Low entropy first."""
    return Scored(-given.beliefs.entropy, -given.beliefs.entropy)


def by_margin(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """The gap between the two most probable tokens."""
    gap = given.beliefs.top.exp() - given.beliefs.second.exp()
    return Scored(gap, gap)


def by_drawn_probability(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `maskgit_plus`: the probability under the tempered, filtered distribution."""
    drawn = given.draw(where)
    return Scored(drawn.log, drawn.log.exp(), drawn)


def by_drawn_entropy(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `entropy`: of the tempered, filtered distribution."""
    drawn = given.draw(where)
    return Scored(-drawn.entropy, -drawn.entropy, drawn)


def by_drawn_margin(given: StepInput, where: Tensor, offset: Tensor) -> Scored:
    """Dream's `topk_margin`: of the tempered, filtered distribution."""
    drawn = given.draw(where)
    gap = drawn.top.exp() - drawn.second.exp()
    return Scored(gap, gap, drawn)


DRAWN = (by_drawn_probability, by_drawn_entropy, by_drawn_margin)


@dataclass(frozen=True)
class Positional:
    """PC-Sampler: confidence against a background frequency, earlier positions first.

    Ranks in log space, unless `underflows`: the published product is 0 after 416 positions at decay 0.25.
    """

    background: Background | None  # None until the model is known
    decay: float  # the paper's λ of PC-Sampler
    cap: float  # and its α
    underflows: bool = False  # rank by the published product in float32; its zeros are decided from the left

    def __call__(self, given: StepInput, where: Tensor, offset: Tensor) -> Scored:
        assert self.background is not None, "pc is used without its background table"
        drawn = given.draw(where)
        surprise = -torch.log(self.background.frequency(drawn.token) + 1e-9)  # 1e-9: as in the public code
        calibrated = (drawn.model_logp.exp() * surprise).clamp(torch.finfo(torch.float32).tiny, self.cap)
        if self.underflows:
            score = calibrated.float() * torch.exp(-self.decay * offset.float())
            return Scored(score, score, drawn, exact=True)
        fall = self.decay * offset.double()
        order = (calibrated.log() - fall).to(drawn.model_logp.dtype)  # no finer than the numbers it is made of
        return Scored(order, calibrated * torch.exp(-fall), drawn)
