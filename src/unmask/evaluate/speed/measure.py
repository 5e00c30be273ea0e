"""Model × prompt × Recipe -> what a step of unmask costs, beside the floor and the step that public loops take.

They are timed in alternation, so that load affects all of them equally. The first two steps of a decode, with all
that happens once in them, are left out of the mean and reported separately. With a cache the first block is left out,
so that the mean is over whole blocks.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unmask.core.denoiser import Denoiser, traits
from unmask.core.state import State
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import Canvas, from_prompt
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import takes
from unmask.errors import InputError
from unmask.evaluate import header
from unmask.evaluate.speed import baselines, blocks, cached, clock
from unmask.evaluate.speed.baselines import EAGER, Backbones, Run
from unmask.evaluate.speed.blocks import Watch
from unmask.evaluate.speed.cached import Cached
from unmask.evaluate.speed.walking import EVERY, TIMED, Walked, Walking, first_walk, own
from unmask.models.transformer import Transformer, attention_blocks
from unmask.models.wrap import layers
from unmask.search import SEARCHES

OnStage = Callable[[str], None]
Figures = dict[str, Any]
MIB = 2**20
EXACT = "exact"  # instead of another search: the same without a cache
GIVEN, HALFWAY = 11, 12  # streams of random tokens


def measure(
    model: Denoiser,
    recipe: Recipe,
    prompt: int = 0,
    *,
    compile: bool = True,
    uncompiled: bool = False,
    repeat: int = 3,
    against: str | None = None,
    on_stage: OnStage = lambda stage: None,
) -> Figures:
    """All figures of `recipe.length` positions after a random prompt, for JSON; None where a figure does not exist.

    Times are medians over `repeat` decodes, in alternation with everything that they are compared with. `against` is
    another search, timed with as many particles, or "exact": the same without a cache. `uncompiled`: only what it is
    compared with is compiled. `on_stage` gets the name of each stage as it begins.
    """
    for name, value, least in (("prompt", prompt, 0), ("repeat", repeat, 1)):
        if value < least:
            raise InputError(f"{name} is {value}", f"it must be at least {least}")
    other = None if against is None else _other(model, recipe, against)
    if compile:
        torch.compiler.reset()  # the shapes of earlier measurements would count against a limit
    with torch.no_grad(), torch.cuda.device(model.device) if model.device.type == "cuda" else nullcontext():
        mine = own(model, compile and not uncompiled)
        scene = _set_up(model, mine, recipe, canvas(model, recipe, prompt), compile, on_stage)
        rounds = []
        for number in range(repeat):
            on_stage(f"round {number + 1} of {repeat}")
            rounds.append(_round(scene, other, against == EXACT))
    times = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    beside = scene.cached
    runs = {name: times[name] for name in scene.backbones.runs} if beside is None else beside.backbones_ms(times)
    best = min(runs, key=lambda name: runs[name])
    times["backbone_ms"] = runs[best]
    known = {"prompt": prompt, "length": recipe.length, "recipe": recipe.to_dict(), "compile": compile}
    known |= _costs(scene, times) | _compared(times, against)
    known["cached"] = None if beside is None else beside.figures(times, best)
    return known | _memory(scene.peaks) | _origin(scene, repeat, runs)


def stages(repeat: int) -> int:
    """How many stages `measure` reports."""
    return repeat + 3


def other_search(recipe: Recipe, search: str) -> Recipe:
    """The recipe with another search of as many particles, without the settings of its own search."""
    own = {name for build in SEARCHES.values() for name in takes(build)}
    kept = {name: value for name, value in recipe.to_dict().items() if name not in own}
    return Recipe.from_dict({**kept, "search": search, "particles": recipe.build_search().particles})


def without_cache(model: Denoiser, recipe: Recipe) -> Recipe:
    """The recipe without settings of a cache, in full attention where the model knows that."""
    kept = {name: value for name, value in recipe.to_dict().items() if not name.startswith("cache")}
    if recipe.attention == "block" and traits(model).attention is None:
        del kept["attention"]
        kept.setdefault("block_length", attention_blocks(model))
    return Recipe.from_dict(kept)


def _other(model: Denoiser, recipe: Recipe, against: str) -> Recipe:
    if against != EXACT:
        return other_search(recipe, against)
    other = without_cache(model, recipe)
    if other == recipe and traits(model).attention is None:
        raise InputError("nothing is cached", f"give --cache or --attention block, or leave --against {EXACT} out")
    return other


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
    masked: list[int]  # positions of all rows to which the head is applied, in each step that is timed
    backbones: Backbones
    turns: clock.Turns  # of all that is compared with it
    products: list[int]  # numbers of masked positions at which the head is timed
    peaks: dict[str, int | None]  # bytes above what was there before
    cached: Cached | None

    @property
    def timed(self) -> int:
        """The first step that counts."""
        return TIMED if self.cached is None else self.cached.pace.first

    @property
    def notes(self) -> list[str]:
        more = [] if self.cached is None else [*self.cached.inner.notes, *self.cached.refresh.notes]
        return list(dict.fromkeys([*self.backbones.notes, *more]))


def _set_up(
    model: Denoiser, ours: tuple[Denoiser, str], recipe: Recipe, canvas: Canvas, compile: bool, on_stage: OnStage
) -> _Scene:
    """Run everything once, which compiles and records it, and measure memory."""
    device, (mine, how) = model.device, ours
    denoiser, state, sampler, _, rules = prepare(model, [canvas], [recipe.seed], recipe)
    half, scheme = _halfway(model, state), blocks.scheme(denoiser, state, sampler.block_length, rules.scope)
    watch = None if scheme is None else Watch(scheme, state)
    on_stage("the first decode")
    baselines.eager(model, half)()  # what libraries set up once is counted for none of them
    (first, masked), peak = clock.peak(lambda: first_walk(mine, recipe, canvas, watch), device)
    on_stage("compiling the network" if compile else "the network")
    backbones, beside = baselines.backbones(model, half, denoiser.cost, compile), None
    if watch is not None:
        beside = cached.set_up(denoiser, watch, TIMED, half, backbones, compile)
        how = how if blocks.cache(denoiser) is None else EAGER  # caches run the network as it is
    on_stage("memory")
    peaks = {"step": peak, "whole": _alone(backbones, device), "public": None}
    peaks["backbone"] = peaks["whole"] if beside is None else _alone(beside.inner, device)
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
    if beside is not None:
        others = cached.public(beside, denoiser, half, recipe.temperature, reveal, bool(works))
        beside = replace(beside, public=others)
    counts = masked[TIMED:] if beside is None else beside.pace.masks
    products = baselines.products(model.head, backbones.runs[EAGER](), counts)
    works |= backbones.runs if beside is None else beside.works
    works |= {f"head {count}": product for count, product in products.items()}
    turns = clock.Turns(works, device)
    found = model, mine, how, recipe, canvas, first, counts, backbones, turns, list(products), peaks, beside
    return _Scene(*found)


def _alone(backbones: Backbones, device: torch.device) -> int | None:
    """The least memory that a run of the network takes, in bytes."""
    return min(filter(None, (clock.peak(run, device)[1] for run in backbones.plain)), default=None)


def _round(scene: _Scene, other: Recipe | None, bare: bool) -> dict[str, float]:
    """One decode, in alternation with everything that it is compared with; every time once."""
    walks = [Walking(scene.mine, scene.recipe, scene.canvas, scene.timed)]
    if other is not None:
        walks.append(Walking(scene.mine, other, scene.canvas, scene.timed, bare=bare))
    going, share = list(walks), EVERY
    while going:
        going = [walking for walking in going if walking.go(share)]
        going.reverse()  # who came last comes first
        began = clock.now(scene.model.device)
        scene.turns.turn()
        share = max(EVERY, clock.now(scene.model.device) - began)  # as long as all that it is compared with
    done, found = walks[0].done(), scene.turns.ms()
    found |= {"step_ms": 1000 * done.step, "warm_start_seconds": done.start, "decode_seconds": done.whole}
    found["head_ms"] = baselines.mean_ms({count: found[f"head {count}"] for count in scene.products}, scene.masked)
    if other is not None:
        done = walks[1].done()
        found["against_ms"] = 1000 * done.step
        if not done.cut:
            found["against_seconds"] = done.whole
    return found


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
        "against_seconds": times.get("against_seconds"),
    }


def _memory(peaks: dict[str, int | None]) -> Figures:
    """Peaks in MiB; transient is what a step takes beyond the network alone, with a cache the keys and values too."""
    alone = peaks["backbone"]

    def mib(bytes: int | None, less: int | None = 0) -> float | None:
        return None if bytes is None or less is None else (bytes - less) / MIB

    return {
        "peak_mib": mib(peaks["step"]),
        "backbone_mib": mib(alone),
        "public_mib": mib(peaks["public"]),
        "transient_mib": mib(peaks["step"], alone),
        "public_transient_mib": mib(peaks["public"], peaks["whole"]),
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
        "notes": scene.notes,
    }
