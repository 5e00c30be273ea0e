"""Intervals, AUROC, and the difference of two runs."""

from __future__ import annotations

import math
import random

import pytest

from unmask.evaluate.stats import auroc, mcnemar, paired, tango, wilson


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    dice = random.Random(0)
    for _ in range(50):
        entropies = [dice.choice([0.0, 0.5, 1.0, dice.random()]) for _ in range(20)]
        right = [dice.random() < 0.5 for _ in entropies]
        pairs = [
            (g, w)
            for g, a in zip(entropies, right, strict=True)
            for w, b in zip(entropies, right, strict=True)
            if a and not b
        ]
        share = sum((g < w) + (g == w) / 2 for g, w in pairs) / len(pairs)
        assert auroc(entropies, right) == pytest.approx(share)
    assert auroc([1.0, 2.0], [True, True]) is None and auroc([1.0], [False]) is None


def test_wilson():
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 5)[0] == pytest.approx(0.0, abs=1e-12) and wilson(5, 5)[1] == pytest.approx(1.0)


def test_mcnemar():
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(0, 5) == mcnemar(5, 0) == 2 / 32
    assert mcnemar(1, 7) == pytest.approx(2 * 9 / 256)
    assert 0 < mcnemar(900, 100) < 1e-100  # large counts stay numbers


def test_a_difference_is_between_its_bounds():
    """With many pairs the interval is that of drawing whole questions again and again."""
    dice = random.Random(1)
    first = [dice.random() < 0.5 for _ in range(120)]
    second = [dice.random() < (0.9 if right else 0.3) for right in first]
    found = paired(first, second)
    assert found.difference == pytest.approx((sum(second) - sum(first)) / 120)
    assert found.better - found.worse == sum(second) - sum(first)
    each = sorted(sum(second[n] - first[n] for n in dice.choices(range(120), k=120)) / 120 for _ in range(4000))
    assert found.low == pytest.approx(each[100], abs=0.02) and found.high == pytest.approx(each[3900], abs=0.02)


def test_the_score_interval():
    """Without a pair that differs it has a closed form; it mirrors; three of 1,000 to none are not yet a difference."""
    none = 1.959964**2 / (1000 + 1.959964**2)
    assert tango(0, 0, 1000) == (pytest.approx(-none, rel=1e-5), pytest.approx(none, rel=1e-5))
    assert tango(3, 0, 1000)[0] < 0 < tango(4, 0, 1000)[0]
    for better, worse, n in [(0, 0, 4), (1, 0, 43), (4, 1, 50), (9, 3, 20), (20, 0, 20), (0, 7, 9)]:
        low, high = tango(better, worse, n)
        assert -1 <= low <= (better - worse) / n <= high <= 1
        assert tango(worse, better, n) == (pytest.approx(-high, abs=1e-9), pytest.approx(-low, abs=1e-9))


@pytest.mark.parametrize(("p", "q"), [(0.02, 0.02), (0.1, 0.02), (0.3, 0.2)])
def test_the_score_interval_holds_in_95_of_100(p, q):
    """Exactly, over all outcomes of 40 pairs."""
    n, held, log = 40, 0.0, [0.0]
    for k in range(1, n + 1):
        log.append(log[-1] + math.log(k))
    for b in range(n + 1):
        for c in range(n + 1 - b):
            chance = log[n] - log[b] - log[c] - log[n - b - c] + b * math.log(p) + c * math.log(q)
            low, high = tango(b, c, n)
            held += math.exp(chance + (n - b - c) * math.log(1 - p - q)) * (low <= p - q <= high)
    assert 0.92 < held < 0.995


def test_equal_runs_do_not_differ():
    found = paired([True, False], [True, False])
    assert (found.difference, found.p) == (0, 1) and found.low == pytest.approx(-found.high) != 0
