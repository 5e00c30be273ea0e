"""Reveal: score × count × blocks. Masked positions are decided and stay so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.beliefs import STAYS
from unmask.core.dice import Purpose
from unmask.core.sampler import Ranking, StepInput, Written, masked_share, rank
from unmask.core.state import State, Step, exact
from unmask.samplers.blocks import current_by_mask, current_by_schedule, numbers
from unmask.samplers.counts import BY_CHANCE, Count, transfer_probability
from unmask.samplers.scores import DRAWN, Score


@dataclass(frozen=True)
class Reveal:
    """A line in a table: how positions are ranked, how many are decided, in which blocks."""

    score: Score
    count: Count
    steps: int | None = None
    block_length: int | None = None
    select_temperature: float = 0.0
    scheduled: bool = True
    carries: bool = False  # scheduled, but continues past its plan while something is masked
    select_all: bool = False  # draw from all candidates (Dream) instead of the top 2k (the paper)
    eps: float | None = None  # the end of its time grid, where it has one
    revises: bool = False

    @property
    def filters(self) -> bool:
        return self.score in DRAWN

    @property
    def planned_end(self) -> bool:
        return self.scheduled and not self.carries

    def want(self, state: State, step: Step) -> Tensor:
        return state.masked & self.region(state, step)

    def _block(self, state: State, step: Step) -> tuple[Tensor, Tensor]:
        """The current block [B] and the steps left in it [B]."""
        if self.scheduled:
            return current_by_schedule(state, step, self.block_length)
        return current_by_mask(state, self.block_length), torch.ones_like(state.open)

    def region(self, state: State, step: Step) -> Tensor:
        if self.block_length is None:
            return state.writable
        block, _ = self._block(state, step)
        return state.writable & (numbers(state, self.block_length) <= block[:, None])

    def act(self, given: StepInput) -> Written:
        state, step = given.state, given.step
        block, left = self._block(state, step)
        candidates = state.masked & self.region(state, step)
        offset = state.rank - block[:, None] * (self.block_length or 0)
        scored = self.score(given, candidates, offset)
        drawn = given.draw(candidates) if given.late and scored.drawn is None else scored.drawn
        late = given.is_late(drawn.token) if given.late and drawn is not None else torch.zeros_like(candidates)
        ranking = rank(scored.order, candidates, late if given.late else None, scored.exact)
        count = self.count(given, ranking, replace(scored, raw=scored.raw.masked_fill(late, -torch.inf)), left)
        if self.select_temperature > 0:
            ranking = self._select(ranking, scored.raw, late, count, given)
        chosen = ranking.first(count)
        drawn = drawn or given.draw(chosen)
        return Written(drawn.token.where(chosen, state.tokens), drawn.model_logp)

    def _select(self, ranking: Ranking, raw: Tensor, late: Tensor, count: Tensor, given: StepInput) -> Ranking:
        """Multinomial(softmax(raw / T), k) without replacement: the top k of raw / T + Gumbel noise."""
        pool = ranking.first(ranking.candidates if self.select_all else 2 * count)
        below = raw.double() - raw.double().where(pool, -torch.inf).amax(1, keepdim=True)  # so that no T overflows
        noise = given.state.gumbel(given.step, Purpose.SELECT)
        return rank((below / self.select_temperature).where(below != 0, 0.0) + noise, pool, late)

    def steady(self, state: State) -> Tensor:  # [B] bool
        """Whether next to no step leaves a row unchanged."""
        if not self.scheduled:
            return torch.ones_like(state.open, dtype=torch.bool)
        return state.budget * (2 if isinstance(self.count, BY_CHANCE) else 1) <= state.open

    def done(self, state: State, step: Step) -> Tensor:
        filled = ~state.masked.any(1)
        if not self.scheduled:
            return filled
        return (step >= state.budget) & (filled | (not self.carries))

    def time(self, state: State, step: Step) -> Tensor:
        if self.eps is None:
            return masked_share(state)
        return 1 - exact(step) * (1 - self.eps) / state.budget.double()


@dataclass(frozen=True)
class Float32Reveal(Reveal):
    """MDLM's kernel as its public code draws it: each position's token or its mask, with Gumbel noise in float32."""

    def act(self, given: StepInput) -> Written:
        assert given.draw_or_stay is not None and self.eps is not None
        state, step = given.state, given.step
        candidates = state.masked & self.region(state, step)
        _, left = self._block(state, step)
        stay = (1 - transfer_probability(state, step, self.eps)).clamp(0, 1).where(left > 1, 0.0)
        drawn = given.draw_or_stay(candidates, stay)
        chosen = candidates & (drawn.token != STAYS)
        return Written(drawn.token.where(chosen, state.tokens), drawn.model_logp)

    def steady(self, state: State) -> Tensor:  # [B] bool
        """Never: its draw reads on the host."""
        return torch.zeros_like(state.open, dtype=torch.bool)
