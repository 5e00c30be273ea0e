"""Shape and device of hidden rows -> how the kernels of `fused` are laid out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Config:
    """How a sweep is laid out."""

    rows: int = 128
    columns: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    programs: int = 1  # on a multiprocessor at a time
    group: int = 16  # blocks of rows that share the cache
    waves: int = 16  # pieces of work for a program, to share it out evenly
    piece: int = 64  # columns that `pick` computes again
    precision: str = "tf32x3"  # of a float32 product; ieee: every product in float32


LARGE = (9, 10)  # compute capabilities with 227 KiB of shared memory
SMALL = Config(64, 64, 32, 4, 3, 2)  # fits every device
CPU = Config(16, 32, 16, 4, 1, 1, group=2, waves=2, piece=16, precision="ieee")  # Triton's interpreter


def config_for(hidden: Tensor) -> Config:
    """The layout for this shape and device: the best of experiments/fused_sweep.py on an H200 at depth 4,096 and 1,024
    rows or more; for other depths by arithmetic."""
    if not hidden.is_cuda:
        return CPU
    if torch.cuda.get_device_capability(hidden.device)[0] not in LARGE:
        return SMALL
    if hidden.dtype == torch.float32:
        return Config(64, 128, 32, 4, 3, 2)
    if hidden.shape[-1] <= 1024:
        return Config(128, 128, 64, 4, 3, 2)  # the second program computes while the first one sums up
    return Config(128, 256, 64, 8, 4)
