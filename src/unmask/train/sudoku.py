"""Training a Sudoku model: random grids and puzzles as tokens, its network, and how many puzzles it solves."""

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
from unmask.train.grids import alike, grids
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
PUZZLES, EACH = 0.5, 32  # the share of batches that are of puzzles, and how many boards are made of one puzzle
CLUES = (22, 33)  # of these puzzles, from and before
TRAINED, HELD = 1, 2  # streams of random numbers


def task(options: Options) -> Task:
    options.only("sudoku")
    return Task(Grids(held=options.held), CONFIG, MASK)


@dataclass(frozen=True)
class Grids:
    """Full grids without end, and `held` puzzles of each number of clues to validate on, from other grids.

    In half of the batches only the blanks of a puzzle with one solution are open: few masks of a full grid leave one
    solution and are as hard.
    """

    clues: tuple[int, ...] = (28, 25)
    held: int = 256
    puzzles: dict[int, list[list[int]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> tuple[Numbers, Numbers]:
        dice = np.random.default_rng([number, TRAINED])
        if dice.random() < 1 - PUZZLES:
            return grids(size, dice) - 1, np.ones(81, dtype=bool)
        full = grids(-(-size // EACH), dice)
        wish, chance = dice.integers(*CLUES, len(full)), Random(int(dice.integers(2**62)))
        holes = [puzzle(grid.tolist(), int(clues), chance) for grid, clues in zip(full, wish, strict=True)]
        boards, seed = np.stack([full, np.array(holes, dtype=np.int8)]).repeat(EACH, 1)[:, :size], dice.integers(2**62)
        whole, open = (alike(board, np.random.default_rng(seed)) for board in boards)
        return whole - 1, open == 0

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
            dice, made = Random(clues), grids(self.held, np.random.default_rng([clues, HELD]))
            self.puzzles[clues] = [puzzle(grid.tolist(), clues, dice) for grid in made]
        return self.puzzles[clues]
