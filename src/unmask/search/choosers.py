"""CHOOSERS: the last state × an answer for each row -> the particle of each prompt that is returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.core.resampling import BY_ENTROPY, Chooser, by_cost, least
from unmask.core.sampler import Sampler
from unmask.core.state import NOTHING, State


def unlikelihood(state: State) -> Tensor:
    """The highest log-probability of the tokens written; the lowest slot on ties."""
    return -state.log_prob


def surprise(state: State) -> Tensor:
    """The least surprise; the lowest slot on ties."""
    return state.surprise


def look(state: State) -> Tensor:
    """The most probable at a second look, half of the answer given the other; the lowest slot on ties."""
    return state.look


def doubt(state: State) -> Tensor:
    """The least surprise; where several tokens are written at once, its geometric mean with the second look."""
    both = (state.surprise * state.look.clamp(min=NOTHING)).sqrt()
    looked = state.look.isfinite().view(-1, state.particles).any(1).repeat_interleave(state.particles)
    return torch.where(looked, both, state.surprise)  # NaN where others of the prompt were looked at, and this was not


def writes_many(sampler: Sampler) -> bool:
    """Whether a step may decide many positions at once: it has no plan, but goes by how sure the model is."""
    return not sampler.scheduled


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


def by_reward(state: State, answers: list[Any]) -> Tensor:
    """The highest reward of a function of the text, given in Python; ties by surprise."""
    k = state.particles
    values = torch.tensor(answers, dtype=torch.float64, device=state.tokens.device).view(-1, k)
    best = values == values.amax(1, keepdim=True)
    return least(state.surprise.where(best.view(-1), torch.inf), k)


CHOOSERS: dict[str, Chooser] = {
    one.name: one
    for one in (
        BY_ENTROPY,
        by_cost("likelihood", unlikelihood),
        by_cost("surprise", surprise),
        by_cost("look", look, lambda sampler: True),
        by_cost("auto", doubt, writes_many),
        Chooser("vote", by_vote, needs_answers=True),
        Chooser("reward", by_reward, needs_answers=True),
    )
}
