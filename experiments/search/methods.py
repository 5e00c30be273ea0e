"""What the study decodes, and how: cells × methods -> recipes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from unmask.decoding import recipe as recipes
from unmask.decoding.recipe import Recipe
from unmask.errors import SettingError
from unmask.search import SEARCHES


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
        text = {"length": self.level, "ban": "eos"} if self.task == "text" else {}
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


def beams(k: int) -> dict[str, Any]:
    """The better half goes on, each twice."""
    if k % 2:
        raise SettingError(f"{k} particles have no half", "give an even number")
    return {"search": "beam", "beams": k // 2, "candidates": 2}


EVEN = {"search": "smc", "scheme": "systematic"}
# Names -> settings of K particles; a function is given the cell and K. What is chosen at the end is tried on the rows.
METHODS: dict[str, Any] = {
    "best-of-n": {"search": "best-of-n"},
    "auto": {"search": "auto"},
    "steps": lambda cell, k: {"search": "vanilla", "steps": cell.steps * k},
    "printed": {"search": "smc"},
    "self-rewarding": {"search": "smc", "potential": "likelihood", "strength": 1.0},
    **{f"ess-{share}": {**EVEN, "target": share} for share in (0.5, 0.7, 0.85)},
    **{
        f"{scheme}-0.7": {**EVEN, "scheme": scheme, "target": 0.7}
        for scheme in ("multinomial", "stratified", "residual")
    },
    "ess-0.7-often": lambda cell, k: {**EVEN, "target": 0.7, "every": max(1, cell.steps // 8)},
    "ess-0.7-twice": lambda cell, k: {**EVEN, "target": 0.7, "every": math.ceil(cell.steps / 3)},
    **{
        f"{name}-0.7": {**EVEN, "potential": name, "target": 0.7}
        for name in ("change", "path", "likelihood", "both", "relative")
    },
    "path-1": {**EVEN, "potential": "path", "strength": 1.0},
    "below-0.5": {**EVEN, "potential": "path", "strength": 1.0, "below": 0.5},
    "relative-1": {**EVEN, "potential": "relative", "strength": 1.0, "below": 0.7},
    "relative-1-often": lambda cell, k: {**METHODS["relative-1"], "every": max(1, cell.steps // 8)},
    "relative-2": {**EVEN, "potential": "relative", "strength": 2.0, "below": 0.7},
    "early-0.7": {**EVEN, "target": 0.7, "until": 0.5},
    "late-0.7": {**EVEN, "target": 0.7, "after": 0.5},
    "tempered": {**EVEN, "strength": 100.0, "temper": 2.0},
    "half": lambda cell, k: {**beams(k), "every": max(1, cell.steps // 4)},
    "half-twice": lambda cell, k: {**beams(k), "every": math.ceil(cell.steps / 3)},
    **{f"reopen-{share}": {**EVEN, "target": 0.7, "reopen": share} for share in (0.5, 0.8)},
    "relative-1-reopen": lambda cell, k: {**METHODS["relative-1"], "reopen": 0.5},
    "half-reopen": lambda cell, k: {**METHODS["half"](cell, k), "reopen": 0.5},
    # particle Gibbs: the best path is kept, and what the others hold of it is drawn again
    "retained": lambda cell, k: {**METHODS["half-reopen"](cell, k), "beams": 1, "candidates": k},
    "islands-0.7": lambda cell, k: {**EVEN, "target": 0.7, "islands": max(1, k // 4)},
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
    counted = "particles" in recipes.settings(SEARCHES[given["search"]])
    return cell.recipe(**given, **({"particles": k} if counted else {}))
