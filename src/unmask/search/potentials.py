"""POTENTIALS: a state -> its score, log G at strength 1, by which resampling weighs particles."""

from __future__ import annotations

import math

from torch import Tensor

from unmask.core.entropy import bits
from unmask.core.resampling import Potential
from unmask.core.state import NOTHING, State
from unmask.errors import SettingError


def gibbs(state: State, width: int) -> Tensor:
    """The appendix: r = 1 - h / log V, G = exp(λ r)."""
    return 1 - state.entropy / math.log(width)


def plain(state: State, width: int) -> Tensor:
    """The theory, un-normalised: G = exp(-λ h) with h in bits."""
    return -bits(state.entropy)


def relative(state: State, width: int) -> Tensor:
    """G = h^-λ: only ratios of entropies count, in any unit, so that equal particles have equal weights."""
    return -state.entropy.clamp(min=NOTHING).log()


def likelihood(state: State, width: int) -> Tensor:
    """The log-probability of the tokens written so far, in bits: strength ln 2 = 0.693 weighs by the probability."""
    return bits(state.log_prob)


def constraint(state: State, width: int) -> Tensor:
    """The log-probability of the tokens over that in the draw, in nats: what a constraint left of the model's mass."""
    return state.token_weight.sum(1)


def reward(state: State, width: int) -> Tensor:
    """A function of the text so far, given in Python; what is open is [MASK] in it."""
    raise SettingError("potential reward needs a function", "give reward= to decode", setting="potential")


POTENTIALS: dict[str, Potential] = {
    "gibbs": Potential(gibbs),
    "plain": Potential(plain),
    "relative": Potential(relative),
    "likelihood": Potential(likelihood, since=True),
    "constraint": Potential(constraint, since=True, weighs_draws=True),
    "reward": Potential(reward, since=True),
}
