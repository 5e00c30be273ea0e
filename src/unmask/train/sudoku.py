"""Training a Sudoku model: random grids and puzzles as tokens, its network, and how many puzzles it solves."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from unmask.errors import InputError
from unmask.models.network import Network
from unmask.tasks import files
from unmask.tasks.puzzles.grids import alike, grids
from unmask.tasks.puzzles.sudoku import CELLS, MASK, fault, parse, puzzle, solutions, write
from unmask.tasks.sudoku import SUDOKU, example
from unmask.train.initial import bundled_config
from unmask.train.task import Array, DataOptions, TrainTask, hashes, share_solved

CONFIG = bundled_config("sudoku")
PLAN: dict[str, Any] = {}
PUZZLES, EACH = 0.5, 32  # the share of batches that are of puzzles, and how many boards are made of one puzzle
GIVEN_PUZZLES = 0.8  # the share where the puzzles are given, so that no board is made of another in the same batch
CLUES = (22, 33)  # of the puzzles that are made, from and before
TRAINED, HELD = 1, 2  # streams of random numbers


def task(options: DataOptions) -> TrainTask:
    options.only("sudoku", "corpus")
    pool = np.concatenate([read_pool(path) for path in options.corpus]) if options.corpus else None
    about = {} if pool is None else {"puzzles": len(pool), "files": hashes(options.corpus)}
    return TrainTask(Grids(held=options.held, pool=pool), CONFIG, MASK, about)


def read_pool(path: str) -> Array:  # [N, 2, 81] int8: solutions and puzzles
    """Puzzles of a file, one a line, perhaps with its solution after it; each must have exactly one solution."""
    found = []
    for number, line in enumerate(files.read(path).splitlines(), 1):
        boards = [parse(part) for part in line.split() if len(part) == CELLS]
        if not boards:
            continue
        given = solutions(boards[0]) if len(boards) == 1 else boards[1:2]
        if len(given) != 1 or fault(write(given[0]), boards[0]) is not None:
            way_out = "each needs one solution, as `unmask puzzles sudoku --answers` writes them"
            raise InputError(f"line {number} of {path!r} is not a puzzle to train on", way_out)
        found.append([given[0], boards[0]])
    if not found:
        raise InputError(f"there is no Sudoku in {path!r}", "each line needs a field of 81 characters, 0-9 or dots")
    return np.array(found, dtype=np.int8)


@dataclass(frozen=True)
class Grids:
    """Endless full grids, and `held` puzzles of each number of clues to validate on, from other grids.

    In part of the batches only the blanks of a puzzle with one solution are open, since random masks of a full grid are
    rarely as hard. The puzzles come from `pool` or are made, and are varied by the symmetries of the game.
    """

    clues: tuple[int, ...] = (28, 25)
    held: int = 256
    pool: Array | None = None  # [N, 2, 81]: solutions and puzzles
    puzzles: dict[int, list[list[int]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> tuple[Array, Array]:
        dice = np.random.default_rng([number, TRAINED])
        if dice.random() >= (PUZZLES if self.pool is None else GIVEN_PUZZLES):
            return grids(size, dice) - 1, np.ones(81, dtype=bool)
        pairs = _made(size, dice) if self.pool is None else self.pool[dice.integers(0, len(self.pool), size)]
        seed = dice.integers(2**62)
        whole, puzzles = (alike(boards, np.random.default_rng(seed)) for boards in pairs.transpose(1, 0, 2))
        return whole - 1, puzzles == 0

    def validate(self, network: Network) -> dict[str, float]:
        """The share that is solved, by number of clues."""
        found = {}
        for clues in self.clues:
            examples = [example(str(place), board) for place, board in enumerate(self._held_out(clues))]
            found[f"solved_{clues}"] = share_solved(SUDOKU, CONFIG, network, examples)
        return found

    def _held_out(self, clues: int) -> list[list[int]]:
        if clues not in self.puzzles:
            dice, made = Random(clues), grids(self.held, np.random.default_rng([clues, HELD]))
            self.puzzles[clues] = [puzzle(grid.tolist(), clues, dice) for grid in made]
        return self.puzzles[clues]


def _made(size: int, dice: np.random.Generator) -> Array:  # [size, 2, 81]
    """New puzzles, each EACH times."""
    full = grids(-(-size // EACH), dice)
    wish, chance = dice.integers(*CLUES, len(full)), Random(int(dice.integers(2**62)))
    holes = [puzzle(grid.tolist(), int(clues), chance) for grid, clues in zip(full, wish, strict=True)]
    return np.stack([full, np.array(holes, dtype=np.int8)], 1).repeat(EACH, 0)[:size]
