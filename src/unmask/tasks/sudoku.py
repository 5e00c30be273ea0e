"""Sudoku of 9 × 9, which the bundled model solves: lines of boards -> verdicts on 81 digits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from unmask.errors import InputError, many
from unmask.tasks import files
from unmask.tasks.puzzles import sudoku
from unmask.tasks.task import Example, Puzzle, Source, Task

FIELD = re.compile(r"(?<![^\s,;])[0-9.]{81}(?![^\s,;])")


def example(number: str, board: sudoku.Board, gold: str = "") -> Example:
    """A board, and its solution where one is known."""
    return Example(number, {"input": sudoku.write(board)}, gold)


def read(path: Path) -> Iterator[Example]:
    """Lines with a puzzle of 81 characters in 0-9 and dots, and perhaps its solution; other lines are left out."""
    found, strange = 0, 0
    for number, line in enumerate(files.unpacked(path).splitlines()):
        fields = FIELD.findall(line)
        if fields:
            found += 1
            yield example(str(number), sudoku.parse(fields[0]), fields[1] if len(fields) > 1 else "")
        elif line.strip():
            strange += 1
    if not found:
        raise InputError(
            f"there is no Sudoku in {str(path)!r}", "each line needs a field of 81 characters, 0-9 or dots"
        )
    if strange:
        left = "holds no Sudoku and is left out" if strange == 1 else "hold no Sudoku and are left out"
        warnings.warn(f"{many(strange, 'line')} of {str(path)!r} {left}", stacklevel=2)


def solved(example: Example) -> str:
    """The solution of the file, or one that is found here."""
    if example.gold:
        return example.gold
    found = sudoku.solutions(sudoku.parse(example.fields["input"]), most=1)
    if not found:
        raise InputError(f"the Sudoku {example.fields['input']!r} has no solution", "leave it out")
    return sudoku.write(found[0])


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The board as 81 digits; `sudoku.canvas` makes the bundled model's canvas of it."""
    return str(example.fields["input"])


def extract(text: str, example: Example) -> str | None:
    """The last 81 digits, which may stand in lines."""
    found = re.findall(r"(?<![0-9])[1-9]{81}(?![0-9])", re.sub(r"[\s|]+", "", text))
    return found[-1] if found else None


def exact(text: str, example: Example) -> bool:
    """As diffusion-vs-ar counts: the answer is the solution of the file; without one, the rules decide."""
    return text.strip() == example.gold if example.gold else strict(text, example)


def strict(text: str, example: Example) -> bool:
    """Any board that obeys the rules and keeps the givens."""
    answer = extract(text, example)
    return answer is not None and sudoku.fault(answer, sudoku.parse(example.fields["input"])) is None


SUDOKU = Task(
    name="sudoku",
    about="9 × 9 Sudoku for the bundled model",
    source=Source("a file of grantm's Sudoku Exchange puzzle bank on GitHub (public domain), or of your own"),
    read=read,
    ask=ask,
    extract=extract,
    as_published=exact,
    strict=strict,
    answer=solved,
    length=sudoku.CELLS,
    bundled="sudoku",
    puzzle=Puzzle(sudoku.MASK, sudoku.parse, sudoku.check, sudoku.canvas, sudoku.answer, sudoku.fault),
)
