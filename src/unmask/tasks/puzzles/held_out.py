"""A seed -> puzzles that training leaves out, one on a line as `unmask eval` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import numpy as np

from unmask.tasks.puzzles import countdown, sudoku
from unmask.tasks.puzzles.grids import grids
from unmask.tasks.puzzles.problems import problems

STREAM = 7  # of random numbers, which training does not use


def sudokus(
    count: int, clues: int | None, seed: int, answers: bool = False, hard: bool = False
) -> Iterator[str | None]:
    """Boards with one solution and as few clues as that, where one is left; without a number, solved ones.

    If `hard`, all that single candidates give is filled in, and None comes in place of what they solve.
    """
    order = Random(seed)
    for grid in grids(count, np.random.default_rng([seed, STREAM])).tolist():
        if clues is None:
            yield sudoku.write(grid)
        else:
            board = sudoku.puzzle(grid, clues, order)
            board = sudoku.forced(board) if hard else board
            made = sudoku.write(board) + (f" {sudoku.write(grid)}" if answers else "")
            yield made if 0 in board or not hard else None


def countdowns(count: int, numbers: int, seed: int, solved: bool = False) -> Iterator[str]:
    """Problems with a solution, as JSON; solved ones as the model reads them."""
    for row in problems(count, numbers, np.random.default_rng([seed, STREAM]), held=not solved).tolist():
        example = {"input": str(countdown.problem(row)), "output": countdown.answer(row)}
        yield "".join(countdown.ALPHABET[token] for token in row) if solved else json.dumps(example)
