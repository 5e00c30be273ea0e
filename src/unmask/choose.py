"""The last state × an answer for each row, if the name is in ASKS -> the particle of each prompt that is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmask.state import State


def by_entropy(state: State, answers: list[Any]) -> Tensor:
    """The lowest path entropy; the lowest slot on ties."""
    return state.path_entropy.nan_to_num(torch.inf).view(-1, state.particles).argmin(1)


def by_likelihood(state: State, answers: list[Any]) -> Tensor:
    """The highest log-probability of the tokens written; the lowest slot on ties."""
    return state.log_prob.view(-1, state.particles).argmax(1)


def by_surprise(state: State, answers: list[Any]) -> Tensor:
    """The least surprise; the lowest slot on ties."""
    return state.surprise.nan_to_num(torch.inf).view(-1, state.particles).argmin(1)


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
