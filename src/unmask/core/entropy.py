"""Entropies of positions -> state entropy h_DE and path entropy H_DE."""

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


def joint_entropy(joint: Tensor) -> Tensor:
    """H_oracle: Shannon entropy in nats of a table of probabilities of any shape."""
    return torch.as_tensor(torch.special.entr(joint.double()).sum())


def marginal_entropies(joint: Tensor) -> Tensor:  # [V, …, V] with L axes -> [L], nats
    """The entropy of each position's marginal; their sum bounds `joint_entropy` (Proposition 1)."""
    axes = range(joint.dim())
    marginals = [joint.double().sum([a for a in axes if a != axis]) if joint.dim() > 1 else joint for axis in axes]
    return torch.stack([torch.special.entr(m.double()).sum() for m in marginals])
