"""Partial numbers -> the fields of Beliefs and Drawn (merge), and a token for each row (pick)."""

import triton
import triton.language as tl

from unmask.core.gpu.kernels.numbers import FAINT, FAR, LN2, LOG2E, NONE, heap, meet, plan


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
def _logs(high, total, slope, second, scale):
    """The base-2 logarithm of the total, the entropy, and the log-probability of the runner-up."""
    bits = tl.where(total > 0.0, tl.log2(total), float("nan"))  # where there is no distribution, there are no logs
    entropy = (bits - slope / total) * LN2
    return bits, tl.where(entropy < 0.0, 0.0, entropy), ((second - high) * scale - bits) * LN2


@triton.jit
def _logit(hidden, weight, extra, position, token, known, L, D, hb, hl, hd, wv, wd,
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


@triton.jit(do_not_specialize=["index", "count", "L", "items", "places", "positions", "bans"])
def merge(
    hidden, weight, extra, banned, index, count, tokens, partial, ids, best_out, out, bases,  # pointers
    L, D, V, hb, hl, hd, wv, wd, items, places, positions, bans, scale,
    OWN: tl.constexpr, PROGRAMS: tl.constexpr, WAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Join the splits; write the fields of Beliefs to `out` [5, positions], or without `tokens` those of Drawn.

    Without OWN the model's own distribution differs from the one drawn from by the ids in `banned` [bans] alone. With
    `tokens` and banned ids `out` is [8, positions]: entropy, top and second of the one drawn from come last.
    `bases` [4, places] gets high and total, of the distribution drawn from and of the model's own, by row.
    """
    asked = tl.load(count).to(tl.int32)
    start = tl.program_id(0) * ROWS
    if start >= asked:
        return
    _, splits, _ = plan(asked, tl.cdiv(V, BLOCK_N), PROGRAMS, WAVES, BLOCK_M)
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
        high, total, slope, second, best = meet(
            high, total, slope, second, best, high2, total2, slope2, second2, best2, scale
        )
        if OWN:
            owns = tl.load(partial + 4 * stride + at, mask=inside, other=NONE)
            parts = tl.load(partial + 5 * stride + at, mask=inside, other=0.0)
            top = tl.max(owns, 0)
            base = tl.where(top == NONE, 0.0, top)
            own, owned = heap(own, owned, top, tl.sum(parts * tl.exp2((owns - base[None, :]) * LOG2E), 0), LOG2E)

    position = tl.load(index + place, mask=here, other=0)
    bits, entropy, runner = _logs(high, total, slope, second, scale)
    if bases is not None:
        tl.store(bases + place, high, mask=here)
        tl.store(bases + places + place, total, mask=here)
    if tokens is None:
        if not OWN:
            own, owned = high, total
            if banned is not None:
                for i in range(bans):
                    token = tl.load(banned + i) + position * 0
                    x = _logit(hidden, weight, extra, position, token, here, L, D, hb, hl, hd, wv, wd, ROWS, BLOCK_D)
                    own, owned = heap(own, owned, x, tl.full((ROWS,), 1.0, tl.float32), LOG2E)
        chance = high - own - tl.log2(owned) * LN2
        tl.store(out + position, chance, mask=here)
        tl.store(out + positions + position, -bits * LN2, mask=here)
        tl.store(out + 2 * positions + position, entropy, mask=here)
    else:
        if banned is not None:
            tl.store(out + 5 * positions + position, entropy, mask=here)
            tl.store(out + 6 * positions + position, -bits * LN2, mask=here)
            tl.store(out + 7 * positions + position, runner, mask=here)
            for i in range(bans):
                token = tl.load(banned + i) + position * 0
                x = _logit(hidden, weight, extra, position, token, here, L, D, hb, hl, hd, wv, wd, ROWS, BLOCK_D)
                tied = tl.where(x == high, tl.minimum(best, token.to(tl.int32)), best)  # the lowest id on ties
                high, total, slope, second, best = meet(
                    high, total, slope, second, tied, x, tl.full((ROWS,), 1.0, tl.float32),
                    tl.zeros((ROWS,), tl.float32), tl.full((ROWS,), NONE, tl.float32), token.to(tl.int32), scale
                )  # fmt: skip
            bits, entropy, runner = _logs(high, total, slope, second, scale)
        own, owned = high, total
        token = tl.load(tokens + position, mask=here, other=0)
        known = here & (token < V)
        stands = _logit(hidden, weight, extra, position, token, known, L, D, hb, hl, hd, wv, wd, ROWS, BLOCK_D)
        stands = tl.where(known, stands - high - bits * LN2, NONE)
        tl.store(out + position, entropy, mask=here)
        tl.store(out + positions + position, high + tl.log2(total) * LN2, mask=here)
        tl.store(out + 2 * positions + position, stands, mask=here)
    if bases is not None:
        tl.store(bases + 2 * places + place, own, mask=here)
        tl.store(bases + 3 * places + place, owned, mask=here)
    tl.store(best_out + position, tl.minimum(best, V - 1).to(tl.int64), mask=here)
    tl.store(out + 3 * positions + position, -bits * LN2, mask=here)
    tl.store(out + 4 * positions + position, runner, mask=here)


@triton.jit(do_not_specialize=["index", "count", "L", "C", "places", "positions"])
def pick(
    hidden, weight, extra, row, table, kind, index, count, dice, slot, mass, peaks, bases, token_out, out,  # pointers
    L, D, V, hb, hl, hd, wv, wd, C, places, positions, scale,
    BLOCK_N: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One row: the piece of the vocabulary by inverse CDF over `mass`, then the token within it.

    `slot` [positions]: the row of a position in `mass`, `peaks` and `bases`, if it is not its place here. `row`,
    `table` and `kind` are those of the sweep.
    """
    place = tl.program_id(0).to(tl.int64)
    if place >= tl.load(count):
        return
    position = tl.load(index + place)
    if slot is not None:
        place = tl.load(slot + position).to(tl.int64)
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
    free = columns < V
    if table is not None:
        column = tl.load(kind + columns, mask=free, other=0)
        free = tl.load(table + tl.load(row + position) * C + column, mask=free, other=0) != 0
    logits = tl.where(free, logits, NONE)
    chance = tl.exp2((logits - tl.max(logits, 0)) * scale).to(tl.float64)
    last = tl.max(tl.where(chance > 0.0, lane, 0), 0)
    reached = tl.cumsum(chance, 0)
    chosen = tl.minimum(tl.min(tl.where(reached >= part * tl.sum(chance, 0), lane, PIECE), 0), last)
    logit = tl.sum(tl.where(lane == chosen, logits, 0.0), 0)
    bits = tl.where(total > 0.0, tl.log2(total), float("nan"))
    tl.store(token_out + position, tl.minimum(found * PIECE + chosen, V - 1).to(tl.int64))
    tl.store(out + position, logit - own - tl.log2(owned) * LN2)
    tl.store(out + positions + position, ((logit - high) * scale - bits) * LN2)
