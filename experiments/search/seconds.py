"""What a stop saves in seconds: E-BoN with eight paths against `auto` with `until`, in a batch that refills.

    python experiments/search/seconds.py runs/seconds.jsonl --rows results/rows/search-paths.jsonl.xz --device cuda \
        --puzzles FOLDER --data FOLDER --limit 40

The threshold of a cell is found without labels on recorded rows: it spends half of E-BoN's evaluations on them, at most
16 paths. Timed are other prompts, from --begin on, as `decode_batch` runs them in batches (rows: eight times --batch),
alternately and after one untimed round of both on the first prompts. `shared` computes equal canvases once, in steps
that wait for the device; `recorded` plays recorded steps, as the package does by itself on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import rules
from paths import CELLS, MODELS, PUZZLES, Asked, sharing
from stops import read, spent

import unmask
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.evaluate.header import origin
from unmask.evaluate.rows import parsed
from unmask.models import fingerprint

CELLS_TIMED = ["sudoku24-eb", "sudoku24-selected", "cd4-eb", "countdown4-selected"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--cells", nargs="+", default=CELLS_TIMED)
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--begin", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing further begins")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--puzzles", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, cells = time.monotonic(), read(args.rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = parsed(args.out.read_bytes()) if args.out.exists() else []
    done = {tuple(line[name] for name in ("cell", "how", "search", "round")) for line in lines if line is not None}
    for cell in args.cells:
        if cell not in cells:
            continue
        known, looks = [row for row in cells[cell][0] if row["number"] < args.begin], cells[cell][1]
        budget = args.share * float(np.mean([spent(row, 8, False) for row in known]))
        until = rules.within(rules.ends(known, 16, looks, 0.0), budget)
        task, settings = CELLS[cell]
        searches = {
            "E-BoN": Recipe(**settings, search="best-of-n", particles=8),
            "auto, stopped": Recipe(**settings, search="auto", particles=8, most=16, until=until),
        }
        name = MODELS.get(task, "countdown")
        model, asked = unmask.load(name, args.device), Asked(task, PUZZLES, args.data, args.puzzles)
        for how in ("recorded", "shared"):
            for round_ in range(args.repeat + 1):
                for what, recipe in searches.items():
                    if time.monotonic() - began > args.limit:
                        return 75
                    if (cell, how, what, round_) in done:
                        continue
                    first = 0 if round_ == 0 else args.begin
                    numbers = list(range(first, first + (args.n if round_ else 2 * args.batch)))
                    row = timed(model, asked, recipe, numbers, args, how)
                    if round_:
                        row |= {"cell": cell, "search": what, "round": round_}
                        row |= {
                            "until": until if "auto" in what else None,
                            "batch": args.batch,
                            "weights": fingerprint(name),
                            **origin(model.device),
                        }
                        with args.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")
                        told = {key: row[key] for key in ("seconds", "evaluations", "rows", "right", "paths")}
                        print(cell, how, what, round_, told, flush=True)
    return 0


def timed(model: Any, asked: Any, recipe: Recipe, numbers: list[int], args: Any, how: str) -> dict[str, Any]:
    given: dict[str, Any] = {"canvases" if asked.puzzle else "prompts": [asked.given[number] for number in numbers]}
    with sharing() if how == "shared" else nullcontext():
        wait(args.device)
        start = time.perf_counter()
        found = decode_batch(model, recipe=recipe, seeds=numbers, batch_size=args.batch, **given)
        wait(args.device)
        seconds = time.perf_counter() - start
    n = len(numbers)
    right = sum(asked.answer(number, one.particles[one.chosen])[1] for number, one in zip(numbers, found, strict=True))
    paths = sum(len(one.particles) for one in found)
    cost = sum(one.evaluations for one in found), sum(one.rows for one in found)
    return {"how": how, "n": n, "seconds": round(seconds, 3), "evaluations": cost[0] / n, "rows": cost[1] / n,
            "paths": paths / n, "right": right / n}  # fmt: skip


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main())
