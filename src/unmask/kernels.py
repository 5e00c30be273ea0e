"""Hidden rows × head -> the numbers of `read`, as Triton kernels that keep every tile of logits in registers.

`sweep` takes blocks of rows over tiles of the vocabulary and leaves partial results, `merge` joins them, `pick` draws a
token. Rows are named by `index` (positions asked, in order) and `count`, both on the device. For a set of logits x:
high = max x, total = Σ e, slope = Σ e·z with z = (x - high)·scale and e = 2^z, second = the runner-up, best = the id of
high. `scale` is log2(e) / temperature. Arguments that change from call to call are not specialised: a compilation
takes seconds.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
NONE: tl.constexpr = tl.constexpr(float("-inf"))
NAN: tl.constexpr = tl.constexpr(float("nan"))
FAINT: tl.constexpr = tl.constexpr(-1000.0)  # 2^FAINT is 0, and 0 · FAINT is too
FAR: tl.constexpr = tl.constexpr(2147483647)


@triton.jit
def _plan(asked, tiles, PROGRAMS: tl.constexpr, WAVES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Blocks of rows, splits of the vocabulary, tiles in a split: so that the last wave of programs is full, too."""
    blocks = tl.cdiv(asked, BLOCK_M)
    least = tl.cdiv(tiles, tl.maximum(PROGRAMS * WAVES // tl.maximum(blocks, 1), 1))
    sizes = least + tl.arange(0, 16)
    costs = tl.cdiv(blocks * tl.cdiv(tiles, sizes), PROGRAMS) * sizes
    size = tl.min(tl.where(costs == tl.min(costs, 0), sizes, FAR), 0)
    return blocks, tl.cdiv(tiles, size), size


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
def _measure(x, columns, scale):
    """high, total, slope, second, best of each row of a tile, and its e."""
    high = tl.max(x, 1)
    best = tl.min(tl.where(x == high[:, None], columns[None, :], FAR), 1)
    second = tl.max(tl.where(columns[None, :] == best[:, None], NONE, x), 1)
    base = tl.where(high == NONE, 0.0, high)
    z = (x - base[:, None]) * scale
    e = tl.exp2(z)
    slope = tl.sum(e * tl.maximum(z, FAINT), 1)
    return high, tl.sum(e, 1), slope, second, best, e


@triton.jit
def _meet(high, total, slope, second, best, high2, total2, slope2, second2, best2, scale):
    """The numbers of two sets of logits together, the ids of the first below those of the second."""
    top = tl.maximum(high, high2)
    base = tl.where(top == NONE, 0.0, top)
    fade, fade2 = tl.maximum((high - base) * scale, FAINT), tl.maximum((high2 - base) * scale, FAINT)
    share, share2 = tl.exp2(fade), tl.exp2(fade2)
    slope = share * (slope + fade * total) + share2 * (slope2 + fade2 * total2)
    second = tl.maximum(tl.minimum(high, high2), tl.maximum(second, second2))
    return top, share * total + share2 * total2, slope, second, tl.where(high2 > high, best2, best)


@triton.jit
def _mass(x, scale):
    """high and total of each row of a tile."""
    high = tl.max(x, 1)
    base = tl.where(high == NONE, 0.0, high)
    return high, tl.sum(tl.exp2((x - base[:, None]) * scale), 1)


@triton.jit
def _heap(high, total, high2, total2, scale):
    """high and total of two sets of logits together."""
    top = tl.maximum(high, high2)
    base = tl.where(top == NONE, 0.0, top)
    share, share2 = tl.exp2((high - base) * scale), tl.exp2((high2 - base) * scale)
    return top, share * total + share2 * total2


@triton.jit(do_not_specialize=["L", "items"])
def sweep(
    hidden, weight, extra, ban, index, count, partial, ids, mass, peaks,  # pointers
    L, D, V, hb, hl, hd, wv, wd, items, scale,
    DRAW: tl.constexpr, SAME: tl.constexpr,
    EVEN: tl.constexpr, FULL: tl.constexpr, PRECISION: tl.constexpr, PROGRAMS: tl.constexpr, WAVES: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """The numbers of every block of rows in every split of the vocabulary: `partial` [4 or 6, items, BLOCK_M], `ids`.

    `extra` [V] is added to the logits. DRAW: the numbers are those of the distribution drawn from, under `ban` [V] and
    `scale`, with high and total of the model's own beside them, or of the banned ids only where nothing else differs
    (SAME). The totals of every PIECE columns go to `mass`, and what they are relative to to `peaks`, by row.
    """
    asked = tl.load(count).to(tl.int32)
    tiles = tl.cdiv(V, BLOCK_N)
    blocks, splits, size = _plan(asked, tiles, PROGRAMS, WAVES, BLOCK_M)
    lanes = tl.arange(0, BLOCK_M)
    for item in range(tl.program_id(0), blocks * splits, PROGRAMS):
        block, split = _place(item, blocks, splits, GROUP)
        place = block * BLOCK_M + lanes
        position = tl.load(index + place, mask=place < asked, other=0)
        rows = hidden + (position // L) * hb + (position % L) * hl
        high = tl.full((BLOCK_M,), NONE, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        slope = tl.zeros((BLOCK_M,), tl.float32)
        second = tl.full((BLOCK_M,), NONE, tl.float32)
        best = tl.zeros((BLOCK_M,), tl.int32)
        own = tl.full((BLOCK_M,), NONE, tl.float32)
        owned = tl.zeros((BLOCK_M,), tl.float32)
        for tile in range(split * size, tl.minimum(split * size + size, tiles)):
            columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            x = _dot(rows, weight, columns, D, V, hd, wv, wd, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION)
            if extra is not None:
                x += tl.load(extra + columns, mask=columns < V, other=NONE)[None, :]
            elif not FULL:
                x += tl.where(columns < V, 0.0, NONE)[None, :]
            if DRAW and not SAME:
                own2, owned2 = _mass(x, LOG2E)
                own, owned = _heap(own, owned, own2, owned2, LOG2E)
            if ban is not None:
                out = tl.load(ban + columns, mask=columns < V, other=0.0)
                if SAME:  # noqa: SIM102 (one is known when compiling)
                    if tl.min(out, 0) < 0.0:
                        own2, owned2 = _mass(tl.where(out[None, :] < 0.0, x, NONE), LOG2E)
                        own, owned = _heap(own, owned, own2, owned2, LOG2E)
                x += out[None, :]
            high2, total2, slope2, second2, best2, e = _measure(x, columns, scale)
            if mass is not None:
                pieces: tl.constexpr = BLOCK_N // PIECE
                sums = tl.sum(tl.reshape(e, (BLOCK_M, pieces, PIECE)), 2)
                at = place.to(tl.int64)[:, None] * (tiles * pieces) + tile * pieces + tl.arange(0, pieces)[None, :]
                tl.store(mass + at, sums, mask=(place < asked)[:, None])
                tl.store(peaks + place.to(tl.int64) * tiles + tile, high2, mask=place < asked)
            high, total, slope, second, best = _meet(
                high, total, slope, second, best, high2, total2, slope2, second2, best2, scale
            )
        at = (block * splits + split) * BLOCK_M + lanes
        stride = items * BLOCK_M
        tl.store(partial + at, high)
        tl.store(partial + stride + at, total)
        tl.store(partial + 2 * stride + at, slope)
        tl.store(partial + 3 * stride + at, second)
        tl.store(ids + at, best)
        if DRAW:
            tl.store(partial + 4 * stride + at, own)
            tl.store(partial + 5 * stride + at, owned)


@triton.jit
def _gather(partial, ids, stride, at, inside, scale):
    """The numbers of some splits [splits, rows] together, by row."""
    highs = tl.load(partial + at, mask=inside, other=NONE)
    totals = tl.load(partial + stride + at, mask=inside, other=0.0)
    slopes = tl.load(partial + 2 * stride + at, mask=inside, other=0.0)
    seconds = tl.load(partial + 3 * stride + at, mask=inside, other=NONE)
    bests = tl.load(ids + at, mask=inside, other=FAR)
    high = tl.max(highs, 0)
    base = tl.where(high == NONE, 0.0, high)
    best = tl.min(tl.where(highs == high[None, :], bests, FAR), 0)
    second = tl.max(tl.where(bests == best[None, :], seconds, highs), 0)
    fade = tl.maximum((highs - base[None, :]) * scale, FAINT)
    share = tl.exp2(fade)
    return high, tl.sum(share * totals, 0), tl.sum(share * (slopes + fade * totals), 0), second, best


@triton.jit
def _standing(hidden, weight, extra, position, token, known, L, D, hb, hl, hd, wv, wd,
              ROWS: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """The logit of one token for each row, where it has one."""
    inner = tl.arange(0, BLOCK_D)
    left = hidden + ((position // L) * hb + (position % L) * hl)[:, None] + inner[None, :] * hd
    right = weight + (token * wv)[:, None] + inner[None, :] * wd
    sums = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for k in range(0, D, BLOCK_D):
        inside = known[:, None] & (inner[None, :] < D - k)
        x = tl.load(left + k * hd, mask=inside, other=0.0).to(tl.float32)
        sums += x * tl.load(right + k * wd, mask=inside, other=0.0).to(tl.float32)
    scores = tl.sum(sums, 1)
    if extra is not None:
        scores += tl.load(extra + token, mask=known, other=0.0)
    return scores


@triton.jit(do_not_specialize=["L", "items", "places", "positions"])
def merge(
    hidden, weight, extra, index, count, tokens, partial, ids, best_out, out, bases,  # pointers
    L, D, V, hb, hl, hd, wv, wd, items, places, positions, scale,
    SAME: tl.constexpr, PROGRAMS: tl.constexpr, WAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Join the splits; write the fields of Raw to `out` [5, positions], or without `tokens` those of Drawn.

    `bases` [4, places] gets high and total, of the distribution drawn from and of the model's own, by row.
    """
    asked = tl.load(count).to(tl.int32)
    start = tl.program_id(0) * ROWS
    if start >= asked:
        return
    _, splits, _ = _plan(asked, tl.cdiv(V, BLOCK_N), PROGRAMS, WAVES, BLOCK_M)
    place = start + tl.arange(0, ROWS)
    here = place < asked
    stride = items * BLOCK_M
    high = tl.full((ROWS,), NONE, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    slope = tl.zeros((ROWS,), tl.float32)
    second = tl.full((ROWS,), NONE, tl.float32)
    best = tl.zeros((ROWS,), tl.int32)
    own = tl.full((ROWS,), NONE, tl.float32)
    owned = tl.zeros((ROWS,), tl.float32)
    for first in range(0, splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        at = (start // BLOCK_M * splits + split)[:, None] * BLOCK_M + (place % BLOCK_M)[None, :]
        inside = (split < splits)[:, None] & here[None, :]
        high2, total2, slope2, second2, best2 = _gather(partial, ids, stride, at, inside, scale)
        high, total, slope, second, best = _meet(
            high, total, slope, second, best, high2, total2, slope2, second2, best2, scale
        )
        if tokens is None:
            owns = tl.load(partial + 4 * stride + at, mask=inside, other=NONE)
            parts = tl.load(partial + 5 * stride + at, mask=inside, other=0.0)
            top = tl.max(owns, 0)
            base = tl.where(top == NONE, 0.0, top)
            own, owned = _heap(own, owned, top, tl.sum(parts * tl.exp2((owns - base[None, :]) * LOG2E), 0), LOG2E)

    bits = tl.where(total > 0.0, tl.log2(total), NAN)  # where there is no distribution, there are no logs
    entropy = (bits - slope / total) * LN2
    entropy = tl.where(entropy < 0.0, 0.0, entropy)
    second = ((second - high) * scale - bits) * LN2
    best = tl.minimum(best, V - 1)
    position = tl.load(index + place, mask=here, other=0)
    tl.store(best_out + position, best.to(tl.int64), mask=here)
    if tokens is None:
        if SAME:
            own, owned = _heap(high, total, own, owned, LOG2E)
        chance = high - own - tl.log2(owned) * LN2
        tl.store(out + position, chance, mask=here)
        tl.store(out + positions + position, -bits * LN2, mask=here)
        tl.store(out + 2 * positions + position, entropy, mask=here)
        if bases is not None:
            tl.store(bases + place, high, mask=here)
            tl.store(bases + places + place, total, mask=here)
            tl.store(bases + 2 * places + place, own, mask=here)
            tl.store(bases + 3 * places + place, owned, mask=here)
    else:
        token = tl.load(tokens + position, mask=here, other=0)
        known = here & (token < V)
        stands = _standing(hidden, weight, extra, position, token, known, L, D, hb, hl, hd, wv, wd, ROWS, BLOCK_D)
        stands = tl.where(known, stands - high - bits * LN2, NONE)
        tl.store(out + position, entropy, mask=here)
        tl.store(out + positions + position, high + tl.log2(total) * LN2, mask=here)
        tl.store(out + 2 * positions + position, stands, mask=here)
    tl.store(out + 3 * positions + position, -bits * LN2, mask=here)
    tl.store(out + 4 * positions + position, second, mask=here)


@triton.jit(do_not_specialize=["L", "places", "positions"])
def pick(
    hidden, weight, extra, ban, index, count, dice, mass, peaks, bases, token_out, out,  # pointers
    L, D, V, hb, hl, hd, wv, wd, places, positions, scale,
    BLOCK_N: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One row: the piece of the vocabulary by inverse CDF over `mass`, then the token within it."""
    place = tl.program_id(0).to(tl.int64)
    if place >= tl.load(count):
        return
    position = tl.load(index + place)
    per: tl.constexpr = BLOCK_N // PIECE
    tiles = tl.cdiv(V, BLOCK_N)
    piece = tl.arange(0, PIECES)
    inside = piece < tiles * per
    share = tl.load(mass + place * (tiles * per) + piece, mask=inside, other=0.0)
    peak = tl.load(peaks + place * tiles + piece // per, mask=inside, other=NONE)
    high, total = tl.load(bases + place), tl.load(bases + places + place)
    own, owned = tl.load(bases + 2 * places + place), tl.load(bases + 3 * places + place)
    share = share.to(tl.float64) * tl.exp2(tl.maximum((peak - high) * scale, FAINT)).to(tl.float64)
    goal = tl.load(dice + position) * tl.sum(share, 0)
    last = tl.max(tl.where(share > 0.0, piece, 0), 0)
    found = tl.minimum(tl.min(tl.where(tl.cumsum(share, 0) >= goal, piece, PIECES), 0), last)
    before = tl.sum(tl.where(piece < found, share, 0.0), 0)
    part = (goal - before) / tl.sum(tl.where(piece == found, share, 0.0), 0)  # of the piece

    lane = tl.arange(0, PIECE)
    columns = found * PIECE + lane
    inner = tl.arange(0, BLOCK_D)
    left = hidden + (position // L) * hb + (position % L) * hl + inner * hd
    right = weight + tl.minimum(columns, V - 1).to(tl.int64)[:, None] * wv + inner[None, :] * wd
    sums = tl.zeros((PIECE, BLOCK_D), tl.float32)
    for k in range(0, D, BLOCK_D):
        rest = inner < D - k
        x = tl.load(left + k * hd, mask=rest, other=0.0).to(tl.float32)
        sums += x[None, :] * tl.load(right + k * wd, mask=rest[None, :], other=0.0).to(tl.float32)
    logits = tl.sum(sums, 1)
    if extra is not None:
        logits += tl.load(extra + columns, mask=columns < V, other=0.0)
    kept = columns < V
    if ban is not None:
        kept = kept & (tl.load(ban + columns, mask=columns < V, other=0.0) == 0.0)
    allowed = tl.where(kept, logits, NONE)
    chance = tl.exp2((allowed - tl.max(allowed, 0)) * scale).to(tl.float64)
    last = tl.max(tl.where(chance > 0.0, lane, 0), 0)
    reached = tl.cumsum(chance, 0)
    chosen = tl.minimum(tl.min(tl.where(reached >= part * tl.sum(chance, 0), lane, PIECE), 0), last)
    logit = tl.sum(tl.where(lane == chosen, logits, 0.0), 0)
    bits = tl.where(total > 0.0, tl.log2(total), NAN)
    tl.store(token_out + position, tl.minimum(found * PIECE + chosen, V - 1).to(tl.int64))
    tl.store(out + position, logit - own - tl.log2(owned) * LN2)
    tl.store(out + positions + position, ((logit - high) * scale - bits) * LN2)
