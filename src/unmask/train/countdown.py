"""Training a countdown model: problems with answers as tokens, its network, and how many problems it solves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from unmask.decoding.recipe import Recipe
from unmask.evaluate.run import canvases, run
from unmask.models.network import Network
from unmask.tasks.countdown import COUNTDOWN, example
from unmask.tasks.puzzles import countdown
from unmask.tasks.puzzles.countdown import ALPHABET, EQUATION, HEAD, LEAST, MASK, MOST
from unmask.tasks.puzzles.problems import keys, problems
from unmask.train.batches import Numbers
from unmask.train.init import as_denoiser
from unmask.train.task import Options, Task

LONGEST = countdown.columns(MOST)
CONFIG = {
    "model_type": "unmask",
    "vocabulary": len(ALPHABET) + 1,
    "width": 320,
    "layers": 8,
    "heads": 5,
    "inner": 856,
    "position": "learned",
    "places": LONGEST,
    "limit": LONGEST,
    "qk_norm": True,
    "mask_token_id": MASK,
    "alphabet": ALPHABET,
    "torch_dtype": "float32",
}
PLAN = {"tilt": 1.0}
SHARES = {3: 0.1, 4: 0.7, 5: 0.2}  # of batches, by how many numbers their problems have
TRAINED, HELD = 4, 5  # streams of random numbers


def task(options: Options) -> Task:
    options.only("countdown", "exclude")
    source = Problems.without(options.exclude, options.held)
    about = {"excluded": len(source.excluded), "files": dict(source.files)}
    return Task(source, CONFIG, MASK, about, begin=place)


@dataclass(frozen=True)
class Problems:
    """Problems without end, none of which is in `excluded`; and `held` reserved ones of each size to validate on."""

    excluded: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # keys, sorted
    files: tuple[tuple[str, str], ...] = ()  # name and SHA-256 of the files they are from
    held: int = 256

    @classmethod
    def without(cls, paths: tuple[str, ...], held: int) -> Problems:
        """Leave out the problems of these files."""
        examples = [one for path in paths for one in COUNTDOWN.examples(path)]
        found = [countdown.parse(one.fields["input"]) for one in examples]
        files = tuple((Path(path).name, hashlib.sha256(Path(path).read_bytes()).hexdigest()) for path in paths)
        return cls(keys(found), files, held)

    def batch(self, number: int, size: int) -> tuple[Numbers, Numbers]:
        dice = np.random.default_rng([number, TRAINED])
        many = int(dice.choice(list(SHARES), p=list(SHARES.values())))
        tokens = problems(size, many, dice, self.excluded)
        return tokens, np.arange(tokens.shape[1]) >= HEAD

    def validate(self, network: Network) -> dict[str, float]:
        """The share of problems that confidence order solves at temperature 0, one token a step."""
        model, found = as_denoiser("countdown", CONFIG, network), {}
        for many in range(LEAST, MOST + 1):
            tokens = problems(self.held, many, np.random.default_rng([many, HELD]), self.excluded, held=True)
            examples = [example("", str(countdown.problem(row)), "") for row in tokens.tolist()]
            rows = run(COUNTDOWN, model, canvases(COUNTDOWN, examples), Recipe("confidence"))
            found[f"solved_{many}"] = sum(row.strict for row in rows) / len(rows)
        return found


def place(network: Network) -> None:
    """Columns that mean the same begin alike: which number or equation, plus which column of it."""
    generator = torch.Generator().manual_seed(0)
    width = network.shape.width
    which, within = torch.randn(2, 16, width, generator=generator)
    table = torch.empty(LONGEST, width)
    for column in range(LONGEST):
        number, digit = divmod(column, 3) if column < HEAD else divmod(column - HEAD + 6 * EQUATION, EQUATION)
        table[column] = which[number] + (within[digit] if column >= HEAD else which[15 - digit])
    network.place.weight.data.copy_(table / 2**0.5)
