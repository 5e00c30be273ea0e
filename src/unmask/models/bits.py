"""Weights <-> tensors in 8 bits: a matrix as whole numbers from -127 to 127, with one scale for each of its rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unmask.errors import ModelError

SCALE = ".scale"  # after the name of a matrix: the name of its scales
LARGEST = 127
TINIEST = torch.finfo(torch.float32).tiny  # a row of zeros has a scale too, and none is lost below it


def pack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each matrix as int8 [rows, columns] beside its scales [rows], all else as it is; scales and the rest in float32.

    The largest weight of a row becomes 127, so that no weight is off by more than half a scale.
    """
    packed = {}
    for name, weight in weights.items():
        exact = weight.detach().float().cpu().contiguous()
        if exact.dim() != 2:
            packed[name] = exact
            continue
        scale = finite(name, (exact.abs().amax(1) / LARGEST).clamp(min=TINIEST))
        packed[name] = (exact / scale[:, None]).round().to(torch.int8)
        packed[name + SCALE] = scale
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights again, matrices in float32; what is not in 8 bits stays as it is."""
    whole = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    weights = {name: tensor for name, tensor in tensors.items() if name.removesuffix(SCALE) not in whole}
    for name, matrix in whole.items():
        scale = tensors.get(name + SCALE)
        if scale is None or matrix.dim() != 2 or scale.shape != matrix.shape[:1]:
            raise ModelError(f"{name[:80]!r} is in 8 bits without a scale for each row", "the checkpoint is damaged")
        weights[name] = torch.empty(matrix.shape)
        put(weights[name], matrix, finite(name, scale))
    return weights


def put(place: Tensor, whole: Tensor, scale: Tensor) -> None:
    """Write whole [rows, columns] × scale [rows] into `place`, in its own type."""
    place.copy_(whole).mul_(scale[:, None].to(place.device))  # every type of floats has these whole numbers exactly


def finite(name: str, scale: Tensor) -> Tensor:
    """The scales of a matrix in float32; refused where its weights would not be finite."""
    exact = scale.float()
    if not (exact * 128).isfinite().all():  # int8 goes down to -128
        raise ModelError(f"the scales of {name[:80]!r} are not all finite", "the weights are damaged")
    return exact
