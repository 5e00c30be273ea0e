"""Canvases -> beliefs and entropies, with a plain float64 softmax and nothing of `read` or `engine`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unmask import Denoiser, Table
from unmask.core import dice
from unmask.core.dice import Purpose
from unmask.core.sampler import Sampler
from unmask.decoding.trace import Event
from unmask.models.transformer import Transformer

Counted = Callable[[int, int, list[int]], list[int]]  # step, row, canvas -> the columns that make up h


def logits(model: Denoiser, canvases: list[list[int]]) -> Tensor:  # one length -> [N, L, V] float64
    """The model's logits, one network pass without padding, or a sum over the whole table."""
    tokens = torch.tensor(canvases)
    if isinstance(model, Table):
        found = []
        for canvas in canvases:
            fits = torch.ones(len(model.sequences), dtype=torch.bool)
            for column, token in enumerate(canvas):
                if token != model.vocab.mask:
                    fits &= model.sequences[:, column] == token
            left, chance = model.sequences[fits], model.joint.reshape(-1)[fits]
            found.append([[float(chance[left[:, c] == v].sum()) for v in range(4)] for c in range(len(canvas))])
        return torch.tensor(found, dtype=torch.float64).log()
    assert isinstance(model, Transformer)
    columns = torch.arange(tokens.shape[1]).expand_as(tokens)
    hidden, _ = model.network(tokens, columns, torch.ones_like(tokens, dtype=torch.bool))
    scores = hidden.double() @ model.network.embed.weight.double().T * model.network.shape.logit_scale
    scores[:, :, model.vocab.mask] = -torch.inf
    return scores


def of_every_input(model: Denoiser, replayed: list[list[list[int]]]) -> dict[tuple[int, ...], Tensor]:
    """The logits [L, V] of every canvas that was the input of a step; those of one length in one pass."""
    found: dict[tuple[int, ...], Tensor] = {}
    unique = dict.fromkeys(tuple(canvas) for canvases in replayed[:-1] for canvas in canvases)
    for length in {len(canvas) for canvas in unique}:
        alike = [canvas for canvas in unique if len(canvas) == length]
        found |= zip(alike, logits(model, [list(canvas) for canvas in alike]), strict=True)
    return found


def beliefs(
    model: Denoiser, canvases: list[list[int]], given: list[int] | None = None, guidance: float = 0.0
) -> Tensor:
    """Probabilities [N, L, V] float64; with guidance, the columns `given` are masked for the second opinion."""
    scores = logits(model, canvases)
    if guidance:
        blind = [[model.vocab.mask if c in (given or ()) else t for c, t in enumerate(row)] for row in canvases]
        without = logits(model, blind).nan_to_num(neginf=-1e30)
        scores = without + (guidance + 1) * (scores.nan_to_num(neginf=-1e30) - without)
        if model.vocab.mask < scores.shape[2]:
            scores[:, :, model.vocab.mask] = -torch.inf
    return scores.softmax(2)


def entropies(chances: Tensor) -> Tensor:  # [..., V] -> [...] bits
    return torch.special.entr(chances).sum(-1) / math.log(2)


def paths(events: list[Event], replayed: list[list[list[int]]], mask: int) -> list[list[tuple[float | None, int]]]:
    """For each final row and step of its lineage: h, and how many masks fewer the step left."""
    found: list[list[tuple[float | None, int]]] = [[] for _ in replayed[0]]
    steps = [event for event in events if event["event"] == "step"]
    for step, event in enumerate(steps):
        ancestors = event.get("ancestors", range(len(found)))
        before = [replayed[step][a].count(mask) for a in ancestors]
        after = [row.count(mask) for row in replayed[step + 1]]
        found = [[*found[a], (event["h"][a], was - now)] for a, was, now in zip(ancestors, before, after, strict=True)]
    return found


def mean(path: list[tuple[float | None, int]]) -> float:
    """Path entropy from a lineage: the mean over its states with masks."""
    terms = [h for h, _ in path if h is not None]
    return sum(terms) / len(terms)


def replayed_entropies(
    model: Denoiser,
    replayed: list[list[list[int]]],
    k: int,
    guidance: float = 0.0,
    counted: Counted | None = None,
) -> list[list[float | None]]:  # [steps][rows], bits; None where nothing counts
    """h of every canvas that was the input of a step, from the model again, prompt by prompt without padding."""
    mask = model.vocab.mask
    inputs = replayed[:-1]
    found: list[list[float | None]] = [[None] * len(replayed[0]) for _ in inputs]
    for prompt in range(len(replayed[0]) // k):
        given = [c for c, token in enumerate(replayed[0][prompt * k]) if token != mask]
        places = [(step, row) for step in range(len(inputs)) for row in range(prompt * k, prompt * k + k)]
        unique = {tuple(inputs[step][row]): None for step, row in places}
        rows = [list(row) for row in unique]
        table = dict(zip(unique, entropies(beliefs(model, rows, given, guidance)), strict=True))
        for step, row in places:
            canvas = inputs[step][row]
            columns = [c for c, token in enumerate(canvas) if token == mask]
            if counted is not None:
                columns = counted(step, row, canvas)
            if columns:
                found[step][row] = float(table[tuple(canvas)][columns].mean())
    return found


# --- blocks, holes and tails, position by position -------------------------------------------------------------------


def region(sampler: Sampler, first: list[int], canvas: list[int], step: int, mask: int) -> list[int]:
    """The open columns up to the end of the current block: by the plan, or by the first mask where there is none."""
    columns = [c for c, token in enumerate(first) if token == mask]
    length = getattr(sampler, "block_length", None)
    if length is None:
        return columns
    blocks = -(-len(columns) // length)
    if sampler.scheduled:
        budget = len(columns) if sampler.steps is None else sampler.steps
        plan = [b for b in range(blocks) for _ in range(budget // blocks + (b < budget % blocks))]
        block = plan[min(step, len(plan) - 1)]
    else:
        masked = [rank for rank, c in enumerate(columns) if canvas[c] == mask]
        block = masked[0] // length if masked else blocks - 1
    return columns[: (block + 1) * length]


def tail(first: list[int], canvas: list[int], mask: int, eos: tuple[int, ...]) -> list[int]:
    """Open columns after a decided EOS in the same run of open columns."""
    found, ended = [], False
    for column, token in enumerate(canvas):
        ended = ended and first[column] == mask
        if ended:
            found.append(column)
        ended = ended or (first[column] == mask and token in eos)
    return found


def halves(first: list[int], canvas: list[int], seed: int, mask: int, eos: tuple[int, ...]) -> int:
    """In how many of the two halves of the open columns, cut by the seed, an answer has content before an EOS."""
    key, columns = dice.keys([seed])[:, None], torch.arange(len(first))[None]
    order = dice.uniform(key, torch.zeros_like(key), 0, columns, Purpose.LOOK)[0]
    ranked = sorted((c for c, token in enumerate(first) if token == mask), key=lambda c: float(order[c]))
    content, middle = set(ranked) - set(tail(first, canvas, mask, eos)), (len(ranked) + 1) // 2
    return sum(bool(content & set(half)) for half in (ranked[:middle], ranked[middle:]))
