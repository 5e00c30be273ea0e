"""Intervals, AUROC, and the difference of two runs."""

from __future__ import annotations

import random

import pytest

from unmask.evaluate.stats import auroc, mcnemar, paired, wilson


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


def test_the_paired_bootstrap_resamples_questions():
    """Against drawing whole questions again and again."""
    dice = random.Random(1)
    first = [dice.random() < 0.5 for _ in range(120)]
    second = [dice.random() < (0.9 if right else 0.3) for right in first]
    found = paired(first, second)
    assert found.difference == pytest.approx((sum(second) - sum(first)) / 120)
    assert found.better - found.worse == sum(second) - sum(first)
    each = sorted(sum(second[n] - first[n] for n in dice.choices(range(120), k=120)) / 120 for _ in range(4000))
    assert found.low == pytest.approx(each[100], abs=0.02) and found.high == pytest.approx(each[3900], abs=0.02)
    assert paired(first, second) == found  # a fixed seed


def test_equal_runs_do_not_differ():
    found = paired([True, False], [True, False])
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)
