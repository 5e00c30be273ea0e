"""Sudoku of 9 × 9, which the embedded model solves: lines of boards -> verdicts on 81 digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unmask import sudoku
from unmask.errors import InputError
from unmask.tasks import files
from unmask.tasks.task import Example, Source, Task

FIELD = re.compile(r"(?<![0-9.])[0-9.]{81}(?![0-9.])")


def read(path: Path) -> list[Example]:
    """Lines with a puzzle of 81 characters and perhaps its solution; without one it is found here."""
    found = []
    for number, line in enumerate(files.unpacked(path).splitlines()):
        fields = FIELD.findall(line)
        if fields:
            gold = fields[1] if len(fields) > 1 else solved(fields[0], f"line {number + 1} of {str(path)!r}")
            found.append(Example(str(number), {"puzzle": fields[0].replace(".", "0")}, gold))
    return found


def solved(puzzle: str, place: str) -> str:
    """A solution of a puzzle."""
    found = sudoku.solutions(sudoku.parse(puzzle), most=1)
    if not found:
        raise InputError(f"the Sudoku in {place} has no solution", "leave the line out")
    return sudoku.write(found[0])


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The board as 81 digits; `sudoku.canvas` makes the embedded model's canvas of it."""
    return str(example.fields["puzzle"])


def extract(text: str, example: Example) -> str | None:
    """The last 81 digits, which may stand in lines."""
    found = re.findall(r"(?<![0-9])[1-9]{81}(?![0-9])", re.sub(r"[\s|]+", "", text))
    return found[-1] if found else None


def exact(text: str, example: Example) -> bool:
    """As diffusion-vs-ar counts: the answer is the solution of the file."""
    return text.strip() == example.gold


def strict(text: str, example: Example) -> bool:
    """Any board that obeys the rules and keeps the givens."""
    answer = extract(text, example)
    return answer is not None and sudoku.fault(answer, sudoku.parse(example.fields["puzzle"])) is None


SUDOKU9 = Task(
    name="sudoku9",
    about="9 × 9 Sudoku for the embedded model, as 81 digits",
    source=Source("a file of grantm's Sudoku Exchange puzzle bank on GitHub (public domain), or of your own"),
    read=read,
    ask=ask,
    extract=extract,
    as_published=exact,
    strict=strict,
    answer=lambda example: example.gold,
    length=sudoku.CELLS,
)
