"""Denoiser × State × sampler × search -> Moments, one per step, until every row is done.

Two drivers take the same steps: `waiting` waits for the device in each of them to leave out rows that need no call;
`gpu.recorded` plays recorded steps on a GPU and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from unmask.core import beliefs
from unmask.core.beliefs import Drawn
from unmask.core.denoiser import Denoiser, traits
from unmask.core.gpu import recorded
from unmask.core.resampling import Search
from unmask.core.sampler import Sampler
from unmask.core.state import State
from unmask.core.step import ASKED, Moment, Over, Rules, Setup, advance, finish, first_carry


def walk(
    denoiser: Denoiser,
    state: State,
    sampler: Sampler,
    search: Search,
    rules: Rules = Rules(),
    draw: Callable[..., Drawn] = beliefs.draw,
    keeps_hidden: bool = False,
    over: Over | None = None,
) -> Iterator[Moment]:
    """Decode; the tensors of a Moment are valid until the next one, so copy what must live longer.

    `draw` replaces the function that draws tokens at temperatures above 0; `keeps_hidden`: moments have `hidden`.
    Neither is recorded. `over` is asked every few steps which rows need no further one; the model has an EOS then.
    """
    shares = not traits(denoiser).keeps_rows
    setup = Setup(denoiser, sampler, search, rules, shares_rows=shares, keeps_hidden=keeps_hidden, draw=draw)
    if draw is beliefs.draw and not keeps_hidden and recorded.can_record(setup, state):
        return recorded.walk(setup, state, over)
    return waiting(setup, state, over)


def waiting(setup: Setup, state: State, over: Over | None = None) -> Iterator[Moment]:
    """One step after the other; the host asks for the rows that need a call, and whether any row is left."""
    carry = first_carry(setup, state, over is not None)
    while bool(carry.active.any()):
        carry, moment = advance(setup, carry)
        if over is not None and carry.step % ASKED == 0:
            carry = carry.without(over(carry.state))
            moment = replace(moment, state=carry.state)
        yield moment
    finish(carry.state)
