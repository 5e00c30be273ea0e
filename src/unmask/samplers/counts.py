"""StepInput × ranking -> how many positions are decided in this step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.sampler import Ranking, StepInput
from unmask.core.state import State, Step, exact
from unmask.samplers.blocks import block_count, current_by_mask, numbers
from unmask.samplers.scores import Scored


class Count(Protocol):
    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        """[B] int64; `left` [B] is the number of steps left in the current block, this one included."""
        ...


def quota(given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
    """LLaDA's even share, the remainder in the early steps: what is left over the steps left, rounded up."""
    return -(-ranking.candidates // left.clamp(min=1))


def transfer_probability(state: State, step: Step, eps: float) -> Tensor:  # [B] float64
    """1 - s/t on the time grid t = 1 - i (1 - eps)/N, written so that nothing cancels."""
    return (1 - eps) / (state.budget.double() - exact(step) * (1 - eps))


@dataclass(frozen=True)
class DreamSchedule:
    """int(masked × (1 - s/t)), and all that is left in the last step."""

    eps: float

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        some = (ranking.candidates * transfer_probability(given.state, given.step, self.eps)).long()
        return some.where(left > 1, ranking.candidates)


@dataclass(frozen=True)
class Binomial:
    """MDLM's kernel: each masked position is freed by itself with probability (t - s)/t; all in the last step."""

    eps: float

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        freed = scored.raw > 1 - transfer_probability(given.state, given.step, self.eps)[:, None]
        return (ranking.sorted(freed) & ranking.real).sum(1).where(left > 1, ranking.candidates)


BY_CHANCE = (DreamSchedule, Binomial)  # may decide nothing in a step, however few steps there are


@dataclass(frozen=True)
class EntropyBound:
    """EB: the longest prefix whose summed entropy less its running maximum stays within the bound; at least one."""

    bound: float  # nats; the paper's γ

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        entropy = ranking.sorted(given.beliefs.entropy).double()
        within = (entropy.cumsum(1) - entropy.cummax(1).values <= self.bound) & ranking.real
        return within.long().cumprod(1).sum(1).clamp(min=1)


@dataclass(frozen=True)
class Threshold:
    """Fast-dLLM: the best, and every other whose confidence reaches the threshold."""

    threshold: float

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        return ((ranking.sorted(scored.raw) >= self.threshold) & ranking.real).sum(1).clamp(min=1)


@dataclass(frozen=True)
class Factor:
    """Fast-dLLM: stop at the first rank n with c_n < 1 - f/(n + 1); a failure at the last candidate is forgiven."""

    factor: float

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        n = ranking.number.double() + 1
        enough = (ranking.sorted(scored.raw) >= 1 - self.factor / (n + 1)) | (n == 1)
        prefix = (enough & ranking.real).long().cumprod(1).sum(1)
        return prefix.where(prefix < ranking.candidates - 1, ranking.candidates)


@dataclass(frozen=True)
class BlockQuota:
    """Fast-dLLM's quota: each block's even share over its part of the steps, empty steps left out."""

    block_length: int | None

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        state = given.state
        current = current_by_mask(state, self.block_length)
        total = (state.writable & (numbers(state, self.block_length) == current[:, None])).sum(1)
        steps = state.budget // block_count(state, self.block_length)
        share, extra = total // steps, total % steps
        decided = total - ranking.candidates
        return share + (decided < extra * (share + 1)).long()


@dataclass(frozen=True)
class Examine:
    """Fast-dLLM's threshold for Dream: an even share is examined in each step; what fails is carried on."""

    threshold: float

    def __call__(self, given: StepInput, ranking: Ranking, scored: Scored, left: Tensor) -> Tensor:
        state = given.state
        planned = torch.minimum(state.open * (given.step + 1) // state.budget, state.open)
        examined = planned - (state.open - ranking.candidates)
        passed = (ranking.sorted(scored.raw) >= self.threshold) | (ranking.number == 0)
        return (passed & (ranking.number < examined[:, None])).sum(1)
