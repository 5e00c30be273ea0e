"""P2 and DraftRefine: samplers that may reopen a decided position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.sampler import StepInput, Written, masked_share, rank
from unmask.core.state import State, Step


@dataclass(frozen=True)
class P2:
    """Self-planning: every open position is proposed anew in each step, the least certain ones are masked (again)."""

    steps: int | None = None
    eta: float = 1.0  # remasking strength: > 1 reopens more eagerly, 0 never
    fresh: bool = False  # Open-dLLM: rank by the tempered, filtered distribution; stop when nothing is masked
    scheduled: bool = True
    revises: bool = True
    block_length: None = None

    @property
    def filters(self) -> bool:
        return self.fresh

    @property
    def planned_end(self) -> bool:
        return not self.fresh

    def want(self, state: State, step: Step) -> Tensor:
        return state.writable

    def region(self, state: State, step: Step) -> Tensor:
        return state.writable

    def act(self, given: StepInput) -> Written:
        state = given.state
        drawn = given.draw(state.writable)
        score = drawn.log if self.fresh else drawn.model_logp
        standing = score * self.eta if self.eta > 0 else torch.inf  # at 0 not even a tie reopens
        late = given.is_late(drawn.token) & state.masked
        ranking = rank(score.where(state.masked, standing), state.writable, late)
        # floor(n (1 - i/N)) masks stay, in float32 from a float64 fraction: the public codes' own rounding.
        fraction = (1 - (given.step + 1) / state.budget.double()).float()
        left = (state.open.float() * fraction).floor().long()
        kept = ranking.first(state.open - left)
        decided = drawn.token.where(state.masked, state.tokens)
        tokens = decided.where(kept, state.vocab.mask).where(state.writable, state.tokens)
        return Written(tokens, drawn.model_logp)

    def steady(self, state: State) -> Tensor:  # [B] bool
        """Whether next to no step leaves a row unchanged."""
        return torch.ones_like(state.open, dtype=torch.bool)

    def done(self, state: State, step: Step) -> Tensor:
        over = step >= state.budget
        return over | ~state.masked.any(1) if self.fresh else over

    def time(self, state: State, step: Step) -> Tensor:
        return masked_share(state)


@dataclass(frozen=True)
class DraftRefine:
    """Draft a share by confidence; `loops` times mask the least certain and decide the most certain; fill the rest."""

    draft: float  # the share that is drafted
    reveal: int  # positions decided, or masked again, in a step
    loops: int
    steps: None = None
    scheduled: bool = False
    revises: bool = True
    block_length: None = None
    filters: bool = False

    def _target(self, state: State) -> Tensor:  # [B] int64
        return (state.open.double() * self.draft).long()

    def _drafting(self, state: State) -> Tensor:  # [B] int64
        """Steps of the first phase."""
        return -(-self._target(state) // self.reveal)

    def _planned(self, state: State) -> Tensor:  # [B] int64
        """Steps of the first two phases; with nothing drafted there is nothing to refine."""
        drafting = self._drafting(state)
        return torch.where(drafting > 0, drafting + 2 * self.loops, 0)

    def _reopens(self, state: State, step: Step) -> Tensor:  # [B] bool
        into = step - self._drafting(state)
        return (into >= 0) & (into % 2 == 0) & (step < self._planned(state))

    def want(self, state: State, step: Step) -> Tensor:
        return state.masked | (state.writable & self._reopens(state, step)[:, None])

    def region(self, state: State, step: Step) -> Tensor:
        return state.writable

    def act(self, given: StepInput) -> Written:
        state, step = given.state, given.step
        reopens = self._reopens(state, step)[:, None]
        decided = state.writable & ~state.masked
        most = torch.full_like(state.open, self.reveal)
        doubtful = rank(-given.beliefs.standing, decided & reopens).first(most)

        candidates = state.masked & ~reopens
        drawn = given.draw(candidates)
        missing = self._target(state) - decided.sum(1)
        count = torch.where(step < self._drafting(state), torch.minimum(missing, most), most)
        chosen = rank(drawn.model_logp, candidates, given.is_late(drawn.token)).first(count)
        tokens = drawn.token.where(chosen, state.tokens).masked_fill(doubtful, state.vocab.mask)
        return Written(tokens, drawn.model_logp)

    def steady(self, state: State) -> Tensor:  # [B] bool
        """Whether next to no step leaves a row unchanged."""
        return torch.ones_like(state.open, dtype=torch.bool)

    def done(self, state: State, step: Step) -> Tensor:
        return (step >= self._planned(state)) & ~state.masked.any(1)

    def time(self, state: State, step: Step) -> Tensor:
        return masked_share(state)
