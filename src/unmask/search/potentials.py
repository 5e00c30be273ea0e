"""A state -> its score: log G at strength 1, by which resampling weighs particles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from unmask.core.entropy import bits
from unmask.core.state import NOTHING, State


@dataclass(frozen=True)
class Potential:
    """A score of states. `since`: log G is its growth since it was last asked, so that a path's factors multiply to
    exp(λ score) of its end; else it is the score itself."""

    score: Callable[[State, int], Tensor]  # state, size of the vocabulary -> [B] float64
    since: bool = False


def gibbs(state: State, width: int) -> Tensor:
    """The appendix: r = 1 - h / log V, G = exp(λ r)."""
    return 1 - state.entropy / math.log(width)


def plain(state: State, width: int) -> Tensor:
    """The theory, un-normalised: G = exp(-λ h) with h in bits."""
    return -bits(state.entropy)


def relative(state: State, width: int) -> Tensor:
    """How many times lower: G = h^-λ. Where all are alike, in whatever units, nothing is favoured."""
    return -state.entropy.clamp(min=NOTHING).log()


def path(state: State, width: int) -> Tensor:
    """All state entropies of the path so far, in bits: what path entropy is the mean of."""
    return -bits(state.entropy_sum + state.entropy)


def likelihood(state: State, width: int) -> Tensor:
    """The log-probability of the tokens written so far, in bits, as in self-rewarding SMC."""
    return bits(state.log_prob)


def both(state: State, width: int) -> Tensor:
    """The path's entropies and the log-probability of its tokens, each for one position."""
    steps = (state.entropy_weight + 1).clamp(min=1)
    written = (state.open - state.masked.sum(1)).clamp(min=1)
    return path(state, width) / steps + likelihood(state, width) / written


POTENTIALS: dict[str, Potential] = {
    "gibbs": Potential(gibbs),
    "plain": Potential(plain),
    "relative": Potential(relative),
    "change": Potential(plain, since=True),
    "path": Potential(path, since=True),
    "likelihood": Potential(likelihood, since=True),
    "both": Potential(both),
}
