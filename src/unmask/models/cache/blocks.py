"""The exact cache: where attention is in blocks, finished blocks never hear of later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.core.state import Blocks, State, first_masked, numbers
from unmask.models.cache.kept import Fixed, Found, Keeps, Layers, everyone, groups, moved, sees, shown, taken, written
from unmask.models.network import Past


@dataclass(frozen=True)
class OpenBlock:
    """Each row's open block as it was when all of it was computed."""

    layers: Layers  # [B, H, size, d]
    hidden: Tensor  # [B, size, D]
    number: Tensor  # [B] int64: which block it is; -1: none yet

    def __getitem__(self, rows: Tensor) -> OpenBlock:
        return OpenBlock(taken(self.layers, rows), self.hidden[rows], self.number[rows])


@dataclass(frozen=True)
class KeptBlocks:
    """Keys and values of finished blocks. Those of what was given before the first open block are kept once a prompt.

    A row's own ones are in the order of the ranks, as far as `end`. `edge` is the network's output at the last of them,
    for models whose output belongs to the next column.
    """

    given: Layers  # [P, H, C, d]
    length: Tensor  # [P] int64: how many they are
    entry: Tensor  # [B] int64: the prompt of each row
    own: Layers  # [B, H, …, d]
    end: Tensor  # [B] int64
    edge: Tensor  # [B, D]
    place: Tensor  # [B, S] int64: the column of each rank
    count: Tensor  # [B] int64: how many ranks a row has
    open: OpenBlock | None = None

    def __getitem__(self, rows: Tensor) -> KeptBlocks:
        """The rows' own part; what is kept once a prompt stays where it is."""
        each = {name: getattr(self, name)[rows] for name in ("entry", "end", "edge", "place", "count")}
        opened = None if self.open is None else self.open[rows]
        return replace(self, **each, own=taken(self.own, rows), open=opened)

    @property
    def stored(self) -> int:
        """Ranks that the rows' own part has room for."""
        return self.own[0][0].shape[2] if self.own else 0

    @property
    def bytes(self) -> int:
        """Of all keys and values."""
        opened = () if self.open is None else self.open.layers
        return sum(one.nbytes for pair in (*self.given, *self.own, *opened) for one in pair)


@dataclass(frozen=True)
class _Window:
    """The ranks of some rows that are computed, equally many in each."""

    rows: Tensor  # [R] int64
    ranks: Tensor  # [R, W] int64
    block: Tensor  # [R] int64: the block that each row is in
    whole: Tensor  # [R] bool: all of that block is among them


@dataclass(frozen=True, eq=False)
class BlockCache(Keeps):
    """Computes the block that a row is in, and once, when it is finished, the one before; the prompt once for all.

    With `part`, a step computes only that many positions of the block, those of the part with the first mask, against
    keys and values of the rest from when the whole block was last computed: on entering it, and whenever the first
    position of the part is masked. That is Fast-dLLM v2's cache inside blocks, and approximate.
    """

    part: int | None = None

    @property
    def keeps_rows(self) -> bool:
        return self.part is not None

    @property
    def recordable(self) -> bool:
        return self.part is None and self.inner.recordable

    @property
    def recordings(self) -> list[Any]:
        return self.inner.recordings

    def fixed(self, state: State) -> FixedBlocks:
        """What the rows of a state keep, for recorded steps."""
        assert isinstance(state.cache, KeptBlocks)
        return FixedBlocks.of(self, state.cache)

    @property
    def attention(self) -> Blocks:
        blocks = self.inner.attention
        assert blocks is not None
        return blocks

    @property
    def name(self) -> str:
        about = "" if self.part is None else f" (approximate: parts of {self.part} in a block)"
        return f"{self.inner.name}{about}"

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, KeptBlocks | FixedBlocks]:
        if isinstance(state.cache, FixedBlocks):
            return state.cache.look(state, rows), state.cache
        kept = state.cache if isinstance(state.cache, KeptBlocks) else self._first(state, max(1, len(rows)))
        size = self.attention.size
        block = torch.minimum(state.front, kept.count - 1)[rows] // size
        low, high = kept.end[rows], torch.minimum((block + 1) * size, kept.count[rows])
        whole = torch.ones_like(low, dtype=torch.bool)
        if self.part is not None:
            begin, whole = self._part(state, kept, rows, block)
            low, high = low.where(whole, begin), high.where(whole, torch.minimum(begin + self.part, high))
        out = kept.edge.new_zeros(len(rows), state.tokens.shape[1], kept.edge.shape[1])
        if kept.open is not None and not bool(whole.all()):
            self._remembered(kept, rows, block, out)
        for width, group in groups(high - low):
            ranks = low[group, None] + torch.arange(width, device=rows.device)
            window = _Window(rows[group], ranks, block[group], whole[group])
            hidden, at, kept = self._computed(state, kept, window)
            out[group[:, None], at] = hidden
        return out, kept

    def _part(self, state: State, kept: KeptBlocks, rows: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """The rank [R] at which the part of a row's first mask begins, and whether [R] its whole block is computed."""
        assert self.part is not None
        begin = first_masked(state)[rows] // self.part * self.part
        column = kept.place[rows].gather(1, begin.clamp(max=kept.place.shape[1] - 1)[:, None])
        masked = state.masked[rows].gather(1, column)[:, 0]
        if kept.open is None:
            return begin, torch.ones_like(masked)
        return begin, masked | (kept.open.number[rows] != block)

    def _remembered(self, kept: KeptBlocks, rows: Tensor, block: Tensor, out: Tensor) -> None:
        """Hidden states of open blocks from when they were computed as a whole, into `out` [R, L, D]."""
        assert kept.open is not None
        size = self.attention.size
        ranks = block[:, None] * size + torch.arange(size, device=rows.device)
        there = ranks < kept.count[rows][:, None]
        at = kept.place[rows].gather(1, ranks.clamp(max=kept.place.shape[1] - 1))
        row, inside = there.nonzero(as_tuple=True)
        out[row, at[row, inside]] = kept.open.hidden[rows][row, inside]

    def _computed(self, state: State, kept: KeptBlocks, window: _Window) -> tuple[Tensor, Tensor, KeptBlocks]:
        """Hidden states [R, W, D] of a window, their columns [R, W], and what is kept from now on."""
        rows, ranks, size = window.rows, window.ranks, self.attention.size
        at, number = kept.place[rows].gather(1, ranks), ranks // size
        seen = number[:, :, None] >= number[:, None]
        finished = bool((ranks[:, 0] < window.block * size).any())
        keep = finished or self.part is not None
        found = self.compute(state, rows, at, self._past(kept, window), seen, keep)
        hidden = found.hidden
        if self.inner.shift:  # the output before the first column is the edge, or there is none
            before = torch.where(found.columns[:, :1, None] > 0, kept.edge[rows][:, None], hidden[:, :1])
            hidden = torch.cat([before, hidden[:, :-1]], 1)
        if finished:
            kept = _finished(kept, window, found, size)
        if self.part is not None:
            kept = self._opened(state, kept, window, found, hidden)
        return hidden, at, kept

    def _opened(self, state: State, kept: KeptBlocks, window: _Window, found: Found, hidden: Tensor) -> KeptBlocks:
        """With the open blocks that were computed as a whole; `hidden` [R, W, D] belongs to the window's columns.

        A block whose first position is masked is computed once more when that is decided.
        """
        size, old, batch = self.attention.size, kept.open, len(kept.end)
        first = kept.place[window.rows].gather(1, window.block[:, None] * size)
        which = (window.whole & ~state.masked[window.rows].gather(1, first)[:, 0]).nonzero()[:, 0]
        if not len(which):
            return kept
        rows, block = window.rows[which], window.block[which]
        inside = window.ranks[which] - block[:, None] * size
        at = inside.where(inside >= 0, size)
        layers = written(() if old is None else old.layers, batch, rows, at, taken(found.layers, which), size)
        number = torch.full_like(kept.end, -1) if old is None else old.number
        states = hidden.new_zeros(batch, size + 1, hidden.shape[2])
        if old is not None:
            states[:, :size] = old.hidden
        states[rows[:, None], at] = hidden[which]
        return replace(kept, open=OpenBlock(layers, states[:, :size], number.index_copy(0, rows, block)))

    def _past(self, kept: KeptBlocks, window: _Window) -> tuple[Past, ...]:
        """What the window sees besides itself: what was given, finished blocks, the rest of an open block."""
        rows, past = window.rows, []
        entry, end, low = kept.entry[rows], kept.end[rows], window.ranks[:, 0]
        if kept.given:
            past.append(Past(kept.given, kept.length[entry], entry=entry))
        if kept.stored:
            own = kept.own if everyone(rows, len(kept.end)) else taken(kept.own, rows)
            past.append(Past(own, end))
        if kept.open is not None and not bool(window.whole.all()):
            size = self.attention.size
            ranks = window.block[:, None] * size + torch.arange(size, device=rows.device)
            elsewhere = (ranks < low[:, None]) | (ranks > window.ranks[:, -1:])
            there = elsewhere & (ranks < kept.count[rows][:, None]) & ~window.whole[:, None]
            past.append(Past(taken(kept.open.layers, rows), seen=there))
        return tuple(past)

    def _first(self, state: State, most: int) -> KeptBlocks:
        """What was given before the first open block, computed once a prompt, at most `most` prompts at a time."""
        prompts = torch.arange(0, len(state.tokens), state.particles, device=state.tokens.device)
        number, weight = numbers(state, self.attention), self.inner.network.like
        at, real = _listed((number[prompts] < 0) & state.attend[prompts])
        place, ranked = _listed((number >= 0) & state.attend)
        given: Layers = ()
        length, edge = real.sum(1), weight.new_zeros(len(prompts), self.inner.network.shape.width)
        for count, group in groups(length):
            for some in torch.split(group, most) if count else ():
                block = number[prompts[some]].gather(1, at[some, :count])
                seen = block[:, :, None] >= block[:, None]
                found = self.compute(state, prompts[some], at[some, :count], (), seen)
                columns = torch.arange(count, device=at.device).expand(len(some), -1)
                given = written(given, len(prompts), some, columns, found.layers, at.shape[1])
                edge = edge.index_copy(0, some, found.hidden[:, -1])
        entry = torch.arange(len(state.tokens), device=prompts.device) // state.particles
        return KeptBlocks(given, length, entry, (), torch.zeros_like(entry), edge[entry], place, ranked.sum(1))


def _finished(kept: KeptBlocks, window: _Window, found: Found, size: int) -> KeptBlocks:
    """With the blocks before the one that each row is in."""
    rows, ranks, old = window.rows, window.ranks, kept.end[window.rows]
    end = torch.maximum(window.block * size, old)
    longest = max(int(end.max()), kept.stored)
    own = written(kept.own, len(kept.end), rows, ranks.where(ranks < end[:, None], longest), found.layers, longest)
    last = (end - 1 - ranks[:, 0]).clamp(min=0)
    edge = found.hidden[torch.arange(len(rows), device=rows.device), last]
    edge = edge.where((end > old)[:, None], kept.edge[rows])
    ends, edges = kept.end.index_copy(0, rows, end), kept.edge.index_copy(0, rows, edge)
    return replace(kept, own=own, end=ends, edge=edges)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:  # [N, L] bool -> [N, C] int64, [N, C] bool
    """The chosen columns of each row, from the left, and which of these entries are real."""
    counts = chosen.sum(1, keepdim=True)
    longest = int(counts.max())
    there = torch.arange(longest, device=chosen.device) < counts
    return (~chosen).long().argsort(dim=1, stable=True)[:, :longest], there


# --- for recorded steps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FixedBlocks(Fixed):
    """KeptBlocks with room for every block of a row."""

    cache: BlockCache
    given: Layers  # [P, H, C, d]
    length: Tensor  # [P]
    entry: Tensor  # [B]
    own: Layers  # [B, H, (blocks + 1) · size, d]: what is after `end` is not seen by anyone
    end: Tensor  # [B]
    edge: Tensor  # [B, D]
    place: Tensor  # [B, S]
    count: Tensor  # [B]
    ragged: bool  # the last block of a row is not full
    behind: int = 0  # finished blocks that the next look keeps, at most

    @staticmethod
    def of(cache: BlockCache, kept: KeptBlocks) -> FixedBlocks:
        """From what was kept so far."""
        size, network = cache.attention.size, cache.inner.network
        shape, weight = network.shape, network.like
        room = (-(-int(kept.count.max()) // size) + 1) * size
        rows = len(kept.end)

        def grown(layer: int, side: int) -> Tensor:
            whole = weight.new_zeros(rows, shape.kv, room, shape.each)
            if kept.own:
                whole[:, :, : kept.stored] = kept.own[layer][side]
            return whole

        own = tuple((grown(layer, 0), grown(layer, 1)) for layer in range(shape.layers))
        ragged = bool((kept.count % size > 0).any())
        each = (kept.length, kept.entry), (kept.end, kept.edge, kept.place, kept.count)
        (length, entry), (end, edge, place, count) = (tuple(one.clone() for one in some) for some in each)
        return FixedBlocks(cache, kept.given, length, entry, own, end, edge, place, count, ragged)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Recorded steps serve another one of the same kind."""
        return self.shapes, self.ragged, self.cache.attention

    @property
    def key(self) -> tuple[int, ...]:
        """What is planned."""
        return (self.behind,)

    @property
    def bytes(self) -> int:
        """Of all keys and values."""
        return sum(one.nbytes for pair in (*self.given, *self.own) for one in pair)

    def planned(self, numbers: Sequence[int]) -> FixedBlocks:
        """With what the host has read of `plan`."""
        return replace(self, behind=numbers[0])

    def plan(self, state: State, active: Tensor) -> Tensor:  # [B] bool -> [1] int64
        """Finished blocks of active rows that are not kept yet, the most of a row."""
        behind = self._block(state) - self.end // self.cache.attention.size
        return behind.where(active, 0).amax().clamp(min=0)[None]

    def _block(self, state: State) -> Tensor:  # [B]
        return torch.minimum(state.front, self.count - 1) // self.cache.attention.size

    def part(self, rows: Tensor) -> FixedBlocks:
        """These rows as one of their own; the prompts stay."""
        return replace(self, **self.changed(lambda one: one[rows], "entry", "own", "end", "edge", "place", "count"))

    def __getitem__(self, ancestors: Tensor) -> FixedBlocks:
        """Every row takes its ancestor's contents, in place."""
        end = self.end[ancestors]
        moved(self.own, ancestors, end)
        self.end.copy_(end)
        self.edge.copy_(self.edge[ancestors])
        return self

    def look(self, state: State, rows: Tensor) -> Tensor:  # [R, L, D]
        """The block that each row is in, after as many finished ones as are planned."""
        cache, size, length = self.cache, self.cache.attention.size, state.tokens.shape[1]
        block, low = self._block(state)[rows], self.end[rows]
        ranks = low[:, None] + torch.arange((1 + self.behind) * size, device=rows.device)
        valid = ranks < torch.minimum((block + 1) * size, self.count[rows])[:, None]
        at = self.place[rows].gather(1, ranks.clamp(max=self.place.shape[1] - 1))
        seen = None
        if self.behind or self.ragged:
            number = ranks // size
            seen = (number[:, :, None] >= number[:, None]) & sees(valid)
        found = cache.compute(state, rows, at, self._past(rows, low), seen, self.behind > 0)
        hidden = found.hidden
        if cache.inner.shift:  # the output before the first column is the edge, or there is none
            before = torch.where(found.columns[:, :1, None] > 0, self.edge[rows][:, None], hidden[:, :1])
            hidden = torch.cat([before, hidden[:, :-1]], 1)
        if self.behind:
            self._store(rows, ranks, torch.maximum(block * size, low), found.layers, found.hidden)
        return shown(hidden, at, valid, length)

    def _past(self, rows: Tensor, end: Tensor) -> tuple[Past, ...]:
        own = Past(self.own, end, entry=None if len(rows) == len(self.end) else rows)
        if not self.given:
            return (own,)
        entry = self.entry[rows]
        return Past(self.given, self.length[entry], entry=entry), own

    def _store(self, rows: Tensor, ranks: Tensor, end: Tensor, layers: Layers, hidden: Tensor) -> None:
        """Keep the columns of finished blocks, and those after them, which nobody sees."""
        low = ranks[:, 0]
        end = torch.minimum(end, low + self.behind * self.cache.attention.size)
        place = ranks.clamp(max=self.own[0][0].shape[2] - 1)
        for (keys, values), (k, v) in zip(self.own, layers, strict=True):
            keys[rows[:, None], :, place] = k.transpose(1, 2)
            values[rows[:, None], :, place] = v.transpose(1, 2)
        last = (end - 1 - low).clamp(min=0)
        edge = hidden[torch.arange(len(rows), device=rows.device), last].where((end > low)[:, None], self.edge[rows])
        self.end.index_copy_(0, rows, end)
        self.edge.index_copy_(0, rows, edge)
