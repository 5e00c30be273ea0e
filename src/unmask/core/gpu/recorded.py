"""A walk that never waits for the device: one step is recorded as a CUDA graph and played again and again.

What a step computes is written in `engine.advance` and nowhere else. A recorded step reads and writes fixed tensors;
its number is one of them. The host learns of an error, or that all rows are done, one step late: meanwhile a step runs
in which no row is active, which changes nothing. What was recorded serves the next walk of the same kind.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from unmask.core import beliefs, dice
from unmask.core import step as engine
from unmask.core.denoiser import Denoiser
from unmask.core.faults import Faults
from unmask.core.gpu import fused
from unmask.core.gpu.spread import MOVING, spread, spread_state
from unmask.core.resampling import Resampled, Search
from unmask.core.state import State
from unmask.core.step import Moment, Sight, Tally, Way, advance, blind, finish
from unmask.core.turn import Sampler
from unmask.errors import UnmaskError
from unmask.models.compiled import is_compiled
from unmask.models.transformer import Transformer
from unmask.models.wrap import Chunked, Guided, layers
from unmask.samplers.reveal import Reveal
from unmask.samplers.revise import P2, DraftRefine

MANY = 1 << 14  # positions from which a step's small operations are little beside its network: not worth compiling
KEPT = 4  # kinds of step that stay recorded when a walk is over


def walk(
    denoiser: Denoiser, state: State, sampler: Sampler, search: Search, rules: engine.Rules = engine.Rules()
) -> Iterator[Moment]:
    """Decode, one Moment per step; on a GPU without waiting where that can be. A Moment is good until the next one."""
    way = Way(denoiser, sampler, search, rules, asks=False)
    if not can(way, state):
        return engine.walk(denoiser, state, sampler, search, rules)
    return _recorded_walk(way, state)


def can(way: Way, state: State) -> bool:
    """Whether every part of a step can be recorded, and whether leaving rows out would not save more than waiting."""
    return (
        state.tokens.is_cuda
        and all(isinstance(layer, (Transformer, Guided, Chunked)) for layer in layers(way.denoiser))
        and isinstance(way.sampler, (Reveal, P2, DraftRefine))
        and _fused(way)
        and bool(way.sampler.steady(state).all())
    )


def _fused(way: Way) -> bool:
    """Whether the sweeps over the vocabulary leave the host alone."""
    head, draw = way.denoiser.head, way.rules.draw
    return head.weight is not None and fused.usable(head.weight, head, draw.top_k, draw.top_p)


@dataclass
class Carry:
    """What goes on from one recorded step to the next: always the same tensors."""

    state: State
    stale: Tensor  # [B] bool
    tally: Tally
    step: Tensor  # [] int64
    signal: Tensor  # [P + 1] int64: whether any row of a prompt takes the next step; the code of a fault
    rows: Tensor  # [B] int64: the rows of the whole batch that these are
    every: Tensor  # [P] int64: steps between resamplings

    @property
    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        moving = [getattr(self.state, name) for name in MOVING]
        return [*moving, self.stale, self.tally.steps, self.tally.calls, self.tally.evaluations, self.step, self.signal]

    @property
    def whole(self) -> list[Tensor]:
        """All tensors, in an order that is always the same."""
        fixed = [self.state.writable, self.state.attend, self.state.key, self.state.slot, self.state.budget]
        return [*self.tensors, *fixed, self.rows, self.every]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What two carries have in common whose steps are the same work."""
        state = self.state
        return tuple(self.state.tokens.shape), state.particles, state.padded, state.vocab, state.tokens.device


def copy(new: list[Tensor], old: list[Tensor]) -> None:
    """The new numbers into the old tensors, all of a type at once."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in old):
        pairs = [(b, a) for a, b in zip(new, old, strict=True) if b.dtype == dtype]
        torch._foreach_copy_([b for b, _ in pairs], [a for _, a in pairs])


def _next(way: Way, carry: Carry, resamples: bool) -> tuple[Carry, Moment]:
    """One step without a question; `resamples`: some prompt is due."""
    state, step = carry.state, carry.step
    active = way.active(state, step)
    due = (step > 0) & (step % carry.every == 0) if resamples else None
    sight = Sight(None, None, carry.stale, torch.zeros_like(state.writable))
    faults = Faults(way.denoiser.name, state.particles, step, torch.zeros_like(step))
    moment = advance(way, state, sight, carry.tally, step, active, due, faults)
    assert faults.code is not None
    signal = _signal(way, moment.state, step + 1, faults.code)
    return Carry(moment.state, sight.stale, moment.tally, step + 1, signal, carry.rows, carry.every), moment


def _signal(way: Way, state: State, step: Tensor, code: Tensor) -> Tensor:
    alive = way.active(state, step).view(-1, state.particles).any(1)
    return torch.cat([alive.long(), code[None]])


class Apart:
    """What a compiled step sees of a denoiser: plain values."""

    def __init__(self, inner: Denoiser) -> None:
        self.inner, self.name, self.head, self.cost, self.timed = inner, inner.name, inner.head, inner.cost, inner.timed

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        return self.inner.look(state, rows)


@lru_cache(maxsize=1)
def _compiled_next() -> Callable[[Way, Carry, bool], tuple[Carry, Moment]]:
    """`_next` with its small operations compiled into few; the network and the sweeps are as they were.

    What tells the compiler so is said here: its import takes a second, which most who import this never need.
    """
    disable: Callable[..., Any] = torch.compiler.disable
    apart = {name: disable(getattr(beliefs, name)) for name in ("weigh", "draw")}
    hidden = type("Hidden", (Apart,), {"look": disable(Apart.look)})  # not even `inner` may be seen
    torch.compiler.assume_constant_result(dice.words)  # type: ignore[no-untyped-call]
    step = torch.compile(_next, dynamic=False)

    def run(way: Way, carry: Carry, resamples: bool) -> tuple[Carry, Moment]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`")  # they are pure
            return step(replace(way, denoiser=cast(Denoiser, hidden(way.denoiser)), **apart), carry, resamples)

    return run


class Recorded:
    """A step as a graph: playing it moves `carry` on in place and fills the tensors of `moment` anew."""

    def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], carry: Carry) -> None:
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # once beforehand, so that kernels are loaded and compiled
            step(carry)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            after, moment = step(carry)
            before = moment.before.clone()  # the tokens are about to be overwritten
            copy(after.tensors, carry.tensors)
        self.moment = replace(moment, state=carry.state, before=before, tally=carry.tally)

    def play(self, step: int) -> Moment:
        """The next step. What outlives the one after it is copied."""
        self.graph.replay()
        found, resampled = self.moment, self.moment.resampled
        if resampled is not None:
            resampled = Resampled(*(getattr(resampled, field.name).clone() for field in fields(Resampled)))
        return replace(found, step=step, entropy=found.entropy.clone(), resampled=resampled)


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


def _recorded_walk(way: Way, state: State) -> Iterator[Moment]:
    sight, tally = blind(state)
    faults = Faults(way.denoiser.name, state.particles, 0)
    first = replace(way, asks=True)  # the particles of a prompt are still equal: one of them is computed
    whole = advance(first, state, sight, tally, 0, way.active(state, 0), None, faults)
    yield whole
    part = _Part(way, _carry(way, whole, sight.stale, torch.arange(len(state.tokens), device=state.tokens.device), 1))
    used = [part]
    try:
        while part.alive:
            moment = part.play()
            if not part.alive:  # it was over before this step
                break
            yield spread(moment, whole, part.carry.rows)
            if part.planned_end:
                break
            if 2 * len(part.alive) <= part.prompts:
                whole = spread(moment, whole, part.carry.rows)
                part = part.rest(whole)
                used.append(part)
        part.settle()
        finish(spread_state(part.carry.state, whole.state, part.carry.rows))
    finally:
        _keep(used)


@dataclass(eq=False)
class _Kept:
    """Recorded steps of a walk that is over. They belong to the network, and go with it."""

    how: tuple[Any, ...]
    carry: Carry
    recorded: dict[bool, Recorded]


def _keep(parts: list[_Part]) -> None:
    """What the parts of a walk have recorded, for the next one; only where at least half of the memory is free."""
    denoiser = parts[0].way.denoiser
    free, total = torch.cuda.mem_get_info(denoiser.device) if denoiser.device.type == "cuda" else (1, 1)
    if isinstance(denoiser, Transformer):  # others are made anew for each walk
        more = [_Kept(part.how, part.carry, part.recorded) for part in parts if 2 * free >= total]
        denoiser.recorded[:] = [*denoiser.recorded, *more][-KEPT:]


def _taken(part: _Part) -> _Kept | None:
    """Steps that are recorded and are the same work; they are no longer kept: no two walks use them at a time."""
    kept = part.way.denoiser.recorded if isinstance(part.way.denoiser, Transformer) else []
    found = next((one for one in kept if one.how == part.how), None)
    if found is not None:
        kept.remove(found)
    return found


class _Part:
    """The prompts of a batch that are not done yet, one recorded step after the other."""

    def __init__(self, way: Way, carry: Carry) -> None:
        self.way, self.carry = way, carry
        self.recorded: dict[bool, Recorded] = {}
        self.how = (threading.get_ident(), way.sampler, way.search, way.rules, carry.kind)
        kept = _taken(self)
        if kept is not None:
            copy(carry.whole, kept.carry.whole)
            self.carry, self.recorded = kept.carry, kept.recorded
        self.step = self.began = int(carry.step)
        self.every = way.intervals(carry.state)
        self.prompts = len(self.every)
        self.last = _last_step(way, carry.state)
        self.signals = Signals(self.carry.signal)
        self.alive = self._alive(carry.signal.tolist())  # prompts that take the step which was played last

    @property
    def planned_end(self) -> bool:
        return self.last is not None and self.step >= self.last

    def play(self) -> Moment:
        """The next step; only now it is known who takes it."""
        due = self.way.search.resamples and any(self.step % interval == 0 for interval in self.every)
        if due not in self.recorded:
            self.recorded[due] = self._record(due)
        moment = self.recorded[due].play(self.step)
        self.signals.send(self.step)
        if self.step > self.began:
            self.alive = self._alive(self._read(self.step - 1))
        self.step += 1
        return moment

    def _record(self, due: bool) -> Recorded:
        if is_compiled(self.way.denoiser) and self.carry.state.tokens.numel() < MANY:
            step = _compiled_next()
            try:
                return Recorded(lambda carry: step(self.way, carry, due), self.carry)
            except (UnmaskError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever a compiler throws: its work is not needed for a right answer
                first = str(error).strip().split("\n")[0][:200]
                warnings.warn(f"a step could not be compiled and runs as it is: {first}", stacklevel=2)
        return Recorded(lambda carry: _next(self.way, carry, due), self.carry)

    def settle(self) -> None:
        """Wait for the last step, which may have found a fault."""
        if self.step > self.began:
            self._read(self.step - 1)

    def rest(self, whole: Moment) -> _Part:
        """Those who go on, by themselves."""
        self.settle()
        k = self.carry.state.particles
        mine = torch.tensor([prompt * k + i for prompt in self.alive for i in range(k)], device=self.carry.step.device)
        return _Part(self.way, _carry(self.way, whole, self.carry.stale[mine], self.carry.rows[mine], self.step))

    def _read(self, step: int) -> list[int]:
        *alive, code = self.signals.read(step)
        Faults(self.way.denoiser.name, self.carry.state.particles, step).check(code)
        return [*alive, code]

    def _alive(self, signal: list[int]) -> list[int]:
        return [prompt for prompt, more in enumerate(signal[:-1]) if more]


def _carry(way: Way, whole: Moment, stale: Tensor, rows: Tensor, step: int) -> Carry:
    """Tensors of their own for these rows."""
    state = whole.state.replace(cache=None).take(rows)
    prompts = rows[:: state.particles] // state.particles
    tally = Tally(whole.tally.steps[rows], whole.tally.calls[prompts], whole.tally.evaluations[rows])
    now = torch.full_like(rows[0], step)
    signal = _signal(way, state, now, torch.zeros_like(now))
    every = torch.tensor(way.intervals(state), device=now.device)
    return Carry(state, stale.clone(), tally, now, signal, rows, every)


def _last_step(way: Way, state: State) -> int | None:
    """After how many steps all rows are done, where the plan alone says so."""
    sampler = way.sampler
    planned = sampler.scheduled and not getattr(sampler, "carries", False) and not getattr(sampler, "fresh", False)
    return int(state.budget.max()) if planned else None
