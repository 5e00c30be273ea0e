"""Puzzles × model × Recipe -> how many are solved, what it cost, and whether path entropy knew it."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask import corpus, countdown, sudoku
from unmask.decode import Watch, decode_batch
from unmask.errors import InputError, ModelError
from unmask.models.denoiser import Denoiser
from unmask.recipe import Recipe

TOGETHER = {"cpu": 32, "cuda": 512}  # rows decoded at a time, at most: on a CPU more of them are no faster


@dataclass(frozen=True)
class Row:
    """One puzzle and its answer."""

    puzzle: str
    answer: str
    strict: bool  # it is right, whatever right answer others have in mind
    path_entropy: float  # bits
    evaluations: int
    seed: int


@dataclass(frozen=True)
class Kind:
    """A kind of puzzle: how to read a file of them, to ask a model and to judge its answer."""

    mask: int  # id of the mask in the canvas
    parse: Callable[[str], Any]
    check: Callable[[Any], str | None]  # refuses what has nothing to solve; says what is strange about the others
    read: Callable[[str | Path, int | None], list[Any]]  # the puzzles of a file
    canvas: Callable[[Any], list[int]]
    answer: Callable[[list[int]], str]
    fault: Callable[[str, Any], str | None]  # what is wrong with an answer
    write: Callable[[Any], str]


def read_boards(path: str | Path, limit: int | None = None) -> list[sudoku.Board]:
    """The boards of a file: on each line the first field of 81 characters in 0-9 and dots; other lines are left out."""
    found, strange = [], 0
    for line in corpus.read(str(path)).splitlines():
        field = next((part for part in re.split(r"[\s,;]+", line) if re.fullmatch(r"[0-9.]{81}", part)), None)
        if field is not None:
            found.append(sudoku.parse(field))
        elif line.strip():
            strange += 1
        if limit is not None and len(found) == limit:
            break
    if not found:
        raise InputError(
            f"there is no Sudoku in {str(path)!r}", "each line needs a field of 81 characters, 0-9 or dots"
        )
    if strange:
        warnings.warn(f"{strange} lines of {str(path)!r} hold no Sudoku and are left out", stacklevel=2)
    return found


def read_problems(path: str | Path, limit: int | None = None) -> list[countdown.Problem]:
    """The countdown problems of a file: lines like `15,44,79,50`, or JSON lines with such an `input`."""
    found: list[countdown.Problem] = []
    for number, line in enumerate(corpus.read(str(path)).splitlines(), 1):
        if limit is not None and len(found) == limit:
            break
        if line.strip():
            try:
                found.append(countdown.parse(problem_text(line)))
            except InputError as error:
                raise InputError(f"line {number} of {str(path)!r}: {error.message}", error.hint) from None
    if not found:
        raise InputError(f"there is no countdown in {str(path)!r}", "each line needs numbers and a target: 15,44,79,50")
    return found


def problem_text(line: str) -> str:
    """The problem in a line of a file: as it is, or the `input` of a JSON object."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        said = json.loads(line)["input"]
    except (ValueError, KeyError):
        said = None
    if not isinstance(said, str):
        raise InputError("there is no text `input`", 'write {"input": "15,44,79,50"}')
    return said


KINDS: dict[str, Kind] = {
    "sudoku": Kind(
        sudoku.MASK,
        sudoku.parse,
        sudoku.check,
        read_boards,
        sudoku.canvas,
        sudoku.answer,
        sudoku.fault,
        sudoku.write,
    ),
    "countdown": Kind(
        countdown.MASK,
        countdown.parse,
        countdown.check,
        read_problems,
        countdown.canvas,
        countdown.answer,
        countdown.fault,
        str,
    ),
}


def suits(kind: str, model: Denoiser) -> None:
    """Refuse a model of other tokens."""
    if model.vocab.mask != KINDS[kind].mask:
        raise ModelError(f"{model.name} is no model of {kind}", f"train one with `unmask train {kind}`")


@dataclass(frozen=True)
class Sifted:
    """Puzzles, and what was found about some of them, by their number in the file from 1."""

    fit: list[Any]  # there is something to solve
    skipped: dict[int, str]  # why there is not
    strange: dict[int, str]  # what is unusual about some that fit

    def remark(self) -> str | None:
        """All that was found, in one line."""
        parts = [
            f"{len(found)} puzzle{'s are' if len(found) > 1 else ' is'} {fate}: {_named(found)}"
            for found, fate in ((self.skipped, "skipped"), (self.strange, "judged by the rules alone"))
            if found
        ]
        return "; ".join(parts) or None


def _named(found: dict[int, str], most: int = 4) -> str:
    some = [f"number {number} ({why})" for number, why in list(found.items())[:most]]
    return ", ".join(some) + (f" and {len(found) - most} more" if len(found) > most else "")


def sift(kind: str, puzzles: Sequence[Any]) -> Sifted:
    """Tell puzzles with something to solve from the others."""
    found = Sifted([], {}, {})
    for number, puzzle in enumerate(puzzles, 1):
        try:
            strange = KINDS[kind].check(puzzle)
        except InputError as error:
            found.skipped[number] = error.message
            continue
        found.fit.append(puzzle)
        if strange is not None:
            found.strange[number] = strange
    if not found.fit:
        raise InputError("no puzzle can be solved", _named(found.skipped))
    return found


def run(
    kind: str,
    model: Denoiser,
    puzzles: Sequence[Any],
    recipe: Recipe,
    tell: Callable[[list[Row]], None] = lambda rows: None,
    watch: Watch | None = None,
) -> list[Row]:
    """Every puzzle decoded; puzzle i has the seed recipe.seed + i, whatever is decoded beside it.

    `tell` is called with the rows of each batch, `watch` with every event of decoding.
    """
    suits(kind, model)
    how = KINDS[kind]
    size = max(1, TOGETHER.get(model.device.type, 32) // recipe.build_search().particles)
    rows: list[Row] = []
    for begin in range(0, len(puzzles), size):
        some = puzzles[begin : begin + size]
        seeds = [recipe.seed + begin + place for place in range(len(some))]
        canvases = [how.canvas(one) for one in some]
        results = decode_batch(model, canvases=canvases, recipe=recipe, seeds=seeds, watch=watch)
        new = []
        for puzzle, found in zip(some, results, strict=True):
            answer = how.answer(found.tokens)
            right = how.fault(answer, puzzle) is None
            new.append(Row(how.write(puzzle), answer, right, found.path_entropy, found.evaluations, found.seed))
        tell(new)
        rows += new
    return rows


def summary(rows: Sequence[Row], began: float) -> dict[str, Any]:
    """The figures of a run."""
    right = sum(row.strict for row in rows)
    low, high = wilson(right, len(rows))
    return {
        "n": len(rows),
        "strict": right / len(rows),
        "strict_low": low,
        "strict_high": high,
        "path_entropy_bits": sum(row.path_entropy for row in rows) / len(rows),
        "auroc": auroc([row.path_entropy for row in rows], [row.strict for row in rows]),
        "evaluations": sum(row.evaluations for row in rows),
        "seconds": time.perf_counter() - began,
    }


def wilson(right: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, spread = right / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def auroc(entropies: Sequence[float], right: Sequence[bool]) -> float | None:
    """The chance that a right answer has the lower path entropy of a right and a wrong one; None without either."""
    order = sorted(range(len(entropies)), key=entropies.__getitem__)
    ranks = [0.0] * len(order)
    begin = 0
    while begin < len(order):  # equal entropies share their mean rank
        end = begin
        while end + 1 < len(order) and entropies[order[end + 1]] == entropies[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            ranks[order[place]] = (begin + end) / 2 + 1
        begin = end + 1
    wrong = [rank for rank, good in zip(ranks, right, strict=True) if not good]
    good = len(right) - len(wrong)
    if not wrong or not good:
        return None
    return (sum(wrong) - len(wrong) * (len(wrong) + 1) / 2) / (len(wrong) * good)
