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
from unmask.core.step import Known, Setup, Tally, advance, finish, first_carry, first_equal, recall, see


@dataclass(frozen=True)
class Leg:
    """What a segment is given: rows of a slice, and the steps that they take."""

    number: int  # of the slice, from 0
    first: int  # particles of the prompt before it
    state: State  # without a cache; its rows alone
    step: int  # the next one
    until: int | None  # the step at whose look the segment ends: a meeting; None: the end of the walk
    seen: Tensor  # [k] bool: rows whose present canvas was looked at, and counted, before
    copies: Tensor | None = None  # [k] bool: rows that the meeting has made copies of others


@dataclass(frozen=True)
class Reached:
    """What a segment returns."""

    number: int
    state: State
    seen: Tensor  # [k] bool
    live: Tensor  # [k] bool: rows with a state entropy at the meeting; none of them without one
    active: bool  # whether any row is not done
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
    device = setup.denoiser.device
    state, seen = change(leg.state, lambda mine: mine.to(device)), leg.seen.to(device)
    copies = None if leg.copies is None else leg.copies.to(device)
    carry = first_carry(setup, state)
    active = setup.active(state, leg.step)
    state, known, tally = recall(setup, state, seen & active, carry.tally)
    carry = replace(carry, state=state, known=known, tally=tally, active=active, step=leg.step)
    found: list[Tensor] = []
    while bool(carry.active.any()) and carry.step != leg.until:
        carry, moment = advance(setup, carry, copies)
        copies = None
        found.append(moment.entropy)
    found = found if leg.step == 0 else found[1:]  # that of the first step was found by the segment before
    state, known, tally, live = carry.state, carry.known, carry.tally, torch.zeros_like(carry.active)
    more = bool(carry.active.any())
    if more:
        last = see(setup, carry)
        state, known, tally, live = last.state, last.known, last.tally, last.live
        found.append(last.entropy)
    entropy = torch.stack(found) if found else state.entropy.new_zeros(0, len(state.slot))
    reached = Reached(leg.number, state.replace(cache=None), ~known.stale, live, more, entropy, tally)
    return change(reached, lambda mine: mine.cpu())


# --- a walk ----------------------------------------------------------------------------------------------------------


def walk(setup: Setup, state: State, size: int, work: Work) -> Walked:
    """The walk of one prompt whose slices are given to `work`, segment after segment; on the host."""
    assert len(state.tokens) == state.particles and not setup.meets(state)
    every = int(setup.intervals(state)[0]) if setup.search.resamples else None
    parts = torch.split(torch.arange(len(state.tokens)), size)
    seen, step, copies = torch.zeros_like(state.slot, dtype=torch.bool), 0, None
    none = torch.zeros_like(state.slot)
    tally, steps = Tally(none, none[:1], none, none), list[tuple[Tensor, Resampled | None]]()
    while True:
        until = None if every is None else (step // every + 1) * every
        legs = [
            Leg(number, int(rows[0]), _slice(state, rows), step, until, seen[rows]) for number, rows in enumerate(parts)
        ]
        if copies is not None:
            legs = [replace(leg, copies=copies[rows]) for leg, rows in zip(legs, parts, strict=True)]
        found = work(legs)
        state, seen = _joined(state, [one.state for one in found]), torch.cat([one.seen for one in found])
        tally = _added(tally, [one.tally for one in found])
        steps += [(entropy, None) for entropy in _beside([one.entropy for one in found])]
        if until is None or not any(one.active for one in found):
            finish(state)
            return Walked(state, tally, steps)
        state, resampled = meet(setup, state, torch.cat([one.live for one in found]), until)
        steps[-1] = steps[-1][0], resampled
        seen = seen[resampled.ancestors]
        copies = copied(resampled.ancestors, state.particles) if setup.search.reopen > 0 else None
        step = until


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
