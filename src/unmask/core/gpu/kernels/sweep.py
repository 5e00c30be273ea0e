"""Rows × tiles of the vocabulary -> partial numbers of every block of rows in every split of the vocabulary."""

import triton
import triton.language as tl

from unmask.core.gpu.kernels.numbers import LOG2E, NONE, amount, heap, measure, meet, plan


@triton.jit
def _place(item, blocks, splits, GROUP: tl.constexpr):
    """Items in an order in which neighbours share weights, and groups of blocks stay in the cache."""
    first = item // (GROUP * splits) * GROUP
    within = item % (GROUP * splits)
    height = tl.minimum(blocks - first, GROUP)
    return first + within % height, within // height


@triton.jit
def _dot(rows, weight, columns, D, V, hd, wv, wd, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
         BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Logits of one tile, [BLOCK_M, BLOCK_N]; past the vocabulary those of the last id."""
    inner = tl.arange(0, BLOCK_K)
    left = rows[:, None] + inner[None, :] * hd
    right = weight + tl.minimum(columns, V - 1).to(tl.int64)[None, :] * wv + inner[:, None] * wd
    scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, D, BLOCK_K):
        if EVEN:
            x, w = tl.load(left), tl.load(right)
        else:
            x = tl.load(left, mask=inner[None, :] < D - k, other=0.0)
            w = tl.load(right, mask=inner[:, None] < D - k, other=0.0)
        if PRECISION == "ieee":  # all in float32
            x, w = x.to(tl.float32), w.to(tl.float32)
        scores = tl.dot(x, w, scores, input_precision=PRECISION)
        left += BLOCK_K * hd
        right += BLOCK_K * wd
    return scores


@triton.jit
def _account(
    x, tile, place, inside, extra, ban, table, kind, entry, mass, peaks, high, total, slope, second, best, own, owned,
    V, C, tiles, scale,
    OWN: tl.constexpr, FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """The numbers so far and those of the logits x of one more tile."""
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    if extra is not None:
        x += tl.load(extra + columns, mask=columns < V, other=NONE)[None, :]
    elif not FULL:
        x += tl.where(columns < V, 0.0, NONE)[None, :]
    if OWN:
        own2, owned2 = amount(x, LOG2E)
        own, owned = heap(own, owned, own2, owned2, LOG2E)
    if ban is not None:
        x += tl.load(ban + columns, mask=columns < V, other=0.0)[None, :]
    if table is not None:
        at = entry[:, None] * C + tl.load(kind + columns, mask=columns < V, other=0)[None, :]
        x = tl.where(tl.load(table + at, mask=inside[:, None] & (columns < V)[None, :], other=0) != 0, x, NONE)
    high2, total2, slope2, second2, best2, e = measure(x, columns, scale)
    if mass is not None:
        pieces: tl.constexpr = BLOCK_N // PIECE
        sums = tl.sum(tl.reshape(e, (BLOCK_M, pieces, PIECE)), 2)
        row = place.to(tl.int64)
        at = row[:, None] * (tiles * pieces) + tile * pieces + tl.arange(0, pieces)[None, :]
        tl.store(mass + at, sums, mask=inside[:, None])
        tl.store(peaks + row * tiles + tile, high2, mask=inside)
    high, total, slope, second, best = meet(
        high, total, slope, second, best, high2, total2, slope2, second2, best2, scale
    )
    return high, total, slope, second, best, own, owned


@triton.jit(do_not_specialize=["index", "count", "L", "C", "items"])
def sweep(
    hidden, weight, extra, ban, row, table, kind, index, count, partial, ids, mass, peaks,  # pointers
    L, D, V, hb, hl, hd, wv, wd, C, items, scale,
    OWN: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
    PRECISION: tl.constexpr, PROGRAMS: tl.constexpr, WAVES: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """The numbers of every block of rows in every split of the vocabulary: `partial` [4 or 6, items, BLOCK_M], `ids`.

    `extra` [V] is added to the logits, and then `ban` [V]. `table` [M, C]: 0 at what may not be drawn, its row for each
    position in `row`, its column for each token in `kind`. OWN: high and total before bans, the table and `scale` come
    after the numbers. The totals of every PIECE columns go to `mass`, and what they are relative to to `peaks`, by row.
    """
    asked = tl.load(count).to(tl.int32)
    tiles = tl.cdiv(V, BLOCK_N)
    blocks, splits, size = plan(asked, tiles, PROGRAMS, WAVES, BLOCK_M)
    lanes = tl.arange(0, BLOCK_M)
    for item in range(tl.program_id(0), blocks * splits, PROGRAMS):
        block, split = _place(item, blocks, splits, GROUP)
        place = block * BLOCK_M + lanes
        inside = place < asked
        position = tl.load(index + place, mask=inside, other=0)
        entry = position if table is None else tl.load(row + position, mask=inside, other=0)
        rows = hidden + (position // L) * hb + (position % L) * hl
        high = tl.full((BLOCK_M,), NONE, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        slope = tl.zeros((BLOCK_M,), tl.float32)
        second = tl.full((BLOCK_M,), NONE, tl.float32)
        best = tl.zeros((BLOCK_M,), tl.int32)
        own = tl.full((BLOCK_M,), NONE, tl.float32)
        owned = tl.zeros((BLOCK_M,), tl.float32)
        first, last = split * size, tl.minimum(split * size + size, tiles)
        for tile in range(first, last):
            columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            x = _dot(rows, weight, columns, D, V, hd, wv, wd, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION)
            high, total, slope, second, best, own, owned = _account(
                x, tile, place, inside, extra, ban, table, kind, entry, mass, peaks, high, total, slope, second, best,
                own, owned, V, C, tiles, scale, OWN, FULL, BLOCK_M, BLOCK_N, PIECE,
            )  # fmt: skip
        at = (block * splits + split) * BLOCK_M + lanes
        stride = items * BLOCK_M
        tl.store(partial + at, high)
        tl.store(partial + stride + at, total)
        tl.store(partial + 2 * stride + at, slope)
        tl.store(partial + 3 * stride + at, second)
        tl.store(ids + at, best)
        if OWN:
            tl.store(partial + 4 * stride + at, own)
            tl.store(partial + 5 * stride + at, owned)
