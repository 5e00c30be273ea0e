"""SCHEMES: weights [P, K], offspring A [P], uniforms [P, K] -> the particle that each offspring comes from, [P, K]."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.core.resampling import Scheme


def _inverse(weights: Tensor, points: Tensor) -> Tensor:
    reached = weights.cumsum(1)
    return torch.searchsorted(reached, points * reached[:, -1:]).clamp(max=weights.shape[1] - 1)


def multinomial(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """Independent draws."""
    return _inverse(weights, noise)


def stratified(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """One draw in each of A equal strata."""
    return _inverse(weights, ((_numbers(weights) + noise) / total[:, None]).clamp(max=1.0))


def systematic(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """One draw for all strata."""
    return stratified(weights, total, noise[:, :1].expand_as(noise))


def residual(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """floor(A w) copies each, the rest drawn independently from what is left."""
    expected = weights / weights.sum(1, keepdim=True) * total[:, None]
    copies = (expected + 1e-9).floor()  # a share that is whole up to rounding is whole
    certain = copies.cumsum(1)
    fixed = torch.searchsorted(certain, _numbers(weights).expand_as(certain) + 0.5).clamp(max=weights.shape[1] - 1)
    rest = (expected - copies).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, weights)
    return torch.where(_numbers(weights) < certain[:, -1:], fixed, _inverse(rest, noise))


def _numbers(weights: Tensor) -> Tensor:  # [1, K] float64: 0, 1, 2, …
    return torch.arange(weights.shape[1], dtype=weights.dtype, device=weights.device)[None]


SCHEMES: dict[str, Scheme] = {
    "multinomial": multinomial,
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
}
