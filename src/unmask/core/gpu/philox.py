"""The numbers of `dice.uniform` in one Triton kernel, bit for bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.core.gpu.device import on

BLOCK = 256


@triton.jit(do_not_specialize=[*range(5, 15)])  # one compilation for all shapes
def _uniform(
    key, slot, column, clock, out, step, purpose, columns, size, k0, k1, s0, s1, c0, c1, CLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    row, col = (place // columns).to(tl.int64), (place % columns).to(tl.int64)
    seed = tl.load(key + row * k0 + col * k1, mask=inside, other=0)
    particle = tl.load(slot + row * s0 + col * s1, mask=inside, other=0)
    where = tl.load(column + row * c0 + col * c1, mask=inside, other=0)
    now = where * 0 + step
    if CLOCK:
        now += tl.load(clock)
    a, b, _, _ = tl.philox_impl(
        particle.to(tl.uint32),
        now.to(tl.uint32),
        where.to(tl.uint32),
        (where * 0 + purpose).to(tl.uint32),
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
        10,
    )
    bits = ((a >> 6).to(tl.int64) << 26) | (b >> 6).to(tl.int64)
    tl.store(out + place, (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16, mask=inside)  # 2^-52


def uniform(key: Tensor, slot: Tensor, step: int | Tensor, column: Tensor, purpose: int) -> Tensor:
    """As `dice.uniform`, for int64 tensors of at most two dimensions. A `step` on the device is read there."""
    spread = torch.broadcast_tensors(key, slot, column)
    shape = spread[0].shape
    key, slot, column = (tensor.reshape((1,) * (2 - len(shape)) + shape) for tensor in spread)
    out = torch.empty(shape, dtype=torch.float64, device=column.device)
    if not out.numel():
        return out
    clock, now = (step, 0) if isinstance(step, Tensor) else (column, step & 0xFFFFFFFF)
    strides = (*key.stride(), *slot.stride(), *column.stride())
    grid = (triton.cdiv(out.numel(), BLOCK),)
    numbers = now, int(purpose), column.shape[1], out.numel(), *strides
    with on(column):
        _uniform[grid](key, slot, column, clock, out, *numbers, CLOCK=isinstance(step, Tensor), BLOCK=BLOCK)
    return out
