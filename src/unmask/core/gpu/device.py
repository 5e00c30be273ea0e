"""Tensors -> whether our Triton kernels run where they are."""

from __future__ import annotations

import functools
import importlib.util
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

SMALLEST = (8, 0)  # compute capability: below it there is no bfloat16 and no tf32


def compiled(*tensors: Tensor) -> bool:
    """Whether all of them are on one CUDA device that Triton compiles for."""
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and _capable(devices.pop())


def on(tensor: Tensor) -> AbstractContextManager[object]:
    """Kernels start on the device of this tensor."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@functools.lru_cache(maxsize=64)
def _capable(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= SMALLEST
