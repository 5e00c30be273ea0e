"""What a layer computes between its matrix products, in one kernel each: sums with norms, heads, gates.

Results are those of torch's operations, up to the last bits: no product is fused into a sum. Shapes decide all, so
a call can be captured in a CUDA graph once it has run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.gpu.device import compiled, on

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 1 << 14  # numbers to a column that one program norms


@dataclass(frozen=True)
class Layout:
    """How the kernels are laid out; experiments/fused_layer.py times others."""

    norm: int = 16  # numbers of a column to a thread
    heads: int = 16  # of a program
    turn: int = 16  # of their numbers to a thread
    gate: int = 2048  # numbers of a program
    open: int = 16  # of them to a thread


LAYOUT = Layout()


def usable(*tensors: Tensor | None) -> bool:
    """Whether the kernels can do this: numbers of one type on a GPU, which nothing compiles or takes a gradient of."""
    if torch.compiler.is_compiling():
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    return (
        given[0].dtype in DTYPES
        and all(tensor.dtype == given[0].dtype for tensor in given)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))
        and compiled(*given)
    )


def added_norm(
    x: Tensor,  # [R, S, D]
    y: Tensor,  # [R, S, D]
    gate: Tensor | None,  # [R or 1, 1, D]
    weight: Tensor,  # [D]
    eps: float,
    centred: bool,
    change: tuple[Tensor, ...] | None,
) -> tuple[Tensor, Tensor]:
    """x + gate y, and its norm times 1 + scale and plus shift, of a `change` (shift, scale) [R or 1, 1, D].

    The norm divides by the root of the mean square, if `centred` after the mean is subtracted.
    """
    from unmask.core.gpu.kernels import layer as kernels

    x, y = x.contiguous(), y.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    (rows, columns, width), block = x.shape, _power(x.shape[2])
    shift, scale = change or (None, None)
    assert shift is None or scale is None or shift.stride() == scale.stride()
    if x.numel():
        with on(x):
            kernels.added_norm[(rows * columns,)](
                x, y, weight, gate, shift, scale, total, out, columns, eps, _stride(gate), _stride(scale),
                D=width, LAYER=centred, BLOCK=block, num_warps=_warps(block, LAYOUT.norm), enable_fp_fusion=False,
            )  # fmt: skip
    return total, out


def split_heads(
    qkv: Tensor,  # [R, S, (H + 2 KV) d]
    heads: int,
    kv: int,
    weights: tuple[Tensor, Tensor] | None,  # [d] of the norms of queries and keys
    eps: float,
    cos: Tensor,  # [R or 1, 1, S, a] of at most d / 2 angles
    sin: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [R, H, S, d], keys and values [R, KV, S, d]: q and k normed, if there are weights, and turned.

    q is a view of [R, S, H, d]: attention follows its layout. k is contiguous; v is a view of qkv, or to `keep` a copy.
    """
    from unmask.core.gpu.kernels import layer as kernels

    rows, columns, width = qkv.shape
    each, half = width // (heads + 2 * kv), cos.shape[3]
    assert 2 * half <= each and cos.stride() == sin.stride()
    qkv = qkv.contiguous()
    q, k = qkv.new_empty(rows, columns, heads, each), qkv.new_empty(rows, kv, columns, each)
    v = (
        torch.empty_like(k)
        if keep
        else qkv.view(rows, columns, heads + 2 * kv, each)[:, :, heads + kv :].transpose(1, 2)
    )
    many, block, rest = min(LAYOUT.heads, _power(heads)), _power(half), _power(each - 2 * half)
    tiles = -(-heads // many) - (-kv // many) * (2 if keep else 1)
    if qkv.numel():
        with on(qkv):
            kernels.split_heads[(rows * columns, tiles)](
                qkv, *(weights or (None, None)), cos, sin, q, k, v, columns, eps, _stride(cos), cos.stride(2),
                H=heads, KV=kv, D=each, HALF=half, HEADS=many, BLOCK=block, REST=rest,
                num_warps=_warps(many * each, LAYOUT.turn), enable_fp_fusion=False,
            )  # fmt: skip
    return q.transpose(1, 2), k, v


def gated(both: Tensor) -> Tensor:
    """silu of the first half of the last dimension · the second half."""
    from unmask.core.gpu.kernels import layer as kernels

    both, inner = both.contiguous(), both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], inner)
    block = min(LAYOUT.gate, _power(inner))
    if out.numel():
        with on(both):
            kernels.gated[(out.numel() // inner, -(-inner // block))](
                both, out, INNER=inner, BLOCK=block, num_warps=_warps(block, LAYOUT.open)
            )
    return out


def add_chosen(total: Tensor, parts: Tensor, weights: Tensor, chosen: Tensor, first: int) -> None:
    """total [T, D] += Σ weights [T, used] · parts [E, T, D] of the chosen [T, used] of the experts from `first` on."""
    from unmask.core.gpu.kernels import layer as kernels

    (count, tokens, width), used = parts.shape, chosen.shape[1]
    parts, weights, chosen = parts.contiguous(), weights.contiguous(), chosen.contiguous()
    block = min(LAYOUT.gate, _power(width))
    if total.numel() and count:
        with on(parts):
            kernels.add_chosen[(tokens, -(-width // block))](
                parts, weights, chosen, total, tokens, first, count,
                D=width, USED=used, BLOCK=block, num_warps=_warps(block, LAYOUT.open),
            )  # fmt: skip


def _stride(x: Tensor | None) -> int:
    """Between rows; 0 where all rows share one."""
    return 0 if x is None or len(x) == 1 else x.stride(0)


def _power(size: int) -> int:
    """The power of two that holds so many, at least 1."""
    return 1 << max(0, size - 1).bit_length()


def _warps(numbers: int, each: int) -> int:
    """Enough for `each` numbers to a thread."""
    return max(1, min(16, _power(numbers) // (32 * each)))
