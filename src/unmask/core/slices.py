"""A State of one prompt × slices of its particles × who does segments -> the end of the walk, in the same steps.

Slices are of a fixed size, so that whoever does them, and however many there are, changes no bit. A segment is a pure
function: rows of a slice before a step, resampled already, -> the rows at the next meeting, which have been looked at
but not moved. Between two segments are `standing_of` and `Search.resample` over all rows, as in a walk on one device.
The next segment looks at its rows again: hidden states stay where they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.resampling import Resampled, copied, standing_of
from unmask.core.state import State, change
from unmask.core.step import (
    Carry,
    Known,
    Setup,
    Tally,
    advance,
    finish,
    first_block,
    first_carry,
    first_equal,
    recall,
    see,
)


@dataclass(frozen=True)
class Leg:
    """What a segment is given: rows of a slice, and the steps that they take."""

    number: int  # of the slice, from 0
    first: int  # particles of the prompt before it
    state: State  # without a cache; its rows alone
    step: int  # the next one
    until: int | None  # the step at whose look the segment ends: a meeting; None: it ends without one
    block: int | None  # where meetings are entries into blocks: the one that is left; None: they are not
    seen: Tensor  # [k] bool: rows whose present canvas was looked at, and counted, before
    copies: Tensor | None = None  # [k] bool: rows that the meeting has made copies of others


@dataclass(frozen=True)
class Reached:
    """What a segment returns."""

    number: int
    state: State
    seen: Tensor  # [k] bool
    live: Tensor  # [k] bool: rows with a state entropy at the meeting; none of them without one
    more: bool  # whether any row is not done
    step: int  # the next one of its rows
    block: int  # the first block that a row which is not done is in
    entropy: Tensor  # [n, k] float64: state entropies of the steps that were looked at, nats; NaN without masks
    tally: Tally


@dataclass(frozen=True)
class Walked:
    """A walk, from its end."""

    state: State
    tally: Tally
    steps: list[tuple[Tensor, Resampled | None]]  # state entropies [B] before the resampling of each step


Work = Callable[[Sequence[Leg]], Sequence[Reached]]  # the same order


# --- a segment -------------------------------------------------------------------------------------------------------


def segment(setup: Setup, leg: Leg) -> Reached:
    """The steps of a slice from one meeting to the look of the next, on the denoiser's device."""
    setup = replace(setup, may_resample=False, first=leg.first)
    carry = _begun(setup, change(leg, lambda mine: mine.to(setup.denoiser.device)))
    copies, found = leg.copies, list[Tensor]()
    while (here := _is_here(leg, carry)) and carry.step != leg.until:
        carry, moment = advance(setup, carry, None if copies is None else copies.to(carry.active.device))
        copies = None
        found.append(moment.entropy)
    found = found if leg.step == 0 else found[1:]  # that of the first step was found by the segment before
    state, known, tally, live = carry.state, carry.known, carry.tally, torch.zeros_like(carry.active)
    if here and leg.until is not None:
        last = see(setup, carry)
        state, known, tally, live = last.state, last.known, last.tally, last.live
        found.append(last.entropy)
    entropy = torch.stack(found) if found else state.entropy.new_zeros(0, len(state.slot))
    more, block = bool(carry.active.any()), int(first_block(carry.state, carry.active)[0])
    after = state.replace(cache=None)
    reached = Reached(leg.number, after, ~known.stale, live, more, int(carry.step), block, entropy, tally)
    return change(reached, lambda mine: mine.cpu())


def _begun(setup: Setup, leg: Leg) -> Carry:
    """The carry of a segment's first step; what was known of its rows is looked at again."""
    carry, active = first_carry(setup, leg.state), setup.active(leg.state, leg.step)
    state, known, tally = recall(setup, leg.state, leg.seen & active, carry.tally)
    return replace(carry, state=state, known=known, tally=tally, active=active, step=leg.step)


def _is_here(leg: Leg, carry: Carry) -> bool:
    """Whether a row takes the next step: of a slice that is a block ahead of the others all rows wait."""
    ahead = leg.block is not None and int(first_block(carry.state, carry.active)[0]) > leg.block
    return bool(carry.active.any()) and not ahead


# --- a walk ----------------------------------------------------------------------------------------------------------


def walk(setup: Setup, state: State, size: int, work: Work) -> Walked:
    """The walk of one prompt whose slices are given to `work`, segment after segment; on the host."""
    assert len(state.tokens) == state.particles
    every = int(setup.intervals(state)[0]) if setup.search.resamples else None
    rounds, step = _Rounds(setup, state, size, work), 0
    block = int(first_block(state, setup.active(state, 0))[0]) if setup.meets(state) else None
    while True:
        if block is not None:  # when all rows have left it, and where they are then, is known after all have
            left = rounds.go(step, None, block)
            step, block = max(one.step for one in left), min(one.block for one in left)
            until = step if any(one.more for one in left) else None
        else:
            until = None if every is None else (step // every + 1) * every
        found = left if block is not None and until is None else rounds.go(step, until, block)
        if until is None or not any(one.more for one in found):
            finish(rounds.state)
            return Walked(rounds.state, rounds.tally, rounds.steps)
        rounds.meet(torch.cat([one.live for one in found]), until)
        step = until


class _Rounds:
    """All slices at once, one segment after the other, and what has come of them so far."""

    def __init__(self, setup: Setup, state: State, size: int, work: Work) -> None:
        self.setup, self.state, self.work = setup, state, work
        self.parts = torch.split(torch.arange(len(state.tokens)), size)
        none = torch.zeros_like(state.slot)
        self.seen, self.copies = none.bool(), none.bool()
        self.tally = Tally(none, none[:1], none, none)
        self.steps: list[tuple[Tensor, Resampled | None]] = []

    def go(self, step: int, until: int | None, block: int | None) -> Sequence[Reached]:
        """One segment of every slice."""
        legs = [
            Leg(number, int(rows[0]), _slice(self.state, rows), step, until, block, self.seen[rows], self.copies[rows])
            for number, rows in enumerate(self.parts)
        ]
        found = self.work(legs)
        self.state = _joined(self.state, [one.state for one in found])
        self.seen = torch.cat([one.seen for one in found])
        self.tally = _added(self.tally, [one.tally for one in found])
        self.steps += [(entropy, None) for entropy in _beside([one.entropy for one in found])]
        return found

    def meet(self, live: Tensor, step: int) -> None:
        """Resample all particles, by the numbers of the look that was taken last."""
        self.state, resampled = meet(self.setup, self.state, live, step)
        self.steps[-1] = self.steps[-1][0], resampled
        self.seen = self.seen[resampled.ancestors]
        if self.setup.search.reopen > 0:
            self.copies = copied(resampled.ancestors, self.state.particles)


def meet(setup: Setup, state: State, live: Tensor, step: int) -> tuple[State, Resampled]:
    """Resample all particles by the numbers that slices have found; equal canvases have those of the first."""
    first = first_equal(state, Known(~live), torch.zeros_like(live)[:, None])  # the first of those with a number
    if first is not None:
        state = state.replace(entropy=state.entropy[first].where(live, state.entropy))
    table = standing_of(setup.search, state, live, setup.denoiser.head.width)
    found = setup.search.resample(setup.search, table, step, torch.ones_like(live[:1]))
    return state.resample(found.ancestors).replace(log_weight=found.log_weight, score=found.score), found


def _slice(state: State, rows: Tensor) -> State:
    """These rows as a State of their own."""
    return state.take(rows).replace(particles=len(rows), cache=None)


def _joined(whole: State, parts: Sequence[State]) -> State:
    """The slices of a state side by side."""
    first, *others = parts
    return change(first, lambda *some: torch.cat(some), *others).replace(particles=whole.particles)


def _added(tally: Tally, parts: Sequence[Tally]) -> Tally:
    """What was spent, with what slices have spent since: of the calls, those of all of them."""
    steps, evaluations, rows = (
        torch.cat([getattr(one, name) for one in parts]) for name in ("steps", "evaluations", "rows")
    )
    calls = sum((one.calls for one in parts), tally.calls)
    return Tally(tally.steps + steps, calls, tally.evaluations + evaluations, tally.rows + rows)


def _beside(parts: Sequence[Tensor]) -> list[Tensor]:  # [n, k] each -> [K] each
    """The entropies of slices step by step; where a slice has ended early, NaN."""
    most = max(len(one) for one in parts)
    filled = [torch.nn.functional.pad(one, (0, 0, 0, most - len(one)), value=torch.nan) for one in parts]
    return list(torch.cat(filled, 1))
