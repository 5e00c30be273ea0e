"""The small operations between a layer's matrix products: each reads its operands once and writes its result once.

Numbers are in float32 inside and are rounded where torch's own operations, one after the other, would round them.
Everything is loaded before the first sum is taken, so that nothing waits for memory twice.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["S"])
def added_norm(
    x, y, weight, gate, shift, scale, total, out,  # pointers; None: there is none
    S, eps, gr, cr,  # columns of a row; strides of a row of gate, and of shift and scale
    D: tl.constexpr, LAYER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One column: total = x + gate · y, and out = norm(total) · (1 + scale) + shift.

    LAYER: of the norm, the mean is subtracted first. gate, shift and scale have one row [D] for all columns of a row.
    """
    place = tl.program_id(0).to(tl.int64)
    row, lane = place // S, tl.arange(0, BLOCK)
    inside = lane < D
    kind = x.dtype.element_ty
    whole = tl.load(x + place * D + lane, mask=inside, other=0.0).to(tl.float32)
    more = tl.load(y + place * D + lane, mask=inside, other=0.0).to(tl.float32)
    by = tl.load(weight + lane, mask=inside, other=0.0)
    if scale is not None:
        wide = tl.load(scale + row * cr + lane, mask=inside, other=0.0).to(tl.float32)
        offset = tl.load(shift + row * cr + lane, mask=inside, other=0.0)
    if gate is not None:
        more *= tl.load(gate + row * gr + lane, mask=inside, other=0.0).to(tl.float32)
        more = more.to(kind).to(tl.float32)
    rounded = (whole + more).to(kind)
    tl.store(total + place * D + lane, rounded, mask=inside)
    whole = rounded.to(tl.float32)
    if LAYER:
        whole = tl.where(inside, whole - tl.sum(whole, 0) / D, 0.0)
    normed = whole * tl.rsqrt(tl.sum(whole * whole, 0) / D + eps)
    normed *= by.to(tl.float32)
    if scale is not None:
        normed = normed.to(kind).to(tl.float32) * (1.0 + wide).to(kind).to(tl.float32) + offset.to(tl.float32)
    tl.store(out + place * D + lane, normed.to(kind), mask=inside)


@triton.jit
def _turned(
    source, target, stride, weight, cos, sin, eps, tile,
    MANY: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    """HEADS of MANY heads of one column, normed if there is a weight, and turned if there are angles.

    A head [D] is read in two halves, which are turned against each other, and the REST, which stays.
    """
    head, lane, far = tile * HEADS + tl.arange(0, HEADS), tl.arange(0, BLOCK), tl.arange(0, REST)
    left, right = lane < HALF, far < D - 2 * HALF
    here = (head < MANY)[:, None] & left[None, :]
    there = (head < MANY)[:, None] & right[None, :]
    kind = source.dtype.element_ty
    at = source + head[:, None] * D
    a = tl.load(at + lane[None, :], mask=here, other=0.0)
    b = tl.load(at + HALF + lane[None, :], mask=here, other=0.0)
    if 2 * HALF < D:
        c = tl.load(at + 2 * HALF + far[None, :], mask=there, other=0.0)
    if cos is not None:
        along = tl.load(cos + lane, mask=left, other=0.0)[None, :]
        across = tl.load(sin + lane, mask=left, other=0.0)[None, :]
    if weight is not None:
        one = tl.load(weight + lane, mask=left, other=0.0).to(tl.float32)[None, :]
        two = tl.load(weight + HALF + lane, mask=left, other=0.0).to(tl.float32)[None, :]
        x, y = a.to(tl.float32), b.to(tl.float32)
        squares = tl.sum(x * x, 1) + tl.sum(y * y, 1)
        if 2 * HALF < D:
            z = c.to(tl.float32)
            last = tl.load(weight + 2 * HALF + far, mask=right, other=0.0).to(tl.float32)[None, :]
            squares += tl.sum(z * z, 1)
        by = tl.rsqrt(squares / D + eps)[:, None]
        a, b = (x * by * one).to(kind), (y * by * two).to(kind)
        if 2 * HALF < D:
            c = (z * by * last).to(kind)
    if cos is not None:
        x, y = a.to(tl.float32), b.to(tl.float32)
        a, b = (x * along - y * across).to(kind), (y * along + x * across).to(kind)
    to = target + head[:, None] * stride
    tl.store(to + lane[None, :], a, mask=here)
    tl.store(to + HALF + lane[None, :], b, mask=here)
    if 2 * HALF < D:
        tl.store(to + 2 * HALF + far[None, :], c, mask=there)


@triton.jit(do_not_specialize=["S"])
def split_heads(
    qkv, q_weight, k_weight, cos, sin, q, k, v,  # pointers; without weights there is no norm
    S, eps, cr, cs,  # columns of a row; strides of a row and of a column of cos and sin
    H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    """One column of qkv [R, S, H + 2 KV, D], some of its heads -> q [R, S, H, D], k [R, KV, S, D], and a copy v of k's
    layout, for which there are programs if it is wanted."""
    place, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = place // S, place % S
    queries, keys = tl.cdiv(H, HEADS), tl.cdiv(KV, HEADS)
    source = qkv + place * ((H + 2 * KV) * D)
    cosines, sines = cos + row * cr + column * cs, sin + row * cr + column * cs
    among = (row * KV * S + column) * D
    if tile < queries:
        _turned(source, q + place * (H * D), D, q_weight, cosines, sines, eps, tile,
                H, D, HALF, HEADS, BLOCK, REST)  # fmt: skip
    elif tile < queries + keys:
        _turned(source + H * D, k + among, S * D, k_weight, cosines, sines, eps, tile - queries,
                KV, D, HALF, HEADS, BLOCK, REST)  # fmt: skip
    else:
        _turned(source + (H + KV) * D, v + among, S * D, None, None, None, eps, tile - queries - keys,
                KV, D, HALF, HEADS, BLOCK, REST)  # fmt: skip


@triton.jit
def gated(both, out, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """One row of both [T, 2 INNER]: silu of its first half · its second half."""
    place, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < INNER
    kind = both.dtype.element_ty
    gate = tl.load(both + place * (2 * INNER) + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + place * (2 * INNER) + INNER + lane, mask=inside, other=0.0).to(tl.float32)
    open = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + place * INNER + lane, (open * up).to(kind), mask=inside)


@triton.jit(do_not_specialize=["T", "first", "count"])
def add_chosen(
    parts, weights, chosen, total, T, first, count, D: tl.constexpr, USED: tl.constexpr, BLOCK: tl.constexpr
):
    """One token: total [T, D] += its weights [T, USED] · what its chosen experts made of it.

    parts [count, T, D] are of the experts from `first` on; chosen ones among the others are left out.
    """
    place, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < D
    found = tl.load(total + place * D + lane, mask=inside, other=0.0)
    for i in tl.static_range(USED):
        expert = tl.load(chosen + place * USED + i) - first
        here = (expert >= 0) & (expert < count)
        weight = tl.load(weights + place * USED + i)
        part = tl.load(parts + (tl.where(here, expert, 0) * T + place) * D + lane, mask=inside & here, other=0.0)
        found += weight * part.to(tl.float32)
    tl.store(total + place * D + lane, found, mask=inside)
