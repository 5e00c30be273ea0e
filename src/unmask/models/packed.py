"""Matrices in 4 or 8 bits, a scale and a zero for every 128 columns: made, multiplied, and in floats again.

Only weights are packed; what a layer computes keeps the model's type. On a GPU kernels read a matrix as it lies.
Elsewhere it is unpacked for each use, some rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.gpu import packed as gpu
from unmask.core.gpu.packed import GROUP
from unmask.errors import unknown

WEIGHTS = {"float": None, "int8": 8, "int4": 4}  # name -> bits of a weight; None: the model's own type
TABLE = 8  # bits of an embedding, at least
SOME = 1 << 20  # weights that are unpacked at a time: 4 MiB of float32, which a processor's cache holds
SOME_CUDA = 1 << 26
TINIEST = torch.finfo(torch.float32).tiny  # a group of zeros has a scale too
LAYERS = r"blocks\.\d+\.(?:(?:qkv|out|up|down|experts\.shared_(?:up|down))\.weight|experts\.(?:up|down))"


@dataclass(frozen=True)
class Packing:
    """How one parameter is packed."""

    bits: int
    ordered: bool = False  # its columns are in an order of their own


def to_bits(weights: str | None) -> int | None:
    """The bits of a name in WEIGHTS; None: floats."""
    if weights is not None and weights not in WEIGHTS:
        raise unknown("kind of weights", weights, WEIGHTS)
    return None if weights is None else WEIGHTS[weights]


def packings(shapes: Mapping[str, torch.Size], bits: int | None) -> dict[str, Packing]:
    """What is packed of parameters with these shapes: a layer's matrices, and an embedding that is not the head too.

    The head stays in the model's own type: beliefs and entropies are read from it. So do a router and small matrices.
    """
    if bits is None:
        return {}
    table = {"embed.weight": Packing(TABLE)} if "head.weight" in shapes else {}
    return {name: Packing(bits) for name in shapes if re.fullmatch(LAYERS, name)} | table


class Packed(nn.Module):
    """A matrix [N, K], or one for each expert [E, N, K]."""

    order: nn.Parameter | None

    def __init__(self, size: torch.Size, packing: Packing) -> None:
        super().__init__()
        *lead, self.columns = size
        groups = -(-self.columns // GROUP)
        self.whole = _fixed(torch.empty(*lead, groups * GROUP * packing.bits // 8, dtype=torch.uint8))
        self.scale = _fixed(torch.empty(*lead, groups, dtype=torch.float32))
        self.zero = _fixed(torch.empty(*lead, groups, dtype=torch.int16))
        self.order = _fixed(torch.empty(self.columns, dtype=torch.int64)) if packing.ordered else None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.whole.shape[:-1], self.columns))

    @property
    def bits(self) -> int:
        return 8 * self.whole.shape[-1] // (GROUP * self.scale.shape[-1])

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.whole, self.scale, self.zero

    def unpacked(self, at: int | slice | Tensor = slice(None), dtype: torch.dtype = torch.float32) -> Tensor:
        """These entries of the first dimension, in floats."""
        whole, scale, zero = (part[at] for part in self.parts)
        found = unpack(whole, scale, zero, self.columns, dtype)
        return found if self.order is None else torch.empty_like(found).index_copy_(-1, self.order, found)

    def times(self, x: Tensor, at: int | slice | None = None, bias: Tensor | None = None) -> Tensor:
        """x @ matrix.T + bias: [..., K] -> [..., N]; `at` some experts, [T, K] or [E', T, K] -> [(E',) T, N]."""
        x = x if self.order is None else x[..., self.order]
        whole, scale, zero = self.parts if at is None else (part[at] for part in self.parts)
        if gpu.usable(x, whole):
            stack = whole.dim() == 3
            three = x.reshape(-1, *x.shape[-2:]) if stack else x.reshape(1, -1, x.shape[-1])
            found = gpu.product(three, *_stacked(whole, scale, zero), bias)
            return found if stack else found.view(*x.shape[:-1], -1)
        if whole.dim() == 3 or torch.compiler.is_compiling():
            found = x @ unpack(whole, scale, zero, self.columns, x.dtype).mT
            return found if bias is None else found + bias
        step = max(1, (SOME_CUDA if x.is_cuda else SOME) // self.columns)
        some = (slice(begin, begin + step) for begin in range(0, len(whole), step))
        made = [
            F.linear(x, unpack(whole[i], scale[i], zero[i], self.columns, x.dtype), None if bias is None else bias[i])
            for i in some
        ]
        return made[0] if len(made) == 1 else torch.cat(made, -1)


class PackedLinear(nn.Module):
    """nn.Linear with a packed weight."""

    def __init__(self, weight: Packed, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.times(x, bias=self.bias)


class PackedEmbedding(nn.Module):
    """nn.Embedding with a packed weight; its rows are in float32."""

    def __init__(self, weight: Packed) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight.unpacked(tokens)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _stacked(whole: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix as a stack of one; a stack as it is."""
    return (whole, scale, zero) if whole.dim() == 3 else (whole[None], scale[None], zero[None])


def times(x: Tensor, weight: Tensor | Packed, at: int | slice | None = None) -> Tensor:
    """x @ weight[at].T, packed or not."""
    if isinstance(weight, Packed):
        return weight.times(x, at)
    return x @ (weight if at is None else weight[at]).mT


def pack_modules(network: nn.Module, packing: Mapping[str, Packing]) -> None:
    """Put packed ones in the place of these parameters, of which only the shapes count."""
    for name, how in packing.items():
        *path, last = name.split(".")
        owner, above = network.get_submodule(".".join(path)), network.get_submodule(".".join(path[:-1]))
        made = Packed(getattr(owner, last).shape, how)
        if isinstance(owner, nn.Linear):
            setattr(above, path[-1], PackedLinear(made, owner.bias))
        elif isinstance(owner, nn.Embedding):
            setattr(above, path[-1], PackedEmbedding(made))
        else:
            delattr(owner, last)
            setattr(owner, last, made)


def packed_of(network: nn.Module) -> dict[str, Packed]:
    """The packed matrices of a network, by the names of the parameters that they stand for."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Packed)}


# --- numbers ---------------------------------------------------------------------------------------------------------


def pack(weights: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a matrix [..., K] in as few bits: whole, scale and zero.

    The range of a group, which always has 0 in it, is divided evenly: no weight is off by more than half a scale. Zeros
    stay exactly 0.
    """
    parts = grouped(weights.float())
    least, largest = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((largest - least) / (2**bits - 1)).clamp(min=TINIEST)
    zero = (-least / scale).round()
    whole = (parts / scale[..., None]).round().add_(zero[..., None]).clamp_(0, 2**bits - 1).to(torch.uint8)
    return laid(whole, bits), scale, zero.to(torch.int16)


def grouped(rows: Tensor) -> Tensor:  # [..., K] -> [..., G, 128]
    rows = F.pad(rows, (0, -rows.shape[-1] % GROUP))
    return rows.view(*rows.shape[:-1], -1, GROUP)


def laid(whole: Tensor, bits: int) -> Tensor:  # [..., G, 128] uint8 -> [..., G * 128 * bits / 8]
    """Whole numbers as bytes; of 4 bits, the second half of a group is in the upper halves of its bytes."""
    if bits == 4:
        low, high = whole.chunk(2, -1)
        whole = low | (high << 4)
    return whole.flatten(-2)


def unpack(whole: Tensor, scale: Tensor, zero: Tensor, columns: int, dtype: torch.dtype) -> Tensor:  # [..., K]
    """The numbers that packed rows stand for, computed in float32 at least."""
    if whole.dim() in (2, 3) and gpu.usable(scale, whole) and dtype in gpu.DTYPES:
        return gpu.unpacked(*_stacked(whole, scale, zero), columns, dtype).view(*whole.shape[:-1], columns)
    parts = whole.view(*scale.shape, whole.shape[-1] // scale.shape[-1])
    if parts.shape[-1] < GROUP:
        parts = torch.cat([parts & 15, parts >> 4], -1)
    exact = torch.promote_types(dtype, torch.float32)
    found = parts.to(exact).sub_(zero[..., None].to(exact)).mul_(scale[..., None])
    return found.flatten(-2)[..., :columns].to(dtype)
