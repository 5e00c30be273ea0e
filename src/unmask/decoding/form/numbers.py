"""Bounds -> the language of the decimal numbers within them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unmask.decoding.form.language import Alt, Chars, Language, Repeat, Seq, optional, text

DIGIT = Chars(((48, 57),))
LEADING = Chars(((49, 57),))
NATURAL = Alt((text("0"), Seq((LEADING, Repeat(DIGIT)))))
INTEGER = Seq((optional(text("-")), NATURAL))
NUMBER = Seq((INTEGER, optional(Seq((text("."), Repeat(DIGIT, 1))))))
PLACES = 6  # decimal places between bounds: few enough that a reader's rounding never reaches a bound
FRACTION = Seq((text("."), Repeat(DIGIT, 0, PLACES - 1), LEADING))  # between 0 and 1, without either


@dataclass(frozen=True)
class Bounds:
    """Numbers from `low` to `high`, both whole; None: no bound. Without an end, it is not a number itself."""

    low: int | None = None
    high: int | None = None
    has_low: bool = True
    has_high: bool = True

    @property
    def whole(self) -> tuple[int | None, int | None]:
        """The first and the last whole number."""
        low = None if self.low is None else self.low + (not self.has_low)
        return low, None if self.high is None else self.high - (not self.has_high)


def integers(bounds: Bounds) -> Language:
    """Whole numbers within bounds."""
    return _integers(*bounds.whole)


def _integers(low: int | None, high: int | None) -> Language:
    if low is None and high is None:
        return INTEGER
    parts: list[Language] = []
    if high is None or high >= 0:
        parts.append(_naturals(max(0, low or 0), high))
    if low is None or low < 0:
        most = None if low is None else -low
        parts.append(Seq((text("-"), _naturals(max(1, 1 if high is None else -high), most))))
    return Alt(tuple(parts))


def numbers(bounds: Bounds) -> Language:
    """Numbers within bounds, with up to six decimal places."""
    low, high = bounds.low, bounds.high
    if low is None and high is None:
        return NUMBER
    parts = [integers(bounds)]
    if high is None or high > 0:  # n.f is between n and n + 1
        parts.append(Seq((_naturals(max(0, low or 0), None if high is None else high - 1), FRACTION)))
    if low is None or low < 0:  # -n.f is between -n - 1 and -n
        first = 0 if high is None else max(0, -high)
        parts.append(Seq((text("-"), _naturals(first, None if low is None else -low - 1), FRACTION)))
    return Alt(tuple(parts))


def rounded(value: float, up: bool) -> int:
    """The nearest whole number that is not below (or above) a bound."""
    return math.ceil(value) if up else math.floor(value)


def _naturals(low: int, high: int | None) -> Language:
    """Whole numbers from 0 on, without leading zeros."""
    if high is not None and low > high:
        return Alt()
    parts: list[Language] = []
    size = len(str(low))
    last = size if high is None else len(str(high))
    for length in range(size, last + 1):
        first = low if length == size else 10 ** (length - 1)
        final = high if high is not None and length == last else 10**length - 1
        parts.append(_same_length(str(first), str(final)))
    if high is None:
        parts.append(Seq((LEADING, Repeat(DIGIT, size))))
    return Alt(tuple(parts))


def _same_length(low: str, high: str) -> Language:
    """Digits from `low` to `high`, which have as many."""
    if low == high:
        return text(low)
    if low == "0" * len(low) and high == "9" * len(high):  # or the halves would be halved, and those, and those
        return Repeat(DIGIT, len(low), len(low))
    if len(low) == 1:
        return Chars(((ord(low), ord(high)),))
    if low[0] == high[0]:
        return Seq((text(low[0]), _same_length(low[1:], high[1:])))
    rest = len(low) - 1
    parts: list[Language] = [
        Seq((text(low[0]), _same_length(low[1:], "9" * rest))),
        Seq((text(high[0]), _same_length("0" * rest, high[1:]))),
    ]
    if ord(high[0]) - ord(low[0]) > 1:
        between = Chars(((ord(low[0]) + 1, ord(high[0]) - 1),))
        parts.append(Seq((between, Repeat(DIGIT, rest, rest))))
    return Alt(tuple(parts))
