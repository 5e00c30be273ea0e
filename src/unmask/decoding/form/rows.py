"""Automata over tokens × the rows of a walk -> the tokens that may be written: the constraint of the loop.

A row is read twice, from the left and from the right: after each position the set of states that what is decided
allows. A token may be written where it leads from a state of the left into one of the right. The sets that occur are
few, and each gets a number when it first occurs: to read a row is then to look numbers up, and a step leaves most of
them as they were. The device sees a number for each position, and one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.constraint import Allowed, Redraw
from unmask.decoding.form import sets as of_states
from unmask.decoding.form.sets import OPEN, Sets
from unmask.decoding.form.table import Pairs, Table
from unmask.decoding.form.tokens import Tokens
from unmask.decoding.form.work import too_large
from unmask.errors import InputError, many

KEPT = 4096  # rows whose reading is kept
MOVES = 100_000_000  # that lead on from the states at the positions of a row: of some ten nanoseconds each
Span = tuple[int, int, int]  # the columns of a hole, and its number


@dataclass(frozen=True)
class _Read:
    """A row that was read: the number of the left set before each column, and of the right set after it."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    fits: bool  # it can be completed


UNREAD = _Read(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), True)


@dataclass(eq=False)
class Holes:
    """The constraint of a walk: one automaton for the holes of all rows, or one for each hole of a row."""

    automata: Sequence[Tokens]  # one, or one for each hole from the left
    mask: int
    device: torch.device
    _rows: dict[tuple[bytes, bytes], _Read] = field(default_factory=dict)
    _spans: dict[bytes, list[Span]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unique = {id(one): one for one in self.automata}
        order = list(unique)
        self.sets = [Sets(one) for one in unique.values()]
        self.which = [order.index(id(one)) for one in self.automata]  # of each hole
        self._kinds = [np.append(one.kind, OPEN) for one in unique.values()]
        self._table = Table(self.sets, self.device)

    # --- what the loop asks ---

    def check(self, tokens: Tensor, writable: Tensor) -> None:
        canvas, open_ = _host(tokens, writable)
        for row, read in enumerate(self._read(canvas, open_.astype(np.bool_))):
            holes = open_[row].astype(np.bool_)
            if not read.fits:
                raise self._impossible(row, holes, len(tokens) > 1)
            self._bounded(read, holes)

    def read(self, tokens: Tensor, writable: Tensor, where: Tensor) -> Callable[[], Tensor]:
        canvas, *flags = _host(tokens, writable, where)
        open_, asked = (one.astype(np.bool_) for one in flags)
        return partial(self._rows_of, canvas, open_, asked)

    def _rows_of(self, canvas: NDArray[np.int64], open_: NDArray[np.bool_], asked: NDArray[np.bool_]) -> Tensor:
        if sum(one.bytes for one in self.sets) > of_states.BYTES:  # nothing but these refers to their numbers
            self._rows = {}
            self._table.clear()
            for sets in self.sets:
                sets.clear()
        pairs: list[list[Pairs]] = [[np.zeros((4, 0), dtype=np.int64)] for _ in self.sets]
        for number, read in enumerate(self._read(canvas, open_, np.asarray(asked.any(1)))):
            for begin, end, hole in self.spans(open_[number]) if asked[number].any() else ():
                columns = np.flatnonzero(asked[number, begin:end]) + begin
                rows = np.full(len(columns), number)
                pairs[self.which[hole]].append(np.stack([rows, columns, read.left[columns], read.right[columns]]))
        return self._table.rows(canvas.shape, [np.concatenate(some, axis=1) for some in pairs])

    @property
    def table(self) -> tuple[Tensor, Tensor]:
        return self._table.numbers

    def reserve(self, positions: int) -> None:
        self._table.reserve(positions)

    def settle(self, before: Tensor, after: Tensor, writable: Tensor, redraw: Redraw) -> Tensor:
        old, new, flags = _host(before, after, writable)
        open_ = flags.astype(np.bool_)
        changed = (old != new).any(1)
        repairs = [
            _Repair(self, number, old[number], new[number], open_[number])
            for number, read in enumerate(self._read(new, open_, changed))
            if changed[number] and not read.fits
        ]
        if not repairs:
            return after
        tokens = torch.from_numpy(new.copy()).to(after.device)
        while waiting := [one for one in repairs if one.advance()]:
            where = np.zeros(new.shape, dtype=np.bool_)
            pairs: list[list[tuple[int, ...]]] = [[] for _ in self.sets]
            for one in waiting:
                where[one.row, one.column] = True
                pairs[one.which].append((one.row, one.column, one.now, one.right[one.column]))
            row = self._table.rows(new.shape, [np.array(some, dtype=np.int64).reshape(-1, 4).T for some in pairs])
            drawn = redraw(torch.from_numpy(where).to(after.device), Allowed(row, *self.table)).cpu().numpy()
            for one in waiting:
                one.write(int(drawn[one.row, one.column]))
        for one in repairs:
            tokens[one.row] = torch.from_numpy(one.tokens).to(after.device)
        return tokens

    # --- reading rows ---

    def spans(self, open_: NDArray[np.bool_]) -> list[Span]:
        """The holes of a row: their columns, and the number of each."""
        key = open_.tobytes()
        if key not in self._spans:
            edges = np.flatnonzero(np.diff(np.concatenate([[False], open_, [False]]).astype(np.int8)))
            holes = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
            if len(self.automata) > 1 and len(holes) != len(self.automata):
                what = f"{many(len(self.automata), 'constraint')} for {many(len(holes), 'hole')}"
                raise InputError(what, "give one for all holes, or one for each")
            one = len(self.automata) == 1
            self._spans[key] = [(begin, end, 0 if one else number) for number, (begin, end) in enumerate(holes)]
        return self._spans[key]

    def _read(
        self, canvas: NDArray[np.int64], open_: NDArray[np.bool_], some: NDArray[np.bool_] | None = None
    ) -> list[_Read]:
        """The reading of each row, of those that are asked about."""
        if len(self._rows) > KEPT:
            self._rows.clear()
        found = []
        for number, (tokens, holes) in enumerate(zip(canvas, open_, strict=True)):
            if some is not None and not some[number]:
                found.append(UNREAD)
                continue
            key = (holes.tobytes(), tokens.tobytes())
            if key not in self._rows:
                self._rows[key] = self.row(tokens, holes)
            found.append(self._rows[key])
        return found

    def row(self, tokens: NDArray[np.int64], open_: NDArray[np.bool_]) -> _Read:
        """One row, from both sides."""
        left, right, fits = [0] * len(tokens), [0] * len(tokens), True
        for begin, end, hole in self.spans(open_):
            sets, classes = self.sets[self.which[hole]], self.classes(tokens[begin:end], hole)
            now, forward = sets.first, sets.forward
            for column, kind in enumerate(classes, begin):
                left[column] = now
                following = forward[now].get(kind)
                now = sets.after(now, kind) if following is None else following
            fits = fits and sets.meet(now, sets.last)
            now, backward = sets.last, sets.backward
            for column in range(end - 1, begin - 1, -1):
                right[column] = now
                kind = classes[column - begin]
                following = backward[now].get(kind)
                now = sets.before(now, kind) if following is None else following
        return _Read(np.array(left), np.array(right), fits)

    def classes(self, tokens: NDArray[np.int64], hole: int) -> list[int]:
        """The class of each token; OPEN for the mask."""
        kinds = self._kinds[self.which[hole]]
        found: list[int] = kinds[
            np.where(tokens == self.mask, len(kinds) - 1, np.minimum(tokens, len(kinds) - 2))
        ].tolist()
        return found

    # --- refusals ---

    def _bounded(self, read: _Read, open_: NDArray[np.bool_]) -> None:
        """Refuse a row whose steps would take seconds each."""
        counts: dict[tuple[int, int], int] = {}  # hole, left -> moves
        left = MOVES
        for begin, end, hole in self.spans(open_):
            for number in read.left[begin:end].tolist():
                if (hole, number) not in counts:
                    counts[hole, number] = self.sets[self.which[hole]].leading(number)
                left -= counts[hole, number]
            if left < 0:
                raise too_large(f"too many tokens may stand at {many(int(open_.sum()), 'position')}")

    def _impossible(self, row: int, open_: NDArray[np.bool_], several: bool) -> InputError:
        """The refusal of a canvas that cannot be completed."""
        where = f"row {row}: " if several else ""
        for number, (begin, end, hole) in enumerate(self.spans(open_)):
            sets = self.sets[self.which[hole]]
            now = sets.first
            for _ in range(begin, end):
                now = sets.forward[now].get(OPEN, -1) if OPEN in sets.forward[now] else sets.after(now, OPEN)
            if not sets.meet(now, sets.last):
                what = "the constraint" if len(self.spans(open_)) == 1 else f"the constraint of hole {number + 1}"
                fewest = sets.tokens.fewest
                if fewest is None:
                    return InputError(f"{where}nothing that the model can write meets {what}", "allow more")
                room = many(end - begin, "position")
                if fewest > end - begin:
                    return InputError(
                        f"{where}{what} needs {many(fewest, 'position')}, and there are {end - begin}", "give more"
                    )
                return InputError(f"{where}no text of {room} meets {what}", "give another length, or allow an end")
        raise AssertionError("each hole can be filled, but the row cannot")


@dataclass
class _Repair:
    """One row whose new tokens do not fit together, gone through from the left."""

    holes: Holes
    row: int
    before: NDArray[np.int64]
    tokens: NDArray[np.int64]  # after the step; changed in place
    open_: NDArray[np.bool_]
    column: int = -1  # the position that is drawn anew
    now: int = -1  # the left set there

    def __post_init__(self) -> None:
        self.tokens = self.tokens.copy()
        new = self.open_ & (self.tokens != self.before) & (self.tokens != self.holes.mask)
        loose = np.where(new, self.holes.mask, self.tokens)
        self.right = self.holes.row(loose, self.open_).right  # whatever is new may still be anything
        self.todo = [(begin, end, hole) for begin, end, hole in self.holes.spans(self.open_) if new[begin:end].any()]
        self.new, self.at = new, -1

    @property
    def which(self) -> int:
        """The number of the automaton of the hole that it is in."""
        return self.holes.which[self.todo[0][2]]

    def advance(self) -> bool:
        """Go on to the next position that must be drawn; False at the end of the row."""
        while self.todo:
            begin, end, hole = self.todo[0]
            sets = self.holes.sets[self.holes.which[hole]]
            if self.at < begin:
                self.at, self.now = begin, sets.first
            while self.at < end:
                if self.new[self.at] and not self._keep(sets, hole):
                    self.column = self.at
                    return True
                self._step(sets, hole, int(self.tokens[self.at]))
            self.todo.pop(0)
        return False

    def _keep(self, sets: Sets, hole: int) -> bool:
        """Whether the new token fits, or the one from before."""
        for token in (self.tokens[self.at], self.before[self.at]):
            if token != self.holes.mask:
                kind = self.holes.classes(np.array([token]), hole)[0]
                if sets.meet(sets.after(self.now, kind), self.right[self.at]):
                    self.tokens[self.at] = token
                    return True
        return False

    def _step(self, sets: Sets, hole: int, token: int) -> None:
        self.now = sets.after(self.now, self.holes.classes(np.array([token]), hole)[0])
        self.at += 1

    def write(self, token: int) -> None:
        """The token that was drawn."""
        self.tokens[self.column] = token
        self._step(self.holes.sets[self.which], self.todo[0][2], token)


def _host(*several: Tensor) -> NDArray[np.int64]:  # [B, L] each
    """Numbers and flags of the device, as numbers: the host waits once."""
    if not several[0].is_cuda:
        return np.stack([one.numpy() for one in several])
    return torch.stack([one.long() for one in several]).cpu().numpy()
