"""(key, slot, step, column, purpose) -> uniform numbers in (0, 1): the only randomness there is.

Philox 4x32-10 (Salmon et al. 2011) in integer operations. A number depends on what it is for and on nothing
else, so it has the same bits on every device, alone or in a batch, whatever else was drawn before.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from unmask.core.gpu.device import compiled

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF
_CONSTANTS = tuple(np.asarray([WORD, 32, 6, 26], np.uint64))
_FACTORS, _KEY_STEPS = tuple(np.asarray(MULTIPLIERS, np.uint64)), tuple(np.asarray(KEY_STEPS, np.uint64))


class Purpose(enum.IntEnum):
    """What a number is for. Two purposes never share bits."""

    TOKEN = 0  # which token is drawn
    ORDER = 1  # which position comes first in a random order
    SELECT = 2  # the selection temperature's noise
    RESAMPLE = 3  # which particle survives
    REOPEN = 5  # which positions a copy masks again
    NOISE = 4  # which positions of a known text are masked, and how many
    LOOK = 6  # into which half of a finished answer a position falls
    REPAIR = 7  # which token is drawn where several written at once break a constraint


def _multiply(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 × 32 bit product, without leaving int64."""
    high, low = constant >> 16, constant & 0xFFFF
    return ((word * high + ((word * low) >> 16)) >> 16) & WORD, (word * constant) & WORD


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four counter words and two key words (int64 holding 32 bits) -> four random words of 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], c0)
        high1, low1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def keys(seeds: Sequence[int]) -> Tensor:  # [B] int64
    """Seeds, which may be any integers, folded into 64 bits."""
    return torch.tensor([(seed + 2**63) % 2**64 - 2**63 for seed in seeds])


def uniform(key: Tensor, slot: Tensor, step: int | Tensor, column: Tensor, purpose: Purpose) -> Tensor:
    """One float64 in (0, 1) per element; `key`, `slot` and `column` (int64) broadcast. `step` may be a 0-d tensor."""
    if torch.compiler.is_compiling():  # a compiler makes one kernel by itself
        return uniform_reference(key, slot, step, column, purpose)
    if compiled(key, slot, column) and max(key.dim(), slot.dim(), column.dim()) <= 2:
        from unmask.core.gpu.philox import uniform as fused

        return fused(key, slot, step, column, purpose)
    if key.is_cpu and slot.is_cpu and column.is_cpu:
        return uniform_on_cpu(key, slot, int(step), column, purpose)
    return uniform_reference(key, slot, step, column, purpose)


def uniform_on_cpu(key: Tensor, slot: Tensor, step: int, column: Tensor, purpose: Purpose) -> Tensor:
    """`uniform` in 64-bit operations of NumPy: the same bits in a third of the passes, each with less overhead."""
    word, half, rest, second = _CONSTANTS
    (first0, first1), (more0, more1) = _FACTORS, _KEY_STEPS
    keys, slots, columns = (tensor.numpy().view(np.uint64) for tensor in (key, slot, column))
    k0, k1 = keys & word, keys >> half
    c0, c1, c2, c3 = slots & word, np.asarray(step & WORD, np.uint64), columns & word, np.asarray(purpose, np.uint64)
    for _ in range(ROUNDS):
        one, two = c0 * first0, c2 * first1
        c0, c1, c2, c3 = (two >> half) ^ c1 ^ k0, two & word, (one >> half) ^ c3 ^ k1, one & word
        k0, k1 = (k0 + more0) & word, (k1 + more1) & word
    bits = (c0 >> rest) << second | (c1 >> rest)
    return torch.as_tensor((bits.astype(np.float64) + 0.5) * 2.0**-52)


def uniform_reference(key: Tensor, slot: Tensor, step: int | Tensor, column: Tensor, purpose: Purpose) -> Tensor:
    """`uniform` in tensor operations, on any device."""
    step_word, purpose_word = torch.zeros_like(column) + (step & WORD), torch.full_like(column, int(purpose))
    a, b, _, _ = philox((slot & WORD, step_word, column & WORD, purpose_word), (key & WORD, (key >> 32) & WORD))
    # 52 bits and a half: never 0, never 1, exact in float64.
    return (((a >> 6) << 26 | (b >> 6)).double() + 0.5) * 2.0**-52


def gumbel(key: Tensor, slot: Tensor, step: int | Tensor, column: Tensor, purpose: Purpose) -> Tensor:
    """Standard Gumbel noise (float64) from `uniform`."""
    return -torch.log(-torch.log(uniform(key, slot, step, column, purpose)))


def words(count: int, device: torch.device) -> Tensor:  # [count] int64
    """Fixed odd 64-bit numbers, for hashing rows of tokens; a compiled step holds them."""
    return _words(count, device)


@lru_cache(maxsize=8)
def _words(count: int, device: torch.device) -> Tensor:
    column = torch.arange(count, device=device)
    zero = torch.zeros_like(column)
    a, b, _, _ = philox((column, zero, zero, zero), (zero, zero))
    return (a << 32) | b | 1
