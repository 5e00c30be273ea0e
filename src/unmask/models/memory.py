"""How much memory is free, needed, and was used at most, on a device and on the host; how much a token needs of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from unmask.errors import ModelError
from unmask.models.network import Shape, empty, parameter_shapes
from unmask.models.packed import Packing

GIB = 2**30


def free(device: torch.device) -> int:
    """Bytes that can still be taken."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own pool
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: all there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parameters(shape: Shape) -> int:
    """Of the whole network, all experts included."""
    return sum(map(torch.Size.numel, parameter_shapes(shape).values()))


def active(shape: Shape) -> int:
    """The parameters that one token passes: of the experts, those that it uses."""
    if shape.experts is None:
        return parameters(shape)
    stacked = sum(size.numel() for size in parameter_shapes(shape).values() if len(size) == 3)
    return parameters(shape) - stacked + stacked // shape.experts.count * shape.experts.used


def needed(shape: Shape, dtype: torch.dtype, packing: Mapping[str, Packing] | None = None) -> int:
    """Bytes of the weights."""
    return sum(parameter.nbytes for parameter in empty(shape, "meta", dtype, packing).parameters())


def check_room(
    what: str,
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    packing: Mapping[str, Packing] | None = None,
) -> None:
    """Refuse a network that the device has no room for."""
    need, left = needed(shape, dtype, packing), free(device)
    if need > left:
        raise ModelError(
            f"{what} needs {need / GIB:.1f} GiB on {device}, {left / GIB:.1f} are free",
            "take weights int8 or int4, a smaller model, a smaller dtype or another device",
        )


def host_peak() -> int:
    """The most bytes that this process held in the host's memory, pages of mapped files included."""
    import resource  # not on Windows, which has the rest

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
