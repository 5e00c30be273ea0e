"""Verdicts and path entropies -> shares with intervals, AUROC, and what two runs over the same questions differ by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964  # of a 95 % interval
RESAMPLES, SEED = 10_000, 0


def wilson(right: int, n: int, z: float = Z) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, spread = right / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def auroc(entropies: Sequence[float], right: Sequence[bool]) -> float | None:
    """The chance that a right answer has the lower path entropy of a right and a wrong one; None without either."""
    order = sorted(range(len(entropies)), key=entropies.__getitem__)
    ranks = [0.0] * len(order)
    begin = 0
    while begin < len(order):  # equal entropies share their mean rank
        end = begin
        while end + 1 < len(order) and entropies[order[end + 1]] == entropies[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            ranks[order[place]] = (begin + end) / 2 + 1
        begin = end + 1
    wrong = [rank for rank, good in zip(ranks, right, strict=True) if not good]
    good = len(right) - len(wrong)
    if not wrong or not good:
        return None
    return (sum(wrong) - len(wrong) * (len(wrong) + 1) / 2) / (len(wrong) * good)


@dataclass(frozen=True)
class Difference:
    """Of the shares of right answers of two runs over the same questions: the second's less the first's."""

    difference: float
    low: float  # 95 % interval of a paired bootstrap
    high: float
    better: int  # questions that only the second answers rightly
    worse: int  # that only the first does
    p: float  # exact McNemar test, two-sided


def paired(first: Sequence[bool], second: Sequence[bool]) -> Difference:
    """The difference of two runs, question by question."""
    pairs = list(zip(first, second, strict=True))
    n, better, worse = len(pairs), sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    # n questions drawn with replacement: how many of them are better, worse or the same is one multinomial number
    dice = np.random.default_rng(SEED)
    draws = dice.multinomial(n, [better / n, worse / n, (n - better - worse) / n], RESAMPLES)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, [0.025, 0.975]).tolist()
    return Difference((better - worse) / n, low, high, better, worse, mcnemar(better, worse))


def mcnemar(better: int, worse: int) -> float:
    """The chance that a fair coin splits the questions that differ at least as unevenly."""
    many, few = better + worse, min(better, worse)
    tail = sum(math.comb(many, k) for k in range(few + 1))
    return min(1.0, float(2 * tail / 2**many))
