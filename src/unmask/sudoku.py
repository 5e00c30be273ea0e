"""Sudoku boards of 9 × 9: text -> board, exact solutions, and puzzles with one solution."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from unmask.errors import InputError

SIDE, CELLS = 9, 81
MASK = 9  # the digits 1 to 9 are the model's tokens 0 to 8
ROW = [cell // 9 for cell in range(CELLS)]
COLUMN = [cell % 9 for cell in range(CELLS)]
BOX = [cell // 27 * 3 + cell % 9 // 3 for cell in range(CELLS)]
Board = list[int]  # 81 digits from the left and from the top; 0 is blank


def parse(text: str) -> Board:
    """A board of 81 characters; . and 0 are blanks, white space and the frame of a drawn board are left out."""
    cells = "".join(text.split()).translate(str.maketrans("._*", "000", "|+-"))
    if len(cells) != CELLS:
        raise InputError(f"a Sudoku has 81 cells, this one has {len(cells)}", "write 81 characters, . or 0 for a blank")
    for place, cell in enumerate(cells):
        if cell not in "0123456789":
            where = f"row {place // 9 + 1}, column {place % 9 + 1}"
            raise InputError(f"{cell!r} in {where} is no digit", "write 1 to 9, and . or 0 for a blank")
    return [int(cell) for cell in cells]


def canvas(board: Sequence[int]) -> list[int]:
    """What the model is given: token ids, masks for blanks."""
    return [MASK if digit == 0 else digit - 1 for digit in board]


def answer(tokens: Sequence[int]) -> str:
    """What the model said, as 81 digits; 0 where a mask is left."""
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
    """What two equal digits stand together in, as `a 7 twice in row 3`; None where nothing clashes."""
    for name, units in (("row", ROW), ("column", COLUMN), ("box", BOX)):
        seen: set[tuple[int, int]] = set()
        for cell, digit in enumerate(board):
            if digit and (units[cell], digit) in seen:
                return f"{digit} twice in {name} {units[cell] + 1}"
            seen.add((units[cell], digit))
    return None


def solutions(puzzle: Sequence[int], most: int = 2) -> list[Board]:
    """Up to `most` solutions: always the cell with the fewest candidates first."""
    if clash(puzzle) is not None:
        return []
    free = [[511] * 9 for _ in range(3)]  # digits that each row, column and box still lacks, as bits
    rows, columns, boxes = free
    cells, found = list(puzzle), []
    for cell, digit in enumerate(cells):
        if digit:
            bit = 1 << digit - 1
            rows[ROW[cell]] ^= bit
            columns[COLUMN[cell]] ^= bit
            boxes[BOX[cell]] ^= bit

    def search(blank: list[int]) -> bool:
        """Fill what is blank in every way; True once there are enough solutions."""
        if not blank:
            found.append(list(cells))
            return len(found) >= most
        fewest, at, candidates = 10, -1, 0
        for cell in blank:
            mask = rows[ROW[cell]] & columns[COLUMN[cell]] & boxes[BOX[cell]]
            count = bin(mask).count("1")
            if count < fewest:
                fewest, at, candidates = count, cell, mask
                if count < 2:
                    break
        rest = [cell for cell in blank if cell != at]
        row, column, box = ROW[at], COLUMN[at], BOX[at]
        while candidates:
            bit = candidates & -candidates
            candidates ^= bit
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
            cells[at] = bit.bit_length()
            if search(rest):
                return True
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
        cells[at] = 0
        return False

    search([cell for cell in range(CELLS) if not cells[cell]])
    return found


def check(puzzle: Sequence[int]) -> None:
    """Refuse a puzzle without a solution."""
    wrong = clash(puzzle)
    if wrong is not None:
        raise InputError(f"the clues clash: {wrong}", "no board keeps them; correct the puzzle")
    if not solutions(puzzle, most=1):
        raise InputError("no board keeps these clues", "correct the puzzle")


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
