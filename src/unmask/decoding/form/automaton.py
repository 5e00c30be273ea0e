"""A language -> the least deterministic automaton over bytes that accepts its texts in UTF-8."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unmask.decoding.form.language import Alt, Chars, Language, Listed, Range, Repeat, Separated, Seq, byte_sequences
from unmask.decoding.form.work import Work, too_large

PARTS = 60_000  # states of the first automaton, which copies what is repeated
STATES = 4_000  # states of the deterministic one
WORK = 6_000_000  # members and moves of its sets of states, in all
LEAST = 2_000  # of it that any automaton takes
Spans = list[tuple[int, int, int]]  # from kind, to kind, state


@dataclass(frozen=True, eq=False)
class Automaton:
    """States 1, 2, … of which 0 is the one that accepts nothing."""

    moves: NDArray[np.int32]  # [S, K]: the state after a byte of each kind
    kinds: NDArray[np.int64]  # [256]: the kind of each byte
    start: int
    accepts: NDArray[np.bool_]  # [S]
    work: int  # that it took

    def matches(self, text: bytes) -> bool:
        """Whether it accepts a text."""
        state = self.start
        for byte in text:
            state = int(self.moves[state, self.kinds[byte]])
        return bool(self.accepts[state])


def compiled(language: Language) -> Automaton:
    """The automaton of a language; refused where it would be too large."""
    built = _Built()
    start, end = built.state(), built.state()
    built.add(language, start, end)
    kinds = _kinds(built)
    work = Work(WORK, "its repetitions can be told apart in too many ways", LEAST + len(built.free))
    moves, accepts, first = _determined(built, kinds, start, end, work)
    return _least(moves, accepts, kinds, first, work.done)


# --- a first automaton, with moves without a byte --------------------------------------------------------------------


@dataclass
class _Built:
    free: list[list[int]] = field(default_factory=list)  # moves without a byte
    edges: list[list[tuple[int, int, int]]] = field(default_factory=list)  # from byte, to byte, state

    def state(self) -> int:
        if len(self.free) >= PARTS:
            raise too_large(f"more than {PARTS:,} parts")
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1

    def add(self, language: Language, begin: int, end: int) -> None:
        """Lead from one state to another by the texts of a language."""
        if isinstance(language, Chars):
            self._characters(language.ranges, begin, end)
        elif isinstance(language, Seq):
            for place, part in enumerate(language.parts):
                following = end if place == len(language.parts) - 1 else self.state()
                self.add(part, begin, following)
                begin = following
            if not language.parts:
                self.free[begin].append(end)
        elif isinstance(language, Alt):
            for part in language.parts:
                first, last = self.state(), self.state()
                self.free[begin].append(first)
                self.free[last].append(end)
                self.add(part, first, last)
        elif isinstance(language, Listed):
            self._listed(language, begin, end)
        elif isinstance(language, Separated):
            self._separated(language, begin, end)
        else:
            self._repeated(language.part, language.low, language.high, begin, end)

    def _listed(self, language: Listed, begin: int, end: int) -> None:
        none, some = begin, self.state()  # nothing was written so far; something was
        for part, required in language.parts:
            entry, written = self.state(), self.state()
            self.free[none].append(entry)
            self.add(language.separator, some, entry)
            self.add(part, entry, written)
            nothing = self.state()
            if not required:
                self.free[none].append(nothing)
                self.free[some].append(written)
            none, some = nothing, written
        self.free[none].append(end)
        self.free[some].append(end)

    def _separated(self, language: Separated, begin: int, end: int) -> None:
        part, separator, low, high = language.part, language.separator, language.low, language.high
        if high is not None or low > 1:
            most = None if high is None else high - 1
            some = Seq((part, Repeat(Seq((separator, part)), max(0, low - 1), most)))
            if high != 0:
                self.add(some, begin, end)
        else:  # the part once, with a way back
            entry, after = self.state(), self.state()
            self.free[begin].append(entry)
            self.add(part, entry, after)
            self.add(separator, after, entry)
            self.free[after].append(end)
        if low == 0:
            self.free[begin].append(end)

    def _repeated(self, part: Language, low: int, high: int | None, begin: int, end: int) -> None:
        for _ in range(low):
            following = self.state()
            self.add(part, begin, following)
            begin = following
        if high is None:
            again = self.state()
            self.free[begin].append(again)
            back = self.state()
            self.add(part, again, back)
            self.free[back].append(again)
            self.free[again].append(end)
            return
        self.free[begin].append(end)
        for _ in range(high - low):
            following = self.state()
            self.add(part, begin, following)
            self.free[following].append(end)
            begin = following

    def _characters(self, ranges: tuple[Range, ...], begin: int, end: int) -> None:
        for low, high in ranges:
            for sequence in byte_sequences(low, high):
                here = begin
                for place, (first, last) in enumerate(sequence):
                    following = end if place == len(sequence) - 1 else self.state()
                    self.edges[here].append((first, last, following))
                    here = following


def _kinds(built: _Built) -> NDArray[np.int64]:  # [256]
    """Bytes that no edge tells apart are of one kind."""
    begins = np.zeros(257, dtype=np.int64)
    for edges in built.edges:
        for low, high, _ in edges:
            begins[low] = begins[high + 1] = 1
    begins[0] = 0
    return begins.cumsum()[:256]


# --- a deterministic one ---------------------------------------------------------------------------------------------


def _determined(
    built: _Built, kinds: NDArray[np.int64], start: int, end: int, work: Work
) -> tuple[NDArray[np.int32], NDArray[np.bool_], int]:
    """Sets of states as states: where each kind of byte leads, which accept, and the first one."""
    closures: dict[frozenset[int], frozenset[int]] = {frozenset(): frozenset()}

    def closure(states: frozenset[int]) -> frozenset[int]:
        """The states with edges, and the end, that can be reached without a byte."""
        if states not in closures:
            seen, rest = set(states), list(states)
            moves = 0
            while rest:
                free = built.free[rest.pop()]
                moves += len(free)
                for other in free:
                    if other not in seen:
                        seen.add(other)
                        rest.append(other)
            work.spend(len(seen) + moves)
            closures[states] = frozenset(one for one in seen if built.edges[one] or one == end)
        return closures[states]

    of_kind = kinds.tolist()
    spans = [[(of_kind[low], of_kind[high], to) for low, high, to in edges] for edges in built.edges]
    numbers: dict[frozenset[int], int] = {frozenset(): 0}
    first = numbers.setdefault(closure(frozenset([start])), 1)
    sets, moves = list(numbers), [[0] * (of_kind[-1] + 1)]
    while len(moves) < len(sets):
        row: list[int] = []
        for count, targets in _segments([spans[state] for state in sets[len(moves)]], len(moves[0]), work):
            found = closure(targets)
            if found not in numbers:
                numbers[found] = len(sets)
                sets.append(found)
            row += [numbers[found]] * count
        moves.append(row)
        if len(sets) > 2 * STATES:
            raise too_large(f"more than {STATES:,} states")
    return np.array(moves, dtype=np.int32), np.array([end in one for one in sets]), first


def _segments(states: list[Spans], many: int, work: Work) -> Iterator[tuple[int, frozenset[int]]]:
    """The kinds of bytes in order, those as one that lead to the same states: how many, and these states."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the first kind: the one after the last, state
    cuts = {0, many}
    for spans in states:
        work.spend(len(spans))
        for low, high, to in spans:
            begins[low].append((high + 1, to))
            cuts |= {low, high + 1}
    active: list[tuple[int, int]] = []
    places = sorted(cuts)
    for place, following in pairwise(places):
        active = [one for one in active if one[0] > place] + begins.get(place, [])
        work.spend(len(active))
        yield following - place, frozenset(to for _, to in active)


def _least(
    moves: NDArray[np.int32], accepts: NDArray[np.bool_], kinds: NDArray[np.int64], start: int, work: int
) -> Automaton:
    """States that accept the same endings become one; those that accept none become state 0."""
    alive = _living(moves, accepts)
    moves = np.where(alive[moves], moves, 0).astype(np.int32)
    labels = np.where(alive, 1 + accepts.astype(np.int64), 0)
    before = _leading(moves)
    count, changed = int(labels.max()) + 1, set(np.flatnonzero(alive).tolist())
    members: dict[int, set[int]] = defaultdict(set)
    for state in changed:
        members[int(labels[state])].add(state)
    while changed:  # a class is split by where its members lead; the largest part keeps its label
        groups: dict[int, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
        for state in changed:
            groups[int(labels[state])][labels[moves[state]].tobytes()].append(state)
        moved: list[int] = []
        for label, parts in groups.items():
            pieces = sorted(parts.values(), key=len)
            if sum(map(len, pieces)) == len(members[label]):  # all were asked about: one part stays
                pieces.pop()
            for piece in pieces:
                members[label] -= set(piece)
                members[count] = set(piece)
                moved += piece
                labels[piece] = count
                count += 1
        changed = {state for one in moved for state in before[one] if alive[state]}
    dead = labels == labels[0]
    _, first, number = np.unique(np.where(dead, -1, labels), return_index=True, return_inverse=True)
    if len(first) > STATES:
        raise too_large(f"more than {STATES:,} states")
    found = number[moves[first]].astype(np.int32)
    found[0] = 0
    return Automaton(found, kinds, int(number[start]), accepts[first] & ~dead[first], work)


def _leading(moves: NDArray[np.int32]) -> dict[int, set[int]]:
    """The states that lead to each state."""
    before: dict[int, set[int]] = defaultdict(set)
    for state, row in enumerate(moves.tolist()):
        for following in set(row):
            before[following].add(state)
    return before


def _living(moves: NDArray[np.int32], accepts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The states from which an accepting one can be reached."""
    before = _leading(moves)
    alive, rest = set(np.flatnonzero(accepts).tolist()), np.flatnonzero(accepts).tolist()
    while rest:
        for state in before[rest.pop()]:
            if state not in alive:
                alive.add(state)
                rest.append(state)
    found = np.zeros(len(moves), dtype=np.bool_)
    found[sorted(alive)] = True
    return found
