"""Sudoku boards of 9 × 9: text -> board, exact solutions, and puzzles with one solution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from unmask.errors import InputError

SIDE, CELLS = 9, 81
MASK = 9  # the digits 1 to 9 are the model's tokens 0 to 8
ROW = [cell // 9 for cell in range(CELLS)]
COLUMN = [cell % 9 for cell in range(CELLS)]
BOX = [cell // 27 * 3 + cell % 9 // 3 for cell in range(CELLS)]
UNITS = [(ROW[cell], 9 + COLUMN[cell], 18 + BOX[cell]) for cell in range(CELLS)]
Board = list[int]  # 81 digits from the left and from the top; 0 is blank


def parse(text: str) -> Board:
    """A board of 81 characters; . and 0 are blanks, white space and the frame of a drawn board are left out."""
    cells = "".join(text.split()).translate(str.maketrans("._*", "000", "|+-"))
    if len(cells) != CELLS:
        raise InputError(f"a Sudoku has 81 cells, this one has {len(cells)}", "write 81 characters, . or 0 for a blank")
    for place, cell in enumerate(cells):
        if cell not in "0123456789":
            where = f"row {place // 9 + 1}, column {place % 9 + 1}"
            raise InputError(f"{cell!r} in {where} is not a digit", "write 1 to 9, and . or 0 for a blank")
    return [int(cell) for cell in cells]


def canvas(board: Sequence[int]) -> list[int]:
    """What the model is given: token ids, masks for blanks."""
    if isinstance(board, str):
        raise InputError(f"{board!r} is text", "make a board of it with sudoku.parse")
    return [MASK if digit == 0 else digit - 1 for digit in board]


def answer(tokens: Sequence[int]) -> str:
    """The model's answer as 81 digits; 0 where a mask is left."""
    return write([0 if token == MASK else token + 1 for token in tokens])


def write(board: Sequence[int]) -> str:
    """81 digits, 0 for a blank."""
    return "".join(map(str, board))


def fault(answer: str, puzzle: Sequence[int]) -> str | None:
    """Why an answer of 81 digits is wrong, in a few words; None where it is right."""
    board = parse(answer)
    for cell, (given, digit) in enumerate(zip(puzzle, board, strict=True)):
        if given not in (0, digit):
            return f"the clue {given} in row {ROW[cell] + 1}, column {COLUMN[cell] + 1} is gone"
    return "there are blanks left" if 0 in board else clash(board)


def clash(board: Sequence[int]) -> str | None:
    """Where two equal digits clash, as `a 7 twice in row 3`; None where nothing clashes."""
    for name, units in (("row", ROW), ("column", COLUMN), ("box", BOX)):
        seen: set[tuple[int, int]] = set()
        for cell, digit in enumerate(board):
            if digit and (units[cell], digit) in seen:
                return f"{digit} twice in {name} {units[cell] + 1}"
            seen.add((units[cell], digit))
    return None


class TooManySteps(Exception):
    """The search for solutions was given up."""


def solutions(puzzle: Sequence[int], most: int = 2, steps: float = math.inf) -> list[Board]:
    """Up to `most` solutions; raises TooManySteps after trying `steps` digits."""
    if clash(puzzle) is not None:
        return []
    cells, found, tried = list(puzzle), [], 0
    free = _free(cells)

    def search(blank: list[int]) -> bool:
        """Fill what is blank in every way; True once there are enough solutions."""
        nonlocal tried
        if not blank:
            found.append(list(cells))
            return len(found) >= most
        for cell, bit in _choices(free, blank):
            tried += 1
            if tried > steps:
                raise TooManySteps
            _turn(free, cell, bit)
            cells[cell] = bit.bit_length()
            if search([other for other in blank if other != cell]):
                return True
            _turn(free, cell, bit)
        return False

    search([cell for cell in range(CELLS) if not cells[cell]])
    return found


def forced(puzzle: Sequence[int]) -> Board:
    """A puzzle with a solution -> the same with all filled in that single candidates give, one after another."""
    cells = list(puzzle)
    free, blank = _free(cells), [cell for cell in range(CELLS) if not cells[cell]]
    while blank and len(choices := _choices(free, blank)) == 1:
        cell, bit = choices[0]
        _turn(free, cell, bit)
        cells[cell] = bit.bit_length()
        blank.remove(cell)
    return cells


def _free(cells: Sequence[int]) -> list[int]:
    """The digits that each row, column and box still lacks, as bits."""
    free = [511] * 27
    for cell, digit in enumerate(cells):
        if digit:
            _turn(free, cell, 1 << digit - 1)
    return free


def _turn(free: list[int], cell: int, bit: int) -> None:
    """Take a digit from the units of a cell, or give it back."""
    row, column, box = UNITS[cell]
    free[row] ^= bit
    free[column] ^= bit
    free[box] ^= bit


def _choices(free: list[int], blank: list[int]) -> list[tuple[int, int]]:
    """The cells and digits, as bits, of which one must hold: the fewest for a cell, or for a digit of a unit."""
    fewest, at, candidates = 10, -1, 0
    masks = []  # the digits that each cell may hold
    for cell in blank:
        row, column, box = UNITS[cell]
        mask = free[row] & free[column] & free[box]
        count = mask.bit_count()
        if count < fewest:
            if count < 2:
                return [(cell, mask)] if mask else []
            fewest, at, candidates = count, cell, mask
        masks.append(mask)
    places = _places(free, blank, masks, fewest)
    return [(at, 1 << digit) for digit in range(9) if candidates >> digit & 1] if places is None else places


def _places(free: list[int], blank: list[int], masks: list[int], below: int) -> list[tuple[int, int]] | None:
    """The places of a digit in a unit, if there are two or less and fewer than `below`."""
    once, twice, more = [0] * 27, [0] * 27, [0] * 27  # digits that have a place in a unit; two or more; three or more
    for cell, mask in zip(blank, masks, strict=True):
        for unit in UNITS[cell]:
            more[unit] |= twice[unit] & mask
            twice[unit] |= once[unit] & mask
            once[unit] |= mask
    if once != free:
        return []  # a digit has no place left
    for some, too_many in ((once, twice), (twice, more))[: below - 1]:
        for unit in range(27):
            digits = some[unit] & ~too_many[unit]
            if digits:
                bit = digits & -digits
                return [(c, bit) for c, mask in zip(blank, masks, strict=True) if mask & bit and unit in UNITS[c]]
    return None


STEPS = 20_000  # digits that are tried before the search is given up: less than a second
SEVERAL = "has several solutions"
UNKNOWN = "may have no solution, or several: it would take too long to tell"


def check(puzzle: Sequence[int]) -> str | None:
    """Refuse a puzzle with nothing to fill or without a solution; remark on another: SEVERAL, UNKNOWN or None."""
    wrong = clash(puzzle)
    if 0 not in puzzle:
        verdict = "right" if wrong is None else f"wrong: {wrong}"
        raise InputError(f"there is nothing to fill, the board is full and {verdict}", "write . or 0 for a blank")
    if wrong is not None:
        raise InputError(f"the clues clash: {wrong}", "no board keeps them; correct the puzzle")
    try:
        many = len(solutions(puzzle, steps=STEPS))
    except TooManySteps:
        return UNKNOWN
    if many == 0:
        raise InputError("no board keeps these clues", "correct the puzzle")
    return None if many == 1 else SEVERAL


def puzzle(grid: Sequence[int], clues: int, dice: Random) -> Board:
    """A puzzle with one solution: cells of a full grid taken away in random order, down to `clues` if that can be."""
    board, left = list(grid), CELLS
    for cell in dice.sample(range(CELLS), CELLS):
        if left == clues:
            break
        digit, board[cell] = board[cell], 0
        if len(solutions(board)) == 1:
            left -= 1
        else:
            board[cell] = digit
    return board
