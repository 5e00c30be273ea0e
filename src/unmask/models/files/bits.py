"""Weights <-> tensors in 8 bits: a matrix as whole numbers from -127 to 127, with scales.

There is one scale for each row, or one for each group of columns in a row: finer, and a little larger.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unmask.errors import ModelError

SCALE = ".scale"  # after the name of a matrix: the name of its scales
LARGEST = 127
TINIEST = torch.finfo(torch.float32).tiny  # a row of zeros has a scale too, and none is lost below it


def pack(weights: Mapping[str, Tensor], group: int | None = None) -> dict[str, Tensor]:
    """Each matrix as int8 [rows, columns] with its scales, all else unpacked; scales and the rest in float32.

    Scales are [rows], with a `group` of columns [rows, groups]. The largest weight under a scale becomes 127, so that
    no weight is off by more than half a scale.
    """
    packed = {}
    for name, weight in weights.items():
        exact = weight.detach().float().cpu().contiguous()
        if exact.dim() != 2:
            packed[name] = exact
            continue
        parts = exact.view(len(exact), groups(exact.shape[1], group), -1)
        scale = finite(name, (parts.abs().amax(2) / LARGEST).clamp(min=TINIEST))
        packed[name] = (parts / scale[..., None]).round().to(torch.int8).flatten(1)
        packed[name + SCALE] = scale[:, 0].contiguous() if group is None else scale
    return packed


def groups(columns: int, group: int | None) -> int:
    """The scales of a row; where the group does not divide the columns, one."""
    return 1 if group is None or columns % group else columns // group


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights again, matrices in float32; tensors that are not in 8 bits are unchanged."""
    whole = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    weights = {name: tensor for name, tensor in tensors.items() if name.removesuffix(SCALE) not in whole}
    for name, matrix in whole.items():
        scale = tensors.get(name + SCALE)
        if scale is None or not _fits(scale, matrix):
            raise ModelError(f"{name[:80]!r} is in 8 bits without a scale for each row", "the checkpoint is damaged")
        weights[name] = torch.empty(matrix.shape)
        put(weights[name], matrix, finite(name, scale))
    return weights


def _fits(scale: Tensor, matrix: Tensor) -> bool:
    """Whether each row has one scale, or a number of scales that divides its columns."""
    if matrix.dim() != 2 or scale.dim() not in (1, 2) or scale.shape[0] != matrix.shape[0]:
        return False
    return scale.dim() == 1 or (scale.shape[1] > 0 and matrix.shape[1] % scale.shape[1] == 0)


def put(place: Tensor, whole: Tensor, scale: Tensor) -> None:
    """Write whole [rows, columns] × scale [rows] or [rows, groups] into `place`, in its own type."""
    place.copy_(whole)  # every type of floats has these whole numbers exactly
    parts = place.view(len(place), 1 if scale.dim() == 1 else scale.shape[1], -1)
    parts.mul_(scale.to(place.device).view(*parts.shape[:2], 1))


def floats(whole: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in a tensor of its own."""
    found = torch.empty(whole.shape, dtype=dtype)
    put(found, whole, scale)
    return found


def finite(name: str, scale: Tensor) -> Tensor:
    """The scales of a matrix in float32; refused where its weights would not be finite."""
    exact = scale.float()
    if not (exact * 128).isfinite().all():  # int8 goes down to -128
        raise ModelError(f"the scales of {name[:80]!r} are not all finite", "the weights are damaged")
    return exact
