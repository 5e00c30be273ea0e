"""Rows of the study × a way to choose -> the particle of each row that would be returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = dict[str, Any]
Floats = NDArray[np.float64]


def entropy(row: Line) -> Floats:
    """The path entropy of each particle, nats."""
    return np.array(row["entropy"]) * math.log(2)


def met(row: Line) -> Floats:
    """-log of the probability of each particle's tokens, nats a position."""
    return -np.array(row["log_prob"]) / row["open"]


def surprise(row: Line) -> Floats:
    """What the decoder keeps for each particle."""
    return np.array(row["surprise"])


def foreseen(row: Line) -> Floats:
    """The geometric mean of each particle's state entropies, nats."""
    return surprise(row) ** 2 / met(row).clip(1e-6)


def elected(row: Line, cost: Floats) -> int:
    """The answer whose particles weigh most together, each exp(-cost); its spokesman has the lowest cost."""
    votes: dict[int, float] = {}
    for answer, weight in zip(row["answer"], np.exp(cost.min() - cost), strict=True):
        votes[answer] = votes.get(answer, 0.0) + weight
    most = max(votes.values())
    able = [place for place, answer in enumerate(row["answer"]) if votes[answer] >= most * (1 - 1e-9)]
    return min(able, key=lambda place: cost[place])


CHOICES: dict[str, Callable[[Line], int]] = {
    "entropy": lambda row: int(entropy(row).argmin()),
    "geometric": lambda row: int(foreseen(row).argmin()),
    "likelihood": lambda row: int(met(row).argmin()),
    "surprise": lambda row: int(surprise(row).argmin()),
    "vote": lambda row: elected(row, entropy(row) * 1e-9),
    "entropy-vote": lambda row: elected(row, entropy(row) * row["open"] / 2),  # exp(-half of the foreseen nats)
    "surprise-vote": lambda row: elected(row, 4 * np.log(surprise(row))),  # surprise^-4
}


def offered(kept: list[Line]) -> list[str]:
    """The choices that these rows have what it takes for."""
    if len(kept[0]["entropy"]) == 1:
        return ["entropy"]
    return [name for name in CHOICES if "surprise" in kept[0] or name in ("entropy", "likelihood", "vote")]


def first(row: Line, k: int) -> Line:
    """The first K of more particles that knew nothing of each other: what fewer would have come to."""
    several = {name: value[:k] for name, value in row.items() if isinstance(value, list)}
    return {**row, **several, "evaluations": row["evaluations"] * k // len(row["entropy"]), "chosen": None}
