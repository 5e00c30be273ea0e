"""Numbers and verdicts -> means, shares and differences with 95 % intervals, ranks, correlations and AUROC."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Z = 1.959964  # 97.5 % point of a normal distribution
DRAWS = 1000  # of `bootstrap`
LARGEST = float(np.finfo(np.float64).max)
Floats = NDArray[np.float64]
Places = NDArray[np.int64]  # of rows
Figure = tuple[float | None, float | None, float | None]  # a value and the ends of its interval


def is_finite(value: object) -> bool:
    """Whether a value that was read is a number that a float can hold; whole numbers of JSON may be larger."""
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST


# --- means -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean of n numbers and its interval."""

    value: float
    low: float | None  # None: one number says nothing about the spread
    high: float | None
    n: int

    @property
    def half(self) -> float:
        """Half the width of the interval; infinite where it is not known."""
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


def average(values: Sequence[float]) -> float:
    """The mean alone."""
    return sum(values) / len(values)


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


# --- shares ----------------------------------------------------------------------------------------------------------


def wilson(right: int, n: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, spread = right / n, Z * Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Difference:
    """The share of right answers of a second run less that of a first, over the same questions."""

    difference: float
    low: float  # Tango's 95 % score interval
    high: float
    better: int  # questions that only the second answers rightly
    worse: int  # questions that only the first answers rightly
    p: float  # exact McNemar test, two-sided


def paired(first: Sequence[bool], second: Sequence[bool]) -> Difference:
    """The difference of two runs, question by question."""
    pairs = list(zip(first, second, strict=True))
    n, better, worse = len(pairs), sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    low, high = tango(better, worse, n)
    return Difference((better - worse) / n, low, high, better, worse, mcnemar(better, worse))


def tango(better: int, worse: int, n: int) -> tuple[float, float]:
    """The score interval of a paired difference of shares (Tango 1998): of use also where few pairs differ, or none.

    The differences at which the score statistic, with the other share as likely as can be, is 1.96 and -1.96.
    """

    def score(difference: float) -> float:
        a, b = 2 * n, (2 * n - better + worse) * difference - better - worse
        other = (math.sqrt(max(0.0, b * b + 4 * a * worse * difference * (1 - difference))) - b) / (2 * a)
        spread = n * (2 * other + difference * (1 - difference))
        gap = better - worse - n * difference
        return math.copysign(math.inf, gap) if spread <= 0 and gap else gap / math.sqrt(spread or 1.0)

    def solved(value: float, low: float, high: float) -> float:
        for _ in range(60):  # the score falls as the difference grows
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > value else (low, middle)
        return (low + high) / 2

    here = (better - worse) / n
    return solved(Z, -1.0, here), solved(-Z, here, 1.0)


def mcnemar(better: int, worse: int) -> float:
    """The probability that a fair coin splits the questions that differ at least as unevenly."""
    total, few = better + worse, min(better, worse)
    tail = sum(math.comb(total, k) for k in range(few + 1))
    return min(1.0, float(2 * tail / 2**total))


# --- the bootstrap ---------------------------------------------------------------------------------------------------


def bootstrap(
    measure: Callable[[Places], Mapping[str, float]],
    keys: Sequence[Hashable],
    draws: int = DRAWS,
    dice: np.random.Generator | None = None,
    method: Literal["linear", "lower"] = "linear",
) -> dict[str, Figure]:
    """Each figure of all rows, with the interval of resampled groups of rows (those with equal keys).

    One group gives no interval. A value that is not finite is None, and is left out of an interval; with `method`
    lower the ends are resampled values themselves, infinite ones included. The seed is 0 unless `dice` are given.
    """
    members: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    groups = [np.array(places) for places in members.values()]
    whole = measure(np.arange(len(keys)))
    dice = np.random.default_rng(0) if dice is None else dice
    again: list[Mapping[str, float]] = []
    for _ in range(draws if len(groups) > 1 else 0):
        drawn = dice.integers(0, len(groups), len(groups))
        again.append(measure(np.concatenate([groups[one] for one in drawn])))
    return {
        name: (value if math.isfinite(value) else None, *_ends([one[name] for one in again], method))
        for name, value in whole.items()
    }


def _ends(values: list[float], method: Literal["linear", "lower"]) -> tuple[float | None, float | None]:
    known = [value for value in values if method == "lower" or math.isfinite(value)]
    if not known:
        return None, None
    low, high = np.quantile(known, [0.025, 0.975], method=method).tolist()
    return low, high


# --- ranks and correlations ------------------------------------------------------------------------------------------


def ranks(values: Sequence[float] | Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, which, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[which]
    return found


def auroc(entropies: Sequence[float], right: Sequence[bool]) -> float | None:
    """The probability that of a right and a wrong answer the right one has the lower entropy; None without either."""
    wrong = ranks(entropies)[~np.asarray(right, dtype=bool)]
    good = len(right) - len(wrong)
    if not len(wrong) or not good:
        return None
    return (float(wrong.sum()) - len(wrong) * (len(wrong) + 1) / 2) / (len(wrong) * good)


def pearson(left: Floats, right: Floats) -> float:
    """The linear correlation; NaN where one of the two does not vary."""
    if len(left) < 3:
        return math.nan
    a, b = left - left.mean(), right - right.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return max(-1.0, min(1.0, float(a @ b) / scale)) if scale > 0 else math.nan


def spearman(left: Floats, right: Floats) -> float:
    """The correlation of ranks."""
    return pearson(ranks(left), ranks(right))


def ceiling(even: Floats, odd: Floats) -> float:
    """The largest possible correlation with a mean over all tokens, from the means over either half of them.

    Spearman and Brown: from the agreement r of the halves the whole has the reliability 2r / (1 + r); its root bounds
    the correlation with a quantity that knows the true mean and nothing of the noise.
    """
    agree = pearson(even, odd)
    return math.sqrt(max(0.0, 2 * agree / (1 + agree))) if agree > -1 else 0.0
