"""Training a countdown model: problems with answers as tokens, its network, and how many problems it solves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from unmask.models.network import Network
from unmask.tasks.countdown import COUNTDOWN, example
from unmask.tasks.puzzles import countdown
from unmask.tasks.puzzles.countdown import EQUATION, HEAD, LEAST, MASK, MOST
from unmask.tasks.puzzles.problems import keys, problems
from unmask.train.initial import bundled_config
from unmask.train.task import Array, DataOptions, TrainTask, hashes, share_solved

LONGEST = countdown.columns(MOST)
CONFIG = bundled_config("countdown")
PLAN = {"tilt": 1.0}
SHARES = {3: 0.1, 4: 0.7, 5: 0.2}  # of batches, by how many numbers their problems have
TRAINED, HELD = 4, 5  # streams of random numbers


def task(options: DataOptions) -> TrainTask:
    options.only("countdown", "exclude")
    excluded = keys_of(options.exclude)
    about = {"excluded": len(excluded), "files": hashes(options.exclude)}
    return TrainTask(Problems(excluded, options.held), CONFIG, MASK, about, begin=place)


def keys_of(paths: Iterable[str]) -> Array:  # sorted
    """The keys of the problems in these files."""
    return keys([countdown.parse(one.fields["input"]) for path in paths for one in COUNTDOWN.examples(path)])


@dataclass(frozen=True)
class Problems:
    """Endless problems, none of which is in `excluded`; and `held` reserved ones of each size to validate on."""

    excluded: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # keys, sorted
    held: int = 256

    def batch(self, number: int, size: int) -> tuple[Array, Array]:
        dice = np.random.default_rng([number, TRAINED])
        many = int(dice.choice(list(SHARES), p=list(SHARES.values())))
        tokens = problems(size, many, dice, self.excluded)
        return tokens, np.arange(tokens.shape[1]) >= HEAD

    def validate(self, network: Network) -> dict[str, float]:
        """The share that is solved, by how many numbers the problems have."""
        found = {}
        for many in range(LEAST, MOST + 1):
            tokens = problems(self.held, many, np.random.default_rng([many, HELD]), self.excluded, held=True)
            examples = [example("", str(countdown.problem(row)), "") for row in tokens.tolist()]
            found[f"solved_{many}"] = share_solved(COUNTDOWN, CONFIG, network, examples)
        return found


def place(network: Network) -> None:
    """Columns of the same meaning start alike: the sum of which number or equation, and which column of it."""
    generator = torch.Generator().manual_seed(0)
    width = network.shape.width
    which, within = torch.randn(2, 16, width, generator=generator)
    table = torch.empty(LONGEST, width)
    for column in range(LONGEST):
        number, digit = divmod(column, 3) if column < HEAD else divmod(column - HEAD + 6 * EQUATION, EQUATION)
        table[column] = which[number] + (within[digit] if column >= HEAD else which[15 - digit])
    network.place.weight.data.copy_(table / 2**0.5)
