"""Numbered items × size -> parts, cut at the same places whatever is done; those that lack rows; those of a shard."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from unmask.errors import InputError
from unmask.evaluate import batch


class Numbered(Protocol):
    """A question or a prompt."""

    @property
    def number(self) -> int:
        """Its place among all, from 0."""


Item = TypeVar("Item", bound=Numbered)


@dataclass(frozen=True)
class Part:
    """Items that one process decodes together: the unit of work."""

    number: int  # its place among all parts, from 0
    items: Sequence[Any]
    job: int = 0  # the place of its job among all

    @property
    def numbers(self) -> list[int]:
        """The numbers of its items."""
        return [one.number for one in self.items]

    def named(self, most: int = 4) -> str:
        """The numbers of its items, from 1, for errors."""
        found = [str(number + 1) for number in self.numbers]
        return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def cut(items: Sequence[Any], size: int) -> list[Part]:
    """All items in parts of `size`, the last perhaps smaller."""
    return [Part(number, some) for number, some in enumerate(batch.parts(items, size))]


def lacking(parts: Sequence[Part], done: Collection[int], refills: bool = False) -> list[Part]:
    """The parts with an item that is not done: whole, so that they round as they would have; or what they lack.

    Where rows are refilled with the next items, rounding does not depend on the part, and only items that are not done
    are left in it.
    """
    if refills:
        parts = [replace(part, items=[one for one in part.items if one.number not in done]) for part in parts]
    return [part for part in parts if any(one.number not in done for one in part.items)]


@dataclass(frozen=True)
class Shard:
    """One of several runs that divide the parts of a whole: parts number place, place + count, …"""

    place: int  # from 1
    count: int

    def of(self, items: Sequence[Item], size: int) -> list[Item]:
        """The items of its parts. Cut by the same size they are the same parts again."""
        found = [one for part in cut(items, size)[self.place - 1 :: self.count] for one in part.items]
        if not found:
            many = len(cut(items, size))
            raise InputError(f"shard {self} is empty: there are {many} parts of {size}", "use fewer shards, or --batch")
        return found

    def __str__(self) -> str:
        return f"{self.place}/{self.count}"


def to_shard(text: str) -> Shard:
    """`3/16` as the third of sixteen shards."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"shard is {text[:40]!r}", "give I/N with I from 1 to N, as 3/16")
    return Shard(int(found[1]), int(found[2]))
