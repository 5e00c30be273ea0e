"""Numbers of independent repetitions -> their mean with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Z = 1.959964  # of a normal distribution, 95 %


@dataclass(frozen=True)
class Mean:
    """A mean, where it may lie, and of how many numbers it is."""

    value: float
    low: float | None  # None: one number says nothing about the spread
    high: float | None
    n: int

    @property
    def half(self) -> float:
        """Half of the interval; infinite where it is not known."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / 2

    def times(self, factor: float, plus: float = 0.0) -> Mean:
        """The same in other units."""
        ends = [None if end is None else end * factor + plus for end in (self.low, self.high)]
        low, high = ends if factor >= 0 else ends[::-1]
        return Mean(self.value * factor + plus, low, high, self.n)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f}{'–' if self.low >= 0 else ' to '}{self.high:.3f})"


def mean(values: Tensor | Sequence[float]) -> Mean:  # [N]
    """The mean with Student's interval."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    value, n = float(numbers.mean()), len(numbers)
    if n < 2 or not math.isfinite(value):
        return Mean(value, None, None, n)
    half = student(n - 1) * float(numbers.std()) / math.sqrt(n)
    return Mean(value, value - half, value + half, n)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t (Abramowitz and Stegun 26.7.5): 0.7 % low at 2 degrees, better above."""
    z, v = Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, 1))
