"""Where the rows of a run are, and what the choices among its particles come to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from choices import CHOICES, Line, first, offered

from unmask.evaluate import rows

MORE = (4, 8, 16, 32, 64)  # particles of which fewer may be taken
JUDGED = "entropy", "geometric", "likelihood", "surprise"  # choices whose texts are read; those by answers are the same


def place(args: argparse.Namespace, cell: str, k: int, method: str, kind: str = "jsonl") -> Path:
    return Path(args.out / f"{args.side}-{cell}-{k}-{method}.{kind}")


def source(args: argparse.Namespace, name: str, k: int, method: str) -> Path:
    """Where the rows of a run are; those of fewer independent paths may be among those of more."""
    path = place(args, name, k, method)
    more = [place(args, name, many, method) for many in MORE if many > k and method == "best-of-n"]
    return next((one for one in (path, *more) if one.exists()), path)


def read(args: argparse.Namespace, name: str, k: int, method: str) -> tuple[Line, list[Line]]:
    """What a run is about, and its rows in order; fewer independent paths are the first of more."""
    path = source(args, name, k, method)
    file = rows.read(path)
    kept = sorted(file.kept, key=lambda row: int(row["number"]))
    return file.header, kept if path == place(args, name, k, method) else [first(row, k) for row in kept]


def in_order(args: argparse.Namespace, name: str, k: int, method: str) -> list[Line]:
    """The rows of a run, none where there was none."""
    return read(args, name, k, method)[1] if source(args, name, k, method).exists() else []


def right(kept: Sequence[Line], choice: str) -> list[bool]:
    """Whether each puzzle is solved; `oracle` takes the best particle there is."""
    if choice == "oracle":
        return [any(row["right"]) for row in kept]
    return [row["right"][CHOICES[choice](row)] for row in kept]


def readable(kept: list[Line]) -> list[str]:
    return [choice for choice in JUDGED if choice in offered(kept)]


def judged(args: argparse.Namespace, name: str, k: int, method: str, kept: list[Line], choice: str) -> Any:
    """ln PPL and diversity of the texts that a choice takes."""
    path = place(args, name, k, method, "judged.jsonl")
    read = {divmod(one["number"], k): one["ln_ppl"] for one in (rows.read(path).kept if path.exists() else [])}
    taken = [CHOICES[choice](row) for row in kept]
    return (
        np.array([read.get((row["number"], at), np.nan) for row, at in zip(kept, taken, strict=True)]),
        np.array([row["diversity"][at] for row, at in zip(kept, taken, strict=True)]),
    )


def cost(mine: Sequence[Line], base: Sequence[Line]) -> float:
    return sum(row["evaluations"] for row in mine) / sum(row["evaluations"] for row in base)
