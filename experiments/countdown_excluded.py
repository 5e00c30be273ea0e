"""Proof that no test problem was trained on: the training's data again, batch by batch, against the test files.

    python experiments/countdown_excluded.py LOG.jsonl cd3_test.jsonl cd4_test.jsonl cd5_test.jsonl

Every batch is a function of the seed and its number, which the log has, and of the excluded problems. The script makes
all of them again, counts the problems that are also in the files (in any order of the numbers), and, to show that it
would notice, does the same for the first batches without the exclusion, and for known problems of a batch.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from unmask import countdown
from unmask.train.countdown import Problems
from unmask.train.problems import keys


def met(number: int, source: Problems, wanted: np.ndarray, size: int) -> tuple[int, int]:
    """Problems of a batch, and how many of them are wanted ones."""
    tokens, _ = source.batch(number, size)
    digits = tokens[:, :18].astype(np.int64)
    digits = np.where(digits < 10, digits, 0)
    numbers = [10 * digits[:, 3 * place] + digits[:, 3 * place + 1] for place in range(5)]
    numbers = -np.sort(-np.stack(numbers, 1), 1)
    key = numbers @ 100 ** np.arange(1, 6) + 10 * digits[:, 15] + digits[:, 16]
    return len(key), int(np.isin(key, wanted).sum())


def main() -> None:
    log, *files = sys.argv[1:]
    events = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    plan = next(event["plan"] for event in events if event["event"] == "start")
    steps = max(event["step"] for event in events)
    source = Problems.without(tuple(files), 0)
    numbers = [plan["seed"] * 2**32 + step for step in range(steps)]
    with ProcessPoolExecutor() as pool:
        check = partial(met, source=source, wanted=source.excluded, size=plan["batch"])
        counts = list(pool.map(check, numbers, chunksize=64))
        open_check = partial(met, source=Problems(), wanted=source.excluded, size=plan["batch"])
        without = list(pool.map(open_check, numbers[:500], chunksize=16))
    row = source.batch(numbers[0], 1)[0][0].tolist()
    head = "".join(countdown.ALPHABET[token] for token in row[:18])
    known = keys([countdown.parse(f"{head[:14].strip()},{head[15:17]}")])
    print(f"{len(source.excluded)} problems of {len(files)} files: {dict(source.files)}")
    print(
        f"{sum(n for n, _ in counts):,} problems in {steps} batches: {sum(n for _, n in counts)} of them in the files"
    )
    made, found = (sum(column) for column in zip(*without, strict=True))
    print(f"without the exclusion, {found} of {made:,} in the first {len(without)} batches would have been")
    print(f"a problem that is there is found: {met(numbers[0], source, known, plan['batch'])[1] > 0}")
    sys.exit(bool(sum(n for _, n in counts)))


if __name__ == "__main__":
    main()
