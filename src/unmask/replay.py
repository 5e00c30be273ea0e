"""A walk that never waits for the device: one step is recorded as a CUDA graph and played again and again.

What a step computes is written in `engine.advance` and nowhere else. A recorded step reads and writes fixed tensors;
its number is one of them. The host learns of an error, or that all rows are done, one step late: meanwhile a step runs
in which no row is active, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from unmask import engine
from unmask.engine import Moment, Sight, Tally, Way, advance, blind, finish
from unmask.faults import Faults
from unmask.models.denoiser import Denoiser
from unmask.models.transformer import Transformer
from unmask.models.wrap import Chunked, Guided, layers
from unmask.read import fused
from unmask.samplers.reveal import Reveal
from unmask.samplers.revise import P2, DraftRefine
from unmask.samplers.turn import Sampler
from unmask.search import Resampled, Search
from unmask.state import State

MOVING = ("tokens", "origin", "time", "entropy_sum", "entropy_weight", "entropy", "log_weight")  # fields of a State


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
        and fused(way.denoiser.head, way.rules.draw)
        and bool(way.sampler.steady(state).all())
    )


@dataclass
class Carry:
    """What goes on from one recorded step to the next: always the same tensors."""

    state: State
    stale: Tensor  # [B] bool
    tally: Tally
    step: Tensor  # [] int64
    signal: Tensor  # [2] int64: whether any row takes the next step, and the code of a fault

    @property
    def tensors(self) -> list[Tensor]:
        moving = [getattr(self.state, name) for name in MOVING]
        return [*moving, self.stale, self.tally.steps, self.tally.calls, self.tally.evaluations, self.step, self.signal]


def _next(way: Way, carry: Carry, every: Tensor | None) -> tuple[Carry, Moment]:
    """One step without a question; `every` [P]: steps between resamplings, None: no prompt is due."""
    state, step = carry.state, carry.step
    active = way.active(state, step)
    due = None if every is None else (step > 0) & (step % every == 0)
    sight = Sight(None, None, carry.stale, torch.zeros_like(state.writable))
    faults = Faults(way.denoiser.name, state.particles, step, torch.zeros_like(step))
    moment = advance(way, state, sight, carry.tally, step, active, due, faults)
    assert faults.code is not None
    more = way.active(moment.state, step + 1).any().long()
    signal = torch.stack([more, faults.code])
    return Carry(moment.state, sight.stale, moment.tally, step + 1, signal), moment


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
            for old, new in zip(carry.tensors, after.tensors, strict=True):
                old.copy_(new)
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
        self.there = [torch.zeros(2, dtype=torch.int64).pin_memory() for _ in range(2)]
        self.arrived = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def send(self, step: int) -> None:
        self.there[step % 2].copy_(self.signal, non_blocking=True)
        self.arrived[step % 2].record()

    def read(self, step: int) -> tuple[bool, int]:
        """Of this step or the one before the last that was sent."""
        self.arrived[step % 2].synchronize()
        more, code = self.there[step % 2].tolist()
        return bool(more), code


def _recorded_walk(way: Way, state: State) -> Iterator[Moment]:
    every = way.intervals(state)
    last = _last_step(way, state)
    sight, tally = blind(state)
    faults = Faults(way.denoiser.name, state.particles, 0)
    first = replace(way, asks=True)  # the particles of a prompt are still equal: one of them is computed
    moment = advance(first, state, sight, tally, 0, way.active(state, 0), None, faults)
    yield moment
    carry = _carry(way, moment, sight)
    intervals = torch.tensor(every, device=state.tokens.device)
    steps: dict[bool, Recorded] = {}
    signals = Signals(carry.signal)
    step, more = 1, bool(carry.signal[0])
    while more and (last is None or step < last):
        due = way.search.resamples and any(step % interval == 0 for interval in every)
        if due not in steps:
            steps[due] = Recorded(partial(_next, way, every=intervals if due else None), carry)
        moment = steps[due].play(step)
        signals.send(step)
        if step > 1:
            more, code = signals.read(step - 1)
            replace(faults, step=step - 1).check(code)
        if more:
            yield moment
        step += 1
    if step > 1:
        replace(faults, step=step - 1).check(signals.read(step - 1)[1])
    finish(carry.state)


def _carry(way: Way, moment: Moment, sight: Sight) -> Carry:
    """Tensors of their own, from where the first step led."""
    state = moment.state.replace(**{name: getattr(moment.state, name).clone() for name in MOVING}, cache=None)
    tally = Tally(*(getattr(moment.tally, field.name).clone() for field in fields(Tally)))
    more = way.active(state, 1).any().long()
    step = torch.ones_like(state.slot[0])
    return Carry(state, sight.stale.clone(), tally, step, torch.stack([more, torch.zeros_like(more)]))


def _last_step(way: Way, state: State) -> int | None:
    """After how many steps all rows are done, where the plan alone says so."""
    sampler = way.sampler
    planned = sampler.scheduled and not getattr(sampler, "carries", False) and not getattr(sampler, "fresh", False)
    return int(state.budget.max()) if planned else None
