"""A constraint × the steps of a walk -> draws of allowed tokens only, and rows that can still be completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.beliefs import Beliefs, Drawn, DrawRule, most_probable
from unmask.core.constraint import NOTHING, Allowed, Constraint, allowed
from unmask.core.denoiser import Head
from unmask.core.dice import Purpose
from unmask.core.state import State, Step

Apart = Callable[[Callable[[], tuple[Tensor, ...]]], tuple[Tensor, ...]]  # does work of the host, between recordings


def at_once(work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Work of the host in a step that is not recorded."""
    return work()


@dataclass(frozen=True)
class Limit:
    """A constraint, and what a walk needs to know of the allowed tokens."""

    constraint: Constraint
    measures: bool  # entropies and confidences are those of the allowed tokens
    best: bool  # the most probable of them is written: the sweep that weighs finds it
    full: bool  # their whole distribution is needed, not only the most probable one

    def read(self, state: State, where: Tensor) -> Callable[[], tuple[Tensor]]:
        """What may be asked about, at `where` and below any mask; the host waits for the device."""
        work = self.constraint.read(state.tokens, state.writable, where)
        return lambda: (work(),)

    def allowed(self, row: Tensor) -> Allowed:
        return Allowed(row, *self.constraint.table)

    def asked(self, allowed: Allowed | None) -> dict[str, Allowed]:
        """What the sweep that weighs is given besides."""
        if allowed is None or not (self.best or self.measures):
            return {}
        return {"allowed": replace(allowed, full=self.full)}

    def measured(self, beliefs: Beliefs) -> Beliefs:
        """The beliefs that entropies and samplers go by: the model's own, or those of the allowed tokens."""
        if not self.measures:
            return beliefs
        assert beliefs.limited is not None
        return replace(beliefs.limited, limited=beliefs.limited)


def takes_best(how: DrawRule) -> bool:
    """Whether the most probable token is written, of those that are not banned."""
    return how.temperature == 0 and how.top_k is None and how.top_p is None


@dataclass
class Drawing:
    """The draws of one step under a constraint, and how much of the model's distribution each was drawn from."""

    limit: Limit
    state: State
    step: Step
    hidden: Tensor | None
    head: Head
    judged: Beliefs
    how: DrawRule
    sweep: Callable[..., Drawn]  # the function that draws
    allowed: Allowed
    unmet: Callable[[Tensor], None]  # is told of rows [B] bool in which no allowed token has a probability
    refuse: Callable[[Tensor], None]  # the same, at once
    apart: Apart
    waits: bool  # the host may wait for the device

    def __post_init__(self) -> None:
        self.how = replace(self.how, ban=())  # banned tokens are never allowed
        self.weight = torch.zeros_like(self.state.token_weight)  # [B, L]

    def draw(self, where: Tensor) -> Drawn:
        """An allowed token for each position."""
        if self.limit.best:
            drawn = most_probable(self.judged)
            self.unmet((where & drawn.log.isnan()).any(1))
            return self._noted(drawn, where)
        return self._drawn(where, self.within(where), Purpose.TOKEN, self.unmet)

    def within(self, where: Tensor) -> Allowed:
        """The allowed tokens of these positions, also of those that the sampler did not want to know anything about."""
        if self.waits and bool((where & (self.allowed.row == NOTHING)).any()):
            asked = where | (self.allowed.row != NOTHING)
            self.allowed = allowed(self.limit.constraint, self.state.tokens, self.state.writable, asked)
        return self.allowed

    def _drawn(self, where: Tensor, allowed: Allowed, purpose: Purpose, unmet: Callable[[Tensor], None]) -> Drawn:
        dice = self.state.uniform(self.step, purpose)
        drawn = self.sweep(self.hidden, self.head, where, dice, self.how, self.judged, allowed=allowed)
        unmet((where & drawn.log.isnan()).any(1))
        return self._noted(drawn, where)

    def _noted(self, drawn: Drawn, where: Tensor) -> Drawn:
        """The draw, with log-probabilities of the measured distribution."""
        self.weight = (drawn.model_logp - drawn.log).double().where(where, self.weight)
        if not self.limit.measures:
            return drawn
        share = self.limit.measured(self.judged).normaliser - self.judged.normaliser
        return replace(drawn, model_logp=drawn.model_logp - share)

    def settled(self, after: State, own: Callable[[Tensor, Tensor], Tensor]) -> State:
        """The state after the step, in which all that was written fits together; `own` undoes a penalty."""
        state, drawn_from = self.state, self.weight

        def settle() -> tuple[Tensor, Tensor, Tensor]:  # done anew for each step, so no name in it is used again below
            log, self.weight = after.token_logp, drawn_from

            def redraw(where: Tensor, allowed: Allowed) -> Tensor:
                nonlocal log
                drawn = self._drawn(where, allowed, Purpose.REPAIR, self.refuse)
                log = own(drawn.model_logp, drawn.token).double().where(where, log)
                return drawn.token

            tokens = self.limit.constraint.settle(state.tokens, after.tokens, state.writable, redraw)
            return tokens, log, self.weight

        tokens, log, weight = self.apart(settle)
        same = tokens == state.tokens
        fits = after.replace(tokens=tokens)
        log = log.where(~same, state.token_logp).masked_fill(fits.masked, 0.0)
        weight = weight.where(~same, state.token_weight).masked_fill(fits.masked | ~fits.writable, 0.0)
        return fits.replace(token_logp=log, token_weight=weight)
