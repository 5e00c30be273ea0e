"""Random full Sudoku grids by the thousand, without a compiler: rows are filled for all grids at once.

In each row the column with the fewest candidates is decided first. A band of three rows that leads nowhere is drawn
anew; about one in seven does. `alike` makes more of some by the symmetries of the game.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.int16]  # sets of digits, digit d as bit d - 1
TOGETHER = 4096  # grids in the works at a time, at most

_COUNT = np.array([bin(mask).count("1") for mask in range(512)], dtype=np.int8)
_NTH = np.zeros((512, 9), dtype=np.int16)  # the n-th digit of a set, as a bit
for _mask in range(512):
    _members = [1 << digit for digit in range(9) if _mask >> digit & 1]
    _NTH[_mask, : len(_members)] = _members


def grids(count: int, dice: np.random.Generator) -> NDArray[np.int8]:  # [count, 81], digits 1 to 9
    """Full grids, each row, column and box a permutation of the digits."""
    together = min(TOGETHER, count)
    bands = np.zeros((together, 3, 3, 9), dtype=np.int16)
    columns: Bits = np.zeros((together, 9), dtype=np.int16)  # digits that each column has
    done = np.zeros(together, dtype=np.int64)  # bands that are there
    found, made = [], 0
    while made < count:
        band, after, good = _band(columns, dice)
        for number in range(3):
            some = np.flatnonzero(good & (done == number))
            bands[some, number] = band[some]
        columns[good] = after[good]
        done[good] += 1
        full = np.flatnonzero(done == 3)
        found.append(bands[full].reshape(-1, 81))
        made += len(full)
        columns[full], done[full] = 0, 0
    return (np.log2(np.concatenate(found)[:count]) + 1).astype(np.int8)


def _band(columns: Bits, dice: np.random.Generator) -> tuple[Bits, Bits, NDArray[np.bool_]]:
    """Three rows for every grid, the columns after them, and where that worked out."""
    after, boxes = columns.copy(), np.zeros((len(columns), 3), dtype=np.int16)
    good, rows = np.ones(len(columns), dtype=bool), []
    for _ in range(3):
        row, fits = _row(after | boxes[:, np.arange(9) // 3], dice)
        good &= fits
        after |= row
        boxes |= np.bitwise_or.reduce(row.reshape(-1, 3, 3), 2)
        rows.append(row)
    return np.stack(rows, 1), after, good


def _row(taken: Bits, dice: np.random.Generator) -> tuple[Bits, NDArray[np.bool_]]:
    """A row for every grid from what each of its nine columns may hold."""
    every = np.arange(len(taken))
    left = (511 & ~taken).astype(np.int16)
    row, fits = np.zeros_like(left), np.ones(len(left), dtype=bool)
    open = np.ones(left.shape, dtype=bool)
    ties = dice.random(left.shape, dtype=np.float32) * 0.9
    for _ in range(9):
        column = np.where(open, _COUNT[left] + ties, 99).argmin(1)
        choice = left[every, column]
        count = _COUNT[choice]
        fits &= count > 0
        pick = (dice.random(len(left), dtype=np.float32) * np.maximum(count, 1)).astype(np.int64)
        bit = _NTH[choice, pick]
        row[every, column] = bit
        open[every, column] = False
        left &= ~bit[:, None]
    return row, fits


def alike(boards: NDArray[np.int8], dice: np.random.Generator) -> NDArray[np.int8]:  # [N, 81], 0 for a blank
    """Each board as another one that is as hard: digits renamed, rows and columns exchanged, some turned over."""
    count = len(boards)
    rows, columns = (_lines(count, dice)[:, :, None] for _ in range(2))
    cells = (9 * rows + columns.transpose(0, 2, 1)).reshape(count, 81)
    turned = (9 * columns + rows.transpose(0, 2, 1)).reshape(count, 81)
    cells = np.where(dice.random(count)[:, None] < 0.5, turned, cells)
    names = np.concatenate([np.zeros((count, 1)), 1 + dice.random((count, 9)).argsort(1)], 1).astype(np.int8)
    return np.take_along_axis(names, np.take_along_axis(boards, cells, 1).astype(np.int64), 1)


def _lines(count: int, dice: np.random.Generator) -> NDArray[np.int64]:  # [count, 9]
    """Orders of nine rows in which the bands stay together."""
    bands, within = dice.random((count, 3, 1)).argsort(1), dice.random((count, 3, 3)).argsort(2)
    return (3 * bands + within).reshape(count, 9)
