"""State -> which block of positions is being filled.

Open positions are counted, so that holes anywhere fill blocks. Where the model's attention has aligned blocks, those
of a sampler are aligned as well: they are counted in columns, and one without an open position is passed over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.core.state import State, Step, first_masked


def numbers(state: State, block_length: int | None) -> Tensor:  # [B, L] int64
    """The number of each open position's block (meaningless elsewhere)."""
    if block_length is None:
        return torch.zeros_like(state.tokens)
    return state.rank // block_length


def block_count(state: State, block_length: int | None) -> Tensor:  # [B] int64
    """How many blocks with open positions a row has."""
    if block_length is None:
        return torch.ones_like(state.open)
    return _ends(state, numbers(state, block_length)).sum(1)


def _ends(state: State, number: Tensor) -> Tensor:  # [B, L] bool
    """The last open position of each block."""
    length = state.tokens.shape[1]
    following = number.where(state.writable, length).flip(1).cummin(1).values.flip(1)  # the open position from here on
    return state.writable & (torch.nn.functional.pad(following, (0, 1), value=length)[:, 1:] != number)


def current_by_mask(state: State, block_length: int | None) -> Tensor:  # [B] int64
    """The block of the first masked position; the last one where nothing is masked."""
    if block_length is None:
        return torch.zeros_like(state.open)
    last = state.rank.where(state.writable, -1).amax(1)
    return torch.minimum(first_masked(state), last).clamp(min=0) // block_length


def current_by_schedule(state: State, step: Step, block_length: int | None) -> tuple[Tensor, Tensor]:  # [B], [B]
    """The block that this step belongs to, and the steps left in it."""
    if block_length is not None and state.blocks is not None and state.blocks.aligned:
        return _by_share(state, step, block_length)
    blocks = torch.ones_like(state.open) if block_length is None else -(-state.open // block_length)
    short, extra = state.budget // blocks, state.budget % blocks
    early = step < extra * (short + 1)  # the early blocks get the odd steps
    later = (step - extra * (short + 1)).clamp(min=0)  # steps into the blocks without an odd step
    block = torch.where(early, step // (short + 1), extra + later // short)
    left = torch.where(early, short + 1 - step % (short + 1), short - later % short)
    return torch.minimum(block, blocks - 1), left


def _by_share(state: State, step: Step, block_length: int) -> tuple[Tensor, Tensor]:  # [B], [B]
    """Blocks of unequal numbers of open positions: one step for each block, the others by what is open in it."""
    number, opened = numbers(state, block_length), state.writable.long().cumsum(1)
    last = _ends(state, number)
    place = last.long().cumsum(1)  # blocks up to the one that ends here
    many = last.sum(1, keepdim=True)
    rest = (state.open[:, None] - many).clamp(min=1)
    ends = place + (state.budget[:, None] - many) * (opened - place) // rest  # steps up to the end of the block
    over = last & (ends <= step)
    current = number.where(last & ~over, state.tokens.shape[1]).amin(1)
    final = number.where(last, 0).amax(1)
    left = ends.where(last & (number == current[:, None]), 0).amax(1) - step
    return torch.minimum(current, final), left.clamp(min=1)
