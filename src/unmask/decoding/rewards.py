"""A function of texts -> a potential of states: the reward of the text so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser
from unmask.core.resampling import Potential
from unmask.core.state import State
from unmask.decoding.ends import shown
from unmask.decoding.prompt import MARKER, Canvas
from unmask.errors import InputError

Reward = Callable[[str], float]


def as_number(value: object) -> float:
    """A reward as a float, or an error in one line."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"reward gave a {type(value).__name__}", "give a number") from None
    if not math.isfinite(found):
        raise InputError(f"reward gave {found}", "give a finite number")
    return found


def so_far(denoiser: Denoiser, tokens: Sequence[int], canvas: Canvas) -> str:
    """The text of a row, with a [MASK] for each open position."""
    mask, parts, run = denoiser.vocab.mask, list[str](), list[int]()
    for column in shown(list(tokens), canvas, denoiser.vocab):
        if tokens[column] == mask:
            parts += [denoiser.tokenizer.decode(run), MARKER]
            run = []
        else:
            run.append(tokens[column])
    return "".join([*parts, denoiser.tokenizer.decode(run)])


def rewarding(reward: Reward, denoiser: Denoiser, canvases: Sequence[Canvas]) -> Potential:
    """The potential whose factors along a path multiply to exp(strength × reward of its end)."""

    def score(state: State, width: int) -> Tensor:  # [B] float64
        found = []
        for row, tokens in enumerate(state.tokens.tolist()):
            canvas = canvases[row // state.particles]
            found.append(as_number(reward(so_far(denoiser, tokens[len(tokens) - len(canvas.tokens) :], canvas))))
        return torch.tensor(found, dtype=torch.float64, device=state.tokens.device)

    return Potential(score, since=True, reads=True)
