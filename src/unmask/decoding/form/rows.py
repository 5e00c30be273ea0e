"""Automata over tokens × the rows of a walk -> the tokens that may be written: the constraint of the loop.

A row is read twice, from the left and from the right: after each position the set of states that what is decided
allows. A token may be written where it leads from a state of the left into one of the right. The sets that occur are
few, and each gets a number when it first occurs: to read a row is then to look numbers up, and a step leaves most of
them as they were. The device sees numbers and one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.constraint import Allowed, Redraw
from unmask.decoding.form.tokens import Tokens, unpacked
from unmask.decoding.form.work import too_large
from unmask.errors import InputError, many

OPEN = -1  # in place of a class: any token
KEPT = 4096  # rows whose reading is kept
BYTES = 1 << 28  # of the table of allowed tokens, and of the sets of states; they begin anew beyond
MOVES = 100_000_000  # that lead on from the states at the positions of a row: of some ten nanoseconds each
PIECE = 4_000_000  # of them at a time
Set = NDArray[np.uint8]  # of states, 8 in a byte
Span = tuple[int, int, int]  # the columns of a hole, and its number


class _Sets:
    """The sets of states that occur in holes of one constraint, from the left and from the right."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens, self.size = tokens, len(tokens.accepts)
        start = np.zeros(self.size, dtype=np.bool_)
        start[tokens.start] = tokens.start > 0
        self.ends = start, tokens.accepts
        self.clear()

    def clear(self) -> None:
        """Forget all sets but the first and the last one."""
        self.left: list[Set] = []
        self.right: list[Set] = []
        self._left: dict[bytes, int] = {}
        self._right: dict[bytes, int] = {}
        self.forward: list[dict[int, int]] = []  # of each left set: class -> the set after it
        self.backward: list[dict[int, int]] = []  # of each right set: class -> the set before it
        self.first = self._add_left(np.packbits(self.ends[0]))
        self.last = self._add_right(np.packbits(self.ends[1]))

    @property
    def bytes(self) -> int:
        """The memory of all sets, about."""
        return (len(self.left) + len(self.right)) * (self.size // 4 + 500)

    def _add_left(self, states: Set) -> int:
        key = states.tobytes()
        if key not in self._left:
            self._left[key] = len(self.left)
            self.left.append(states)
            self.forward.append({})
        return self._left[key]

    def _add_right(self, states: Set) -> int:
        key = states.tobytes()
        if key not in self._right:
            self._right[key] = len(self.right)
            self.right.append(states)
            self.backward.append({})
        return self._right[key]

    def after(self, number: int, kind: int) -> int:
        """The left set after a token of a class."""
        states = unpacked(self.left[number], self.size)
        if kind == OPEN:
            found = np.bitwise_or.reduce(self.tokens.reach[0][states], axis=0)
        else:
            leads = np.zeros(self.size, dtype=np.bool_)
            leads[self.tokens.moves[kind][states]] = True
            leads[0] = False
            found = np.packbits(leads)
        self.forward[number][kind] = self._add_left(found)
        return self.forward[number][kind]

    def before(self, number: int, kind: int) -> int:
        """The right set before a token of a class."""
        states = unpacked(self.right[number], self.size)
        if kind == OPEN:
            found = np.bitwise_or.reduce(self.tokens.reach[1][states], axis=0)
        else:
            leads = states[self.tokens.moves[kind]]
            leads[0] = False
            found = np.packbits(leads)
        self.backward[number][kind] = self._add_right(found)
        return self.backward[number][kind]

    def meet(self, left: int, right: int) -> bool:
        return bool((self.right[right] & self.left[left]).any())

    def leading(self, left: int) -> int:
        """How many moves lead on from the states of the left."""
        begins = self.tokens.live[0]
        return int((begins[1:] - begins[:-1])[unpacked(self.left[left], self.size)].sum())

    def classes(self, left: int, right: int) -> NDArray[np.bool_]:  # [C]
        """The classes of tokens that lead from a state of the left into one of the right."""
        begins, classes, targets = self.tokens.live
        found = np.zeros(len(self.tokens.moves), dtype=np.bool_)
        states = np.flatnonzero(unpacked(self.left[left], self.size))
        goals = unpacked(self.right[right], self.size)
        for some in np.array_split(states, max(1, len(states) * len(found) // PIECE)):
            counts = begins[some + 1] - begins[some]
            ends = counts.cumsum()
            where = np.repeat(begins[some] - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)
            found[classes[where][goals[targets[where]]]] = True
        return found


@dataclass(frozen=True)
class _Read:
    """A row that was read: the number of the left set before each column, and of the right set after it."""

    left: list[int]
    right: list[int]
    fits: bool  # it can be completed


@dataclass(eq=False)
class Holes:
    """The constraint of a walk: one automaton for the holes of all rows, or one for each hole of a row."""

    automata: Sequence[Tokens]  # one, or one for each hole from the left
    mask: int
    device: torch.device
    _rows: dict[tuple[bytes, bytes], _Read] = field(default_factory=dict)
    _spans: dict[bytes, list[Span]] = field(default_factory=dict)
    _places: dict[tuple[int, int, int], int] = field(default_factory=dict)  # hole, left, right -> row of the table
    _new: list[NDArray[np.bool_]] = field(default_factory=list)  # rows that are not on the device yet
    _sent: Tensor | None = None  # [M, V] bool: the table, with room for more
    _used: int = 0  # rows of it

    def __post_init__(self) -> None:
        unique = {id(one): one for one in self.automata}
        made = {key: _Sets(one) for key, one in unique.items()}
        self._sets = [made[id(one)] for one in self.automata]
        self._kinds = [np.append(one.kind, OPEN) for one in self.automata]

    # --- what the loop asks ---

    def check(self, tokens: Tensor, writable: Tensor) -> None:
        canvas, open_ = _host(tokens, writable)
        for row, read in enumerate(self._read(canvas, open_)):
            if not read.fits:
                raise self._impossible(row, open_[row], len(tokens) > 1)
            self._bounded(read, open_[row])

    def allowed(self, tokens: Tensor, writable: Tensor, where: Tensor, full: bool = True) -> Allowed:
        canvas, open_ = _host(tokens, writable)
        asked = where.cpu().numpy()
        rows = np.zeros(canvas.shape, dtype=np.int64)
        if self._sent is not None and self._used > max(64, BYTES // self._sent.shape[1]):
            self._places, self._sent, self._used = {}, None, 0
        if sum(one.bytes for one in self._sets) > BYTES:  # nothing but these refers to their numbers
            self._rows, self._places, self._sent, self._used = {}, {}, None, 0
            for sets in self._sets:
                sets.clear()
        for number, read in enumerate(self._read(canvas, open_, np.asarray(asked.any(1)))):
            if asked[number].any():
                self._place(rows[number], read, asked[number], self._spans[open_[number].tobytes()])
        return self._allowed(rows, full)

    def settle(self, before: Tensor, after: Tensor, writable: Tensor, redraw: Redraw) -> Tensor:
        (old, open_), (new, _) = _host(before, writable), _host(after, writable)
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
            where, rows = np.zeros(new.shape, dtype=np.bool_), np.zeros(new.shape, dtype=np.int64)
            for one in waiting:
                where[one.row, one.column] = True
                rows[one.row, one.column] = one.place
            drawn = redraw(torch.from_numpy(where).to(after.device), self._allowed(rows)).cpu().numpy()
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
                found.append(_Read([], [], True))
                continue
            key = (holes.tobytes(), tokens.tobytes())
            if key not in self._rows:
                self._rows[key] = self.read(tokens, holes)
            found.append(self._rows[key])
        return found

    def read(self, tokens: NDArray[np.int64], open_: NDArray[np.bool_]) -> _Read:
        """One row, from both sides."""
        left, right, fits = [0] * len(tokens), [0] * len(tokens), True
        for begin, end, hole in self.spans(open_):
            sets, classes = self._sets[hole], self.classes(tokens[begin:end], hole)
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
        return _Read(left, right, fits)

    def classes(self, tokens: NDArray[np.int64], hole: int) -> list[int]:
        """The class of each token; OPEN for the mask."""
        kinds = self._kinds[hole]
        found: list[int] = kinds[
            np.where(tokens == self.mask, len(kinds) - 1, np.minimum(tokens, len(kinds) - 2))
        ].tolist()
        return found

    # --- the table of the device ---

    def _place(self, rows: NDArray[np.int64], read: _Read, asked: NDArray[np.bool_], spans: list[Span]) -> None:
        """The row of the table for each position that is asked about."""
        for begin, end, hole in spans:
            for column in (np.flatnonzero(asked[begin:end]) + begin).tolist():
                rows[column] = self.place(hole, read.left[column], read.right[column])

    def place(self, hole: int, left: int, right: int) -> int:
        """The row of the table for two sets."""
        key = (hole, left, right)
        if key not in self._places:
            classes = self._sets[hole].classes(left, right)
            self._places[key] = self._used + len(self._new)
            self._new.append(classes[self.automata[hole].kind])
        return self._places[key]

    def _allowed(self, rows: NDArray[np.int64], full: bool = True) -> Allowed:
        width = len(self.automata[0].kind)
        if self._sent is None:
            self._sent = torch.zeros(64, width, dtype=torch.bool, device=self.device)
        need = self._used + len(self._new)
        if need > len(self._sent):  # twice as much, so that rows are seldom copied
            more = torch.zeros(
                max(need, 2 * len(self._sent)) - len(self._sent), width, dtype=torch.bool, device=self.device
            )
            self._sent = torch.cat([self._sent, more])
        if self._new:
            self._sent[self._used : need] = torch.from_numpy(np.stack(self._new)).to(self.device)
            self._used, self._new = need, []
        return Allowed(torch.from_numpy(rows).to(self.device), self._sent, full)

    # --- refusals ---

    def _bounded(self, read: _Read, open_: NDArray[np.bool_]) -> None:
        """Refuse a row whose steps would take seconds each."""
        counts: dict[tuple[int, int], int] = {}  # hole, left -> moves
        left = MOVES
        for begin, end, hole in self.spans(open_):
            for number in read.left[begin:end]:
                if (hole, number) not in counts:
                    counts[hole, number] = self._sets[hole].leading(number)
                left -= counts[hole, number]
            if left < 0:
                raise too_large(f"too many tokens may stand at {many(int(open_.sum()), 'position')}")

    def _impossible(self, row: int, open_: NDArray[np.bool_], several: bool) -> InputError:
        """The refusal of a canvas that cannot be completed."""
        where = f"row {row}: " if several else ""
        for number, (begin, end, hole) in enumerate(self.spans(open_)):
            sets, now = self._sets[hole], self._sets[hole].first
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
    place: int = 0  # and the row of the table for it

    def __post_init__(self) -> None:
        self.tokens = self.tokens.copy()
        new = self.open_ & (self.tokens != self.before) & (self.tokens != self.holes.mask)
        loose = np.where(new, self.holes.mask, self.tokens)
        self.right = self.holes.read(loose, self.open_).right  # whatever is new may still be anything
        self.todo = [(begin, end, hole) for begin, end, hole in self.holes.spans(self.open_) if new[begin:end].any()]
        self.new, self.now, self.at = new, -1, -1

    def advance(self) -> bool:
        """Go on to the next position that must be drawn; False at the end of the row."""
        while self.todo:
            begin, end, hole = self.todo[0]
            sets = self.holes._sets[hole]
            if self.at < begin:
                self.at, self.now = begin, sets.first
            while self.at < end:
                if self.new[self.at] and not self._keep(sets, hole):
                    self.column = self.at
                    self.place = self.holes.place(hole, self.now, self.right[self.at])
                    return True
                self._step(sets, hole, int(self.tokens[self.at]))
            self.todo.pop(0)
        return False

    def _keep(self, sets: _Sets, hole: int) -> bool:
        """Whether the new token fits, or the one from before."""
        for token in (self.tokens[self.at], self.before[self.at]):
            if token != self.holes.mask:
                kind = self.holes.classes(np.array([token]), hole)[0]
                if sets.meet(sets.after(self.now, kind), self.right[self.at]):
                    self.tokens[self.at] = token
                    return True
        return False

    def _step(self, sets: _Sets, hole: int, token: int) -> None:
        self.now = sets.after(self.now, self.holes.classes(np.array([token]), hole)[0])
        self.at += 1

    def write(self, token: int) -> None:
        """The token that was drawn."""
        self.tokens[self.column] = token
        self._step(self.holes._sets[self.todo[0][2]], self.todo[0][2], token)


def _host(tokens: Tensor, writable: Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    return tokens.cpu().numpy(), writable.cpu().numpy()
