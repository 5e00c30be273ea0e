"""Requests of lm-eval -> where each comes from, a seed of its own, and a row of what it took (JSONL)."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.evaluate.rows import append, check_place, to_json


@dataclass(frozen=True)
class Origin:
    """Where a request comes from; equal requests differ in their turn."""

    task: str | None
    doc: int
    request: int  # among those of its document
    turn: int

    def key(self, seed: int, *, alike: bool = False) -> int:
        """A seed that depends on this request alone; with `alike`, on its document alone."""
        parts = [self.task, self.doc] if alike else [self.task, self.doc, self.request, self.turn]
        return seed + int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=6).digest(), "big")


def origins(requests: Sequence[Any]) -> list[Origin]:
    """The origin of each request (lm-eval's Instance); a request without a document is named by its place."""
    seen: Counter[tuple[Any, ...]] = Counter()
    found = []
    for place, request in enumerate(requests):
        doc = place if request.doc_id is None else request.doc_id
        name = (request.task_name, doc, request.idx)
        found.append(Origin(*name, seen[name]))
        seen[name] += 1
    return found


@dataclass
class RequestRows:
    """The requests so far: sums by kind, and each request as a line of the file, if there is one."""

    path: Path | None
    asked: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    entropies: dict[str, list[float]] = field(default_factory=dict)  # bits

    def __post_init__(self) -> None:
        check_place(None if self.path is None else str(self.path))

    def keep(self, origin: Origin, kind: str, row: Mapping[str, Any]) -> None:
        """Count one request, and write its line at once."""
        self.asked[kind] += 1
        self.evaluations[kind] += row["evaluations"]
        if math.isfinite(row["path_entropy"]):
            self.entropies.setdefault(kind, []).append(row["path_entropy"])
        if self.path is not None:
            where = {"task": origin.task, "doc_id": origin.doc, "request": origin.request, "turn": origin.turn}
            append(self.path, [to_json({"kind": kind, **where, **row})])

    def summary(self) -> dict[str, dict[str, Any]]:
        """By kind of request: how many, their evaluations, and the mean of their path entropies."""
        found: dict[str, dict[str, Any]] = {}
        for kind, count in self.asked.items():
            bits = self.entropies.get(kind, [])
            mean = math.fsum(bits) / len(bits) if bits else None
            found[kind] = {"requests": count, "evaluations": self.evaluations[kind], "path_entropy": mean}
        return found
