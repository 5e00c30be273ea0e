"""Proof that no test problem was trained on: the training's data again, batch by batch, against the test files.

    python experiments/countdown_excluded.py LOG.jsonl cd3_test.jsonl cd4_test.jsonl cd5_test.jsonl

Every batch is a function of the seed, its number and the excluded problems. The log says which seed, how many steps,
and the SHA-256 of the files that were excluded: the script checks that they are these files, makes all batches again
and counts the problems that are also in the files, in any order of the numbers, or reserved for measuring. To show
that it would notice, it also counts the test problems in the first batches without the exclusion, and looks for a
problem of the first batch. The exit status is 1 where anything is not as it should be.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from unmask.tasks.puzzles import countdown
from unmask.tasks.puzzles.problems import keys, reserved
from unmask.train.countdown import Problems, keys_of
from unmask.train.task import hashes


def batch_keys(number: int, source: Problems, size: int) -> np.ndarray:
    """The key of every problem of a batch, read back from its tokens."""
    digits = source.batch(number, size)[0][:, :18].astype(np.int64)
    digits = np.where(digits < 10, digits, 0)
    numbers = [10 * digits[:, 3 * place] + digits[:, 3 * place + 1] for place in range(5)]
    numbers = -np.sort(-np.stack(numbers, 1), 1)
    return numbers @ 100 ** np.arange(1, 6) + 10 * digits[:, 15] + digits[:, 16]


def count(number: int, source: Problems, wanted: np.ndarray, size: int) -> tuple[int, int, int]:
    """Problems of a batch, how many of them are wanted ones, and how many reserved."""
    found = batch_keys(number, source, size)
    return len(found), int(np.isin(found, wanted).sum()), int(reserved(found).sum())


def main() -> int:
    log, *files = sys.argv[1:]
    events = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    starts = [event for event in events if event["event"] == "start"]
    source = Problems(keys_of(files), 1)
    recorded = [event.get("data", {}).get("files") for event in starts]
    same = all(one == hashes(files) for one in recorded)
    print(f"{len(source.excluded)} problems of {len(files)} files, which the log {'has' if same else 'DOES NOT HAVE'}")
    plan, steps = starts[0]["plan"], max(event["step"] for event in events)
    numbers = [plan["seed"] * 2**32 + step for step in range(steps)]
    row = source.batch(numbers[0], plan["batch"])[0][0].tolist()
    there = keys([countdown.problem(row)])
    with ProcessPoolExecutor() as pool:
        check = partial(count, source=source, wanted=source.excluded, size=plan["batch"])
        made, met, held = (sum(column) for column in zip(*pool.map(check, numbers, chunksize=64), strict=True))
        open_check = partial(count, source=Problems(), wanted=source.excluded, size=plan["batch"])
        some, would, _ = (sum(column) for column in zip(*pool.map(open_check, numbers[:500]), strict=True))
    noticed = count(numbers[0], source, there, plan["batch"])[1] > 0
    print(f"{made:,} problems in {steps:,} batches: {met} of them in the files, {held} reserved")
    print(f"without the exclusion: {would} of {some:,}; a problem that is there is {'' if noticed else 'NOT '}found")
    return int(not same or met > 0 or held > 0 or would == 0 or not noticed)


if __name__ == "__main__":
    sys.exit(main())
