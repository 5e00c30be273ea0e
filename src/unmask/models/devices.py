"""Names of devices and dtypes, as users write them -> those of torch; several devices -> which layer is on which.

Layers are placed in order, so that what they compute crosses from one device to the next once. The embedding, the last
norm and the head are on the first device, where tokens are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from unmask.errors import ModelError, first_line, many, printable
from unmask.models import memory
from unmask.models.files.checkpoint import DTYPES, dtype_name
from unmask.models.network import Shape, empty
from unmask.models.packed import Packing

SHARE = 0.9  # of what is free: caches and what a layer computes need room, too
Given = str | torch.device | Sequence[str | torch.device]  # a device, or several for the layers of one model


@dataclass(frozen=True)
class Devices:
    """Several devices for the layers of one model."""

    all: tuple[torch.device, ...]
    layers: tuple[int, ...] = ()  # how many each takes; (): by their free memory
    few: bool = False  # as few of them as have room

    @property
    def first(self) -> torch.device:
        return self.all[0]

    def __str__(self) -> str:
        counts = self.layers or (None,) * len(self.all)
        return ",".join(str(one) if n is None else f"{one}={n}" for one, n in zip(self.all, counts, strict=True))


# --- names ----------------------------------------------------------------------------------------------------------


def on_devices(name: str, given: Given) -> torch.device | Devices:
    """The device, or several of them; `auto` is all GPUs where there are several, of which as few are used as do."""
    parts = several(given)
    if given == "auto" and torch.cuda.device_count() > 1:
        return Devices(tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count())), few=True)
    if len(parts) == 1 and parts[0][1] is None:
        return on_device(name, parts[0][0])
    counts = tuple(count for _, count in parts if count is not None)
    if counts and len(counts) < len(parts):
        raise ModelError(f"{_short(given)} gives numbers of layers for some devices only", "give all of them, or none")
    return Devices(tuple(on_device(name, place) for place, _ in parts), counts)


def on_device(name: str, device: Given) -> torch.device:
    """The device, if torch has it, of several the first; `auto` is a GPU if there is one. `name` is for the error."""
    device = several(device)[0][0]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ModelError(
            f"cannot load {name} on {_short(device)}", "give cpu, a GPU like cuda or cuda:1, or auto"
        ) from None
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # torch raises any of them
        why, way = _refused(place, error)
        raise ModelError(f"cannot load {name} on {_short(device)}: {why}", way) from None
    if place.type == "meta":
        raise ModelError("the device meta holds no numbers", "give cpu, or a GPU like cuda")
    return place


def _refused(place: torch.device, error: Exception) -> tuple[str, str]:
    """Why torch has no such device, and the way out."""
    gpus = torch.cuda.device_count()
    if place.type != "cuda":
        return f"this PyTorch has no {place.type} here", "give cpu"
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "this PyTorch is built without CUDA", "give cpu, or install PyTorch with CUDA"
    if not gpus:
        return "PyTorch finds no GPU", "give cpu, or look at what nvidia-smi prints"
    if place.index is not None and place.index >= gpus:
        return f"there {'are' if gpus > 1 else 'is'} {many(gpus, 'GPU')}", "give cuda:0, or cpu"
    return first_line(error).split(". ")[0], "give cpu"


def _short(device: Given) -> str:
    """A device as it was given, for errors."""
    return printable(str(device)[:80])


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype; None, and auto, is the model's own."""
    dtype = dtype_name(dtype) if isinstance(dtype, str) else dtype
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ModelError(f"dtype is {dtype!r}", f"choose from {', '.join(DTYPES)} or auto")
    return found


def moved(
    name: str, device: str | torch.device | torch.dtype | None, dtype: torch.dtype | str | None
) -> tuple[torch.device | None, torch.dtype | None]:
    """The arguments of a tensor's `to`, from those of a model's: a device, a dtype, or both."""
    if isinstance(device, torch.dtype):
        device, dtype = None, device
    return None if device is None else on_device(name, device), as_dtype(dtype)


# --- layers ---------------------------------------------------------------------------------------------------------


def several(given: object) -> list[tuple[str | torch.device, int | None]]:
    """`cuda:0=20,cuda:1=12`, or a list of such, as names and numbers of layers; one device is a list of one."""
    parts: list[Any] = [given]
    if isinstance(given, str):
        parts = given.split(",")
    elif isinstance(given, list | tuple):
        parts = list(given)
    found: list[tuple[str | torch.device, int | None]] = []
    for part in parts:
        if isinstance(part, str):
            name, _, count = (word.strip() for word in part.partition("="))
            counted = re.fullmatch(r"\d{1,9}", count) is not None
            found.append((name, int(count)) if counted else (part.strip(), None))
        else:
            found.append((part, None))
    return found


def placed(
    what: str,
    shape: Shape,
    devices: Devices,
    dtype: torch.dtype,
    packing: Mapping[str, Packing] | None = None,
    free: Callable[[torch.device], int] = memory.free,
) -> list[int]:
    """How many layers each device takes."""
    if devices.layers:
        if sum(devices.layers) != shape.layers or not devices.layers[0]:
            hint = "name all of them, and the first device for at least one"
            raise ModelError(
                f"{_short(str(devices))} is {many(sum(devices.layers), 'layer')}, {what} has {shape.layers}", hint
            )
        return list(devices.layers)
    sizes, rest = _sizes(shape, dtype, packing)
    room = [int(SHARE * free(one)) for one in devices.all]
    for rounded in (True, False):
        places = _places(sizes, rest, devices, room, rounded)
        held = [sum(size for size, at in zip(sizes, places, strict=True) if at == place) for place in range(len(room))]
        held[0] += rest
        if all(size <= most for size, most in zip(held, room, strict=True)):
            break
    for one, size, most in zip(devices.all, held, room, strict=True):
        if size > most:
            need = f"{what} needs {size / memory.GIB:.1f} GiB on {one}, and {most / memory.GIB:.1f} can be used"
            raise ModelError(need, "add a device, or take weights int8 or int4")
    return [places.count(index) for index in range(len(room))]


def _sizes(shape: Shape, dtype: torch.dtype, packing: Mapping[str, Packing] | None) -> tuple[list[int], int]:
    """The bytes of each layer, and of all that is in none."""
    network = empty(shape, "meta", dtype, packing)
    sizes = [sum(one.nbytes for one in block.parameters()) for block in network.blocks]
    return sizes, sum(one.nbytes for one in network.parameters()) - sum(sizes)


def _places(sizes: list[int], rest: int, devices: Devices, room: list[int], rounded: bool) -> list[int]:
    """The place of each layer's device: all are filled alike, and a CPU only takes what the others have no room for.

    `rounded`: a layer belongs where its middle is, else where its end is.
    """
    need, slow = rest + sum(sizes), [one.type == "cpu" for one in devices.all]
    quick = [size for size, late in zip(room, slow, strict=True) if not late]
    aims = [0.0 if late and sum(quick) >= need else float(size) for size, late in zip(room, slow, strict=True)]
    if devices.few:
        enough = next((count for count in range(1, len(aims)) if sum(aims[:count]) >= need), len(aims))
        aims[enough:] = [0.0] * (len(aims) - enough)
    share = min(1.0, need / max(1.0, sum(aims)))
    if sum(quick) >= need or not quick:
        aims = [share * size for size in aims]
    borders = list(accumulate(aims))
    last = max((index for index, size in enumerate(aims) if size), default=0)
    marks = [rest + end - rounded * size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    found = [next((i for i in range(last) if aims[i] and mark <= borders[i]), last) for mark in marks]
    return [0, *found[1:]]


def seams(devices: Devices, counts: Sequence[int]) -> dict[int, torch.device]:
    """The layers at which the part of another device begins."""
    begins = [0, *accumulate(counts)][: len(counts)]
    found = zip(begins[1:], devices.all[1:], counts[1:], strict=True)
    return {begin: device for begin, device, count in found if count}
