"""Rows × a matrix in 4 or 8 bits, in groups of columns: products, and the matrix in floats again.

A group of G columns is G bytes, or G / 2: byte j then holds column j in its lower half, column j + G / 2 in its upper
one. A number is (byte - zero) · scale. Differences are whole numbers up to 256, which every type of floats has exactly,
so that a product rounds its sums only; scales are applied to the sum of a group, in float32.
"""

import triton
import triton.language as tl


@triton.jit
def _half(at, shift, zero, BITS: tl.constexpr, KIND: tl.constexpr):
    """Bytes at these places, without their zero, as floats; of 4 bits the half that `shift` says."""
    found = tl.load(at)
    if BITS == 4:
        found = (found >> shift) & 15
    return (found.to(tl.int16) - zero).to(KIND)


@triton.jit(do_not_specialize=["M"])
def product(
    x, whole, scale, zero, bias, out,  # pointers; without a bias nothing is added
    M, N, K, groups, xe, xm,  # x [E or 1, M, K]: strides of its experts and rows
    BITS: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of out [E, SPLITS, M, N]: the sum over a part of the groups, each part by a program of its own.

    whole [E, N, groups · GROUP · BITS / 8], scale and zero [E, N, groups]. EVEN: K = groups · GROUP.
    """
    half: tl.constexpr = GROUP // 2
    wide: tl.constexpr = GROUP * BITS // 8
    block, tile, part = tl.program_id(1), tl.program_id(0), tl.program_id(2)
    expert, split = part // SPLITS, part % SPLITS
    kind = x.dtype.element_ty
    row, column = block * BLOCK_M + tl.arange(0, BLOCK_M), tile * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, half)
    inside = row < M
    place = expert.to(tl.int64) * N + tl.minimum(column, N - 1)  # past the end the last row again
    left = x + expert.to(tl.int64) * xe + row.to(tl.int64)[:, None] * xm + lane[None, :]
    right = whole + (place * (groups * wide))[None, :] + lane[:, None]
    each = tl.cdiv(groups, SPLITS)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(split * each, tl.minimum(split * each + each, groups)):
        first = group * GROUP
        if EVEN:
            a = tl.load(left + first, mask=inside[:, None], other=0.0)
            b = tl.load(left + first + half, mask=inside[:, None], other=0.0)
        else:
            a = tl.load(left + first, mask=inside[:, None] & (lane < K - first)[None, :], other=0.0)
            b = tl.load(left + first + half, mask=inside[:, None] & (lane < K - first - half)[None, :], other=0.0)
        by, low = tl.load(scale + place * groups + group), tl.load(zero + place * groups + group)[None, :]
        at = right + group * wide
        lower = _half(at, 0, low, BITS, kind)
        upper = _half(at if BITS == 4 else at + half, 4, low, BITS, kind)
        sums = tl.dot(a, lower, input_precision=PRECISION)
        sums = tl.dot(b, upper, sums, input_precision=PRECISION)
        total += sums * by[None, :]
    good = inside[:, None] & (column < N)[None, :]
    if bias is not None:
        total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    at = out + (part.to(tl.int64) * M + row[:, None]) * N + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=good)


@triton.jit(do_not_specialize=["size"])
def gather(partial, bias, out, size, N, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of the parts [E, SPLITS, M, N], whose size is M · N, and the bias -> out [E, M, N]."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.program_id(1).to(tl.int64)
    inside = lane < size
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + (expert * SPLITS + split) * size + lane, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + lane % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + expert * size + lane, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def unpack(whole, scale, zero, out, K, groups, BITS: tl.constexpr, GROUP: tl.constexpr):
    """One group of one row -> floats in out [rows, K]."""
    half: tl.constexpr = GROUP // 2
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, half)
    at = whole + (row * groups + group) * (GROUP * BITS // 8) + lane
    by, low = tl.load(scale + row * groups + group), tl.load(zero + row * groups + group)
    lower = _half(at, 0, low, BITS, tl.float32) * by
    upper = _half(at if BITS == 4 else at + half, 4, low, BITS, tl.float32) * by
    first = group * GROUP + lane
    kind = out.dtype.element_ty
    tl.store(out + row * K + first, lower.to(kind), mask=first < K)
    tl.store(out + row * K + first + half, upper.to(kind), mask=first + half < K)
