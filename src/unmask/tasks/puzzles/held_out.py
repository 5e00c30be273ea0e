"""A seed -> puzzles that training leaves out, one on a line as `unmask eval` reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

from unmask.errors import InputError
from unmask.tasks.puzzles import countdown, sudoku
from unmask.tasks.puzzles.grids import grids
from unmask.tasks.puzzles.problems import problems
from unmask.tasks.puzzles.word_problems import Form, word_problem

STREAM = 7  # of random numbers, which training does not use
AGAIN = 100  # questions in a row that were there already: there are hardly others


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


def word_problems(
    count: int, seed: int, form: Form = "any", people: int | None = None, solved: bool = False
) -> Iterator[str]:
    """Different questions with their answers, as JSON; solved ones as the model reads them."""
    dice, seen, again = Random(seed), set[str](), 0
    while len(seen) < count:
        made = word_problem(dice, not solved, form, people)
        again = again + 1 if made.question in seen else 0
        if again > AGAIN:
            raise InputError(f"there are hardly more than {len(seen)} such problems", "make fewer, or of more people")
        if again:
            continue
        seen.add(made.question)
        fields = {"question": made.question, "answer": made.answer, "solution": made.solution}
        sizes = {"people": made.people, "steps": made.steps, "key": f"{made.key:016x}"}
        yield made.question + made.solution if solved else json.dumps(fields | sizes)


MAKERS: dict[str, Callable[..., Iterator[Any]]] = {
    "sudoku": sudokus,
    "countdown": countdowns,
    "problems": word_problems,
}
