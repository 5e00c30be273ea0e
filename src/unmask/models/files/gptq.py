"""A checkpoint in the layout of GPTQ -> its matrices, whose whole numbers, zeros and scales are taken as they are.

A matrix [N, K] is four tensors: qweight [K · bits / 32, N] and qzeros [G, N · bits / 32], int32 with several numbers in
each, the first in the lowest bits; scales [G, N]; g_idx [K], the group of each column. A weight is (number - zero) ·
scale.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.core.gpu.packed import GROUP
from unmask.errors import ModelError
from unmask.models.families.blueprint import Blueprint, Config, Slot
from unmask.models.files.checkpoint import Tensors, as_text, read
from unmask.models.packed import Packed, Packing, grouped, laid

PIECE = 1 << 22  # numbers at a time
BITS = (4, 8)
WIDEST = 1 << 20  # columns under one scale, at most
FORMATS: dict[str | None, int] = {
    None: 1,
    "": 1,
    "gptq": 1,
    "gptq_v2": 0,
}  # checkpoint_format -> what is added to the zeros of the file


@dataclass(frozen=True)
class Gptq:
    """How the matrices of a checkpoint are quantized."""

    bits: int
    group: int  # columns under one scale; -1: all of a row
    offset: int  # is added to the zeros of the file

    @property
    def each(self) -> int:
        """Numbers in 32 bits."""
        return 32 // self.bits

    def groups(self, columns: int) -> int:
        return 1 if self.group < 0 else -(-columns // self.group)

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Of the four tensors of a matrix [N, K]."""
        rows, columns = shape
        groups = self.groups(columns)
        return {
            "qweight": (columns // self.each, rows),
            "qzeros": (groups, rows // self.each),
            "scales": (groups, rows),
            "g_idx": (columns,),
        }


def read_config(config: Mapping[str, Any], beside: Mapping[str, Any] | None) -> Gptq | None:
    """What config.json, or else quantize_config.json, says of quantized weights; None: there are none.

    In the older format a zero is stored less one.
    """
    found = config.get("quantization_config")
    found = beside if found is None else found
    if found is None:
        return None
    if not isinstance(found, dict):
        raise ModelError(f"config.json: quantization_config is {reprlib.repr(found)}", "it must be an object")
    kind = found.get("quant_method", "gptq" if beside is not None else None)
    if kind != "gptq":
        raise ModelError(
            f"config.json: quant_method is {reprlib.repr(kind)}", "only gptq is read: take such a checkpoint"
        )
    form = found.get("checkpoint_format", found.get("format"))
    if not (form is None or isinstance(form, str)) or form not in FORMATS:
        raise ModelError(f"config.json: checkpoint_format is {reprlib.repr(form)}", "only gptq and gptq_v2 are read")
    bits, group = found.get("bits"), found.get("group_size", -1)
    if type(bits) is not int or bits not in BITS:
        raise ModelError(f"config.json: bits is {reprlib.repr(bits)}", "of GPTQ only 4 and 8 bits are read")
    if type(group) is not int or not (group == -1 or (0 < group <= WIDEST and group % GROUP == 0)):
        raise ModelError(
            f"config.json: group_size is {reprlib.repr(group)}", f"only {GROUP}, multiples of it and -1 are read"
        )
    if found.get("dynamic"):
        raise ModelError("config.json: dynamic is set", "layers with bits of their own are not read")
    Config(found).expect(pack_dtype="int32", lm_head=False)
    return Gptq(bits, group, FORMATS[form])


@dataclass(frozen=True)
class Quantized:
    """The quantized matrices of a checkpoint."""

    how: Gptq
    names: frozenset[str]  # as if they were not quantized
    tensors: Tensors  # those of the files
    orders: dict[str, Tensor | None] = field(default_factory=dict)  # parameter -> the order of its columns

    def packing(self, plan: Blueprint) -> dict[str, Packing]:
        """How parameters are packed whose parts are all quantized; others are floats."""
        parts: dict[str, list[str]] = {}
        for name, slot in plan.slots.items():
            parts.setdefault(slot.parameter, []).append(name)
        made = {}
        for parameter, names in parts.items():
            if self.names.issuperset(names):
                self.orders[parameter] = order = self._order(
                    names, any(plan.slots[one].expert is not None for one in names)
                )
                made[parameter] = Packing(self.how.bits, order is not None)
        return made

    def _order(self, names: list[str], stacked: bool) -> Tensor | None:
        """The order in which the columns of these matrices are in groups; None: as they are."""
        found = [self.column_groups(name) for name in names]
        plain = torch.arange(len(found[0])) // (self.how.group if self.how.group > 0 else len(found[0]))
        if all(torch.equal(one, plain) for one in found):
            return None
        order = found[0].argsort(stable=True)
        if stacked or not all(torch.equal(one, found[0]) for one in found) or not torch.equal(found[0][order], plain):
            names = [_base(name) for name in names[:2]]
            raise ModelError(f"the columns of {' and '.join(names)} are in other groups", "give weights float")
        return order

    def column_groups(self, name: str) -> Tensor:  # [K] int64
        """g_idx, which may be missing where the groups follow each other."""
        part, (_, columns) = f"{_base(name)}.g_idx", self.tensors.shapes[name]
        if part not in self.tensors.files:
            return torch.arange(columns) // (self.how.group if self.how.group > 0 else columns)
        found = read(self.tensors, part).long()
        if not bool(((found >= 0) & (found < self.how.groups(columns))).all()):
            raise ModelError(f"{part[:80]!r} names groups that there are not", "the checkpoint is damaged")
        return found

    def floats(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Rows of a matrix in float32, and where they begin."""
        at = self.column_groups(name)
        for begin, whole, scale, zero in self._pieces(name):
            yield begin, (whole.float() - zero[:, at]) * scale[:, at]

    def put(self, name: str, slot: Slot, target: Packed) -> None:
        """A matrix into its place, exactly."""
        order = self.orders[slot.parameter]
        if order is not None and target.order is not None:
            target.order.copy_(order)
        for begin, whole, *parts in self._pieces(name):
            whole = whole if order is None else whole[:, order]
            made = [laid(grouped(whole), target.bits), *(self._spread(part, whole.shape[1]) for part in parts)]
            for place, values in zip(target.parts, made, strict=True):
                slot.place(place)[begin : begin + len(whole)].copy_(values)

    def _spread(self, part: Tensor, columns: int) -> Tensor:
        """Scales or zeros of groups as those of groups of 128."""
        whole = -(-columns // GROUP)
        times = whole if self.how.group < 0 else min(whole, self.how.group // GROUP)
        return part.repeat_interleave(times, 1)[:, :whole]

    def _pieces(self, name: str) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Where rows begin, their numbers [n, K] uint8, scales [n, G] float32 and zeros [n, G] int16."""
        base, (rows, columns), how = _base(name), self.tensors.shapes[name], self.how
        whole, zeros = read(self.tensors, f"{base}.qweight"), read(self.tensors, f"{base}.qzeros")
        scales = read(self.tensors, f"{base}.scales").float()
        if not bool(scales.isfinite().all()):
            raise ModelError(f"the scales of {base[:80]!r} are not all finite", "the weights are damaged")
        step = max(1, PIECE // columns // how.each) * how.each
        shift = torch.arange(0, 32, how.bits, dtype=torch.int32)
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            some = (whole[:, begin:end].T.contiguous()[:, :, None] >> shift) & (2**how.bits - 1)  # [n, K / each, each]
            zero = (zeros[:, begin // how.each : end // how.each, None] >> shift) & (2**how.bits - 1)
            low = zero.flatten(1).T.to(torch.int16) + how.offset
            yield begin, some.flatten(1).to(torch.uint8), scales[:, begin:end].T.contiguous(), low


def _base(name: str) -> str:
    return name.removesuffix(".weight")


def quantized(plan: Blueprint, tensors: Tensors, how: Gptq) -> tuple[Tensors, Quantized]:
    """The tensors as if none was quantized, and those that are; their shapes and types are checked."""
    files, shapes, types = dict(tensors.files), dict(tensors.shapes), dict(tensors.types)
    names = set()
    for part in [name for name in tensors.files if name.endswith(".qweight")]:
        base = part.removesuffix(".qweight")
        name, size = f"{base}.weight", tensors.shapes[part]
        if len(size) != 2 or name in tensors.files or tensors.types[part] != "I32":
            raise ModelError(f"{part[:80]!r} is no matrix of GPTQ", "the checkpoint is damaged")
        shape = (size[1], size[0] * how.each)
        for last, wanted in how.shapes(shape).items():
            _check(tensors, f"{base}.{last}", wanted, shape[0] % how.each == 0)
            for table in (files, shapes, types):
                table.pop(f"{base}.{last}", None)
        files[name], shapes[name], types[name] = tensors.files[part], shape, "F16"
        names.add(name)
        bias = f"{base}.bias"  # older programs write one of zeros everywhere
        if bias in files and bias not in plan.slots and not bool(read(tensors, bias).any()):
            for table in (files, shapes, types):
                table.pop(bias)
    if not names:
        raise ModelError("config.json names GPTQ, but no tensor is quantized", "the checkpoint is damaged")
    seen = Tensors(files, shapes, types)
    return seen, Quantized(how, frozenset(names), Tensors(tensors.files, {**tensors.shapes, **shapes}, tensors.types))


def _check(tensors: Tensors, name: str, wanted: tuple[int, ...], whole: bool) -> None:
    """Refuse a part that is missing, or has another shape or type than the others promise."""
    last = name.rpartition(".")[2]
    if name not in tensors.files:
        if last == "g_idx":
            return
        raise ModelError(f"{name[:80]!r} is missing", "the checkpoint is damaged")
    if tensors.shapes[name] != wanted or not whole:
        shape = as_text(tensors.shapes[name])
        raise ModelError(
            f"{name[:80]} is {shape}, by the others it must be {as_text(wanted)}", "one of them is damaged"
        )
    kinds = ("F16", "BF16", "F32") if last == "scales" else ("I32",)
    if tensors.types[name] not in kinds:
        raise ModelError(f"{name[:80]} has the type {tensors.types[name]}", f"only {', '.join(kinds)} is read")
