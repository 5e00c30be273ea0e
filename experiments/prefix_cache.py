"""What the prefix cache changes: countdown with and without it, on the same problems and seeds.

    python experiments/prefix_cache.py cd4_test.jsonl --limit 500 --device cuda > runs/prefix_cache.json

Blocks are equations (14 columns), filled from left to right. For each search it prints the share solved with and
without the cache (95 % intervals; the share whose verdict changed), path entropies, the mean change of the path
entropy of a problem, seconds, and the ratio of the seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

import unmask
from unmask.decoding.recipe import Recipe
from unmask.evaluate.rows import Row
from unmask.evaluate.run import canvases, run
from unmask.evaluate.stats import wilson
from unmask.tasks.countdown import COUNTDOWN
from unmask.tasks.puzzles.countdown import EQUATION

SEARCHES = {"vanilla": {}, "best-of-n": {"particles": 8}, "smc": {"particles": 8, "every": 7, "scheme": "systematic"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = unmask.load("countdown", args.device)
    problems = canvases(COUNTDOWN, COUNTDOWN.examples(args.data, args.limit))
    found = {"data": args.data, "n": len(problems), "device": args.device, "date": time.strftime("%Y-%m-%d")}
    results = {}
    for search, settings in SEARCHES.items():
        recipe = Recipe("semi-ar", search, temperature=1.0, block_length=EQUATION, **settings)
        run(COUNTDOWN, model, problems[:8], recipe)  # what is slow at first is over
        both = {}
        for name, change in (("exact", {}), ("cached", {"cache_block": EQUATION, "cache_before": 0})):
            began = time.perf_counter()
            both[name] = (
                run(COUNTDOWN, model, problems, recipe.replace(**change)),
                began,
                time.perf_counter(),
            )
            print(f"{search}, {name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        results[search] = compared(both) | {"recipe": recipe.to_dict()}
    print(json.dumps(found | {"results": results}))


def compared(both: dict[str, tuple[list[Row], float, float]]) -> dict[str, object]:
    """The figures of a pair of runs."""
    (exact, began, ended), (cached, begun, end) = both["exact"], both["cached"]
    entropy = {name: np.array([row.path_entropy for row in rows]) for name, (rows, _, _) in both.items()}
    strict = {name: np.array([row.strict for row in rows]) for name, (rows, _, _) in both.items()}
    return {
        "solved": {name: [right.mean(), *wilson(int(right.sum()), len(right))] for name, right in strict.items()},
        "verdicts_changed": float((strict["exact"] != strict["cached"]).mean()),
        "answers_changed": float(np.mean([a.answer != b.answer for a, b in zip(exact, cached, strict=True)])),
        "path_entropy": {name: float(values.mean()) for name, values in entropy.items()},
        "path_entropy_change": float(np.abs(entropy["exact"] - entropy["cached"]).mean()),
        "seconds": {"exact": ended - began, "cached": end - begun},
        "time_ratio": (end - begun) / (ended - began),
    }


if __name__ == "__main__":
    main()
