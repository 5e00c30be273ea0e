"""Logits -> high, total, slope, second, best: the numbers that two sets of logits can be joined by.

For a set of logits x: high = max x, total = Σ e, slope = Σ e·z with z = (x - high)·scale and e = 2^z, second = the
runner-up, best = the id of high. `scale` is log2(e) / temperature.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
NONE: tl.constexpr = tl.constexpr(float("-inf"))
FAINT: tl.constexpr = tl.constexpr(-1000.0)  # 2^FAINT is 0, and 0 · FAINT is too
FAR: tl.constexpr = tl.constexpr(2147483647)


@triton.jit
def plan(asked, tiles, PROGRAMS: tl.constexpr, WAVES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Blocks of rows, splits of the vocabulary, tiles in a split: so that the last wave of programs is full, too."""
    blocks = tl.cdiv(asked, BLOCK_M)
    least = tl.cdiv(tiles, tl.maximum(PROGRAMS * WAVES // tl.maximum(blocks, 1), 1))
    sizes = least + tl.arange(0, 16)
    costs = tl.cdiv(blocks * tl.cdiv(tiles, sizes), PROGRAMS) * sizes
    size = tl.min(tl.where(costs == tl.min(costs, 0), sizes, FAR), 0)
    return blocks, tl.cdiv(tiles, size), size


@triton.jit
def measure(x, columns, scale):
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
def meet(high, total, slope, second, best, high2, total2, slope2, second2, best2, scale):
    """The numbers of two sets of logits together, the ids of the first below those of the second."""
    top = tl.maximum(high, high2)
    base = tl.where(top == NONE, 0.0, top)
    fade, fade2 = tl.maximum((high - base) * scale, FAINT), tl.maximum((high2 - base) * scale, FAINT)
    share, share2 = tl.exp2(fade), tl.exp2(fade2)
    slope = share * (slope + fade * total) + share2 * (slope2 + fade2 * total2)
    second = tl.maximum(tl.minimum(high, high2), tl.maximum(second, second2))
    return top, share * total + share2 * total2, slope, second, tl.where(high2 > high, best2, best)


@triton.jit
def amount(x, scale):
    """high and total of each row of a tile."""
    high = tl.max(x, 1)
    base = tl.where(high == NONE, 0.0, high)
    return high, tl.sum(tl.exp2((x - base[:, None]) * scale), 1)


@triton.jit
def heap(high, total, high2, total2, scale):
    """high and total of two sets of logits together."""
    top = tl.maximum(high, high2)
    base = tl.where(top == NONE, 0.0, top)
    share, share2 = tl.exp2((high - base) * scale), tl.exp2((high2 - base) * scale)
    return top, share * total + share2 * total2
