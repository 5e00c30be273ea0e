"""Sudoku of 4 × 4 as text for language models: puzzle -> grid, judged as published and by the rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unmask.errors import InputError
from unmask.tasks import files
from unmask.tasks.task import Example, Field, Source, Task, named

SIDE, CELLS = 4, 16
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
GRID = re.compile(r"(?<![0-9])[1-4]{16}(?![0-9])")


def example(number: str, puzzle: str, solution: str) -> Example:
    """A puzzle of 16 digits, 0 for a blank."""
    return Example(number, {"puzzle": puzzle}, solution)


def read(path: Path) -> list[Example]:
    """CSV with `Puzzle` and `Solution`, or JSON lines with `input` and `output`, whose grids have four lines."""
    named = ("Puzzle", "Solution") if path.name.removesuffix(".gz").endswith(".csv") else ("input", "output")
    found = []
    for number, row in enumerate(files.rows(path, *named)):
        puzzle, solution = ("".join(row[name].split()) for name in named)
        if not re.fullmatch("[0-4]{16}", puzzle) or not re.fullmatch("[1-4]{16}", solution):
            raise InputError(
                f"row {number + 1} of {str(path)!r} is not a Sudoku of 4 × 4", "write 16 digits, 0 for blanks"
            )
        found.append(example(str(number), puzzle, solution))
    return found


def lines(grid: str) -> str:
    """16 digits as four lines."""
    return "\n".join(grid[begin : begin + SIDE] for begin in range(0, CELLS, SIDE))


def solves(grid: str, puzzle: str) -> bool:
    """Whether 16 digits obey the rules and keep the givens."""
    kept = all(given in ("0", digit) for given, digit in zip(puzzle, grid, strict=True))
    rows = [grid[begin : begin + SIDE] for begin in range(0, CELLS, SIDE)]
    columns = [grid[begin::SIDE] for begin in range(SIDE)]
    boxes = [grid[at : at + 2] + grid[at + SIDE : at + SIDE + 2] for at in (0, 2, 8, 10)]
    return kept and all(sorted(unit) == list("1234") for unit in rows + columns + boxes)


# --- the graders -----------------------------------------------------------------------------------------------------


def tagged(text: str, example: Example) -> bool:
    """PC-Sampler: what the first <answer> holds is the 16 digits; without one they occur somewhere in the text.

    Inside the tags nothing but the ends is stripped, so a grid of four lines is wrong there and right without tags.
    """
    found = TAGGED.search(text)
    if found is not None:
        return found[1].strip() == example.gold
    return example.gold in text.replace(" ", "").replace("\n", "")


def dream(text: str, example: Example) -> bool:
    """Dream: the text, cut to the length of the puzzle, is four lines that obey the rules and keep the givens.

    Blanks around it do not count, and digits of any script are digits.
    """
    rows = text[: len(example.fields["written"])].strip().split("\n")
    good = len(rows) == SIDE and all(len(row) == SIDE and row.isdecimal() for row in rows)
    return good and solves("".join(str(int(digit)) for digit in "".join(rows)), example.fields["puzzle"])


def extract(text: str, example: Example) -> str | None:
    """The 16 digits in the first <answer>; without one the last 16 before the tag of the prompt is closed."""
    found = TAGGED.search(text)
    said = text.partition("</answer>")[0] if found is None else found[1]
    grids = GRID.findall(re.sub(r"[\s|,]+", "", said))
    return grids[-1] if grids else None


def strict(text: str, example: Example) -> bool:
    """Any grid that obeys the rules and keeps the givens."""
    answer = extract(text, example)
    return answer is not None and solves(answer, example.fields["puzzle"])


# --- the prompts -----------------------------------------------------------------------------------------------------

RULES = (
    "Solve this 4x4 Sudoku. It is given as 16 digits, row by row; 0 is a blank cell. Fill the blanks so that every "
    "row, every column and every 2x2 box holds the digits 1, 2, 3 and 4 once, and leave the given digits as they are. "
    "Give the solved grid as 16 digits between <answer> and </answer>."
)
AGAIN = "Below are solved examples. Solve the last puzzle in the same way, with nothing but the grid as the answer."
SHOWN = tuple(  # ours, with one solution each; none is in the test file
    example(str(number), puzzle, solution)
    for number, (puzzle, solution) in enumerate(
        (
            ("0320020430402010", "4321123431422413"),
            ("2003432010320000", "2143432114323214"),
            ("0400034140203004", "1432234141233214"),
            ("0002000320304321", "3412124321344321"),
            ("3102001042300020", "3142241342311324"),
        )
    )
)


def ask(example: Example, shots: Sequence[Example]) -> str:
    """Instructions twice, solved examples as four lines between tags, and the puzzle with its tag opened."""
    worked = [f"Puzzle: {lines(s.fields['puzzle'])}\n<answer>\n{lines(s.gold)}\n</answer>" for s in shots]
    return "\n\n".join([RULES, AGAIN, *worked, f"Puzzle: {lines(example.fields['puzzle'])}\n<answer>\n\n"])


def ask_dream(example: Example, shots: Sequence[Example]) -> str:
    """Pairs of a puzzle and its solution, for a model without a chat."""
    worked = [f"Input:\n{lines(s.fields['puzzle'])}\nOutput:\n{lines(s.gold)}\n\n" for s in shots]
    return f"{''.join(worked)}Input:\n{lines(example.fields['puzzle'])}\nOutput:\n"


def read_dream(path: Path) -> list[Example]:
    """The same files; Dream's grader counts the characters of the puzzle as it is written."""
    return [with_lines(one) for one in read(path)]


def with_lines(one: Example, written: str | None = None) -> Example:
    """The example with the puzzle as it is written: four lines."""
    grid = lines(one.fields["puzzle"]) if written is None else written
    return Example(one.id, {**one.fields, "written": grid}, one.gold)


FIELDS = {
    "puzzle": named("puzzle"),
    "rows": Field(lambda example: lines(example.fields["puzzle"]), ("puzzle",)),
}
SOLVED = {"answer": lambda example: example.gold, "answer_rows": lambda example: lines(example.gold)}

SUDOKU4 = Task(
    name="sudoku4",
    about="4 × 4 Sudoku as text, five solved examples; the digits of the one solution must be met to the letter",
    source=Source(
        "4x4_test_sudoku.csv from dataset/ of github.com/dllm-reasoning/d1 (Apache-2.0)",
        names=("4x4_test_sudoku.csv", "sudoku4/test.csv"),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=tagged,
    strict=strict,
    answer=lambda example: f"<answer>{example.gold}</answer>",
    length=128,
    shots=5,
    shown=SHOWN,
    chat=True,
    fields=FIELDS,
    solved=SOLVED,
)
DREAM = Task(
    name="sudoku4-dream",
    about="4 × 4 Sudoku as Dream's evaluation asks and grades it",
    source=Source(
        "sudoku_4x4_10.jsonl from eval/data of github.com/DreamLM/Dream (Apache-2.0)", names=("sudoku_4x4_10.jsonl",)
    ),
    read=read_dream,
    ask=ask_dream,
    extract=extract,
    as_published=dream,
    strict=strict,
    answer=lambda example: lines(example.gold),
    length=24,
    shots=8,
    pool="same",
    stop=("\n\n",),
    fields=FIELDS,
    solved=SOLVED,
)
