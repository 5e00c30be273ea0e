"""Clean tokens × diffusion time -> masked tokens and the weight of their loss: forward process and NELBO.

A token is masked with probability 1 - α(t). The NELBO is ∫ w(t) E[Σ -log p(x | z_t)] dt over the masked tokens, with
w(t) = |α'(t)| / (1 - α(t)); averaged over random t it is the mean of w(t) times the summed loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unmask.core import dice
from unmask.models.network import Network, Pair


@dataclass(frozen=True)
class Schedule:
    """How fast tokens are masked."""

    kept: Callable[[Tensor], Tensor]  # α(t), the share of tokens that is not masked: 1 at t = 0, 0 at t = 1
    weight: Callable[[Tensor], Tensor]  # w(t)


SCHEDULES: dict[str, Schedule] = {
    "linear": Schedule(lambda t: 1 - t, lambda t: 1 / t),
    "cosine": Schedule(
        lambda t: 1 - torch.sin(t * math.pi / 2),
        lambda t: math.pi / 2 * torch.cos(t * math.pi / 2) / torch.sin(t * math.pi / 2),
    ),
}
WEIGHTINGS = ("nelbo", "even")  # even: every masked token counts the same at any time
SOONEST = 1e-3  # the smallest time: below it almost nothing is masked, and the weight is unbounded


def times(count: int, generator: torch.Generator, tilt: float = 0.0) -> Tensor:  # [count] float32, generator's device
    """One time in each of `count` equally likely parts of the unit interval: less noise than independent ones.

    Their density is t to the power `tilt`: even for 0.
    """
    within = torch.rand(count, generator=generator, device=generator.device)
    even = (torch.arange(count, device=generator.device) + within) / count
    return even.pow(1 / (1 + tilt)).clamp(min=SOONEST)


def measuring_times(count: int, draws: int, generator: torch.Generator) -> Tensor:  # [draws, count]
    """The times at which each of `count` is measured: one in every equal part of the unit interval, and in random order
    all of them together spread evenly over each part."""
    each = times(count * draws, generator).view(draws, count)
    return each.gather(1, torch.rand(each.shape, generator=generator, device=each.device).argsort(1))


def chances(seed: int, numbers: Tensor, draw: int, length: int) -> Tensor:  # [B, L] float64
    """A number in (0, 1) for each position of the windows of these numbers, by which it is masked or not."""
    column = torch.arange(length)[None]
    return dice.uniform(dice.keys([seed])[:, None], numbers[:, None], draw, column, dice.Purpose.NOISE)


@lru_cache
def expected(schedule: Schedule, tilt: float = 0.0) -> float:
    """The share of open positions that is masked on average over times."""
    even = (torch.arange(4096) + 0.5) / 4096
    return float((1 - schedule.kept(even.pow(1 / (1 + tilt)))).mean())


def masked(open: Tensor, time: Tensor, schedule: Schedule, generator: torch.Generator) -> Tensor:  # [B, L] bool
    """Which of the open positions are masked at these times, [B] or [B, L]."""
    chance = torch.rand(open.shape, generator=generator, device=open.device)
    return open & hidden(time, schedule, chance)


def hidden(time: Tensor, schedule: Schedule, chance: Tensor) -> Tensor:  # [B, L] bool
    """Which positions are masked at these times, [B] or [B, L], by a number in (0, 1) for each."""
    return chance >= schedule.kept(time if time.dim() == 2 else time[:, None])


def blocks_of(open: Tensor, size: int) -> Tensor:  # [B, L] int64
    """The block of each position: 0 for what is given, then 1, 2, … for every `size` open positions."""
    return torch.where(open, 1 + (open.long().cumsum(1) - 1) // size, 0)


def block_times(blocks: Tensor, count: int, generator: torch.Generator) -> Tensor:  # [B, L] float32
    """A time of its own for each of the `count` blocks of a row; together they spread evenly over the unit interval."""
    each = times(len(blocks) * count, generator)
    each = each[torch.randperm(len(each), generator=generator, device=each.device)].view(len(blocks), count)
    return each.gather(1, (blocks - 1).clamp(min=0))


def sees_copies(blocks: Tensor) -> Callable[..., Tensor]:
    """Attention over noised rows with their clean copies behind them, for block diffusion: (row, head, query, key).

    A noised block sees itself and the clean blocks before it; a clean block sees itself and the clean blocks before it.
    """
    length = blocks.shape[1]

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mine, its = blocks[row, query % length], blocks[row, key % length]
        noised_query, noised_key = query < length, key < length
        clean = ~noised_key & torch.where(noised_query, its < mine, its <= mine)
        return (noised_query & noised_key & (its == mine)) | clean

    return sees


def seen_copies(blocks: Tensor) -> Tensor:  # [B, 2L, 2L] bool
    """`sees_copies` as a table."""
    rows, length = blocks.shape
    place = torch.arange(2 * length, device=blocks.device)
    row = torch.arange(rows, device=blocks.device)[:, None, None]
    return sees_copies(blocks)(row, row, place[:, None], place[None, :])


def noised_hidden(
    network: Network,
    noised: Tensor,
    clean: Tensor,
    columns: Tensor,
    waves: Pair | None,
    blocks: Tensor,
    flex: bool = False,  # attention skips what is not seen; it has to be compiled, and a GPU has to be there
) -> Tensor:  # [B, L, D]
    """Hidden states of noised rows whose blocks see themselves and the clean blocks before them.

    The clean copy goes through the network beside the noised one, so that all blocks are learnt at once.
    """
    length = noised.shape[1]
    seen = _block_mask(blocks) if flex else seen_copies(blocks)
    twice = None if waves is None else (torch.cat([waves[0]] * 2, 2), torch.cat([waves[1]] * 2, 2))
    both = torch.cat([noised, clean], 1)
    hidden: Tensor = network(both, torch.cat([columns] * 2, 1), waves=twice, seen=seen)[0]
    return hidden[:, :length]


def _block_mask(blocks: Tensor) -> Any:
    """`seen_copies` for torch's flex attention, which skips what is not seen."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = blocks.shape
    return create_block_mask(sees_copies(blocks), rows, None, 2 * length, 2 * length, device=blocks.device)


def objective(losses: Tensor, hidden: Tensor, open: Tensor, time: Tensor, schedule: Schedule, weighting: str) -> Tensor:
    """One number to minimise, in nats per open token ("nelbo") or per masked token ("even").

    `losses` [B, L] are -log p of the true tokens, `hidden` [B, L] says which of them were masked; `time` is [B] or
    [B, L].
    """
    shown = losses * hidden
    if weighting == "even":
        return shown.sum() / hidden.sum().clamp(min=1)
    weight = schedule.weight(time if time.dim() == 2 else time[:, None])
    return (weight * shown).sum() / open.sum().clamp(min=1)
