"""Languages of characters, written as values: sets of characters, sequences, alternatives and repetitions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Range = tuple[int, int]  # code points, both ends included
LAST = sys.maxunicode
SURROGATES: Range = (0xD800, 0xDFFF)  # have no bytes


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    ranges: tuple[Range, ...]  # in order, apart from each other


@dataclass(frozen=True)
class Seq:
    """One part after the other; without parts, the empty text."""

    parts: tuple[Language, ...] = ()


@dataclass(frozen=True)
class Alt:
    """One of its parts; without parts, nothing matches."""

    parts: tuple[Language, ...] = ()


@dataclass(frozen=True)
class Repeat:
    """A part several times."""

    part: Language
    low: int = 0
    high: int | None = None  # None: any number of times


@dataclass(frozen=True)
class Listed:
    """Parts in their order with a separator between any two of them; those that are not required may be left out."""

    parts: tuple[tuple[Language, bool], ...]  # and whether it is required
    separator: Language


@dataclass(frozen=True)
class Separated:
    """A part several times, with a separator between any two."""

    part: Language
    separator: Language
    low: int = 0
    high: int | None = None  # None: any number of times


Language = Chars | Seq | Alt | Repeat | Listed | Separated
EMPTY = Seq()


def text(letters: str) -> Seq:
    """This text alone."""
    return Seq(tuple(Chars(((ord(letter), ord(letter)),)) for letter in letters))


def any_of(texts: Iterable[str]) -> Alt:
    """One of some texts."""
    return Alt(tuple(text(one) for one in texts))


def optional(part: Language) -> Repeat:
    return Repeat(part, 0, 1)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges in order, those that touch as one, without what has no bytes."""
    found: list[Range] = []
    for low, high in sorted(_encodable(ranges)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def without(ranges: Iterable[Range], out: Iterable[Range] = ()) -> tuple[Range, ...]:
    """The characters of some ranges that are not in others."""
    found = list(joined(ranges))
    for low, high in out:
        pieces = [((a, min(b, low - 1)), (max(a, high + 1), b)) for a, b in found]
        found = [(a, b) for pair in pieces for a, b in pair if a <= b]
    return joined(found)


def _encodable(ranges: Iterable[Range]) -> Iterable[Range]:
    for low, high in ranges:
        if low < SURROGATES[0] <= high:
            yield low, SURROGATES[0] - 1
        elif high < SURROGATES[0]:
            yield low, high
        if high > SURROGATES[1]:
            yield max(low, SURROGATES[1] + 1), high


EVERYTHING = joined([(0, LAST)])


def rewritten(language: Language, function: Callable[[Chars], Language]) -> Language:
    """The language with each set of characters replaced."""
    if isinstance(language, Chars):
        return function(language)
    if isinstance(language, Repeat):
        return Repeat(rewritten(language.part, function), language.low, language.high)
    if isinstance(language, Separated):
        part, separator = (rewritten(one, function) for one in (language.part, language.separator))
        return Separated(part, separator, language.low, language.high)
    if isinstance(language, Listed):
        parts = tuple((rewritten(part, function), required) for part, required in language.parts)
        return Listed(parts, rewritten(language.separator, function))
    return type(language)(tuple(rewritten(part, function) for part in language.parts))


def byte_sequences(low: int, high: int) -> Iterable[tuple[Range, ...]]:
    """Ranges of bytes, one after the other, that are the UTF-8 of the code points from `low` to `high`."""
    for bound in (0x7F, 0x7FF, 0xFFFF):
        if low <= bound < high:
            yield from byte_sequences(low, bound)
            yield from byte_sequences(bound + 1, high)
            return
    if high <= 0x7F:
        yield ((low, high),)
        return
    first, last = chr(low).encode(), chr(high).encode()
    for place in range(1, len(first)):  # so that all bytes after the first that differs are whole ranges
        size = 64 ** (len(first) - place)
        if low // size != high // size:
            if low % size:
                yield from byte_sequences(low, low // size * size + size - 1)
                yield from byte_sequences(low // size * size + size, high)
                return
            if high % size != size - 1:
                yield from byte_sequences(low, high // size * size - 1)
                yield from byte_sequences(high // size * size, high)
                return
    yield tuple(zip(first, last, strict=True))
