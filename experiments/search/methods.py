"""What the study decodes, and how: cells × methods -> recipes, some of them with searches of the study's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from unmask.core.entropy import bits
from unmask.core.resampling import Potential, Resampled, Search, Standing, resample
from unmask.core.state import State
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import takes
from unmask.errors import SettingError
from unmask.search import SEARCHES, smc
from unmask.search.potentials import gibbs, likelihood, plain


@dataclass(frozen=True)
class Cell:
    """What is decoded, and in which order."""

    task: str
    level: int  # clues, numbers, or positions
    sampler: str
    steps: int | None  # of one path; None: as many as it takes

    @property
    def name(self) -> str:
        return f"{self.task}{self.level}-{self.sampler}"

    def recipe(self, **more: Any) -> Recipe:
        text = {"length": self.level, "ban": "eos"} if self.task == "text" else {}  # as the former text model was asked
        steps = {"steps": self.steps} if self.steps else {}
        return Recipe.from_dict({"sampler": self.sampler, "temperature": 1.0, **steps, **text, **more})


CELLS = {
    cell.name: cell
    for sampler in ("uniform", "confidence", "entropy")
    for cell in (
        Cell("sudoku", 28, sampler, 27),  # two positions a step
        Cell("sudoku", 24, sampler, 29),
        Cell("countdown", 4, sampler, 21),
        Cell("countdown", 5, sampler, 28),
        *([Cell("text", 256, sampler, 64)] if sampler == "uniform" else []),
    )
} | {cell.name: cell for cell in (Cell("sudoku", 24, "eb", None), Cell("countdown", 4, "eb", None))}


# --- searches that only the study has ---------------------------------------------------------------------------------


def decided(masked: Tensor, open: Tensor, particles: int) -> Tensor:  # [B], [B] -> [P] float64
    """The share of its open positions that a prompt's particles have decided, on average."""
    left = masked.double() / open.clamp(min=1)
    return 1 - left.view(-1, particles).mean(1)


def path(state: State, width: int) -> Tensor:
    """All state entropies of the path so far, in bits: path entropy is their mean."""
    return -bits(state.entropy_sum + state.entropy)


def both(state: State, width: int) -> Tensor:
    """The path's entropies and the log-probability of its tokens, each for one position."""
    steps = (state.entropy_weight + 1).clamp(min=1)
    written = (state.open - state.masked.sum(1)).clamp(min=1)
    return path(state, width) / steps + likelihood(state, width) / written


def tempered(state: State, width: int) -> Tensor:
    """The printed score, times the squared share of decided positions."""
    share = decided(state.masked.sum(1), state.open, state.particles)
    return gibbs(state, width) * (share**2).repeat_interleave(state.particles)


def window(after: float, until: float) -> Callable[..., Resampled]:
    """Resample only while the share of decided positions is within these limits."""

    def within(search: Search, standing: Standing, step: Any, due: Tensor) -> Resampled:
        share = decided(standing.left, standing.open, standing.particles)
        return resample(search, standing, step, due & (share >= after) & (share <= until))

    return within


def islands(many: int) -> Callable[..., Resampled]:
    """Resample groups of particles separately. The evidence is the mean of their logarithms: no estimate of Z."""

    def apart(search: Search, standing: Standing, step: Any, due: Tensor) -> Resampled:
        groups = replace(standing, particles=standing.particles // many)
        found = resample(search, groups, step, due.repeat_interleave(many))
        means = {name: getattr(found, name).view(-1, many).mean(1) for name in ("log_evidence", "ess", "strength")}
        return replace(found, **means)

    return apart


def weighed(potential: Potential) -> Callable[..., Search]:
    """Systematic resampling by a potential of the study's own."""

    def build(
        particles: int = 5,
        every: int | None = None,
        strength: float | None = None,
        target: float | None = None,
        below: float | None = None,
    ) -> Search:
        return replace(smc(particles, every, strength, "plain", "systematic", target, below), potential=potential)

    return build


def moved(change: Callable[[int], Callable[..., Resampled]]) -> Callable[..., Search]:
    """Systematic resampling by the printed potential, another function of it; `change` is given the particles."""

    def build(particles: int = 5, every: int | None = None, target: float | None = None) -> Search:
        search = smc(particles, every, scheme="systematic", target=target)
        return replace(search, resample=change(particles))

    return build


OWN: dict[str, Callable[..., Search]] = {
    "change": weighed(Potential(plain, since=True)),
    "path": weighed(Potential(path, since=True)),
    "both": weighed(Potential(both)),
    "tempered": weighed(Potential(tempered)),
    "early": moved(lambda k: window(0.0, 0.5)),
    "late": moved(lambda k: window(0.5, 1.0)),
    "islands": moved(lambda k: islands(max(1, k // 4))),
}


def register() -> None:
    """Let recipes name the searches of the study."""
    SEARCHES.update(OWN)


# --- the methods ------------------------------------------------------------------------------------------------------


def beams(k: int) -> dict[str, Any]:
    """The better half goes on, each twice."""
    if k % 2:
        raise SettingError(f"{k} particles have no half", "give an even number")
    return {"search": "beam", "beams": k // 2, "candidates": 2}


EVEN = {"search": "smc", "scheme": "systematic"}
SELF_REWARDING = {"potential": "likelihood", "strength": math.log(2), "below": 0.5, "choose": "likelihood"}
# Names -> settings of K particles; a function is given the cell and K. What is chosen at the end is tried on the rows.
METHODS: dict[str, Any] = {
    "best-of-n": {"search": "best-of-n"},
    "auto": {"search": "auto"},
    "steps": lambda cell, k: {"search": "vanilla", "steps": cell.steps * k},
    "printed": {"search": "smc"},
    # as its authors run it: weights by p, resampling where the effective sample size is under K/2, the likeliest path
    "self-rewarding": {"search": "smc", **SELF_REWARDING},
    "likelihood-1": {"search": "smc", "potential": "likelihood", "strength": 1.0},  # by p^1.44, at every evaluation
    **{f"ess-{share}": {**EVEN, "target": share} for share in (0.5, 0.7, 0.85)},
    **{
        f"{scheme}-0.7": {**EVEN, "scheme": scheme, "target": 0.7}
        for scheme in ("multinomial", "stratified", "residual")
    },
    "ess-0.7-often": lambda cell, k: {**EVEN, "target": 0.7, "every": max(1, cell.steps // 8)},
    "ess-0.7-twice": lambda cell, k: {**EVEN, "target": 0.7, "every": math.ceil(cell.steps / 3)},
    **{f"{name}-0.7": {**EVEN, "potential": name, "target": 0.7} for name in ("likelihood", "relative")},
    **{f"{name}-0.7": {"search": name, "target": 0.7} for name in ("change", "path", "both")},
    "path-1": {"search": "path", "strength": 1.0},
    "below-0.5": {"search": "path", "strength": 1.0, "below": 0.5},
    "relative-1": {**EVEN, "potential": "relative", "strength": 1.0, "below": 0.7},
    "relative-1-often": lambda cell, k: {**METHODS["relative-1"], "every": max(1, cell.steps // 8)},
    "relative-2": {**EVEN, "potential": "relative", "strength": 2.0, "below": 0.7},
    "early-0.7": {"search": "early", "target": 0.7},
    "late-0.7": {"search": "late", "target": 0.7},
    "tempered": {"search": "tempered", "strength": 100.0},
    "half": lambda cell, k: {**beams(k), "every": max(1, cell.steps // 4)},
    "half-twice": lambda cell, k: {**beams(k), "every": math.ceil(cell.steps / 3)},
    **{f"reopen-{share}": {**EVEN, "target": 0.7, "reopen": share} for share in (0.5, 0.8)},
    "relative-1-reopen": lambda cell, k: {**METHODS["relative-1"], "reopen": 0.5},
    "half-reopen": lambda cell, k: {**METHODS["half"](cell, k), "reopen": 0.5},
    # particle Gibbs: the best path is kept, and what the others hold of it is drawn again
    "retained": lambda cell, k: {**METHODS["half-reopen"](cell, k), "beams": 1, "candidates": k},
    "islands-0.7": {"search": "islands", "target": 0.7},
}


PLANNED = (
    "steps",
    "ess-0.7-often",
    "ess-0.7-twice",
    "relative-1-often",
    "half",
    "half-twice",
    "retained",
)  # need a number of steps


def goes(method: str, cell: Cell) -> bool:
    """Whether a method can decode a cell: some need a plan of steps."""
    return bool(cell.steps) or not (method in PLANNED or "reopen" in method)


def settings(method: str, cell: Cell, k: int) -> Recipe:
    """How a method decodes a cell with K particles."""
    given = METHODS[method]
    given = given(cell, k) if callable(given) else given
    counted = "particles" in takes(SEARCHES[given["search"]])
    return cell.recipe(**given, **({"particles": k} if counted else {}))
