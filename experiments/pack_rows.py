"""Kept rows of `unmask paper` -> one file for each place, small enough to go into a repository.

    python experiments/pack_rows.py runs/paper/rows results/rows

writes paper-PLACE.jsonl.xz: for each cell a line with its recipe, model, data, machine and date, then its rows. Texts
are left out, and of the answers to puzzles the right ones: a puzzle's seed and recipe give them again.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

KEPT = "number seed strict as_published path_entropy spread ended steps calls evaluations"
JUDGED = "judge judge_tokens nats ln_ppl mdlm_tokens mdlm_nats diversity distinct_1 distinct_2 distinct_3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    places: dict[str, list[Path]] = {}
    for path in sorted(args.rows.glob("*.rows.jsonl")):
        places.setdefault(path.name.split("-")[0], []).append(path)
    for place, paths in places.items():
        lines = [line for path in paths for line in packed(path)]
        target = args.out / f"paper-{place}.jsonl.xz"
        with lzma.open(target, "wt", preset=9, encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        print(f"{target}: {len(paths)} cells, {len(lines) - len(paths):,} rows, {target.stat().st_size:,} bytes")


def packed(path: Path) -> list[dict[str, Any]]:
    """A cell: its head, where it was resumed elsewhere, then its rows."""
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    files = sorted(path.parent.glob(path.name.replace(".rows.jsonl", ".judged*.jsonl")))
    verdicts: dict[int, list[dict[str, Any]]] = {}
    for file in files:  # one for each judge
        for one in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            verdicts.setdefault(one.get("number", -1), []).append(one)
    moved = [row for row in rows if "resumed" in row]
    return [head, *moved, *(small(row, verdicts.get(row["number"], [])) for row in rows if "number" in row)]


def small(row: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """A row without what can be made again; the verdicts of further judges are lists in `others`."""
    verdict, *others = found or [{}]
    kept = {name: row[name] for name in KEPT.split() if name in row}
    if row.get("strict") is False:
        kept |= {"answer": row["answer"], "fault": row["fault"]}
    kept |= {name: verdict[name] for name in JUDGED.split() if name in verdict}
    if others:
        kept["others"] = [{name: one[name] for name in JUDGED.split() if name in one} for one in others]
    return {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in kept.items()}


if __name__ == "__main__":
    main()
