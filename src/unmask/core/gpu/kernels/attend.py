"""Queries of some columns × keys and values of these columns and of kept ones, wherever they lie -> attention."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _join(high, total, mixed, queries, keys, values, sees, scale, PRECISION: tl.constexpr):
    """One more tile of keys [N, D] and values [N, D] under a running softmax; `sees` [M, N]."""
    score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    score = tl.where(sees, score, -float("inf"))
    top = tl.maximum(high, tl.max(score, 1))
    base = tl.where(top == -float("inf"), 0.0, top)
    share = tl.exp2(score - base[:, None])
    fade = tl.exp2(high - base)
    total = total * fade + tl.sum(share, 1)
    mixed = mixed * fade[:, None] + tl.dot(share.to(values.dtype), values, input_precision=PRECISION)
    return top, total, mixed


@triton.jit
def _kept(high, total, mixed, queries, keys, values, spans, row, head, split, scale, kn, kh, kc,
          D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
          PRECISION: tl.constexpr):  # fmt: skip
    """The columns of a kept part that the spans of this row name, those of this split."""
    span = spans + row * 5
    entry = tl.load(span).to(tl.int64)
    low, end = tl.load(span + 1), tl.load(span + 2)
    gap, gone = tl.load(span + 3), tl.load(span + 4)
    lane, inner = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    base = entry * kn + head * kh
    first = low // BLOCK_N + split
    for tile in range(first, tl.cdiv(end, BLOCK_N), SPLITS):
        column = tile * BLOCK_N + lane
        sees = (column >= low) & (column < end) & ((column < gap) | (column >= gone))
        at = base + column.to(tl.int64)[:, None] * kc + inner[None, :]
        inside = sees[:, None] & (inner < D)[None, :]
        key = tl.load(keys + at, mask=inside, other=0.0)
        value = tl.load(values + at, mask=inside, other=0.0)
        high, total, mixed = _join(high, total, mixed, queries, key, value, sees[None, :], scale, PRECISION)
    return high, total, mixed


@triton.jit
def attend(
    q, k, v, seen, out, partial, sums,  # pointers
    keys_a, values_a, spans_a, keys_b, values_b, spans_b,  # of kept parts; None: there is none
    W, scale, rows_heads,
    qr, qh, qw, kr, kh, kw, vr, vh, vw, sr, sq, our, ouh, ouw, an, ah, ac, bn, bh, bc,  # strides
    KV: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One row and one head of keys: the queries [MANY · W, D] of all heads that share it.

    `spans` [R, 5] int32: the entry of the kept part, the first column that is seen, the one after the last, and a gap
    between two columns. `seen` [R, W, W] says what new columns see of each other; None: everything. With SPLITS the
    parts of a softmax are stored: `partial` [SPLITS, rows_heads, MANY · W, D] and `sums` [2, SPLITS, …, MANY · W].
    """
    row, head = tl.program_id(0) // KV, tl.program_id(0) % KV
    split = tl.program_id(2)
    place, inner = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    real = place < MANY * W
    mine, width = head * MANY + place // W, place % W
    inside = real[:, None] & (inner < D)[None, :]
    wide_row = row.to(tl.int64)
    queries = tl.load(q + wide_row * qr + (mine * qh + width * qw)[:, None] + inner[None, :], mask=inside, other=0.0)
    high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    steep = scale * LOG2E
    if spans_a is not None:
        high, total, mixed = _kept(high, total, mixed, queries, keys_a, values_a, spans_a, row, head, split, steep,
                                   an, ah, ac, D, BLOCK_N, BLOCK_D, SPLITS, PRECISION)  # fmt: skip
    if spans_b is not None:
        high, total, mixed = _kept(high, total, mixed, queries, keys_b, values_b, spans_b, row, head, split, steep,
                                   bn, bh, bc, D, BLOCK_N, BLOCK_D, SPLITS, PRECISION)  # fmt: skip
    lane = tl.arange(0, BLOCK_N)
    for tile in range(SPLITS - 1 - split, tl.cdiv(W, BLOCK_N), SPLITS):
        column = tile * BLOCK_N + lane
        there = (column < W)[:, None] & (inner < D)[None, :]
        key = tl.load(k + wide_row * kr + head * kh + column[:, None] * kw + inner[None, :], mask=there, other=0.0)
        value = tl.load(v + wide_row * vr + head * vh + column[:, None] * vw + inner[None, :], mask=there, other=0.0)
        sees = real[:, None] & (column < W)[None, :]
        if seen is not None:
            flags = tl.load(seen + wide_row * sr + width[:, None] * sq + column[None, :], mask=sees, other=0)
            sees = sees & (flags != 0)
        high, total, mixed = _join(high, total, mixed, queries, key, value, sees, steep, PRECISION)
    if SPLITS == 1:
        mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        at = wide_row * our + (mine * ouh + width * ouw)[:, None] + inner[None, :]
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside)
    else:
        group = (split * rows_heads + tl.program_id(0)).to(tl.int64) * (MANY * W) + place
        tl.store(partial + group[:, None] * D + inner[None, :], mixed, mask=inside)
        tl.store(sums + group, high, mask=real)
        tl.store(sums + SPLITS * rows_heads * (MANY * W) + group, total, mask=real)


@triton.jit
def gather(
    partial, sums, out, W, rows_heads, our, ouh, ouw,
    KV: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The parts of a softmax of all splits -> its result."""
    row, head = tl.program_id(0) // KV, tl.program_id(0) % KV
    place, inner = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    real = place < MANY * W
    inside = real[:, None] & (inner < D)[None, :]
    high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for split in tl.static_range(SPLITS):
        group = (split * rows_heads + tl.program_id(0)).to(tl.int64) * (MANY * W) + place
        top = tl.load(sums + group, mask=real, other=-float("inf"))
        part = tl.load(sums + SPLITS * rows_heads * (MANY * W) + group, mask=real, other=0.0)
        both = tl.maximum(high, top)
        base = tl.where(both == -float("inf"), 0.0, both)
        old, new = tl.exp2(high - base), tl.exp2(top - base)
        values = tl.load(partial + group[:, None] * D + inner[None, :], mask=inside, other=0.0)
        mixed = mixed * old[:, None] + values * new[:, None]
        total = total * old + part * new
        high = both
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    at = row.to(tl.int64) * our + ((head * MANY + place // W) * ouh + (place % W) * ouw)[:, None] + inner[None, :]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def move(keys, values, spare_keys, spare_values, ancestors, ends, size, EACH: tl.constexpr, BACK: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """Rows whose ancestor is another one take its contents: into the spare tensors, and, with BACK, from there.

    A row has `size` numbers of each head [H], EACH of them to a column; the first `ends` columns count.
    """
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    source = tl.load(ancestors + row)
    if source == row:
        return
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    real = at < tl.load(ends + row) * EACH
    target = (row.to(tl.int64) * heads + head) * size + at
    if BACK:
        tl.store(keys + target, tl.load(spare_keys + target, mask=real), mask=real)
        tl.store(values + target, tl.load(spare_values + target, mask=real), mask=real)
    else:
        origin = (source.to(tl.int64) * heads + head) * size + at
        tl.store(spare_keys + target, tl.load(keys + origin, mask=real), mask=real)
        tl.store(spare_values + target, tl.load(values + origin, mask=real), mask=real)
