"""A seed -> puzzles that training leaves out, one on a line as `unmask eval` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import numpy as np

from unmask import countdown, sudoku
from unmask.train.grids import grids
from unmask.train.problems import problems

STREAM = 7  # of random numbers, which training does not use


def sudokus(count: int, clues: int | None, seed: int, answers: bool = False) -> Iterator[str]:
    """Boards with one solution and as few clues as that, where one is left; without a number, solved ones."""
    order = Random(seed)
    for grid in grids(count, np.random.default_rng([seed, STREAM])).tolist():
        if clues is None:
            yield sudoku.write(grid)
        else:
            made = sudoku.write(sudoku.puzzle(grid, clues, order))
            yield f"{made} {sudoku.write(grid)}" if answers else made


def countdowns(count: int, numbers: int, seed: int, solved: bool = False) -> Iterator[str]:
    """Problems with a solution, as JSON; solved ones as the model reads them."""
    for row in problems(count, numbers, np.random.default_rng([seed, STREAM]), held=not solved).tolist():
        example = {"input": str(countdown.problem(row)), "output": countdown.answer(row)}
        yield "".join(countdown.ALPHABET[token] for token in row) if solved else json.dumps(example)
