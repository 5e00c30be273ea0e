"""Rows of the study × a way to choose -> the particle of each row that would be returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = dict[str, Any]
Floats = NDArray[np.float64]


def foreseen(row: Line) -> Floats:
    """The path entropy of each particle at every open position, nats."""
    return np.array(row["entropy"]) * math.log(2) * row["open"]


def met(row: Line) -> Floats:
    """-log of the probability of each particle's tokens, nats."""
    return -np.array(row["log_prob"])


def surprise(row: Line) -> Floats:
    """The mean of both; where as many positions are written in every step, what the decoder keeps."""
    return np.array(row["surprise"]) if "surprise" in row else (foreseen(row) + met(row)) / 2


def elected(row: Line, cost: Floats) -> int:
    """The answer whose particles weigh most together, each exp(-cost); its spokesman has the lowest cost."""
    votes: dict[int, float] = {}
    for answer, weight in zip(row["answer"], np.exp(cost.min() - cost), strict=True):
        votes[answer] = votes.get(answer, 0.0) + weight
    most = max(votes.values())
    able = [place for place, answer in enumerate(row["answer"]) if votes[answer] >= most * (1 - 1e-9)]
    return min(able, key=lambda place: cost[place])


CHOICES: dict[str, Callable[[Line], int]] = {
    "entropy": lambda row: int(foreseen(row).argmin()),
    "likelihood": lambda row: int(met(row).argmin()),
    "certainty": lambda row: int(surprise(row).argmin()),
    "vote": lambda row: elected(row, foreseen(row) * 1e-9),
    "entropy vote": lambda row: elected(row, foreseen(row) / 2),
    "agreement": lambda row: elected(row, surprise(row)),
    "agreement×2": lambda row: elected(row, surprise(row) * 2),
    "agreement/2": lambda row: elected(row, surprise(row) / 2),
}
