"""Files of rows of one task -> the runs side by side over the questions that they have in common."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.rows import Row
from unmask.evaluate.stats import auroc, paired, wilson


def summary(found: Sequence[Row]) -> dict[str, Any]:
    """The figures of a run."""
    n, seconds, tokens = len(found), sum(row.seconds for row in found), sum(row.tokens for row in found)
    surprises = [row.surprise for row in found if row.surprise is not None]
    made = _shares(found)
    if any(row.group for row in found):
        made["groups"] = {
            name: _shares([row for row in found if row.group == name])
            for name in sorted({row.group for row in found if row.group}, key=_by_number)
        }
    return made | {
        "path_entropy_bits": sum(row.path_entropy for row in found) / n,
        "auroc": auroc([row.path_entropy for row in found], [row.strict for row in found]),
        "auroc_surprise": auroc(surprises, [row.strict for row in found]) if len(surprises) == n else None,
        **{name: sum(getattr(row, name) for row in found) for name in ("steps", "calls", "evaluations")},
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else None,
        "failures": [{"number": row.number, "id": row.id, "fault": row.fault} for row in found if row.fault],
    }


def _shares(found: Sequence[Row]) -> dict[str, Any]:
    """The share of right answers by both verdicts, with intervals."""
    n = len(found)
    made: dict[str, Any] = {"n": n}
    for name in ("strict", "as_published"):
        right = sum(getattr(row, name) for row in found)
        low, high = wilson(right, n)
        made |= {name: right / n, f"{name}_low": low, f"{name}_high": high}
    return made


def _by_number(name: str) -> tuple[str, int]:
    """Sorts `2 steps` before `10 steps`."""
    return re.sub("[0-9]+", "", name), int("".join(re.findall("[0-9]", name)) or 0)


def compare(paths: Sequence[str]) -> dict[str, Any]:
    """The figures of each run, and its difference from the first."""
    paths = _different(paths)
    files = [rows.read(path) for path in paths]
    for path, file in zip(paths[1:], files[1:], strict=True):
        _alike(paths[0], files[0].header, path, file.header)
    runs = [{row.number: row for row in file.graded(path)} for path, file in zip(paths, files, strict=True)]
    for path, file in zip(paths, files, strict=True):
        missing = [name for name in ("task", "data", "sha256", "model", "recipe") if name not in file.header]
        if missing:
            raise InputError(
                f"the header of {path!r} has no {missing[0]!r}", "it was changed, or made by another version"
            )
    common = sorted(set(runs[0]).intersection(*runs[1:]))
    if not common:
        raise InputError("the files have no question in common", "resume the runs, or compare others")
    first = [runs[0][number] for number in common]
    found = []
    for path, file, run in zip(paths, files, runs, strict=True):
        mine = [run[number] for number in common]
        about = {"file": path, "model": file.header["model"], "recipe": file.header["recipe"]}
        more = {"left_out": len(run) - len(common), "unfinished": file.missing}
        found.append(about | more | summary(mine) | {"against": None if run is runs[0] else against(first, mine)})
    about = {name: files[0].header[name] for name in ("task", "data", "sha256")}
    return about | {"n": len(common), "runs": found}


def _different(paths: Sequence[str]) -> list[str]:
    """Every file once, also for `compare first.jsonl *.jsonl`."""
    once = {Path(path).resolve(): path for path in reversed(paths)}
    kept = [path for path in dict.fromkeys(paths) if path in once.values()]
    if len(kept) < 2:
        again = f", {kept[0]!r}, given {len(paths)} times" if len(paths) > 1 else ""
        raise InputError(f"there is one file of rows{again}", "give two or more")
    if len(kept) < len(paths):
        warnings.warn("files that are given twice are shown once", stacklevel=3)
    return kept


def against(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """The second run less the first, and the ratio of their costs."""
    found: dict[str, Any] = {
        name: asdict(paired([getattr(row, name) for row in first], [getattr(row, name) for row in second]))
        for name in ("strict", "as_published")
    }
    for name in ("evaluations", "seconds"):
        one, two = (sum(getattr(row, name) for row in run) for run in (first, second))
        found[f"{name}_ratio"] = two / one if one else None
    return found


def _alike(path: str, first: rows.Line, other: str, second: rows.Line) -> None:
    """Refuse two runs over different questions."""
    for name, words in (("task", "task"), ("task_sha256", "task file"), ("sha256", "data")):
        if first.get(name) != second.get(name):
            one, two = (str(header.get(name))[:12] for header in (first, second))
            raise InputError(f"{path!r} and {other!r} are of different {words}: {one} and {two}", "compare like runs")
