"""The last state × an answer for each row, if the name is in ASKS -> the particle of each prompt that is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmask.core.state import State

SAME = 1e-6  # relative: values that differ by less are equal up to a network's rounding, which a batch can change


def by_entropy(state: State, answers: list[Any]) -> Tensor:
    """The lowest path entropy; the lowest slot on ties."""
    return _least(state.path_entropy, state.particles)


def by_likelihood(state: State, answers: list[Any]) -> Tensor:
    """The highest log-probability of the tokens written; the lowest slot on ties."""
    return _least(-state.log_prob, state.particles)


def by_surprise(state: State, answers: list[Any]) -> Tensor:
    """The least surprise; the lowest slot on ties."""
    return _least(state.surprise, state.particles)


def _least(cost: Tensor, particles: int) -> Tensor:  # [B] -> [P]
    """The first particle whose cost is the least of its prompt, up to rounding; NaN is the highest."""
    cost = cost.nan_to_num(torch.inf).view(-1, particles)
    least = cost.amin(1, keepdim=True)
    return (cost <= least + SAME * least.abs()).long().argmax(1)


def by_vote(state: State, answers: list[Any]) -> Tensor:
    """The most frequent answer (None does not count); ties and its spokesman by the lowest path entropy."""
    k = state.particles
    entropy = state.path_entropy.nan_to_num(torch.inf).tolist()
    chosen = []
    for prompt in range(len(answers) // k):
        rows = range(prompt * k, prompt * k + k)
        votes: dict[Any, list[int]] = {}
        for row in rows:
            if answers[row] is not None:
                votes.setdefault(answers[row], []).append(row)
        groups = list(votes.values()) or [list(rows)]
        winner = min(groups, key=lambda group: (-len(group), min(entropy[row] for row in group)))
        chosen.append(min(winner, key=lambda row: entropy[row]) - prompt * k)
    return torch.tensor(chosen)


CHOOSERS: dict[str, Callable[[State, list[Any]], Tensor]] = {
    "entropy": by_entropy,
    "likelihood": by_likelihood,
    "surprise": by_surprise,
    "vote": by_vote,
}
ASKS = ("vote",)  # choosers that compare answers
