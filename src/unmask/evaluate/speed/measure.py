"""Model × prompt × Recipe -> what a step of unmask costs, beside the floor and the step that public loops take.

They are timed in alternation, so that load affects all of them equally. The first two steps of a decode, with all
that happens once in them, are left out of the mean and reported separately.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.core.denoiser import Denoiser
from unmask.core.state import State
from unmask.core.step import Moment
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import Canvas, from_prompt
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import takes
from unmask.errors import InputError, SettingError
from unmask.evaluate import header
from unmask.evaluate.speed import baselines, clock
from unmask.evaluate.speed.baselines import COMPILED, EAGER, Backbones, Run
from unmask.models.transformer import Transformer, compiled
from unmask.models.wrap import layers
from unmask.search import SEARCHES

OnStage = Callable[[str], None]
Figures = dict[str, Any]
MIB = 2**20
EVERY = 0.3  # seconds of a decode, after which the others have their turn: as long as theirs on a GPU
TIMED = 2  # the first step that counts
GIVEN, HALFWAY = 11, 12  # streams of random tokens


def measure(
    model: Denoiser,
    recipe: Recipe,
    prompt: int = 0,
    *,
    compile: bool = True,
    repeat: int = 3,
    against: str | None = None,
    on_stage: OnStage = lambda stage: None,
) -> Figures:
    """All figures of `recipe.length` positions after a random prompt, for JSON; None where a figure does not exist.

    Times are medians over `repeat` decodes, in alternation with everything that they are compared with. `against` is
    another search, timed with as many particles. `on_stage` gets the name of each stage as it begins.
    """
    for name, value, least in (("prompt", prompt, 0), ("repeat", repeat, 1)):
        if value < least:
            raise InputError(f"{name} is {value}", f"it must be at least {least}")
    other = None if against is None else other_search(recipe, against)
    if compile:
        torch.compiler.reset()  # the shapes of earlier measurements would count against a limit
    with torch.no_grad(), torch.cuda.device(model.device) if model.device.type == "cuda" else nullcontext():
        scene = _set_up(model, recipe, canvas(model, recipe, prompt), compile, on_stage)
        rounds = []
        for number in range(repeat):
            on_stage(f"round {number + 1} of {repeat}")
            rounds.append(_round(scene, other))
    times = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    runs = {name: times[name] for name in scene.backbones.runs}
    times["backbone_ms"] = min(runs.values())
    known = {"prompt": prompt, "length": recipe.length, "recipe": recipe.to_dict(), "compile": compile}
    return (
        known | _costs(scene, times) | _compared(times, against) | _memory(scene.peaks) | _origin(scene, repeat, runs)
    )


def stages(repeat: int) -> int:
    """How many stages `measure` reports."""
    return repeat + 3


def other_search(recipe: Recipe, search: str) -> Recipe:
    """The recipe with another search of as many particles, without the settings of its own search."""
    own = {name for build in SEARCHES.values() for name in takes(build)}
    kept = {name: value for name, value in recipe.to_dict().items() if name not in own}
    return Recipe.from_dict({**kept, "search": search, "particles": recipe.build_search().particles})


# --- what is decoded -------------------------------------------------------------------------------------------------


def canvas(model: Denoiser, recipe: Recipe, prompt: int) -> Canvas:
    """A random prompt, then masks, within the limit of the model."""
    return from_prompt(model, _random(model, GIVEN, (prompt,)).tolist(), recipe.length)


def _random(model: Denoiser, stream: int, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Random tokens, none of them the mask."""
    dice = np.random.default_rng([stream])
    ids = dice.integers(0, model.head.width - 1, shape)
    return ids + (ids >= model.vocab.mask)


def _halfway(model: Denoiser, state: State) -> State:
    """Every other open position decided, at random."""
    ids = torch.from_numpy(_random(model, HALFWAY, tuple(state.tokens.shape))).to(state.tokens.device)
    return state.replace(tokens=ids.where(state.writable & (state.rank % 2 == 1), state.tokens))


# --- one decode ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walked:
    """What one decode took; times are seconds."""

    start: float  # until the first two steps were done: equal rows, compiling, recording
    step: float  # the mean of the others
    whole: float
    steps: int
    calls: int
    evaluations: int


class Walking:
    """A decode as `decode_batch` does it, in parts: `go` runs it for a while, and no time counts in between."""

    def __init__(self, model: Denoiser, recipe: Recipe, canvas: Canvas) -> None:
        self.model, self.recipe, self.canvas = model, recipe, canvas
        self.moments: Iterator[Moment] | None = None
        self.last: Moment | None = None
        self.start = self.whole = 0.0

    def go(self, seconds: float, on_step: Callable[[Moment], None] | None = None) -> bool:
        """Take steps for some seconds, the first time two steps; False at the end. `on_step` gets every step."""
        first, more, began = self.moments is None, False, clock.now(self.model.device)
        if self.moments is None:
            self.moments = walk(*prepare(self.model, [self.canvas], [self.recipe.seed], self.recipe))
        for moment in self.moments:
            self.last = moment
            if on_step is not None:
                on_step(moment)
            if moment.step > 0 if first else time.perf_counter() - began > seconds:
                more = True
                break
        spent = clock.now(self.model.device) - began
        self.start, self.whole = spent if first else self.start, self.whole + spent
        return more

    def done(self) -> Walked:
        """What it took, at the end."""
        if self.last is None or self.last.step < 2:
            raise InputError("the decode is too short", "take at least 3 steps: the first two are not timed")
        tally, step = self.last.tally, (self.whole - self.start) / (self.last.step - 1)
        steps, calls, evaluations = self.last.step + 1, int(tally.calls.sum()), int(tally.evaluations.sum())
        return Walked(self.start, step, self.whole, steps, calls, evaluations)


def first_walk(model: Denoiser, recipe: Recipe, canvas: Canvas) -> tuple[Walked, list[int]]:
    """A whole decode, and the number of masked positions of all rows before each step."""
    masked: list[int] = []
    walking = Walking(model, recipe, canvas)
    while walking.go(EVERY, lambda moment: masked.append(int((moment.before == model.vocab.mask).sum()))):
        pass
    return walking.done(), masked


def own(model: Denoiser, compile: bool) -> tuple[Denoiser, str]:
    """The model as unmask decodes with it, and how its network runs then."""
    try:
        return (compiled(model), COMPILED) if compile else (model, EAGER)
    except SettingError:  # it cannot be
        return model, EAGER


# --- all of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scene:
    """What is set up once, before the rounds."""

    model: Denoiser  # whose parts are timed
    mine: Denoiser  # the same, as unmask decodes with it
    how: str
    recipe: Recipe
    canvas: Canvas
    first: Walked
    masked: list[int]  # positions of all rows, in each step that is timed
    backbones: Backbones
    turns: clock.Turns  # of all that is compared with it
    products: list[int]  # numbers of masked positions at which the head is timed
    peaks: dict[str, int | None]  # bytes above what was there before


def _set_up(model: Denoiser, recipe: Recipe, canvas: Canvas, compile: bool, on_stage: OnStage) -> _Scene:
    """Run everything once, which compiles and records it, and measure memory."""
    device, (mine, how) = model.device, own(model, compile)
    denoiser, state, *_ = prepare(model, [canvas], [recipe.seed], recipe)
    half = _halfway(model, state)
    on_stage("the first decode")
    baselines.eager(model, half)()  # what libraries set up once is counted for none of them
    (first, masked), peak = clock.peak(lambda: first_walk(mine, recipe, canvas), device)
    on_stage("compiling the network" if compile else "the network")
    backbones = baselines.backbones(model, half, denoiser.cost, compile)
    on_stage("memory")
    alone = [clock.peak(run, device)[1] for run in backbones.plain]
    peaks = {"step": peak, "backbone": min(filter(None, alone), default=None), "public": None}
    reveal = max(1, int(state.open[0]) // first.steps)

    def public(run: Run) -> Callable[[], object]:
        return baselines.public_step(run, model.head, half, recipe.temperature, reveal)

    works: dict[str, Callable[[], object]] = {"public_eager_ms": public(backbones.runs[EAGER])}
    if backbones.compiled is not None:
        works["public_compiled_ms"] = public(backbones.compiled)
    try:
        baselines.check_public(model.head, half)
        peaks["public"] = clock.peak(public(backbones.plain[-1]), device)[1]
    except torch.OutOfMemoryError:
        works = {}
        backbones.notes.append("the public-style step does not fit into the memory")
    products = baselines.products(model.head, backbones.runs[EAGER](), masked[TIMED:])
    works |= backbones.runs | {f"head {count}": product for count, product in products.items()}
    turns = clock.Turns(works, device)
    return _Scene(model, mine, how, recipe, canvas, first, masked[TIMED:], backbones, turns, list(products), peaks)


def _round(scene: _Scene, other: Recipe | None) -> dict[str, float]:
    """One decode, in alternation with everything that it is compared with; every time once."""
    recipes = [scene.recipe] if other is None else [scene.recipe, other]
    walks = [Walking(scene.mine, recipe, scene.canvas) for recipe in recipes]
    going = list(walks)
    while going:
        going = [walking for walking in going if walking.go(EVERY)]
        going.reverse()  # who came last comes first
        scene.turns.turn()
    done, found = walks[0].done(), scene.turns.ms()
    found |= {"step_ms": 1000 * done.step, "warm_start_seconds": done.start, "decode_seconds": done.whole}
    found["head_ms"] = baselines.mean_ms({count: found[f"head {count}"] for count in scene.products}, scene.masked)
    return found if other is None else found | {"against_ms": 1000 * walks[1].done().step}


# --- the figures -----------------------------------------------------------------------------------------------------


def _costs(scene: _Scene, times: dict[str, float]) -> Figures:
    """The sizes of the run and its costs."""
    first, particles = scene.first, scene.recipe.build_search().particles
    length, whole = scene.canvas.tokens.count(scene.model.vocab.mask), times["decode_seconds"]
    return {
        "particles": particles,
        "steps": first.steps,
        "calls": first.calls,
        "evaluations": first.evaluations,
        "start_seconds": first.start,  # of the first decode, with what it compiled or captured
        "warm_start_seconds": times["warm_start_seconds"],
        "decode_seconds": whole,
        "tokens_per_second": length / whole,  # of the answer
        "particle_tokens_per_second": particles * length / whole,
    }


def _compared(times: dict[str, float], against: str | None) -> Figures:
    """Times of a step, and how they compare."""
    low, step = times["backbone_ms"] + times["head_ms"], times["step_ms"]
    eager, compiled, other = (times.get(name) for name in ("public_eager_ms", "public_compiled_ms", "against_ms"))
    public = eager if compiled is None else compiled
    return {
        "floor_ms": low,
        "backbone_ms": times["backbone_ms"],
        "head_ms": times["head_ms"],
        "public_eager_ms": eager,
        "public_compiled_ms": compiled,
        "step_ms": step,
        "ratio_to_floor": step / low,
        "times_faster": None if public is None else public / step,  # with the compiled network, where there is one
        "against": against,
        "against_ms": other,
        "ratio_to_against": None if other is None else step / other,
    }


def _memory(peaks: dict[str, int | None]) -> Figures:
    """Peaks in MiB; transient is what a step takes beyond the network alone."""
    alone = peaks["backbone"]

    def mib(bytes: int | None, less: int | None = 0) -> float | None:
        return None if bytes is None or less is None else (bytes - less) / MIB

    return {
        "peak_mib": mib(peaks["step"]),
        "backbone_mib": mib(alone),
        "public_mib": mib(peaks["public"]),
        "transient_mib": mib(peaks["step"], alone),
        "public_transient_mib": mib(peaks["public"], alone),
    }


def _origin(scene: _Scene, repeat: int, runs: dict[str, float]) -> Figures:
    """Where the figures come from."""
    model = scene.model
    weight = model.head.weight
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return {
        "model": model.name,
        "weights_mib": sum(one.bytes for one in layers(model) if isinstance(one, Transformer)) / MIB or None,
        "dtype": None if weight is None else str(weight.dtype).removeprefix("torch."),
        "network": scene.how,  # how unmask ran it
        "backbone": min(runs, key=lambda name: runs[name]),  # how the floor did, and
        "backbones_ms": runs,  # what there was to choose from
        "head_rows": sum(scene.masked) / len(scene.masked),
        "device": header.machine(model.device),
        "repeats": repeat,
        "date": header.date(),
        "versions": versions,
        "notes": scene.backbones.notes,
    }
