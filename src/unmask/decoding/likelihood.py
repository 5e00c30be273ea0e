"""Contexts and answers, as token ids -> lower bounds of the answers' log-probabilities, and whether they are greedy.

The bound is the one that masked diffusion models are trained on: hide k of the n tokens of an answer, every k from 1 to
n as often as any other and every k of them alike; n/k times the log-probability of what is hidden has the bound as its
mean. It is log p itself where the model's conditionals belong to one distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.beliefs import ask
from unmask.core.denoiser import Denoiser
from unmask.core.state import begin, padded
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe

DRAWS = 128  # of masks for each answer, as LLaDA's public evaluation has it


@dataclass(frozen=True)
class Piece:
    """Tokens that are given, and the tokens after them that are scored."""

    given: list[int]
    target: list[int]


@dataclass(frozen=True)
class Question:
    """What is scored as one: the pieces of one answer, each given all that fits before it."""

    pieces: list[Piece]
    key: int  # the seed of its masks


@dataclass(frozen=True)
class Bound:
    """What came out for one question."""

    value: float  # nats; a lower bound of the log-probability, or its estimate
    path_entropy: float  # bits; the mean state entropy on the way to the answer, every number of masks alike
    evaluations: int
    exact: bool  # all masks were asked, so nothing is left to chance


# --- what is asked ---------------------------------------------------------------------------------------------------


def windows(context: list[int], target: list[int], limit: int | None) -> list[Piece]:
    """The target as one piece where it fits, its context cut from the left; else in pieces that know half a window.

    Only a target longer than the model's limit needs more than one: the chain rule adds them up.
    """
    if limit is None or len(target) <= limit:
        room = len(context) if limit is None else limit - len(target)
        return [Piece(context[max(0, len(context) - room) :], target)] if target else []
    whole, begins, pieces = [*context, *target], len(context), []
    while begins < len(whole):
        ends = min(len(whole), max(limit, begins + (limit + 1) // 2))
        pieces.append(Piece(whole[max(0, ends - limit) : begins], whole[begins:ends]))
        begins = ends
    return pieces


def masks(count: int, draws: int, key: int, first: int = 0) -> tuple[Tensor, Tensor]:  # [M, count] bool, [M] float64
    """Which of `count` positions are hidden, and the weight of the log-probabilities there.

    All 2^count - 1 ways if `draws` allows, which leaves nothing to chance; else `draws` of them, their numbers of
    hidden positions spread evenly from one random start, and equal ones together. `first` is the number of the first
    draw among those of the key.
    """
    if count < 63 and 2**count - 1 <= draws:
        ways = torch.arange(1, 2**count)
        hidden = (ways[:, None] >> torch.arange(count)) & 1 == 1
        weight = [1 / (k * math.comb(count, k)) for k in hidden.sum(1).tolist()]
        return hidden, torch.tensor(weight, dtype=torch.float64)
    seed = dice.keys([key])
    slot, column = torch.arange(first, first + draws)[:, None], torch.arange(count)[None, :]
    start = dice.uniform(seed, slot[:1, 0], 0, column[0, :1], dice.Purpose.SELECT)
    many = 1 + ((start + torch.arange(draws).double() / draws) % 1 * count).long().clamp(max=count - 1)  # [draws]
    order = dice.uniform(seed.view(1, 1), slot, 0, column, dice.Purpose.ORDER).argsort(1)
    hidden = torch.zeros(draws, count, dtype=torch.bool).scatter(1, order, column < many[:, None])
    kinds, kind = torch.unique(hidden, dim=0, return_inverse=True)  # equal canvases have equal answers: asked once
    return kinds, torch.zeros(len(kinds), dtype=torch.float64).index_add(0, kind, count / (many.double() * draws))


@dataclass(frozen=True)
class _Row:
    """One canvas that the network is asked about."""

    piece: Piece
    hidden: Tensor  # [n] bool
    weight: float  # of the log-probabilities of what is hidden
    share: float  # of its state entropy in the path entropy
    last: bool  # of its question


def _rows(question: Question, draws: int) -> Iterator[_Row]:
    total = sum(len(piece.target) for piece in question.pieces)
    for number, piece in enumerate(question.pieces):
        count = len(piece.target)
        hidden, weights = masks(count, draws, question.key, first=number * draws)
        shares = weights * hidden.sum(1) / total  # of one piece they add up to count / total
        for place, (weight, share) in enumerate(zip(weights.tolist(), shares.tolist(), strict=True)):
            last = number == len(question.pieces) - 1 and place == len(hidden) - 1
            yield _Row(piece, hidden[place], weight, share, last)


# --- asking ----------------------------------------------------------------------------------------------------------


def score(
    denoiser: Denoiser, questions: Sequence[Question], draws: int = DRAWS, together: int = 32
) -> Iterator[tuple[int, Bound]]:
    """The bound of each question with its place, as they are done: the longest first, `together` rows at a time."""
    sizes = [max((len(p.given) + len(p.target) for p in question.pieces), default=0) for question in questions]
    order = sorted(range(len(questions)), key=lambda place: -sizes[place])
    for place in order:
        if not questions[place].pieces:
            yield place, Bound(0.0, math.nan, 0, True)
    rows = ((place, row) for place in order for row in _rows(questions[place], draws))
    value, entropy, asked = 0.0, 0.0, 0
    while chunk := list(islice(rows, together)):
        for (place, row), (log, state_entropy) in zip(chunk, _ask(denoiser, [row for _, row in chunk]), strict=True):
            value, entropy, asked = value + row.weight * log, entropy + row.share * state_entropy, asked + 1
            if row.last:
                exact = all(2 ** len(p.target) - 1 <= draws for p in questions[place].pieces)
                yield place, Bound(value, entropy / math.log(2), asked * denoiser.cost, exact)
                value, entropy, asked = 0.0, 0.0, 0


@torch.no_grad()
def _ask(denoiser: Denoiser, rows: Sequence[_Row]) -> list[tuple[float, float]]:
    """For each row the log-probability of what is hidden, summed, and the state entropy; nats."""
    tokens, attend = padded([[*row.piece.given, *row.piece.target] for row in rows], denoiser.vocab.pad)
    writable, hidden = torch.zeros_like(attend), torch.zeros_like(attend)
    for place, row in enumerate(rows):
        begins = tokens.shape[1] - len(row.piece.target)
        writable[place, begins:] = True
        hidden[place, begins:] = row.hidden
    tokens, attend, writable, hidden = (x.to(denoiser.device) for x in (tokens, attend, writable, hidden))
    keys = torch.zeros(len(rows), dtype=torch.int64, device=denoiser.device)
    state = begin(tokens.masked_fill(hidden, denoiser.vocab.mask), writable, attend, keys, denoiser.vocab, 1)
    state = state.replace(time=hidden.sum(1).double() / writable.sum(1))
    found = ask(denoiser, state, torch.arange(len(rows), device=denoiser.device), hidden, tokens)
    log, entropy = found.standing.double().sum(1), found.entropy.double().sum(1) / hidden.sum(1)
    return list(zip(log.tolist(), entropy.tolist(), strict=True))


def greedy(denoiser: Denoiser, pieces: Sequence[Piece], guidance: float = 0.0) -> list[tuple[bool, int]]:
    """Whether each target is what confidence order decodes at temperature 0, one position a step; and its evaluations.

    It is asked for as many positions as the target has, as in LLaDA's public evaluation.
    """
    mask = denoiser.vocab.mask
    canvases = [[*piece.given, *[mask] * len(piece.target)] for piece in pieces]
    results = decode_batch(denoiser, canvases=canvases, recipe=Recipe(guidance=guidance))
    return [
        (result.tokens[len(piece.given) :] == piece.target, result.evaluations)
        for result, piece in zip(results, pieces, strict=True)
    ]
