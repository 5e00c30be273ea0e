"""An automaton over bytes × a model's tokens -> an automaton over tokens; those that act alike are one class."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.core.denoiser import Denoiser, Tokenizer
from unmask.decoding.form.automaton import Automaton
from unmask.decoding.form.work import too_large
from unmask.errors import InputError
from unmask.models.tokenizers import Characters, FileTokenizer

CELLS = 16_000_000  # states × classes
LIVE = 6_000_000  # of them that lead on
NEVER = 0  # the class of tokens that are never written
Spelled = list[tuple[bytes, int]]  # bytes and id, in the order of the bytes


@dataclass(frozen=True, eq=False)
class Tokens:
    """An automaton over classes of tokens. State 0 accepts nothing; the last one follows an end of the text."""

    moves: NDArray[np.int16]  # [C, S]: the state after a token of each class; that of class 0 is always 0
    kind: NDArray[np.int64]  # [V]: the class of each token
    start: int
    accepts: NDArray[np.bool_]  # [S]

    @cached_property
    def reach(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:  # [S, S / 8] each
        """For each state those that some token leads to, and those that some token leads from; 8 in a byte."""
        size = self.moves.shape[1]
        found = np.zeros((size, size), dtype=np.bool_)
        for row in self.moves:
            found[np.arange(size), row] = True
        found[:, 0] = False
        return np.packbits(found, axis=1), np.packbits(found.T, axis=1)

    @cached_property
    def live(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16], NDArray[np.int16]]:
        """The moves that lead on, class by class: where each class begins that has some, and these classes; the states
        that they lead from, and those that they lead to."""
        classes, sources = np.nonzero(self.moves)
        used, begins = np.unique(classes, return_index=True)
        return begins, used, sources.astype(np.int16), self.moves[classes, sources]

    @cached_property
    def leading(self) -> NDArray[np.int64]:  # [S]
        """How many classes lead on from each state."""
        return np.asarray(np.count_nonzero(self.moves, axis=0))

    @property
    def bytes(self) -> int:
        """The memory that it takes at most."""
        return 2 * self.moves.size + 6 * int(np.count_nonzero(self.moves)) + len(self.accepts) ** 2 // 4

    @cached_property
    def fewest(self) -> int | None:
        """The least number of tokens of a match; None: there is none."""
        now = np.zeros(len(self.accepts), dtype=np.bool_)
        now[self.start] = True
        seen = now.copy()
        for count in range(len(self.accepts) + 1):
            if (now & self.accepts).any():
                return count
            now = unpacked(np.bitwise_or.reduce(self.reach[0][now], axis=0), len(now)) & ~seen
            seen |= now
        return None


def unpacked(states: NDArray[np.uint8], size: int) -> NDArray[np.bool_]:
    """A set of states of which 8 were in a byte."""
    return np.unpackbits(states, count=size).view(np.bool_)


def over_tokens(automaton: Automaton, spelled: Spelled, width: int, ends: Sequence[int]) -> Tokens:
    """The automaton whose steps are tokens; after a match only `ends` follow. Tokens not spelled are never written."""
    size = len(automaton.moves) + 1
    last = size - 1
    steps = np.concatenate([automaton.moves, np.zeros((1, automaton.moves.shape[1]), dtype=np.int32)]).astype(np.int16)
    accepts = np.append(automaton.accepts, True)
    columns = _Columns(size)
    kind = np.zeros(width, dtype=np.int64)
    path, prefix = [columns.add(np.arange(size, dtype=np.int16))], b""
    kinds = automaton.kinds.tolist()
    for letters, token in spelled:
        same = _shared(prefix, letters)
        del path[same + 1 :]
        for byte in letters[same:]:
            path.append(columns.after(path[-1], kinds[byte], steps))
        kind[token], prefix = path[-1], letters
    final = np.where(accepts, last, 0).astype(np.int16)
    for token in ends:
        kind[token] = columns.add(final)
    used, kind = np.unique(np.append(kind, NEVER), return_inverse=True)
    moves = np.stack([columns.all[one] for one in used])
    if np.count_nonzero(moves) > LIVE:
        raise too_large("too many tokens lead on from its states")
    return Tokens(moves, kind[:-1], automaton.start, accepts)


class _Columns:
    """Maps from states to states, each once; number 0 leads nowhere."""

    def __init__(self, size: int) -> None:
        self.all: list[NDArray[np.int16]] = []
        self.numbers: dict[bytes, int] = {}
        self.known: dict[tuple[int, int], int] = {}
        self.add(np.zeros(size, dtype=np.int16))

    def add(self, column: NDArray[np.int16]) -> int:
        key = column.tobytes()
        if key not in self.numbers:
            if len(self.all) * len(column) > CELLS:
                raise too_large("its states tell too many tokens apart")
            self.numbers[key] = len(self.all)
            self.all.append(column)
        return self.numbers[key]

    def after(self, number: int, kind: int, steps: NDArray[np.int16]) -> int:
        """The map of one more byte of a kind."""
        if number == 0:
            return 0
        key = (number, kind)
        if key not in self.known:
            self.known[key] = self.add(steps[:, kind][self.all[number]])
        return self.known[key]


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


# --- the bytes of tokens ---------------------------------------------------------------------------------------------


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level BPE: itself if it can be seen, else one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


LETTERS = _byte_letters()
_spelled: weakref.WeakKeyDictionary[Any, Spelled] = weakref.WeakKeyDictionary()


def spelling(model: Denoiser, never: Collection[int]) -> Spelled:
    """The bytes of every token of a model that may be written, but for those in `never`."""
    tokenizer = model.tokenizer
    if isinstance(tokenizer, Characters):
        found = [(letter.encode(), place) for place, letter in enumerate(tokenizer.alphabet)]
    elif isinstance(tokenizer, FileTokenizer):
        if tokenizer not in _spelled:
            _spelled[tokenizer] = sorted(_of_file(tokenizer))
        found = _spelled[tokenizer]
    else:
        found = _own(model, tokenizer)
    width, out = model.head.width, {*never, *model.vocab.eos, model.vocab.mask, *model.head.absent}
    return sorted((letters, token) for letters, token in found if letters and token < width and token not in out)


def _of_file(tokenizer: FileTokenizer) -> Spelled:
    """Of byte-level BPE, the tokens that are text; special ones are not."""
    decoder = str(getattr(tokenizer.fast, "decoder", None))
    if "ByteLevel" not in decoder:
        what = f"a constraint needs the bytes of tokens, and this tokenizer's decoder is {decoder.partition('(')[0]}"
        raise InputError(what, "byte-level BPE and single characters are carried")
    special = {token for token, about in tokenizer.fast.get_added_tokens_decoder().items() if about.special}
    vocabulary = tokenizer.fast.get_vocab().items()
    return [(_bytes(text), token) for text, token in vocabulary if token not in special]


def _bytes(text: str) -> bytes:
    """A token of byte-level BPE as bytes; added tokens may hold other letters, and stand for themselves."""
    known = [LETTERS.get(letter) for letter in text]
    return text.encode() if None in known else bytes(byte for byte in known if byte is not None)


def _own(model: Denoiser, tokenizer: Tokenizer) -> Spelled:
    """Of a tokenizer of the user's own: a method `token_bytes(id)`, for each id of the head."""
    spell = getattr(tokenizer, "token_bytes", None)
    if not callable(spell):
        what = f"a constraint needs the bytes of tokens, which a {type(tokenizer).__name__} does not give"
        raise InputError(what, "load the model with its tokenizer, or give yours a method token_bytes(id) -> bytes")
    return [(bytes(spell(token)), token) for token in range(model.head.width)]
