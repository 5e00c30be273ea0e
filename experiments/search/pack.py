"""Rows of the study -> a file small enough for a repository: what each choice would have come to."""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from choices import Line, offered
from kept import judged, read, readable, right, source
from methods import CELLS

Run = tuple[str, int, str]  # cell, particles, method


def pack(args: argparse.Namespace) -> None:
    """The runs that are whole, beside those that the file has already."""
    path = args.into / f"search-{args.side}.jsonl.xz"
    found = there(path)
    for run in ((name, k, method) for name in args.cells for k in args.particles for method in args.methods):
        name, k, method = run
        if source(args, name, k, method).exists():
            header, kept = read(args, name, k, method)
            if len(kept) != header["n"]:
                print(f"left out, {len(kept)} of {header['n']} rows: {name} K={k} {method}")
                continue
            columns = packed_texts(args, name, k, method, kept) if "text" in name else packed(kept)
            if any(None in column for column in columns.values()):
                print(f"left out, not judged: {name} K={k} {method}")
                continue
            head = {"cell": name, **header, "k": k, "paths": header["k"], "columns": [*columns]}
            found[run] = [json.dumps(line) for line in (head, *map(list, zip(*columns.values(), strict=True)))]
    args.into.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", preset=9, encoding="utf-8") as file:
        runs = sorted(found, key=lambda run: (list(CELLS).index(run[0]), *run[1:]))
        file.write("".join(f"{line}\n" for run in runs for line in found[run]))
    print(f"{path}: {len(found)} runs")


def there(path: Path) -> dict[Run, list[str]]:
    """The lines of each run of a packed file, none where there is none."""
    found: dict[Run, list[str]] = {}
    for line in lzma.decompress(path.read_bytes()).decode().splitlines() if path.exists() else ():
        if line.startswith("{"):
            head = json.loads(line)
            run = head["cell"], head["k"], head["method"]
            found[run] = []
        found[run].append(line)
    return found


def packed(kept: list[Line]) -> dict[str, list[Any]]:
    """The verdict of each choice as a digit, and the oracle's."""
    choices = (*offered(kept), "oracle")
    marks = ["".join(map(str, map(int, row))) for row in zip(*(right(kept, one) for one in choices), strict=True)]
    return {**numbers(kept), " ".join(choices): marks}


def packed_texts(args: argparse.Namespace, name: str, k: int, method: str, kept: list[Line]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = numbers(kept)
    for choice in readable(kept):
        for kind, column in zip(("ln_ppl", "diversity"), judged(args, name, k, method, kept, choice), strict=True):
            columns[f"{choice} {kind}"] = [round(float(one), 4) if np.isfinite(one) else None for one in column]
    return columns


def numbers(kept: list[Line]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in kept] for name in ("number", "evaluations")}
