"""Finished answers -> a second look: how probable each half of an answer is, given the other half.

A path that wrote several tokens at once drew them from a product of marginals; neither its entropies nor the
probabilities of that moment know whether they fit together. The look asks for each token given the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.beliefs import ask_cached
from unmask.core.constraint import Constraint, allowed
from unmask.core.denoiser import Denoiser
from unmask.core.dice import Purpose
from unmask.core.state import State, tail
from unmask.core.step import Tally

Ask = Callable[[State, Tensor], tuple[Tensor, Tensor]]  # a state, some of its rows -> what `each_token` says of them
ANSWERS = 4  # distinct answers of a prompt that are looked at: those of least surprise


def look(
    denoiser: Denoiser,
    state: State,
    tally: Tally,
    answers: int = ANSWERS,
    known: Tensor | None = None,
    constraint: Constraint | None = None,
    ask: Ask | None = None,
) -> tuple[State, Tally]:
    """The state with `State.look` of its finished rows, and what that cost: two evaluations for each distinct answer.

    The open positions are cut into two random halves, the same for all answers of a prompt. Each half is masked while
    the other stands; the look is the mean -log p of the tokens that were masked, up to an EOS. With attention in blocks
    it is taken block by block, as the model was trained: two evaluations a block. `known` [B] has looks from before;
    rows where it is NaN are looked at. With a `constraint` p is that of the token among those that are allowed.
    `ask` asks a model that is elsewhere, in place of `each_token`.
    """
    known = torch.full_like(state.look, torch.nan) if known is None else known
    rows, whose = _chosen(state, answers, known)
    content = state.writable & ~tail(state)
    logs, asked = each_token(denoiser, state, rows, constraint) if ask is None else ask(state, rows)
    mean = -logs.sum(1) / content.sum(1).clamp(min=1)
    score = known.index_copy(0, rows, mean[rows])
    calls = asked.view(-1, state.particles).amax(1)
    spent = asked * denoiser.cost
    tally = replace(tally, calls=tally.calls + calls, evaluations=tally.evaluations + spent, rows=tally.rows + spent)
    return state.replace(look=score[whose]), tally


def each_token(
    denoiser: Denoiser, state: State, rows: Tensor, constraint: Constraint | None = None
) -> tuple[Tensor, Tensor]:  # [B, L] float64, [B] int64
    """The log-probability of each token of these rows given the other half, 0 elsewhere; how often a row was asked."""
    content = state.writable & ~tail(state)
    logs = torch.zeros(state.tokens.shape, dtype=torch.float64, device=state.tokens.device)
    asked = torch.zeros_like(state.slot)
    first = _half(state)
    seen = state.replace(cache=None)
    for block in _blocks(state, content[rows]):
        inside = content if block is None else content & (_number(state) == block)
        for half in (first, ~first):
            hidden = inside & half
            some = rows[hidden[rows].any(1)]
            if len(some):
                masked = _masked(seen, hidden, block)
                limits = None
                if constraint is not None:
                    limits = allowed(constraint, masked.tokens[some], masked.writable[some], hidden[some])
                found, cache = ask_cached(denoiser, masked, some, hidden[some], state.tokens[some], limits)
                found = found if found.limited is None else found.limited
                logs = logs.index_add(0, some, found.standing.double().where(hidden[some], 0.0))
                asked = asked.index_add(0, some, torch.ones_like(some))
                seen = seen.replace(cache=cache)
    return logs, asked


def _chosen(state: State, answers: int, known: Tensor) -> tuple[Tensor, Tensor]:  # [R] int64, [B] int64
    """The rows that are looked at, and for each row the row that has its answer (of equal ones the first)."""
    k = state.particles
    words = dice.words(state.tokens.shape[1], state.tokens.device)
    hashes = (state.tokens * words).sum(1).view(-1, k)
    first = (hashes[:, :, None] == hashes[:, None]).long().argmax(2)  # [P, K]: the first slot with this answer
    leads = first == torch.arange(k, device=first.device)
    cost = state.surprise.nan_to_num(torch.inf).view(-1, k).where(leads, torch.inf)
    best = cost.argsort(dim=1, stable=True)[:, : min(answers, k)]
    looked = torch.zeros_like(leads).scatter(1, best, True) & leads & known.isnan().view(-1, k)
    base = torch.arange(len(first), device=first.device)[:, None] * k
    return looked.view(-1).nonzero()[:, 0], (base + first).view(-1)


def _half(state: State) -> Tensor:  # [B, L] bool
    """One half of the open positions, drawn by the prompt's seed: the same for all of its particles."""
    order = dice.uniform(state.key[:, None], torch.zeros_like(state.slot)[:, None], 0, state.columns, Purpose.LOOK)
    place = order.where(state.writable, 2.0).argsort(dim=1).argsort(dim=1)
    return state.writable & (place < (state.open[:, None] + 1) // 2)


def _number(state: State) -> Tensor:  # [B, L] int64
    """The block of each position."""
    assert state.blocks is not None
    return state.rank // state.blocks.size


def _blocks(state: State, content: Tensor) -> list[int | None]:
    """The blocks that the rows looked at have content in; None: there are no blocks."""
    if state.blocks is None:
        return [None]
    return list(range(int(_number(state).where(state.writable, 0).amax()) + 1)) if len(content) else []


def _masked(state: State, hidden: Tensor, block: int | None) -> State:
    """The state with these positions masked, and with all later blocks."""
    if block is not None:
        assert state.blocks is not None
        later = state.writable & (_number(state) > block)
        tokens = state.tokens.masked_fill(hidden | later, state.vocab.mask)
        return state.replace(tokens=tokens, front=torch.full_like(state.front, block * state.blocks.size))
    time = hidden.sum(1).double() / state.open.clamp(min=1)
    return state.replace(tokens=state.tokens.masked_fill(hidden, state.vocab.mask), time=time)
