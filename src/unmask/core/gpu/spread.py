"""A part of a batch -> the whole batch, in which the other rows stand still."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.core.beliefs import RAW, Raw
from unmask.core.resampling import Resampled
from unmask.core.state import State
from unmask.core.step import Moment, Tally

MOVING = (
    *("tokens", "origin", "time", "entropy", "entropy_sum", "entropy_weight", "log_entropy_sum", "log_entropy_weight"),
    *("log_weight", "said", "score"),
)  # of a State


def spread(moment: Moment, whole: Moment, rows: Tensor) -> Moment:
    """The moment of these rows as one of the whole batch, in which the others stand still."""
    if len(rows) == len(whole.active):
        return moment
    k = moment.state.particles
    prompts = rows[::k] // k
    old, new = whole.tally, moment.tally
    tally = Tally(
        old.steps.index_copy(0, rows, new.steps),
        old.calls.index_copy(0, prompts, new.calls),
        old.evaluations.index_copy(0, rows, new.evaluations),
    )
    resampled = moment.resampled
    if resampled is not None:
        everyone = torch.arange(len(whole.active), device=rows.device)
        nothing = torch.zeros(len(everyone) // k, dtype=torch.float64, device=rows.device)
        unknown = torch.full_like(nothing, torch.nan)
        resampled = Resampled(
            everyone.index_copy(0, rows, rows[resampled.ancestors]),
            whole.state.log_weight.index_copy(0, rows, resampled.log_weight),
            whole.state.score.index_copy(0, rows, resampled.score),
            nothing.index_copy(0, prompts, resampled.log_evidence),
            unknown.index_copy(0, prompts, resampled.ess),
            unknown.index_copy(0, prompts, resampled.strength),
        )
    pairs = ((getattr(whole.raw, name), getattr(moment.raw, name)) for name in RAW)
    return Moment(
        moment.step,
        spread_state(moment.state, whole.state, rows),
        whole.state.tokens.index_copy(0, rows, moment.before),
        torch.zeros_like(whole.active).index_copy(0, rows, moment.active),
        torch.full_like(whole.entropy, torch.nan).index_copy(0, rows, moment.entropy),
        resampled,
        Raw(*(old.index_copy(0, rows, new) for old, new in pairs)),
        tally,
    )


def spread_state(part: State, whole: State, rows: Tensor) -> State:
    if len(rows) == len(whole.tokens):
        return part
    return whole.replace(**{name: getattr(whole, name).index_copy(0, rows, getattr(part, name)) for name in MOVING})
