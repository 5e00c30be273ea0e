"""The driver that never waits for the device: a step is recorded as a CUDA graph and played again and again.

A step computes what `step.advance` says and nothing else. A recorded one reads and writes fixed tensors; its number is
one of them. The host learns of an error, or that all rows are done, one step late: meanwhile a step runs in which no
row is active, which changes nothing. Three parts make it faster, each by itself: finished prompts are dropped, the
small operations of a step are compiled where the network is, and recordings serve the next walk of the same kind.

Where a model keeps keys and values, these stay in fixed tensors too, and how much a step computes depends on whether a
row has entered a block. There are recordings for each case, and between two steps the host reads which one is next.
The same is done while equal canvases make half of the rows or more needless: particles in a sure order are often equal.
Where a constraint reads canvases, a step is recorded in parts, with the host's work between them (`gpu.parted`).
Where texts can be over before their canvas is full, the host waits every few steps, between two of them, to read them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from unmask.core import beliefs, dice
from unmask.core.constraint import Constraint
from unmask.core.denoiser import Denoiser, FixedCache, traits
from unmask.core.faults import Faults
from unmask.core.gpu import head as fused
from unmask.core.gpu.parted import Device, Parts, Pauses
from unmask.core.resampling import Resampled
from unmask.core.sampler import planned_end, steady
from unmask.core.state import State, change, put, take, tensors
from unmask.core.step import (
    ASKED,
    Carry,
    Known,
    Moment,
    Over,
    Setup,
    advance,
    distinct,
    finish,
    first_block,
    first_carry,
)
from unmask.errors import UnmaskError

MANY = 1 << 14  # positions from which a step's small operations are little beside its network: not worth compiling
KEPT = 4  # kinds of step that stay recorded when a walk is over
PATIENCE = 8  # steps until equal canvases are looked for again; doubled whenever there are few


def can_record(setup: Setup, state: State) -> bool:
    """True if a step can be captured as a CUDA graph and skipping unchanged rows would save nothing."""
    reads = setup.search.potential is not None and setup.search.potential.reads
    if setup.rules.constraint is not None and traits(setup.denoiser).fixed is not None:
        return False  # what rows keep and what the host reads were not tried together
    return on_a_gpu(setup, state) and not reads and traits(setup.denoiser).recordable and steady(setup.sampler, state)


def on_a_gpu(setup: Setup, state: State) -> bool:
    """Whether the kernels do the sweeps over the vocabulary."""
    head, draw = setup.denoiser.head, setup.rules.draw
    usable = head.weight is not None and fused.usable(head.weight, head, draw.top_k, draw.top_p)
    return state.tokens.is_cuda and usable


# --- a recorded step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """The tensors that recorded steps read and write: always the same ones."""

    carry: Carry
    signal: Tensor  # [P + 1 + …] int64: whether any row of a prompt takes the next step; the code of a fault; a plan
    cache: FixedCache | None = None  # what rows keep; steps change it in place
    counts: bool = False  # the plan is how many canvases differ; with a cache: whether a block is entered, and its own


Advance = Callable[[Setup, Carry], tuple[Carry, Moment]]


def looped(carry: Carry, cache: FixedCache | None = None, counts: bool = False) -> Loop:
    """The carry, without its cache, and what the host has to know of it."""
    assert carry.fault is not None
    alive = carry.active.view(-1, carry.state.particles).any(1)
    plan = [torch.full_like(carry.fault, -1)[None]]  # not counted
    if cache is not None:
        enters = first_block(carry.state, carry.active) > carry.block
        plan = [enters.any().long()[None], cache.plan(carry.state, carry.active)]
    elif counts:
        plan = [distinct(carry)[None]]
    signal = torch.cat([alive.long(), carry.fault[None], *plan])
    return Loop(given(carry, None), signal, cache, counts)


def copy(new: Loop, old: Loop) -> None:
    """The new numbers into the old tensors, all of a type at once."""
    pairs = [(b, a) for a, b in zip(tensors(new), tensors(old), strict=True) if a is not b and b.numel()]
    for dtype in dict.fromkeys(b.dtype for b, _ in pairs):
        some = [(b, a) for b, a in pairs if b.dtype == dtype]
        torch._foreach_copy_([b for b, _ in some], [a for _, a in some])


def fixed(moment: Moment, old: Loop) -> Moment:
    """The moment, whose state and tally are those of the loop; its parts that the loop overwrites are copied."""
    before, active = moment.before.clone(), moment.active.clone()
    return replace(moment, state=old.carry.state, tally=old.carry.tally, before=before, active=active)


def given(carry: Carry, cache: FixedCache | None) -> Carry:
    """The carry with what rows keep."""
    return replace(carry, state=carry.state.replace(cache=cache))


class Recorded:
    """A step as a graph: playing it advances `loop` in place and fills the tensors of `moment` anew."""

    def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], loop: Loop) -> None:
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # once beforehand, so that kernels are loaded and compiled
            spare = None if loop.cache is None else loop.cache.clone()
            after, _ = step(given(loop.carry, spare))
            looped(after, spare, loop.counts)
            del after, spare
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            after, moment = step(given(loop.carry, loop.cache))
            self.moment = fixed(moment, loop)
            copy(looped(after, loop.cache, loop.counts), loop)

    def replay(self) -> None:
        self.graph.replay()

    def play(self, step: int) -> Moment:
        """The next step. `entropy` and `resampled` are copied: a caller may keep them to the end of the walk."""
        self.replay()
        found, resampled = self.moment, self.moment.resampled
        resampled = None if resampled is None else change(resampled, Tensor.clone)
        return replace(found, step=step, entropy=found.entropy.clone(), resampled=resampled)


class Paused(Recorded):
    """A step as several graphs, between which the host works."""

    def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], loop: Loop, pauses: Pauses) -> None:
        device = Device()
        with device.aside():
            spare = None if loop.cache is None else loop.cache.clone()
            after, _ = step(given(loop.carry, spare))
            looped(after, spare, loop.counts)
            del after, spare
        self.parts = Parts(pauses, device)

        def whole() -> None:
            after, moment = step(given(loop.carry, loop.cache))
            self.moment = fixed(moment, loop)
            copy(looped(after, loop.cache, loop.counts), loop)

        self.parts.record(whole)

    def replay(self) -> None:
        self.parts.play()


class Unrecorded(Recorded):
    """Stands in where recording failed: the step is taken anew each time."""

    def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], loop: Loop) -> None:
        self.step, self.loop = step, loop

    def replay(self) -> None:
        after, moment = self.step(given(self.loop.carry, self.loop.cache))
        self.moment = fixed(moment, self.loop)
        copy(looped(after, self.loop.cache, self.loop.counts), self.loop)


class Signals:
    """The signal of each step on its way to the host, which reads it when the next step has begun."""

    def __init__(self, signal: Tensor) -> None:
        self.signal = signal
        self.there = [torch.zeros(len(signal), dtype=torch.int64).pin_memory() for _ in range(2)]
        self.arrived = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def send(self, step: int) -> None:
        self.there[step % 2].copy_(self.signal, non_blocking=True)
        self.arrived[step % 2].record()

    def read(self, step: int) -> list[int]:
        """Of the last step that was sent, or of the one before."""
        self.arrived[step % 2].synchronize()
        return self.there[step % 2].tolist()


# --- the walk --------------------------------------------------------------------------------------------------------


def walk(setup: Setup, state: State, over: Over | None = None) -> Iterator[Moment]:
    """Decode without waiting for the device; the contract of `core.walk.walk` holds."""
    first = first_carry(setup, state, over is not None)
    carry, whole = advance(setup, first)  # waits: of a prompt's equal particles one is computed
    yield whole
    setup = replace(setup, skips_rows=False)
    keeps = traits(setup.denoiser).fixed
    cache = None if keeps is None else keeps(carry.state)
    part = _Part(setup, carry, torch.arange(len(state.tokens), device=state.tokens.device), cache)
    used = [part]
    try:
        while part.alive:
            moment = part.play()
            if moment is None or not part.alive:  # it was over before this step
                break
            if over is not None and part.step % ASKED == 0:
                part.end(over)
            yield spread(moment, whole, part.rows)
            if part.planned_end:
                break
            if 2 * len(part.alive) <= part.prompts:
                whole = spread(moment, whole, part.rows)
                part = part.rest()
                used.append(part)
        part.settle()
        finish(put(whole.state.replace(cache=None), part.rows, part.loop.carry.state))
    finally:
        keep(used)


class _Part:
    """The prompts of a batch that are not done yet, one recorded step after the other."""

    def __init__(self, setup: Setup, carry: Carry, rows: Tensor, cache: FixedCache | None) -> None:
        self.setup, self.rows = setup, rows  # [B'] int64: the rows of the whole batch
        self.step = self.began = int(carry.step)
        self.every = carry.every.tolist()
        self.prompts = len(self.every)
        self.last = planned_end(setup.sampler, carry.state)
        state = carry.state.replace(cache=None)
        now = torch.full_like(rows[0], self.step)
        carry = replace(carry, state=state, known=Known(carry.known.stale), step=now, fault=torch.zeros_like(now))
        self.loop = looped(change(carry, Tensor.clone), cache)
        self.recordings: dict[tuple[Any, ...], Recorded] = {}
        shape = tuple(state.tokens.shape), state.particles, state.padded, state.vocab, state.tokens.device
        kept = None if cache is None else cache.kind
        ends = carry.over is not None
        self.kind = (threading.get_ident(), setup.sampler, setup.search, setup.rules, shape, kept, ends)
        self.signal = self.loop.signal.tolist()
        self.alive = self._alive(self.signal)  # prompts that take the step which was played last
        take_over(self)
        self.signals = Signals(self.loop.signal)
        self.may_share = setup.shares_rows and cache is None and state.particles > 1
        self.differ = self._count() if self.may_share else len(rows)  # canvases of the rows, when last counted
        self.counts = Signals(torch.zeros_like(self.rows[:1]))
        self.asked, self.looked, self.patience = False, self.step, PATIENCE

    @property
    def planned_end(self) -> bool:
        return self.last is not None and self.step >= self.last

    def play(self) -> Moment | None:
        """The next step; `alive` then holds the prompts that take it. None: there is none."""
        if self.loop.cache is None and self._most() is None:
            moment = self._played(self._due(), self.loop)
            if self.step > self.began:
                self.alive = self._alive(self._read(self.step - 1))
            if self.may_share:
                self._watch()
        else:  # what the step computes depends on the one before it
            if self.step > self.began:
                self.signal = self._read(self.step - 1)
                self.alive = self._alive(self.signal)
            if not self.alive:
                return None
            moment = self._planned(self.signal[self.prompts + 1 :])
        self.step += 1
        return moment

    def _planned(self, plan: list[int]) -> Moment:
        """The next step as the one before it has planned it."""
        if self.loop.cache is None:
            self.differ = plan[0] if plan[0] >= 0 else self.differ
            return self._played(self._due(), replace(self.loop, counts=self._most() is not None))
        cache = self.loop.cache.planned(plan[1:])
        due = bool(plan[0]) if self.setup.meets(self.loop.carry.state) else self._due()
        moment = self._played(due, replace(self.loop, cache=cache))
        return replace(moment, state=moment.state.replace(cache=cache))

    def _most(self) -> int | None:
        """Rows that the next step computes, where equal canvases make them half as many or fewer."""
        most = 1 << max(0, self.differ - 1).bit_length()
        return most if 2 * most <= len(self.rows) and self.may_share else None

    def _count(self) -> int:
        """How many canvases the rows have now: the host waits to know."""
        return int(distinct(self.loop.carry))

    def _watch(self) -> None:
        """Ask now and then how many canvases the rows have, and hear of it a step later."""
        if self.asked:
            self.asked, self.differ = False, self.counts.read(self.looked)[0]
            if self._most() is None:
                self.patience *= 2
            else:
                self.differ, self.patience = self._count(), PATIENCE
        elif self.step - self.looked >= self.patience:
            self.counts.signal.copy_(distinct(self.loop.carry)[None])
            self.counts.send(self.step)
            self.asked, self.looked = True, self.step

    def _due(self) -> bool:
        return self.setup.search.resamples and any(self.step % interval == 0 for interval in self.every)

    def _played(self, due: bool, loop: Loop) -> Moment:
        most = self._most() if loop.cache is None else None
        key = due, most, None if loop.cache is None else loop.cache.key
        if key not in self.recordings:
            self.recordings[key] = record(replace(self.setup, may_resample=due, most=most), loop)
        moment = self.recordings[key].play(self.step)
        self.signals.send(self.step)
        return moment

    def end(self, over: Over) -> None:
        """Texts that are over take no further step; the host waits to read them."""
        self.settle()
        found = over(self.loop.carry.state)
        if bool(found.any()):
            copy(looped(self.loop.carry.without(found), self.loop.cache), self.loop)
            self.signals.send(self.step - 1)

    def settle(self) -> None:
        """Wait for the last step, which may have found a fault."""
        if self.step > self.began:
            self._read(self.step - 1)

    def _read(self, step: int) -> list[int]:
        signal = self.signals.read(step)
        Faults(self.setup.denoiser.name, self.loop.carry.state.particles, step).check(signal[self.prompts])
        return signal

    def _alive(self, signal: list[int]) -> list[int]:
        return [prompt for prompt, more in enumerate(signal[: self.prompts]) if more]

    # --- dropping finished prompts ---

    def rest(self) -> _Part:
        """The prompts that are left, as a part of their own."""
        self.settle()
        k = self.loop.carry.state.particles
        mine = torch.tensor([prompt * k + i for prompt in self.alive for i in range(k)], device=self.rows.device)
        cache = None if self.loop.cache is None else self.loop.cache.part(mine)
        return _Part(self.setup, take(self.loop.carry, mine), self.rows[mine], cache)


def spread(moment: Moment, whole: Moment, rows: Tensor) -> Moment:
    """The moment of these rows as one of the whole batch, in which the others stand still."""
    if len(rows) == len(whole.active):
        return moment
    state, resampled = whole.state.replace(cache=None), None
    if moment.resampled is not None:
        everyone = torch.arange(len(whole.active), device=rows.device)
        none = torch.zeros_like(whole.tally.calls).double()
        resampled = Resampled(everyone, state.log_weight, state.score, none, none + torch.nan, none + torch.nan)
        moment = replace(moment, resampled=replace(moment.resampled, ancestors=rows[moment.resampled.ancestors]))
    still = replace(
        whole,
        step=moment.step,
        state=state,
        before=state.tokens,
        active=torch.zeros_like(whole.active),
        entropy=torch.full_like(whole.entropy, torch.nan),
        resampled=resampled,
    )
    return put(still, rows, moment)


# --- compiling the small operations of a step -------------------------------------------------------------------------


def record(setup: Setup, loop: Loop) -> Recorded:
    """The step as a graph, compiled where the network is compiled and the rest of the step is not small beside it."""
    if setup.rules.constraint is not None:
        return paused(setup, loop, setup.rules.constraint)
    if traits(setup.denoiser).is_compiled and loop.carry.state.tokens.numel() < MANY:
        step = compiled_step()
        try:
            return Recorded(lambda carry: step(setup, carry), loop)
        except (UnmaskError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a compiler throws: its work is not needed for a right answer
            first = str(error).strip().split("\n")[0][:200]
            warnings.warn(f"a step could not be compiled and runs uncompiled: {first}", stacklevel=2)
    return Recorded(lambda carry: advance(setup, carry), loop)


def paused(setup: Setup, loop: Loop, constraint: Constraint) -> Recorded:
    """The step as graphs between which the host reads canvases for a constraint."""
    constraint.reserve(loop.carry.state.tokens.numel())
    pauses = Pauses()
    held = replace(setup, apart=pauses)
    try:
        return Paused(lambda carry: advance(held, carry), loop, pauses)
    except (UnmaskError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a driver throws: recordings are not needed for a right answer
        first = str(error).strip().split("\n")[0][:200]
        warnings.warn(f"a step with a constraint could not be recorded: {first}", stacklevel=2)
        return Unrecorded(lambda carry: advance(setup, carry), loop)


class Apart:
    """What a compiled step sees of a denoiser: plain values."""

    def __init__(self, inner: Denoiser) -> None:
        self.inner, self.name, self.head, self.cost, self.timed = inner, inner.name, inner.head, inner.cost, inner.timed

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        return self.inner.look(state, rows)


@lru_cache(maxsize=1)
def compiled_step() -> Advance:
    """`advance` with its small operations compiled into few; the network and the sweeps run as they are.

    The compiler is configured here since importing it takes a second, which most walks never need.
    """
    disable: Callable[..., Any] = torch.compiler.disable
    apart = {name: disable(getattr(beliefs, name)) for name in ("weigh", "draw")}
    hidden = type("Hidden", (Apart,), {"look": disable(Apart.look)})  # not even `inner` may be seen
    torch.compiler.assume_constant_result(dice.words)  # type: ignore[no-untyped-call]
    step = torch.compile(advance, dynamic=False)

    def run(setup: Setup, carry: Carry) -> tuple[Carry, Moment]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`")  # they are pure
            return step(replace(setup, denoiser=cast(Denoiser, hidden(setup.denoiser)), **apart), carry)

    return run


# --- keeping recordings for the next walk -----------------------------------------------------------------------------


@dataclass(eq=False)
class _Kept:
    """Recorded steps of a walk that is over. They belong to the network, and are freed with it."""

    kind: tuple[Any, ...]
    loop: Loop
    recordings: dict[tuple[Any, ...], Recorded]


def keep(parts: list[_Part]) -> None:
    """Keep the recordings of a walk for the next one, where at least half of the device's memory is free."""
    denoiser = parts[0].setup.denoiser
    free, total = torch.cuda.mem_get_info(denoiser.device) if denoiser.device.type == "cuda" else (1, 1)
    kept = traits(denoiser).recordings
    if kept is not None:
        mine = [part for part in parts if part.setup.rules.constraint is None]  # of a constraint that nobody has again
        more = [_Kept(part.kind, _idle(part.loop), part.recordings) for part in mine if 2 * free >= total]
        kept[:] = [*kept, *more][-KEPT:]


def _idle(loop: Loop) -> Loop:
    """The loop without the model, which would otherwise hold itself."""
    return loop if loop.cache is None else replace(loop, cache=loop.cache.idle())


def take_over(part: _Part) -> None:
    """Use kept recordings of the same kind. They are no longer kept meanwhile: concurrent walks never share one."""
    kept = traits(part.setup.denoiser).recordings or []
    found = next((one for one in kept if one.kind == part.kind), None)
    if found is not None:
        kept.remove(found)
        copy(part.loop, found.loop)
        if found.loop.cache is not None and part.loop.cache is not None:
            found.loop = replace(found.loop, cache=found.loop.cache.fill(part.loop.cache))
        part.loop, part.recordings = found.loop, found.recordings
