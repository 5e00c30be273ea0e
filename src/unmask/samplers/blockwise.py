"""Blockwise: the published decoders of models whose attention is cut into blocks. Block after block, each in rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.beliefs import Drawn
from unmask.core.sampler import StepInput, Written, masked_share, rank
from unmask.core.state import State, Step, first_masked, one_of

BLOCK, COUNT = 0, 1  # what it keeps for a row: the block that it is in, and the rounds in it (after masks, if it edits)


@dataclass(frozen=True)
class Blockwise:
    """A line in a table: how many positions a round writes, in which part of the block, and when a text is over."""

    block_length: int | None = None  # None: one block
    threshold: float | None = None  # write all positions above this confidence, where they are at least the quota
    rounds: int | None = None  # that share a block; None: one position each
    quota: int | None = None  # positions that a round writes at least, instead of `rounds`
    sequential: bool = False  # from the left instead of by confidence
    part: int | None = None  # positions to a part of the block, which are decided one after the other
    leads: bool = False  # the first position of a block is decided alone: it depends on the block before only
    edit: float | None = None  # replace what this block has written where another token is above this confidence
    after: int = 0  # rounds of editing after the last mask of a block, at most
    ends: str = "block"  # the text is over where a block with an EOS is finished; "clear": no mask is before the EOS
    early: bool = False  # and also where a round writes an EOS and no mask is before the first one
    steps: None = None
    scheduled: bool = False
    filters: bool = False
    memory: int = 2

    @property
    def revises(self) -> bool:
        return self.edit is not None

    # --- where a row is ---

    def _size(self, state: State) -> int:
        if self.block_length is not None:
            return self.block_length
        return state.tokens.shape[1] if state.blocks is None else state.blocks.size

    def _mine(self, state: State) -> Tensor:  # [B, L] bool
        """The open positions of the block that a row is in."""
        return state.writable & (state.rank // self._size(state) == state.memory[:, BLOCK, None])

    def _candidates(self, state: State) -> Tensor:  # [B, L] bool
        """The masked positions that a round may decide."""
        masked, at = state.masked & self._mine(state), state.rank
        if self.part is not None:
            first = at.where(masked, state.tokens.shape[1]).amin(1, keepdim=True)
            masked = masked & (at // self.part == first // self.part)
        if self.leads:
            first_one = masked & (at % self._size(state) == 0)
            masked = torch.where(first_one.any(1, keepdim=True), first_one, masked)
        return masked

    def front(self, state: State) -> Tensor:  # [B] int64
        """Where the block begins: it may still be edited, whatever is masked."""
        length = state.tokens.shape[1]
        return (state.memory[:, BLOCK] * self._size(state)).clamp(max=length)

    def want(self, state: State, step: Step) -> Tensor:
        return self._mine(state) if self.edit is not None else self._candidates(state)

    def region(self, state: State, step: Step) -> Tensor:
        return state.writable & (state.rank // self._size(state) <= state.memory[:, BLOCK, None])

    # --- a round ---

    def act(self, given: StepInput) -> Written:
        state, candidates = given.state, self._candidates(given.state)
        mine = self._mine(state)
        edits = mine & ~state.masked if self.edit is not None else torch.zeros_like(mine)
        drawn = given.draw(candidates | edits)
        chosen = self._chosen(given, candidates, drawn)
        tokens = drawn.token.where(chosen, state.tokens)
        if self.edit is not None:
            other = edits & (drawn.token != state.tokens) & (drawn.model_logp.exp() > self.edit)
            tokens = drawn.token.where(other, tokens)
        return self._written(given, tokens, drawn, chosen, mine)

    def _chosen(self, given: StepInput, candidates: Tensor, drawn: Drawn) -> Tensor:  # [B, L] bool
        state = given.state
        late = given.is_late(drawn.token) if given.late else None
        order = -state.rank.double() if self.sequential else drawn.model_logp
        ranking = rank(order, candidates, late, exact=self.sequential)
        count = self._quota(state)
        if self.threshold is not None:
            above = candidates & (drawn.model_logp.exp() > self.threshold)
            count = torch.maximum(count, (above if late is None else above & ~late).sum(1))
        return ranking.first(count)

    def _quota(self, state: State) -> Tensor:  # [B] int64
        """An even share of the block, also of one that is partly given; the odd ones in the early rounds."""
        size, none = self._size(state), torch.zeros_like(state.open)
        if self.quota is not None or self.rounds is None:
            return none + (self.quota or 1)
        rounds = min(self.rounds, size)
        return size // rounds + (state.memory[:, COUNT] < size % rounds).long()

    def _written(self, given: StepInput, tokens: Tensor, drawn: Drawn, chosen: Tensor, mine: Tensor) -> Written:
        """The tokens, and where each row is after them."""
        state = given.state
        after = state.replace(tokens=tokens)
        had, left = (state.masked & mine).any(1), (after.masked & mine).any(1)
        count = state.memory[:, COUNT] + 1
        leaves = ~left
        if self.edit is not None:
            count = state.memory[:, COUNT] + (~had).long()
            leaves = ~left & ((count >= self.after) | (~had & (tokens == state.tokens).all(1)))
        ended = self._ended(after, chosen, leaves)
        length = state.tokens.shape[1]
        following = torch.where(after.masked.any(1) & ~ended, first_masked(after) // self._size(state), length)
        block = following.where(leaves | ended, state.memory[:, BLOCK])
        return Written(tokens, drawn.model_logp, torch.stack([block, count.where(~leaves, 0)], 1), ended)

    def _ended(self, after: State, chosen: Tensor, leaves: Tensor) -> Tensor:  # [B] bool
        """Rows whose text is over."""
        given = (after.attend & ~after.writable).flip(1).cummax(1).values.flip(1)  # here or further on
        over = one_of(after.tokens, after.vocab.eos) & after.writable & ~given  # an EOS in the last hole
        first = after.rank.where(over, after.tokens.shape[1]).amin(1, keepdim=True)
        clear = over.any(1) & ~(after.masked & (after.rank < first)).any(1)
        ended = clear if self.ends == "clear" else leaves & over.any(1) & (self.ends == "block")
        if self.early:
            ended = ended | (clear & (chosen & over).any(1)) if self.edit is None else leaves & clear
        return ended

    def steady(self, state: State) -> Tensor:  # [B] bool
        """Whether next to no step leaves a row unchanged."""
        return torch.full_like(state.open, self.edit is None, dtype=torch.bool)

    def done(self, state: State, step: Step) -> Tensor:
        return state.memory[:, BLOCK] >= state.tokens.shape[1]

    def time(self, state: State, step: Step) -> Tensor:
        return masked_share(state)
