"""The tensors of a checkpoint -> a Network: piece by piece, each straight to its device and type, or packed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import InputError, ModelError
from unmask.models import memory
from unmask.models.devices import Devices, placed, seams
from unmask.models.families.blueprint import Blueprint, Slot
from unmask.models.files import bits
from unmask.models.files.adapter import Adapter, add
from unmask.models.files.checkpoint import Progress, Tensors, fit, opened, read
from unmask.models.files.gptq import Gptq, Quantized, quantized
from unmask.models.network import Network, empty, parameter_shapes
from unmask.models.packed import Packed, Packing, pack, packed_of, packings, to_bits

PIECE = 1 << 22  # numbers at a time
MAPPED = 1 << 28  # bytes of a file that are read before it is opened anew: until then they are in memory


def fill(
    plan: Blueprint,
    tensors: Tensors,
    device: torch.device | Devices,
    dtype: torch.dtype,
    progress: Progress | None = None,
    weights: str | None = None,
    how: Gptq | None = None,
    adapter: Adapter | None = None,
) -> Network:
    """A Network with the weights of a checkpoint, to which an adapter is added, packed as `weights` says.

    Without it a checkpoint is loaded as it is: in floats, or as its quantized matrices are, of which `how` tells.
    """
    plan = plan.of(name.replace(".qweight", ".weight") for name in tensors.files)
    tensors, given = (tensors, None) if how is None else quantized(plan, tensors, how)
    fit(plan, tensors)
    if adapter is not None:
        adapter.fit({name: tensors.shapes[name] for name in plan.slots})
        if given is not None and weights != "float":
            raise InputError(f"no adapter can be merged into {given.how.bits} bits", "give weights float, too")
    packing = _packing(plan, weights, given)
    if isinstance(device, Devices):
        borders, home = seams(device, placed("the model", plan.shape, device, dtype, packing)), device.first
    else:
        borders, home = {}, device
        memory.check_room("the model", plan.shape, device, dtype, packing)
    _check_copies(plan, tensors)
    scales = {name: bits.finite(name, read(tensors, scale)) for name, scale in plan.scales.items()}
    network, exact = empty(plan.shape, home, dtype, packing, borders), torch.promote_types(dtype, torch.float32)
    places: dict[str, Tensor | Packed] = {**dict(network.named_parameters()), **packed_of(network)}
    done, total = 0, sum(map(tensors.bytes, plan.slots))
    for path, names in _portions(plan.slots, tensors):
        with opened(path) as file:
            for name in names:
                slot, target = plan.slots[name], places[plan.slots[name].parameter]
                if given is not None and name in given.names and isinstance(target, Packed):
                    given.put(name, slot, target)
                else:
                    for begin, numbers in _pieces(file, name, tensors.shapes[name], given):
                        end = begin + len(numbers)
                        if name in scales:
                            numbers = bits.floats(numbers, scales[name][begin:end], exact)
                        if adapter is not None:
                            numbers = add(numbers, adapter.added(name, begin, end))
                        _write(target, slot, begin, numbers, name)
                done += tensors.bytes(name)
                if progress is not None:
                    progress(done, total)
    return network


def _portions(names: Mapping[str, Slot], tensors: Tensors) -> Iterator[tuple[Path, list[str]]]:
    """The tensors of each file, at most MAPPED bytes or one tensor of it at a time."""
    for path in dict.fromkeys(tensors.files[name] for name in names):
        some: list[str] = []
        size = 0
        for name in (name for name in names if tensors.files[name] == path):
            if some and size + tensors.bytes(name) > MAPPED:
                yield path, some
                some, size = [], 0
            some.append(name)
            size += tensors.bytes(name)
        yield path, some


def _packing(plan: Blueprint, weights: str | None, given: Quantized | None) -> dict[str, Packing]:
    """How the parameters are packed."""
    bits = to_bits(weights)
    if given is None:
        return packings(parameter_shapes(plan.shape), bits)
    if weights not in (None, "float") and bits != given.how.bits:
        raise InputError(
            f"weights is {weights}, the checkpoint has {given.how.bits} bits", "leave it out, or give float"
        )
    return {} if weights == "float" else given.packing(plan)


def _pieces(file: Any, name: str, shape: tuple[int, ...], given: Quantized | None) -> Iterator[tuple[int, Tensor]]:
    """A tensor in parts of its first dimension, and where they begin."""
    if given is not None and name in given.names:
        yield from given.floats(name)
        return
    size = torch.Size(shape).numel()
    if size <= PIECE:
        yield 0, file.get_tensor(name)
        return
    part, step = file.get_slice(name), max(1, PIECE // max(1, size // shape[0]))
    for begin in range(0, shape[0], step):
        yield begin, part[begin : begin + step]


def _write(target: Tensor | Packed, place: Slot, begin: int, numbers: Tensor, name: str) -> None:
    """Part of a tensor into its place."""
    if not isinstance(target, Packed):
        place.place(target)[begin : begin + len(numbers)].copy_(numbers)
        return
    made = pack(numbers.to(target.scale.device), target.bits)
    if not bool(made[1].isfinite().all()):
        raise ModelError(f"{name[:80]!r} has weights that are not finite", "the checkpoint is damaged")
    for part, values in zip(target.parts, made, strict=True):
        place.place(part)[begin : begin + len(numbers)].copy_(values)


def _check_copies(plan: Blueprint, tensors: Tensors) -> None:
    """Refuse tensors that the config ties and that are not equal."""
    for name, original in plan.copies.items():
        if name in tensors.files and not torch.equal(read(tensors, name), read(tensors, original)):
            raise ModelError(f"{name} differs from {original}, to which the config ties it", "one is damaged")
