"""Files of rows of one task -> the runs side by side over the questions that they have in common."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.run import Row, summary
from unmask.evaluate.stats import RESAMPLES, SEED, paired


def compare(paths: Sequence[str]) -> dict[str, Any]:
    """The figures of each run, and what sets it apart from the first."""
    paths = _different(paths)
    files = [rows.read(path) for path in paths]
    for path, file in zip(paths[1:], files[1:], strict=True):
        _alike(paths[0], files[0].header, path, file.header)
    runs = [{row.number: row for row in as_rows(file, path)} for path, file in zip(paths, files, strict=True)]
    common = sorted(set(runs[0]).intersection(*runs[1:]))
    if not common:
        raise InputError("the files have no question in common", "let the runs go on, or compare others")
    first = [runs[0][number] for number in common]
    found = []
    for path, file, run in zip(paths, files, runs, strict=True):
        mine = [run[number] for number in common]
        about = {"file": path, "model": file.header["model"], "recipe": file.header["recipe"]}
        more = {"left_out": len(run) - len(common), "unfinished": file.missing}
        found.append(about | more | summary(mine) | {"against": None if run is runs[0] else against(first, mine)})
    said = {name: files[0].header[name] for name in ("task", "data", "sha256")}
    return said | {"n": len(common), "resamples": RESAMPLES, "seed": SEED, "runs": found}


def _different(paths: Sequence[str]) -> list[str]:
    """Every file once, as `compare first.jsonl *.jsonl` means it."""
    once = {Path(path).resolve(): path for path in reversed(paths)}
    kept = [path for path in dict.fromkeys(paths) if path in once.values()]
    if len(kept) < 2:
        again = f", {kept[0]!r}, given {len(paths)} times" if len(paths) > 1 else ""
        raise InputError(f"there is one file of rows{again}", "give two or more")
    if len(kept) < len(paths):
        warnings.warn("files that are given twice are shown once", stacklevel=3)
    return kept


def as_rows(file: rows.Rows, path: str) -> list[Row]:
    """The rows of a run that decoded something."""
    for line in file.kept:
        _check(line, file, path)
    return [Row(**line) for line in file.kept]


KINDS: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str}
KINDS |= {"str | None": (str, type(None)), "float | None": (int, float, type(None))}


def _check(line: rows.Line, file: rows.Rows, path: str) -> None:
    """Refuse a row that lacks a field, or has one of another kind."""
    needed = {field.name: KINDS[str(field.type)] for field in fields(Row)}
    lost = [field.name for field in fields(Row) if field.default is MISSING and field.name not in line]
    if "strict" in lost or "text" in lost:
        why = f"its task is {file.header.get('task')}, version {file.header.get('version')}"
        raise InputError(f"{path!r} holds no answers that were graded", why)
    wrong = [name for name, value in line.items() if name not in needed or not isinstance(value, needed[name])]
    if lost or wrong:
        said = f"row {line['number']} of {path!r} has {f'no {lost[0]!r}' if lost else f'a strange {wrong[0]!r}'}"
        raise InputError(said, "it was changed, or made by another version")


def against(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """The second run less the first, and its cost over the first's."""
    found: dict[str, Any] = {
        name: asdict(paired([getattr(row, name) for row in first], [getattr(row, name) for row in second]))
        for name in ("strict", "as_published")
    }
    for name in ("evaluations", "seconds"):
        one, two = (sum(getattr(row, name) for row in run) for run in (first, second))
        found[f"{name}_ratio"] = two / one if one else None
    return found


def _alike(path: str, first: rows.Line, other: str, second: rows.Line) -> None:
    """Refuse runs over other questions."""
    for name, words in (("task", "task"), ("sha256", "data")):
        if first.get(name) != second.get(name):
            one, two = (str(header.get(name))[:12] for header in (first, second))
            raise InputError(f"{path!r} and {other!r} are of different {words}: {one} and {two}", "compare like runs")
