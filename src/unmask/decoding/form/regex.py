"""A regular expression in Python's syntax -> the language of the texts that it matches from end to end.

\\d, \\s and \\w are those of ASCII, as in JSON Schema: `re.fullmatch(pattern, text, re.ASCII)`.
"""

from __future__ import annotations

import re
import sys
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from unmask.decoding.form.language import (
    EMPTY,
    EVERYTHING,
    Alt,
    Chars,
    Language,
    Range,
    Repeat,
    Seq,
    joined,
    without,
)
from unmask.decoding.form.work import Work, reading
from unmask.errors import InputError

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants  # type: ignore[import-not-found, unused-ignore]
    import sre_parse as parser  # type: ignore[import-not-found, unused-ignore]

LONG = 20_000  # characters of a pattern
REPEATED = 10_000  # times
CASES = re.compile(r"\(\?[a-zA-Z]*i")
FEATURES = {  # what no finite automaton has, or none of ours
    constants.GROUPREF: "a reference to a group",
    constants.GROUPREF_EXISTS: "a condition on a group",
    constants.ASSERT: "a look-around",
    constants.ASSERT_NOT: "a look-around",
}
ANCHORS = {
    constants.AT_BEGINNING: -1,
    constants.AT_BEGINNING_STRING: -1,
    constants.AT_END: 1,
    constants.AT_END_STRING: 1,
}


def refused(pattern: str, why: str, way_out: str = "write it without") -> InputError:
    """The refusal of a pattern, in one line."""
    short = pattern if len(pattern) <= 60 else f"{pattern[:57]}…"
    return InputError(f"the pattern {short!r} has {why}", way_out)


def language(pattern: str, search: bool = False, work: Work | None = None) -> Language:
    """The texts that a pattern matches from end to end; with `search`, those that hold a match, as in JSON Schema."""
    work = work or reading()
    work.spend(8 * len(pattern))
    if len(pattern) > LONG:
        raise InputError(f"the pattern has {len(pattern):,} characters", f"give at most {LONG:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            tree = parser.parse(pattern, re.ASCII)
        found = _Reader(pattern, tree.state.flags, search, work).whole(tree)
    except re.error as error:
        raise InputError(f"the pattern {pattern[:60]!r} is not a regular expression", str(error)) from None
    except RecursionError:
        raise refused(pattern, "too many groups in groups", "nest less") from None
    except OverflowError:
        raise refused(pattern, "a repetition without end", "repeat fewer times") from None
    except ValueError:  # (?u) beside (?a), which always holds
        raise refused(pattern, "(?u) for all of it", "write (?u:…) around a part") from None
    return found


class _Reader:
    """Reads a parsed pattern."""

    def __init__(self, pattern: str, flags: int, search: bool, work: Work) -> None:
        self.pattern, self.flags, self.search, self.work = pattern, flags, search, work

    def whole(self, tree: Any) -> Language:
        """The language, anchors at its ends removed; without them, and to search, anything may stand around it."""
        items = list(tree)
        if self.search and len(items) == 1 and items[0][0] is constants.BRANCH:
            return Alt(tuple(self._side(list(part), self.flags) for part in items[0][1][1]))
        return self._side(items, self.flags)

    def _side(self, items: list[Any], flags: int) -> Language:
        """A sequence at the top of the pattern, where anchors may be."""
        anything = Repeat(Chars(EVERYTHING))
        before: Language = anything if self.search else EMPTY
        after: Language = anything if self.search else EMPTY
        while items and self._anchor(items[0], flags) == -1:
            before, items = EMPTY, items[1:]
        while items and self._anchor(items[-1], flags) == 1:
            after, items = EMPTY, items[:-1]
        return Seq((before, self._sequence(items, flags), after))

    def _anchor(self, item: Any, flags: int) -> int:
        op, argument = item
        found = ANCHORS.get(argument, 0) if op is constants.AT else 0
        if found and flags & re.MULTILINE and argument in (constants.AT_BEGINNING, constants.AT_END):
            raise refused(self.pattern, "an anchor of lines")
        return found

    def _sequence(self, items: Iterable[Any], flags: int) -> Language:
        return Seq(tuple(self._item(op, argument, flags) for op, argument in items))

    def _item(self, op: Any, argument: Any, flags: int) -> Language:
        if op in (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN):
            return Chars(self._characters(op, argument, flags))
        if op is constants.SUBPATTERN:
            _, added, removed, inner = argument
            flags = (flags | added) & ~removed
            return self._sequence(inner, flags & ~re.ASCII if added & re.UNICODE else flags)
        if op is constants.BRANCH:
            return Alt(tuple(self._sequence(part, flags) for part in argument[1]))
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            low, high, inner = argument
            low, most = int(low), None if high is constants.MAXREPEAT else int(high)
            if max(low, most or 0) > REPEATED:
                raise refused(self.pattern, f"a repetition of {max(low, most or 0):,} times", f"at most {REPEATED:,}")
            return Repeat(self._sequence(inner, flags), low, most)
        if op is constants.AT:
            what = "an anchor inside" if argument in ANCHORS else "a boundary of words (\\b or \\B)"
            raise refused(self.pattern, what, "anchors may stand at its ends only")
        raise refused(self.pattern, FEATURES.get(op, f"a feature that is not carried ({str(op).lower()})"))

    # --- sets of characters ---

    def _characters(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        found = self._set(op, argument, flags)
        self.work.spend(3 * len(found))
        return found

    def _set(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        if op is constants.ANY:
            return EVERYTHING if flags & re.DOTALL else without(EVERYTHING, [(10, 10)])
        if op in (constants.LITERAL, constants.NOT_LITERAL):
            argument = [(constants.LITERAL, argument)]
        letters: list[Range] = []  # that a flag may make upper and lower case; categories it leaves as they are
        found: list[Range] = []
        negated = op is constants.NOT_LITERAL or argument[0][0] is constants.NEGATE
        for kind, value in argument:
            if kind is constants.LITERAL:
                if value > 0xFFFF and op is constants.IN and flags & (re.IGNORECASE | re.ASCII) == re.IGNORECASE:
                    # Python's matcher does not find the other case of some of them in a set, nor themselves
                    raise refused(self.pattern, "a character beyond U+FFFF in a set of either case")
                letters.append((value, value))
            elif kind is constants.RANGE:
                letters.append(value)
            elif kind is constants.CATEGORY:
                name = str(value).lower().removeprefix("category_")
                # what is not a blank is none in Unicode either, for readers of JSON Schema differ there
                wide = self.search and name.endswith("space") and name.startswith("not_") != negated
                found += _category(name, bool(flags & re.ASCII) and not wide)
        if flags & re.IGNORECASE:
            letters += _other_case(joined(letters), bool(flags & re.ASCII), self.work)
        ranges = joined([*letters, *found])
        return without(EVERYTHING, ranges) if negated else ranges


LETTERS = {"digit": r"\d", "space": r"\s", "word": r"\w"}


@lru_cache(maxsize=16)
def _category(name: str, ascii_only: bool) -> tuple[Range, ...]:
    """The characters of \\d, \\s, \\w and their opposites, as Python's own matcher finds them."""
    kind = name.removeprefix("not_")
    found = re.finditer(f"{LETTERS[kind]}+", _everything(), re.ASCII if ascii_only else 0)
    ranges = joined((match.start(), match.end() - 1) for match in found)
    return without(EVERYTHING, ranges) if name.startswith("not_") else ranges


def _everything() -> str:
    """Each character at the place of its number."""
    return "".join(map(chr, range(sys.maxunicode + 1)))


@lru_cache(maxsize=1)
def _cased() -> str:
    """The characters that have another case; all others match themselves alone."""
    return "".join(one for one in _everything() if not one.lower() == one == one.upper() == one.title())


@lru_cache(maxsize=8192)
def _partners(letter: str, ascii_only: bool) -> tuple[Range, ...]:
    """The characters that this one is, upper and lower case alike, as Python's own matcher finds them."""
    flags = re.IGNORECASE | (re.ASCII if ascii_only else 0)
    return tuple((ord(one), ord(one)) for one in re.findall(re.escape(letter), _cased(), flags))


def _other_case(ranges: tuple[Range, ...], ascii_only: bool, work: Work) -> list[Range]:
    """What the characters of these ranges are, too, where upper and lower case are alike."""
    letters, found = _cased(), list[Range]()
    for low, high in ranges:
        some = letters[bisect_left(letters, chr(low)) : bisect_right(letters, chr(high))]
        work.spend(4 * len(some))
        for letter in some:
            found += _partners(letter, ascii_only)
    return found
