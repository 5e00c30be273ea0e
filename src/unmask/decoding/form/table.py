"""Pairs of sets of states -> rows of a table on the device: for each class of tokens whether it may stand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.constraint import NOTHING
from unmask.decoding.form import sets as of_states
from unmask.decoding.form.sets import Sets

LEAST = 64  # rows that there is always room for
Pairs = NDArray[np.int64]  # [4, N]: row and column of positions, and the numbers of their left and right sets


class Table:
    """What may stand between two sets of states, by the number of the pair; tokens that act alike share a column."""

    def __init__(self, sets: Sequence[Sets], device: torch.device) -> None:
        self.sets, self.device = sets, device
        kind, self._columns = _together([one.tokens.kind for one in sets])
        self.kind = sent(kind.astype(np.int32), device)  # [V]: the column of each token
        self.width = len(self._columns[0])
        self._rows = torch.zeros(LEAST, self.width, dtype=torch.bool, device=device)  # [M, C], with room for more
        self._most: int | None = None  # rows that there is room for, where none is made later
        self.clear()

    def clear(self) -> None:
        """Forget all pairs."""
        self._places: list[dict[int, int]] = [{} for _ in self.sets]  # left and right -> row
        self._used = NOTHING + 1

    def reserve(self, asked: int) -> None:
        """Room for all that one step may ask about; the table then keeps its place in memory."""
        if self._most is None or self._most <= asked:
            self._most = max(asked + 1, LEAST, min(8 * asked, of_states.BYTES // self.width))
            self._make(max(self._most, self._used))

    def rows(self, shape: tuple[int, ...], pairs: Sequence[Pairs]) -> Tensor:  # [B, L]
        """The row of each of some positions of a canvas; their pairs are given for each automaton."""
        found = np.full(shape, NOTHING, dtype=np.int64)
        unique = [np.unique(some[2] << 32 | some[3], return_inverse=True) for some in pairs]
        most = self._most or max(LEAST, of_states.BYTES // self.width)
        if self._used + sum(self._missing(which, keys) for which, (keys, _) in enumerate(unique)) > most:
            self.clear()
        new = []
        for which, (keys, inverse) in enumerate(unique):
            places = self._places[which]
            fresh = [key for key in keys.tolist() if key not in places]
            if fresh:
                places.update(zip(fresh, range(self._used, self._used + len(fresh)), strict=True))
                self._used += len(fresh)
                masks = self.sets[which].masks([key >> 32 for key in fresh], [key & 0xFFFFFFFF for key in fresh])
                new.append(masks[:, self._columns[which]])
            numbers = np.array([places[key] for key in keys.tolist()], dtype=np.int64)
            found[pairs[which][0], pairs[which][1]] = numbers[inverse.ravel()]
        self._add(new)
        return sent(found, self.device)

    @property
    def numbers(self) -> tuple[Tensor, Tensor]:  # [M, C], [V]
        """The table, and the column of each token."""
        return self._rows, self.kind

    def _missing(self, which: int, keys: NDArray[np.int64]) -> int:
        return sum(key not in self._places[which] for key in keys.tolist())

    def _add(self, new: list[NDArray[np.bool_]]) -> None:
        """Write the last rows that are used."""
        if self._used > len(self._rows):
            self._make(2 * self._used)
        if new:
            rows = np.concatenate(new)
            self._rows[self._used - len(rows) : self._used] = sent(rows, self.device)

    def _make(self, rows: int) -> None:
        """Room for so many rows; those that are there stay."""
        made = torch.zeros(rows, self.width, dtype=torch.bool, device=self.device)
        made[: len(self._rows)] = self._rows
        self._rows = made


def sent(numbers: NDArray[np.generic], device: torch.device) -> Tensor:
    """Numbers on the device; the host does not wait until they are there."""
    made = torch.from_numpy(np.ascontiguousarray(numbers))
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made


def _together(kinds: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Classes of several automata -> for each token a column, equal where no automaton tells tokens apart; for each
    automaton the class of each column."""
    joint = kinds[0]
    for kind in kinds[1:]:
        joint = np.unique(joint * (int(kind.max()) + 1) + kind, return_inverse=True)[1].ravel()
    columns = []
    for kind in kinds:
        classes = np.zeros(int(joint.max()) + 1, dtype=np.int64)
        classes[joint] = kind
        columns.append(classes)
    return joint, columns
