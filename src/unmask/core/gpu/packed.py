"""Rows × a matrix in 4 or 8 bits -> their product, read as it lies; for many rows the matrix is unpacked first.

Shapes decide all, so a call can be captured in a CUDA graph once it has run. How a sum is split does not depend on the
number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.gpu.device import compiled, on

GROUP = 128  # columns under one scale
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 512  # up to so many the packed matrix is read; of more, arithmetic is the cost, and it is unpacked once
PROGRAMS = 528  # that keep a large GPU busy: four on each multiprocessor
COLUMNS = 64  # of a program
MOST = 8  # splits of one sum
LARGE = (9, 10)  # compute capabilities with 227 KiB of shared memory


@dataclass(frozen=True)
class Layout:
    """How a product is laid out."""

    rows: int  # of a program
    warps: int
    stages: int


def usable(x: Tensor, *parts: Tensor) -> bool:
    """Whether the kernels can do this: floats on a GPU, which nothing compiles or takes a gradient of."""
    return (
        not torch.compiler.is_compiling()
        and x.dtype in DTYPES
        and not (torch.is_grad_enabled() and x.requires_grad)
        and compiled(x, *parts)
    )


def product(x: Tensor, whole: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
    """[E, M, N] of x [E or 1, M, K] and a matrix [E, N, K], packed, plus a bias [N]."""
    if x.shape[1] > ROWS:
        made = unpacked(whole, scale, zero, x.shape[2], x.dtype).mT
        found = x @ made
        return found if bias is None else found + bias
    return _read(x, whole, scale, zero, bias)


def _read(x: Tensor, whole: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
    from unmask.core.gpu.kernels import packed as kernels

    x = x if x.stride(2) == 1 else x.contiguous()
    (experts, columns, groups), (_, rows, wide) = scale.shape, x.shape
    out = x.new_empty(experts, rows, columns)
    if not out.numel():
        return out
    layout, tiles = layout_for(rows, x), -(-columns // COLUMNS)
    splits = _splits(experts * tiles, groups)
    partial = out if splits == 1 else torch.empty(experts, splits, rows, columns, device=x.device)
    with on(x):
        kernels.product[(tiles, -(-rows // layout.rows), experts * splits)](
            x, whole, scale, zero, bias if splits == 1 else None, partial,
            rows, columns, wide, groups, 0 if len(x) == 1 else x.stride(0), x.stride(1),
            BITS=_bits(whole, scale), GROUP=GROUP, EVEN=wide == groups * GROUP, SPLITS=splits,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            BLOCK_M=layout.rows, BLOCK_N=COLUMNS, num_warps=layout.warps, num_stages=layout.stages,
        )  # fmt: skip
        if splits > 1:
            size = rows * columns
            kernels.gather[(-(-size // 1024), experts)](
                partial, bias, out, size, columns, SPLITS=splits, BLOCK=1024, num_warps=4
            )
    return out


def unpacked(whole: Tensor, scale: Tensor, zero: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """The matrix [E, N, K] in floats."""
    from unmask.core.gpu.kernels import packed as kernels

    out = torch.empty(*scale.shape[:2], columns, dtype=dtype, device=whole.device)
    if out.numel():
        with on(whole):
            kernels.unpack[(out.shape[0] * out.shape[1], scale.shape[2])](
                whole, scale, zero, out, columns, scale.shape[2],
                BITS=_bits(whole, scale), GROUP=GROUP, num_warps=1,
            )  # fmt: skip
    return out


def _bits(whole: Tensor, scale: Tensor) -> int:
    return 8 * whole.shape[2] // (GROUP * scale.shape[2])


def layout_for(rows: int, x: Tensor) -> Layout:
    """The layout for so many rows, by what fits into the shared memory: 99 KiB on small cards."""
    if x.dtype == torch.float32:
        return Layout(16 if rows <= 16 else 32, 4, 2)
    large = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] in LARGE
    few = next((size for size in (16, 32, 64) if rows <= size), 128)
    return Layout(few, 8 if few == 128 else 4, 4 if large or few < 64 else 3)


def _splits(tiles: int, groups: int) -> int:
    """Parts of a sum, so that few columns keep a GPU busy, too; a power of two."""
    many = max(1, min(MOST, PROGRAMS // tiles, groups // 4))
    return 1 << (many.bit_length() - 1)
