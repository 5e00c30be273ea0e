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


def by_certainty(state: State, answers: list[Any]) -> Tensor:
    """The least surprise; the lowest slot on ties."""
    return surprise(state).view(-1, state.particles).argmin(1)


def by_vote(state: State, answers: list[Any]) -> Tensor:
    """The most frequent answer (None does not count); ties and its spokesman by the lowest path entropy."""
    return _elected(state, answers, [1.0] * len(answers), state.path_entropy)


def by_agreement(state: State, answers: list[Any]) -> Tensor:
    """The answer with the most weight, where a particle weighs exp(-surprise); its spokesman has the least."""
    met = surprise(state).view(-1, state.particles)
    weights = (met.amin(1, keepdim=True) - met).exp()
    return _elected(state, answers, weights.view(-1).tolist(), met.view(-1))


def surprise(state: State) -> Tensor:  # [B] float64, nats
    """Of a whole path: the mean of what it foresaw, the state entropy at each position when that was written, and of
    what it met, -log of the probability of its tokens."""
    return (state.foreseen - state.log_prob) / 2


def _elected(state: State, answers: list[Any], weights: list[float], by: Tensor) -> Tensor:
    """The answer whose particles weigh most together; ties and its spokesman by the lowest `by`."""
    k = state.particles
    low = by.nan_to_num(torch.inf).tolist()
    chosen = []
    for prompt in range(len(answers) // k):
        rows = range(prompt * k, prompt * k + k)
        votes: dict[Any, list[int]] = {}
        for row in rows:
            if answers[row] is not None:
                votes.setdefault(answers[row], []).append(row)
        groups = list(votes.values()) or [list(rows)]
        winner = min(groups, key=lambda group: (-sum(weights[row] for row in group), min(low[row] for row in group)))
        chosen.append(min(winner, key=lambda row: low[row]) - prompt * k)
    return torch.tensor(chosen)


CHOOSERS: dict[str, Callable[[State, list[Any]], Tensor]] = {
    "entropy": by_entropy,
    "likelihood": by_likelihood,
    "certainty": by_certainty,
    "vote": by_vote,
    "agreement": by_agreement,
}
ASKS = ("vote", "agreement")  # choosers that compare answers
