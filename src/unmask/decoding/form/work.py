"""The work that a constraint takes, counted, so that every machine refuses the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import InputError

READING = 1_500_000  # microseconds, about, to read a pattern or a schema: by letters, ranges and fields that are merged
WAY_OUT = "allow less: fewer or shorter repetitions, choices or fields"


def too_large(what: str) -> InputError:
    """The refusal of what would take too much time or memory."""
    return InputError(f"the constraint is too large: {what}", WAY_OUT)


@dataclass
class Work:
    """What is done so far, of what may be done."""

    most: int
    what: str  # the reason of a refusal
    done: int = 0

    def spend(self, units: int) -> None:
        self.done += units
        if self.done > self.most:
            raise too_large(self.what)


def reading() -> Work:
    """The work of reading one pattern or schema."""
    return Work(READING, "it takes too long to read")
