"""CHOOSERS: the last state × an answer for each row -> the particle of each prompt that is returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.core.resampling import BY_ENTROPY, Chooser, least
from unmask.core.state import State


def by_likelihood(state: State, answers: list[Any]) -> Tensor:
    """The highest log-probability of the tokens written; the lowest slot on ties."""
    return least(-state.log_prob, state.particles)


def by_surprise(state: State, answers: list[Any]) -> Tensor:
    """The least surprise; the lowest slot on ties."""
    return least(state.surprise, state.particles)


def by_vote(state: State, answers: list[Any]) -> Tensor:
    """The most frequent answer (None does not count); ties, and which particle, by path entropy."""
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


CHOOSERS: dict[str, Chooser] = {
    one.name: one
    for one in (
        BY_ENTROPY,
        Chooser("likelihood", by_likelihood),
        Chooser("surprise", by_surprise),
        Chooser("vote", by_vote, needs_answers=True),
    )
}
