"""What the plugin `only_cuda` wrote -> which GPU tests passed, failed, or did not end. Needs nothing but Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of all processes, but for one that was cut off."""
    for path in sorted(folder.glob("outcomes-*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                continue


def counts(folder: Path) -> tuple[Counter[str], list[dict[str, Any]], list[str], int]:
    """Outcomes, failures, tests that did not end, and how many were never begun."""
    lines = list(read(folder))
    ended = {line["test"]: line for line in lines if "outcome" in line}
    begun = {line["test"] for line in lines if "began" in line}
    file = folder / "collected.json"
    names = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    failed = [line for line in ended.values() if line["outcome"] == "failed"]
    left = len(set(names) - begun - set(ended))
    return Counter(line["outcome"] for line in ended.values()), failed, sorted(begun - set(ended)), left


def told(folder: Path) -> str:
    """A line of counts, and one for every failure."""
    outcomes, failed, cut, left = counts(folder)
    numbers = ", ".join(f"{outcomes[name]} {name}" for name in ("passed", "failed", "skipped"))
    lines = [f"GPU tests: {numbers}, {len(cut)} begun and not ended, {left} not begun"]
    lines += [f"FAILED {line['test']}: {reason(line['why'])}" for line in failed]
    return "\n".join(lines + [f"NOT ENDED {name}" for name in cut])


def reason(why: str) -> str:
    """The first line of an error, of all that pytest said."""
    lines = why.strip().splitlines() or ["?"]
    return next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1])[:300]
