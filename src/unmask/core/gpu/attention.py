"""Some columns of every row × kept keys and values -> attention, without laying them side by side.

What a row sees of a kept part is said by numbers on the device, so that a call can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.gpu.device import compiled, on

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256  # numbers to a head
PROGRAMS = 264  # that keep a large GPU busy
MOST = 8  # splits of one softmax
PARTS = 2  # kept parts, at most


@dataclass(frozen=True)
class Kept:
    """Keys and values [N, H, C, d] of one layer, and what each row sees of them."""

    keys: Tensor
    values: Tensor
    spans: Tensor  # [R, 5] int32: the entry in N, the first column, the one after the last, and a gap between two


def usable(*tensors: Tensor) -> bool:
    """Whether the kernel can do this with keys and values of such a type; a compiler that traces has its own ways."""
    return (
        not torch.compiler.is_compiling()
        and all(one.dtype in DTYPES and one.shape[-1] <= WIDEST for one in tensors)
        and compiled(*tensors)
    )


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, kept: list[Kept]) -> Tensor:
    """[R, H, W, d] of queries [R, H, W, d] over new columns [R, KV, W, d], of which `seen` [R, W, W], and kept ones.

    The result is a view of [R, W, H, d].
    """
    from unmask.core.gpu.kernels import attend as kernels

    (rows, heads, width, each), kv = q.shape, k.shape[1]
    q, k, v = (_last(one.to(v.dtype)) for one in (q, k, v))
    out = q.new_empty(rows, width, heads, each)
    if not out.numel():
        return out.transpose(1, 2)
    many, parts = heads // kv, [*kept, None, None][:PARTS]
    block = 16 if many * width <= 16 else 32 if many * width <= 32 else 64
    wide = max(16, 1 << (each - 1).bit_length())
    columns = 32 if q.dtype == torch.float32 or wide > 128 else 64
    tiles = -(-many * width // block)
    most = sum(one.keys.shape[2] for one in kept) + width
    splits = max(1, min(MOST, PROGRAMS // (rows * kv * tiles), -(-most // (2 * columns))))
    splits = 1 << (splits.bit_length() - 1)
    partial = sums = None
    if splits > 1:
        partial = torch.empty(splits, rows * kv, many * width, each, device=q.device)
        sums = torch.empty(2, splits, rows * kv, many * width, device=q.device)
    seen = None if seen is None else seen.expand(rows, width, width).contiguous().view(torch.uint8)
    pointers = [part for one in parts for part in ((None,) * 3 if one is None else (one.keys, one.values, one.spans))]
    strides = [*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]]
    strides += [0, 0] if seen is None else seen.stride()[:2]
    strides += [out.stride(0), out.stride(2), out.stride(1)]
    for one in parts:
        strides += [0, 0, 0] if one is None else one.keys.stride()[:3]
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    with on(q):
        kernels.attend[(rows * kv, tiles, splits)](
            q, k, v, seen, out, partial, sums, *pointers, width, each**-0.5, rows * kv, *strides,
            KV=kv, MANY=many, D=each, BLOCK_M=block, BLOCK_N=columns, BLOCK_D=wide, SPLITS=splits,
            PRECISION=precision, num_warps=4, num_stages=2,
        )  # fmt: skip
        if splits > 1:
            kernels.gather[(rows * kv, tiles)](
                partial, sums, out, width, rows * kv, *strides[11:14],
                KV=kv, MANY=many, D=each, BLOCK_M=block, BLOCK_D=wide, SPLITS=splits, num_warps=4,
            )  # fmt: skip
    return out.transpose(1, 2)


def _last(x: Tensor) -> Tensor:
    """With numbers of a head side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


def move(layers: tuple[tuple[Tensor, Tensor], ...], ancestors: Tensor, ends: Tensor) -> None:
    """Rows of keys and values [B, H, C, d] take those of their ancestors [B], in place: the first `ends` [B] columns.

    Rows that are their own ancestors are not touched.
    """
    from unmask.core.gpu.kernels import attend as kernels

    block = 4096
    for keys, values in layers:
        rows, heads, columns, each = keys.shape
        size, spare = columns * each, (torch.empty_like(keys), torch.empty_like(values))
        with on(keys):
            for back in (False, True):
                kernels.move[(rows, heads, -(-size // block))](
                    keys, values, *spare, ancestors, ends, size, EACH=each, BACK=back, BLOCK=block, num_warps=8
                )
