"""The approximate cache: under full attention, what is kept goes stale until the next full pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.core.state import State, first_masked
from unmask.errors import SettingError
from unmask.models.cache.kept import Fixed, Keeps, Layers, everyone, groups, laid, moved, sees, taken, written
from unmask.models.network import Past

STEP = 16  # columns by which the width of a window is rounded up, so that few kinds of step are recorded


@dataclass(frozen=True)
class KeptRows:
    """Keys, values and hidden states of all columns at each row's last full pass."""

    layers: Layers  # [B, H, L, d]
    hidden: Tensor  # [B, L, D]
    block: Tensor  # [B] int64: the block that the row was in; -1: there was no such pass
    age: Tensor  # [B] int64: looks since then

    def __getitem__(self, rows: Tensor) -> KeptRows:
        return KeptRows(taken(self.layers, rows), self.hidden[rows], self.block[rows], self.age[rows])


@dataclass(frozen=True, eq=False)
class WindowCache(Keeps):
    """Fast-dLLM's prefix cache (0, None), its dual cache (0, 0), and all between: a window around the current block.

    A full pass, which is exact, is made where a row enters a block, and every few looks. In between only the block,
    `before` columns on its left and `after` on its right are computed; None: all to the right. The rest stays as it was
    then. `block` counts open positions, as samplers do.
    """

    block: int
    before: int = 0
    after: int | None = None
    every: int = 0  # looks from one full pass to the next, at most; 0: only at blocks

    def __post_init__(self) -> None:
        if self.block < 1:
            raise SettingError(f"the cache's block is {self.block}", "it must be at least 1")

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def recordable(self) -> bool:
        return self.inner.recordable

    @property
    def recordings(self) -> list[Any]:
        return self.inner.recordings

    def fixed(self, state: State) -> FixedRows:
        """What the rows of a state keep, for recorded steps."""
        assert isinstance(state.cache, KeptRows)
        return FixedRows.of(self, state.cache)

    @property
    def name(self) -> str:
        right = "all" if self.after is None else self.after
        return f"{self.inner.name} (approximate: cache, blocks of {self.block}, {self.before} before, {right} after)"

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, KeptRows | FixedRows]:
        if isinstance(state.cache, FixedRows):
            return state.cache.look(state, rows), state.cache
        kept = state.cache if isinstance(state.cache, KeptRows) else None
        block = torch.minimum(first_masked(state), state.open.clamp(min=1) - 1) // self.block
        fresh = torch.ones_like(rows, dtype=torch.bool)
        if kept is not None:
            fresh = kept.block[rows] != block[rows]
            fresh = fresh | (kept.age[rows] + 1 >= self.every) if self.every else fresh
        pads = (~state.attend).sum(1)
        for pad, group in groups(pads[rows[fresh]]):
            kept = self._refreshed(state, kept, rows[fresh][group], block, pad)
        assert kept is not None
        out = kept.hidden[rows]
        if not bool(fresh.all()):
            old = (~fresh).nonzero()[:, 0]
            kept = replace(kept, age=kept.age.index_add(0, rows[old], torch.ones_like(old)))
            begin, end = self.window(state, block, pads)
            for width, group in groups((end - begin)[rows[old]]):
                for pad, some in groups(pads[rows[old[group]]]):
                    places = old[group[some]]
                    at = begin[rows[places], None] + torch.arange(width, device=rows.device)
                    out[places] = self._computed(state, kept, rows[places], at, out[places], pad)
        return out, kept

    def _refreshed(self, state: State, kept: KeptRows | None, rows: Tensor, block: Tensor, pad: int) -> KeptRows:
        """With a full pass of these rows, which have `pad` columns of padding."""
        batch, length = state.tokens.shape
        at = torch.arange(pad, length, device=rows.device).expand(len(rows), -1)
        found = self.compute(state, rows, at, (), None)
        hidden = found.hidden
        if self.inner.shift:
            hidden = torch.where(found.columns[:, :, None] > 0, hidden.roll(1, 1), hidden)
        hidden = torch.nn.functional.pad(hidden, (0, 0, pad, 0))
        if kept is None:
            none = torch.full_like(state.open, -1)
            kept = KeptRows((), hidden.new_zeros(batch, length, hidden.shape[2]), none, none)
        whole = everyone(rows, batch) and not pad
        every = found.layers if whole else written(kept.layers, batch, rows, at, found.layers, length)
        return KeptRows(
            every,
            kept.hidden.index_copy(0, rows, hidden),
            kept.block.index_copy(0, rows, block[rows]),
            kept.age.index_fill(0, rows, 0),
        )

    def window(self, state: State, block: Tensor, pads: Tensor) -> tuple[Tensor, Tensor]:  # [B], [B]
        """The first column that is computed and the one after the last."""
        rank, length = state.rank, state.tokens.shape[1]
        number = torch.where(state.writable, rank // self.block, -1)
        mine = number == block[:, None]
        places = torch.arange(length, device=rank.device).expand_as(rank)
        first = places.where(mine, length - 1).amin(1) - self.before - int(self.inner.shift)
        end = torch.full_like(first, length)
        if self.after is not None:
            end = (places.where(mine, 0).amax(1) + 1 + self.after).clamp(max=length)
        return torch.maximum(first, pads), end

    def _computed(self, state: State, kept: KeptRows, rows: Tensor, at: Tensor, old: Tensor, pad: int) -> Tensor:
        """The hidden states [R, L, D] of rows with `pad` columns of padding, new in the window."""
        outside = torch.ones_like(state.attend[rows]).scatter(1, at, False)[:, pad:]
        layers = kept.layers if everyone(rows, len(kept.age)) else taken(kept.layers, rows)
        real = tuple((keys[:, :, pad:], values[:, :, pad:]) for keys, values in layers)
        found = self.compute(state, rows, at, (Past(real, seen=outside),), None, False)
        hidden, columns = found.hidden, at
        if self.inner.shift:  # outputs belong to the next columns; that of the last one is outside
            first = torch.where(found.columns[:, :1, None] > 0, old.gather(1, _wide(at[:, :1], old)), hidden[:, :1])
            hidden = torch.cat([first, hidden[:, :-1]], 1)
        return old.scatter(1, _wide(columns, old), hidden)


def _wide(at: Tensor, like: Tensor) -> Tensor:  # [R, W] -> [R, W, D]
    return at[:, :, None].expand(-1, -1, like.shape[2])


# --- for recorded steps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FixedRows(Fixed):
    """KeptRows, and the canvases of the last look."""

    cache: WindowCache
    layers: Layers  # [B, H, L, d]
    hidden: Tensor  # [B, L, D]
    block: Tensor  # [B]
    age: Tensor  # [B]
    canvas: Tensor  # [B, L] int64
    passes: int = 0  # rows of which the next look makes a full pass
    width: int = 0  # columns of a row that it computes otherwise; 0: no row's

    @staticmethod
    def of(cache: WindowCache, kept: KeptRows) -> FixedRows:
        """From what was kept so far."""
        layers = tuple((keys.clone(), values.clone()) for keys, values in kept.layers)
        canvas = torch.full(kept.hidden.shape[:2], -1, device=kept.hidden.device)
        return FixedRows(cache, layers, kept.hidden.clone(), kept.block.clone(), kept.age.clone(), canvas)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Recorded steps serve another one of the same kind."""
        cache = self.cache
        return self.shapes, cache.block, cache.before, cache.after, cache.every

    @property
    def key(self) -> tuple[int, ...]:
        """What is planned."""
        return self.passes, self.width

    def planned(self, numbers: Sequence[int]) -> FixedRows:
        """With what the host has read of `plan`, rounded up, so that few kinds of step are recorded."""
        passes, width = numbers
        rows, length = self.canvas.shape
        passes = rows if 2 * passes > rows else 1 << (passes - 1).bit_length() if passes else 0
        return replace(self, passes=passes, width=min(-(-width // STEP) * STEP, length))

    def plan(self, state: State, active: Tensor) -> Tensor:  # [B] bool -> [2] int64
        """How many active rows need a full pass, and the widest window of the others."""
        block = self._block(state)
        fresh = self._fresh(state, block)
        begin, end = self._window(state, block)
        width = (end - begin).where(active & ~fresh, 0).amax()
        return torch.stack([(fresh & active).sum(), width])

    def _block(self, state: State) -> Tensor:  # [B]
        return torch.minimum(first_masked(state), state.open.clamp(min=1) - 1) // self.cache.block

    def _fresh(self, state: State, block: Tensor) -> Tensor:  # [B] bool
        """Rows that need a full pass; one that is filled needs none, and would take the pass of another row."""
        fresh = self.block != block
        if self.cache.every:
            fresh = fresh | (self._looks(state) & (self.age + 1 >= self.cache.every))
        return fresh & state.masked.any(1)

    def _looks(self, state: State) -> Tensor:  # [B] bool
        """Rows that another driver would look at: their canvas has changed."""
        return (state.tokens != self.canvas).any(1)

    def _window(self, state: State, block: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.window(state, block, (~state.attend).sum(1))

    def part(self, rows: Tensor) -> FixedRows:
        """These rows as one of their own."""
        return replace(self, **self.changed(lambda one: one[rows]))

    def __getitem__(self, ancestors: Tensor) -> FixedRows:
        """Every row takes its ancestor's contents, in place."""
        moved(self.layers, ancestors, torch.full_like(self.age, self.canvas.shape[1]))
        for one in (self.hidden, self.block, self.age, self.canvas):
            one.copy_(one[ancestors])
        return self

    def look(self, state: State, rows: Tensor) -> Tensor:  # [R, L, D]
        """Full passes of the rows that need one, windows of the others."""
        block = self._block(state)
        fresh, looks = self._fresh(state, block), self._looks(state)
        if self.passes:
            first = (~fresh[rows]).long().argsort(stable=True)[: self.passes]
            self._renew(state, rows[first] if self.passes < len(rows) else rows, fresh)
        out = self.hidden[rows]
        if self.width:
            out = self._computed(state, rows, block, fresh, out)
        age = torch.where(fresh, 0, self.age + looks)
        for mine, new in ((self.age, age), (self.block, block.where(fresh, self.block)), (self.canvas, state.tokens)):
            mine.index_copy_(0, rows, new[rows])
        return out

    def _renew(self, state: State, rows: Tensor, fresh: Tensor) -> None:
        """A full pass of these rows; of those among them that are fresh it is kept."""
        length, inner = state.tokens.shape[1], self.cache.inner
        at = torch.arange(length, device=rows.device).expand(len(rows), -1)
        seen = sees(state.attend[rows]) if state.padded else None
        found = self.cache.compute(state, rows, at, (), seen)
        hidden = found.hidden
        if inner.shift:
            hidden = torch.where(found.columns[:, :, None] > 0, hidden.roll(1, 1), hidden)
        for mine, new in [(self.hidden, hidden), *_sides(self.layers, found.layers)]:
            keep = fresh[rows].view(-1, *[1] * (new.ndim - 1))
            mine.index_copy_(0, rows, new.where(keep, mine[rows]))

    def _computed(self, state: State, rows: Tensor, block: Tensor, fresh: Tensor, old: Tensor) -> Tensor:
        """The hidden states [R, L, D], new in the windows of rows that are not fresh."""
        begin, end = (one[rows] for one in self._window(state, block))
        length = state.tokens.shape[1]
        at = begin[:, None] + torch.arange(self.width, device=rows.device)
        inside = at < end[:, None]
        at = at.clamp(max=length - 1)
        low = (~state.attend).sum(1)[rows] if state.padded else None
        entry = None if len(rows) == len(self.age) else rows
        past = Past(self.layers, entry=entry, low=low, gap=(begin, end))
        found = self.cache.compute(state, rows, at, (past,), sees(inside), False)
        hidden = found.hidden
        if self.cache.inner.shift:  # outputs belong to the next columns; that of the last one is outside
            before = old.gather(1, at[:, :1, None].expand(-1, -1, old.shape[2]))
            first = torch.where(found.columns[:, :1, None] > 0, before, hidden[:, :1])
            hidden = torch.cat([first, hidden[:, :-1]], 1)
        wider = torch.nn.functional.pad(old, (0, 0, 0, 1))
        return laid(wider, hidden, at.where(inside & ~fresh[rows][:, None], length))[:, :length]


def _sides(old: Layers, new: Layers) -> list[tuple[Tensor, Tensor]]:
    """Keys with keys and values with values, layer by layer."""
    return [pair for mine, fresh in zip(old, new, strict=True) for pair in zip(mine, fresh, strict=True)]
