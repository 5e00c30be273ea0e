"""Training a Sudoku model: random grids and puzzles as tokens, its network, and how many puzzles it solves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.evaluate.run import canvases, run
from unmask.models.network import Network
from unmask.tasks import files
from unmask.tasks.puzzles.grids import alike, grids
from unmask.tasks.puzzles.sudoku import CELLS, MASK, fault, parse, puzzle, solutions, write
from unmask.tasks.sudoku import SUDOKU, example
from unmask.train.batches import Numbers
from unmask.train.init import as_denoiser
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
GIVEN_PUZZLES = 0.8  # the share where the puzzles are given, so that no board is made of another in the same batch
CLUES = (22, 33)  # of the puzzles that are made, from and before
TRAINED, HELD = 1, 2  # streams of random numbers


def task(options: Options) -> Task:
    options.only("sudoku", "corpus")
    pool = np.concatenate([read_pool(path) for path in options.corpus]) if options.corpus else None
    hashes = {Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in options.corpus}
    about = {} if pool is None else {"puzzles": len(pool), "files": hashes}
    return Task(Grids(held=options.held, pool=pool), CONFIG, MASK, about)


def read_pool(path: str) -> Numbers:  # [N, 2, 81] int8: solutions and puzzles
    """Puzzles of a file, one on a line, with the solution after it or to be found; each must have one solution."""
    found = []
    for number, line in enumerate(files.read(path).splitlines(), 1):
        boards = [parse(part) for part in line.split() if len(part) == CELLS]
        if not boards:
            continue
        given = solutions(boards[0]) if len(boards) == 1 else boards[1:2]
        if len(given) != 1 or fault(write(given[0]), boards[0]) is not None:
            way_out = "each needs one solution: `unmask puzzles sudoku --answers` writes such"
            raise InputError(f"line {number} of {path!r} is no puzzle to train on", way_out)
        found.append([given[0], boards[0]])
    if not found:
        raise InputError(f"there is no Sudoku in {path!r}", "each line needs a field of 81 characters, 0-9 or dots")
    return np.array(found, dtype=np.int8)


@dataclass(frozen=True)
class Grids:
    """Full grids without end, and `held` puzzles of each number of clues to validate on, from other grids.

    In part of the batches only the blanks of a puzzle with one solution are open: few masks of a full grid leave one
    solution and are as hard. They come from `pool`, or are made; either way each is one of many that are as hard.
    """

    clues: tuple[int, ...] = (28, 25)
    held: int = 256
    pool: Numbers | None = None  # [N, 2, 81]: solutions and puzzles
    puzzles: dict[int, list[list[int]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> tuple[Numbers, Numbers]:
        dice = np.random.default_rng([number, TRAINED])
        if dice.random() >= (PUZZLES if self.pool is None else GIVEN_PUZZLES):
            return grids(size, dice) - 1, np.ones(81, dtype=bool)
        pairs = _made(size, dice) if self.pool is None else self.pool[dice.integers(0, len(self.pool), size)]
        seed = dice.integers(2**62)
        whole, puzzles = (alike(boards, np.random.default_rng(seed)) for boards in pairs.transpose(1, 0, 2))
        return whole - 1, puzzles == 0

    def validate(self, network: Network) -> dict[str, float]:
        """The share of puzzles that confidence order solves at temperature 0, one cell a step."""
        model = as_denoiser("sudoku", CONFIG, network)
        found = {}
        for clues in self.clues:
            examples = [example(str(place), board) for place, board in enumerate(self._held_out(clues))]
            rows = run(SUDOKU, model, canvases(SUDOKU, examples), Recipe(sampler="confidence"))
            found[f"solved_{clues}"] = sum(row.strict for row in rows) / len(rows)
        return found

    def _held_out(self, clues: int) -> list[list[int]]:
        if clues not in self.puzzles:
            dice, made = Random(clues), grids(self.held, np.random.default_rng([clues, HELD]))
            self.puzzles[clues] = [puzzle(grid.tolist(), clues, dice) for grid in made]
        return self.puzzles[clues]


def _made(size: int, dice: np.random.Generator) -> Numbers:  # [size, 2, 81]
    """New puzzles, each EACH times."""
    full = grids(-(-size // EACH), dice)
    wish, chance = dice.integers(*CLUES, len(full)), Random(int(dice.integers(2**62)))
    holes = [puzzle(grid.tolist(), int(clues), chance) for grid, clues in zip(full, wish, strict=True)]
    return np.stack([full, np.array(holes, dtype=np.int8)], 1).repeat(EACH, 0)[:size]
