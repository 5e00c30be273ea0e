"""What a layer computes between its matrix products, number by number: by torch, or by our kernels on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.gpu import layer

Norm = nn.RMSNorm | nn.LayerNorm  # a LayerNorm has no bias here
Change = tuple[Tensor, ...]  # shift and scale, [R or 1, 1, D]
Added = tuple[Tensor, Tensor | None]  # [R, S, D], and what it is multiplied by: [R or 1, 1, D], None: nothing


def added_norm(x: Tensor, added: Added | None, norm: Norm, change: Change | None) -> tuple[Tensor, Tensor]:
    """x [R, S, D] with what is added to it, and the norm of the sum, modulated."""
    if added is None:
        return x, modulated(norm(x), change)
    y, gate = added
    if x.shape[2] <= layer.WIDEST and layer.usable(x, y, gate, norm.weight, *(change or ())):
        centred = isinstance(norm, nn.LayerNorm)
        return layer.added_norm(x, y, gate, norm.weight, _eps(norm), centred, change)
    x = torch.add(x, y if gate is None else gate * y)
    return x, modulated(norm(x), change)


def modulated(x: Tensor, change: Change | None) -> Tensor:
    """x (1 + scale) + shift."""
    return x if change is None else torch.addcmul(change[0], x, 1 + change[1])


def split_heads(
    qkv: Tensor,  # [R, S, (heads + 2 kv) d]
    heads: int,
    kv: int,
    norms: tuple[Norm, Norm] | None,  # of queries and keys
    waves: tuple[Tensor, Tensor] | None,  # cosines and sines
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [R, H, S, d], keys and values [R, KV, S, d]: q and k normed and turned.

    Of keys and values that the caller will `keep`, kernels write contiguous ones.
    """
    weights = None if norms is None else (norms[0].weight, norms[1].weight)
    if waves is not None and waves[0].dtype == torch.float32 and layer.usable(qkv, *(weights or ())):
        eps = 0.0 if norms is None else _eps(norms[0])
        return layer.split_heads(qkv, heads, kv, weights, eps, *waves, keep)
    rows, columns, width = qkv.shape
    parts = qkv.view(rows, columns, heads + 2 * kv, width // (heads + 2 * kv)).transpose(1, 2)
    q, k, v = torch.split(parts, [heads, kv, kv], 1)
    if norms is not None:
        q, k = norms[0](q), norms[1](k)
    if waves is not None:
        q, k = rotate(q, *waves), rotate(k, *waves)
    return q, k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [R, H, S, d]
    """Rotary positions, dimension c paired with c + d/2; in float32 at least, whatever the type of x.

    Of fewer angles than d/2, d is twice their number, and dimensions after it stay.
    """
    turned = 2 * cos.shape[3]
    if turned < x.shape[3]:
        return torch.cat([rotate(x[..., :turned], cos, sin), x[..., turned:]], 3)
    a, b = x.to(cos.dtype).chunk(2, 3)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], 3).to(x.dtype)


def gated(both: Tensor) -> Tensor:  # [..., 2 I] -> [..., I]
    """silu(gate) · up."""
    if layer.usable(both):
        return layer.gated(both)
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


def _eps(norm: Norm) -> float:
    assert norm.eps is not None
    return norm.eps
