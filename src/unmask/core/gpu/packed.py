"""Rows × a matrix in 4 or 8 bits -> their product, read as it lies; for many rows the matrix is unpacked first.

Shapes decide all, so a call can be captured in a CUDA graph once it has run. How a sum is split does not depend on the
number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.core.gpu.device import compiled, on

GROUP = 128  # columns under one scale
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 512  # up to so many the packed matrix is read; of more, arithmetic is the cost, and it is unpacked once
PROGRAMS = 528  # that keep a large GPU busy: four on each multiprocessor
COLUMNS = 64  # of a program
MOST = 8  # splits of one sum


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
    block, tiles = _block(rows), -(-columns // COLUMNS)
    splits = _splits(experts * tiles, groups)
    partial = out if splits == 1 else torch.empty(experts, splits, rows, columns, device=x.device)
    with on(x):
        kernels.product[(tiles, -(-rows // block), experts * splits)](
            x, whole, scale, zero, bias if splits == 1 else None, partial,
            rows, columns, wide, groups, 0 if len(x) == 1 else x.stride(0), x.stride(1),
            BITS=_bits(whole, scale), GROUP=GROUP, EVEN=wide == groups * GROUP, SPLITS=splits,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            BLOCK_M=block, BLOCK_N=COLUMNS, num_warps=4 if block < 128 else 8, num_stages=4,
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


def _block(rows: int) -> int:
    """Rows of a program."""
    return next((size for size in (16, 32, 64) if rows <= size), 128)


def _splits(tiles: int, groups: int) -> int:
    """Parts of a sum, so that few columns keep a GPU busy, too; a power of two."""
    many = max(1, min(MOST, PROGRAMS // tiles, groups // 4))
    return 1 << (many.bit_length() - 1)
