"""Entropies of positions -> state entropy h_DE, in nats or bits; `State.path_entropy` is its mean over a path."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BIT = math.log(2)  # one bit in nats


def bits(nats: Tensor) -> Tensor:
    """Nats, as kept inside, to bits, as people read them."""
    return nats / BIT


def state_entropy(entropy: Tensor, counted: Tensor) -> Tensor:  # [B, L], [B, L] bool -> [B] float64, nats
    """h_DE: the mean entropy over the counted positions; NaN where there is none."""
    total = entropy.double().where(counted, 0.0).sum(1)
    return total / counted.sum(1).where(counted.any(1), torch.nan)
