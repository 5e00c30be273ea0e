"""What share of our own Countdown problems the bundled model has seen in training, by how many numbers they have.

    python experiments/countdown_seen.py

The training of the bundled model reserved no problems, and its batches were made by an older version of the code. So
as many problems are drawn again by the same law (13,465 batches of 1,024, without the public test files, which change
nothing here), and 20,000 others are looked up among them. Printed: the numbers of a problem, problems of the training,
and the share that it has of the others, in any order of the numbers. Some minutes of one processor.
"""

from __future__ import annotations

import numpy as np

from unmask.tasks.puzzles.problems import RESULT, Whole, _joined, _key
from unmask.train.countdown import SHARES

TRAINED = 13_465 * 1_024
OTHERS = 20_000
PART = 400_000


def drawn(count: int, many: int, seed: int) -> Whole:
    """The keys of so many random problems."""
    dice, found, made = np.random.default_rng([seed, 99, many]), list[Whole](), 0
    while made < count:
        numbers = dice.integers(1, 100, (PART, many))
        steps, good = _joined(numbers, dice)
        target = steps[:, -1, RESULT]
        good &= (target >= 10) & (target <= 99)
        key = _key(np.pad(-np.sort(-numbers, 1), ((0, 0), (0, 5 - many))), target)[good]
        found.append(key)
        made += len(key)
    return np.concatenate(found)[:count]


def main() -> None:
    for many, share in SHARES.items():
        count = round(share * TRAINED)
        seen = np.isin(drawn(OTHERS, many, 2), drawn(count, many, 1)).mean()
        print(f"{many} numbers: {count:,} problems in training, {seen:.1%} of {OTHERS:,} others among them", flush=True)


if __name__ == "__main__":
    main()
