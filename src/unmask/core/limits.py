"""A constraint × the steps of a walk -> draws of allowed tokens only, and rows that can still be completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.beliefs import Beliefs, Drawn, DrawRule, most_probable
from unmask.core.constraint import Allowed, Constraint
from unmask.core.denoiser import Head
from unmask.core.dice import Purpose
from unmask.core.state import State, Step


@dataclass(frozen=True)
class Limit:
    """A constraint, and what a walk needs to know of the allowed tokens."""

    constraint: Constraint
    measures: bool  # entropies and confidences are those of the allowed tokens
    best: bool  # the most probable of them is written: the sweep that weighs finds it
    full: bool  # their whole distribution is needed, not only the most probable one

    def asked(self, state: State, where: Tensor) -> dict[str, Allowed]:
        """What the sweep that weighs is given besides."""
        if not (self.best or self.measures):
            return {}
        return {"allowed": self.constraint.allowed(state.tokens, state.writable, where, self.full)}

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
    unmet: Callable[[Tensor], None]  # is told of rows [B] bool in which no allowed token has a probability

    def __post_init__(self) -> None:
        self.how = replace(self.how, ban=())  # banned tokens are never allowed
        self.weight = torch.zeros_like(self.state.token_weight)  # [B, L]

    def draw(self, where: Tensor) -> Drawn:
        """An allowed token for each position."""
        if self.limit.best:
            return self._noted(most_probable(self.judged), where)
        allowed = self.limit.constraint.allowed(self.state.tokens, self.state.writable, where)
        return self._drawn(where, allowed, Purpose.TOKEN)

    def _drawn(self, where: Tensor, allowed: Allowed, purpose: Purpose) -> Drawn:
        dice = self.state.uniform(self.step, purpose)
        return self._noted(
            self.sweep(self.hidden, self.head, where, dice, self.how, self.judged, allowed=allowed), where
        )

    def _noted(self, drawn: Drawn, where: Tensor) -> Drawn:
        """The draw, with log-probabilities of the measured distribution."""
        self.unmet((where & drawn.log.isnan()).any(1))
        self.weight = (drawn.model_logp - drawn.log).double().where(where, self.weight)
        if not self.limit.measures:
            return drawn
        share = self.limit.measured(self.judged).normaliser - self.judged.normaliser
        return replace(drawn, model_logp=drawn.model_logp - share)

    def settled(self, after: State, own: Callable[[Tensor, Tensor], Tensor]) -> State:
        """The state after the step, in which all that was written fits together; `own` undoes a penalty."""
        state, log = self.state, after.token_logp

        def redraw(where: Tensor, allowed: Allowed) -> Tensor:
            nonlocal log
            drawn = self._drawn(where, allowed, Purpose.REPAIR)
            log = own(drawn.model_logp, drawn.token).double().where(where, log)
            return drawn.token

        tokens = self.limit.constraint.settle(state.tokens, after.tokens, state.writable, redraw)
        same = tokens == state.tokens
        after = after.replace(tokens=tokens)
        log = log.where(~same, state.token_logp).masked_fill(after.masked, 0.0)
        weight = self.weight.where(~same, state.token_weight).masked_fill(after.masked | ~after.writable, 0.0)
        return after.replace(token_logp=log, token_weight=weight)
