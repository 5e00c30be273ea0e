"""Training a Sudoku model: random grids as tokens, its network, and how many puzzles it solves."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from unmask import evaluate
from unmask.models.network import Network
from unmask.recipe import Recipe
from unmask.sudoku import MASK, puzzle
from unmask.train.ahead import Numbers
from unmask.train.grids import grids
from unmask.train.start import as_denoiser
from unmask.train.task import Options, Task

CONFIG = {
    "model_type": "unmask",
    "vocabulary": 10,
    "width": 256,
    "layers": 8,
    "heads": 8,
    "inner": 680,
    "position": "grid",
    "places": 9,
    "limit": 81,
    "qk_norm": True,
    "mask_token_id": MASK,
    "alphabet": "123456789",
    "torch_dtype": "float32",
}
PLAN: dict[str, Any] = {}


def task(options: Options) -> Task:
    options.only("sudoku")
    return Task(Grids(held=options.held), CONFIG, MASK)


@dataclass(frozen=True)
class Grids:
    """Full grids without end, and `held` puzzles of each number of clues to validate on, from other grids."""

    clues: tuple[int, ...] = (28, 25)
    held: int = 256
    puzzles: dict[int, list[list[int]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> tuple[Numbers, Numbers]:
        return grids(size, np.random.default_rng([number, 1])) - 1, np.ones(81, dtype=bool)

    def validate(self, network: Network) -> dict[str, float]:
        """The share of puzzles that confidence order solves at temperature 0, one cell a step."""
        model = as_denoiser("sudoku", CONFIG, network)
        found = {}
        for clues in self.clues:
            rows = evaluate.run("sudoku", model, self._held_out(clues), Recipe(sampler="confidence"))
            found[f"solved_{clues}"] = sum(row.strict for row in rows) / len(rows)
        return found

    def _held_out(self, clues: int) -> list[list[int]]:
        if clues not in self.puzzles:
            dice, made = Random(clues), grids(self.held, np.random.default_rng([clues, 2]))
            self.puzzles[clues] = [puzzle(grid.tolist(), clues, dice) for grid in made]
        return self.puzzles[clues]
