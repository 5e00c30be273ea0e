"""Countdown problems with an answer by the thousand: operations are drawn for all of them at once.

Random numbers are joined by random operations until one number is left, which is the target where it lies in 10..99.
Operands stand larger first, and of equations that do not need each other the one with the larger operand comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.puzzles.countdown import ALPHABET, EQUATION, HEAD, LEFT, RIGHT, Problem, columns

Whole = NDArray[np.int64]
SIGNS = "+-*/"
CHANCES = np.array([1.2, 1.4, 3.0, 12.0])  # of the signs, where they are possible: about as in the public tests
BLANK, COMMA, COLON, EQUALS = (ALPHABET.index(character) for character in " ,:=")


def keys(problems: Sequence[Problem]) -> Whole:
    """One number for each problem, the same for any order of its numbers; sorted."""
    rows = [[*sorted(problem.numbers, reverse=True), *[0] * (5 - len(problem.numbers))] for problem in problems]
    targets = [problem.target for problem in problems]
    return np.unique(_key(np.array(rows, dtype=np.int64).reshape(-1, 5), np.array(targets, dtype=np.int64)))


def _key(numbers: Whole, target: Whole) -> Whole:  # [N, 5], [N] -> [N]
    return numbers @ 100 ** np.arange(1, 6) + target


def reserved(key: Whole) -> NDArray[np.bool_]:
    """One problem in 64 is never trained on, whatever stream it comes from: these are for measuring."""
    mixed: NDArray[np.uint64] = key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    few: NDArray[np.bool_] = mixed < np.uint64(1 << 58)
    return few


def problems(
    count: int, many: int, dice: np.random.Generator, without: Whole | None = None, held: bool = False
) -> NDArray[np.uint8]:
    """Tokens [count, columns(many)] of problems of `many` numbers with their answers.

    They are for training, or, where `held`, reserved ones; none has a key in `without`.
    """
    found, made = [], 0
    while made < count:
        tokens = _some(4 * count + (4096 if held else 64), many, dice, without, held)
        found.append(tokens)
        made += len(tokens)
    return np.concatenate(found)[:count]


def _some(count: int, many: int, dice: np.random.Generator, without: Whole | None, held: bool) -> NDArray[np.uint8]:
    numbers = dice.integers(1, 100, (count, many))
    steps, good = _joined(numbers, dice)
    target = steps[:, -1, RESULT]
    numbers = -np.sort(-numbers, 1)
    good &= (target >= 10) & (target <= 99)
    key = _key(np.pad(numbers, ((0, 0), (0, 5 - many))), target)
    good &= reserved(key) == held
    if without is not None and len(without):
        good &= without[np.searchsorted(without, key).clip(max=len(without) - 1)] != key
    return _tokens(numbers[good], _ordered(steps[good]))


# --- equations -------------------------------------------------------------------------------------------------------

LARGER, SIGN, SMALLER, RESULT, NAME, FROM, ALSO = range(7)  # of an equation; FROM, ALSO: whose results it uses, or -1


def _joined(numbers: Whole, dice: np.random.Generator) -> tuple[Whole, NDArray[np.bool_]]:
    """Equations [N, many - 1, 7] that use up the numbers, and which rows are fit to write down."""
    count, many = numbers.shape
    rows = np.arange(count)
    left, origin = numbers.copy(), np.full((count, many), -1)
    steps = np.zeros((count, many - 1, 7), dtype=np.int64)
    good = np.ones(count, dtype=bool)
    for step in range(many - 1):
        size = many - step
        one = dice.integers(0, size, count)
        two = (one + dice.integers(1, size, count)) % size
        a, b, by, also = left[rows, one], left[rows, two], origin[rows, one], origin[rows, two]
        swap = a < b
        a, b = np.where(swap, b, a), np.where(swap, a, b)
        results = np.stack([a + b, a - b, a * b, a // b], 1)
        possible = (results > 0) & (results < 10**LEFT)
        possible[:, 3] &= a % b == 0
        weights: NDArray[np.float64] = np.cumsum(possible * CHANCES, axis=1)
        sign = (dice.random((count, 1)) * weights[:, -1:] >= weights).sum(1).clip(max=3)
        result = results[rows, sign]
        good &= possible[rows, sign] & (b < 10**RIGHT)
        result = np.where(good, result, 1)
        steps[:, step] = np.stack([a, sign, b, result, np.full(count, step), by, also], 1)
        left[rows, one], origin[rows, one] = result, step
        left[rows, two], origin[rows, two] = left[:, size - 1], origin[:, size - 1]  # the last takes the free place
        # Where `one` was the last, its new value has just moved to the place of `two`.
    return steps, good


def _ordered(steps: Whole) -> Whole:
    """Neighbours that do not need each other change places where the second has the larger operand."""
    count = steps.shape[1]
    for _ in range(count - 1):
        for first in range(count - 1):
            one, two = steps[:, first].copy(), steps[:, first + 1].copy()
            needs = (two[:, FROM] == one[:, NAME]) | (two[:, ALSO] == one[:, NAME])
            swap = (~needs & (two[:, LARGER] > one[:, LARGER]))[:, None]
            steps[:, first], steps[:, first + 1] = np.where(swap, two, one), np.where(swap, one, two)
    return steps


# --- tokens ----------------------------------------------------------------------------------------------------------


def _tokens(numbers: Whole, steps: Whole) -> NDArray[np.uint8]:
    count, many = numbers.shape
    made = np.full((count, columns(many) + 1), BLANK, dtype=np.uint8)  # with the comma that the last equation lacks
    for place in range(many):
        _write(made, 3 * place, 2, numbers[:, place])
        made[:, 3 * place + 2] = COMMA if place < many - 1 else BLANK
    made[:, 14] = made[:, 17] = COLON
    _write(made, 15, 2, steps[:, -1, RESULT])
    signs = np.array([ALPHABET.index(sign) for sign in SIGNS], dtype=np.uint8)
    for step in range(many - 1):
        at = HEAD + EQUATION * step
        _write(made, at, LEFT, steps[:, step, LARGER])
        made[:, at + LEFT] = signs[steps[:, step, SIGN]]
        _write(made, at + LEFT + 1, RIGHT, steps[:, step, SMALLER])
        made[:, at + LEFT + 1 + RIGHT] = EQUALS
        _write(made, at + LEFT + 2 + RIGHT, LEFT, steps[:, step, RESULT])
        made[:, at + EQUATION - 1] = COMMA
    return made[:, :-1]


def _write(made: NDArray[np.uint8], at: int, width: int, values: Whole) -> None:
    """Numbers set to the right in `width` columns."""
    for place in range(width):
        power = 10 ** (width - 1 - place)
        digit = values // power % 10
        made[:, at + place] = np.where((values < power) & (power > 1), BLANK, digit)
