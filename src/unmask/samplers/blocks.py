"""State -> which block of open positions is being filled. Open positions are counted, so holes anywhere fill blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.core.state import State, Step


def block_count(state: State, block_length: int | None) -> Tensor:  # [B] int64
    """How many blocks a row has."""
    return torch.ones_like(state.open) if block_length is None else -(-state.open // block_length)


def current_by_mask(state: State, block_length: int | None) -> Tensor:  # [B] int64
    """The block of the first masked position."""
    if block_length is None:
        return torch.zeros_like(state.open)
    first = state.rank.where(state.masked, state.tokens.shape[1]).amin(1)
    return torch.minimum(first, state.open - 1) // block_length


def current_by_schedule(state: State, step: Step, blocks: Tensor) -> tuple[Tensor, Tensor]:  # [B], [B]
    """The block that this step belongs to and the steps left in it; the early blocks get the odd steps."""
    short, extra = state.budget // blocks, state.budget % blocks
    early = step < extra * (short + 1)
    later = (step - extra * (short + 1)).clamp(min=0)  # steps into the blocks without an odd step
    block = torch.where(early, step // (short + 1), extra + later // short)
    left = torch.where(early, short + 1 - step % (short + 1), short - later % short)
    return torch.minimum(block, blocks - 1), left
