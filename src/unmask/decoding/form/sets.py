"""An automaton over tokens -> the sets of its states that occur in rows, by number, and what may stand between two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.decoding.form.tokens import Tokens, unpacked

OPEN = -1  # in place of a class: any token
BYTES = 1 << 28  # of the sets of states, and of the table of allowed tokens; they begin anew beyond
WORD = 64  # pairs of sets that are compared at once
Set = NDArray[np.uint8]  # of states, 8 in a byte


class Sets:
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
        known = self.forward[number].get(kind)
        if known is not None:
            return known
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
        known = self.backward[number].get(kind)
        if known is not None:
            return known
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
        return int(self.tokens.leading[unpacked(self.left[left], self.size)].sum())

    def masks(self, lefts: Sequence[int], rights: Sequence[int]) -> NDArray[np.bool_]:  # [N, C]
        """For each pair of a left and a right set the classes of tokens that lead from the one into the other.

        64 pairs at a time, a bit of a word for each: every move of the automaton is looked at once for all of them.
        """
        found = np.zeros((len(lefts), len(self.tokens.moves)), dtype=np.bool_)
        begins, classes, sources, targets = self.tokens.live
        for first in range(0, len(lefts) if len(classes) else 0, WORD):
            some = slice(first, first + WORD)
            froms = self._words([self.left[one] for one in lefts[some]])
            goals = self._words([self.right[one] for one in rights[some]])
            words = np.bitwise_or.reduceat(froms[sources] & goals[targets], begins)
            bits = np.unpackbits(words[:, None].view(np.uint8), axis=1, bitorder="little")
            found[some, classes] = bits[:, : len(lefts[some])].T
        return found

    def _words(self, sets: list[Set]) -> NDArray[np.uint64]:  # [S]
        """For each state, a bit for every set that holds it."""
        bits = np.zeros((WORD, self.size), dtype=np.uint8)
        bits[: len(sets)] = np.unpackbits(np.stack(sets), axis=1, count=self.size)
        packed = np.packbits(bits, axis=0, bitorder="little").T
        return np.ascontiguousarray(packed).view("<u8")[:, 0]
