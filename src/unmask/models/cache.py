"""Denoisers around a Transformer that compute some columns of a row against kept keys and values of the others.

`BlockCache` is exact: where attention is block-causal, finished blocks never hear of later ones. `WindowCache` is
approximate: under full attention, what is kept goes stale until the next full pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, traits
from unmask.core.state import Blocks, State, first_masked, numbers
from unmask.errors import SettingError
from unmask.models.network import Pair, Past
from unmask.models.transformer import Transformer
from unmask.models.wrap import Wrapped, innermost

Layers = tuple[Pair, ...]  # keys and values [N, H, C, d] of all layers


def cached(denoiser: Denoiser, block: int, before: int = 0, after: int | None = None, every: int = 0) -> Denoiser:
    """The denoiser with an approximate cache under its other wrappers; the arguments are those of WindowCache."""
    if traits(denoiser).keeps_rows:
        raise SettingError(f"{denoiser.name} has a cache already", "leave cache_block out")

    def wrap(inner: Denoiser) -> Denoiser:
        if not isinstance(inner, Transformer):
            raise SettingError(f"{inner.name} has no keys and values to keep", "leave cache_block out")
        return WindowCache(inner, block, before, after, every)

    return innermost(denoiser, wrap)


def block_cached(denoiser: Denoiser, part: int | None = None) -> Denoiser:
    """The denoiser, which attends in blocks, with an exact cache under its other wrappers; `part` as in BlockCache."""

    def wrap(inner: Denoiser) -> Denoiser:
        assert isinstance(inner, Transformer) and inner.attention is not None
        return BlockCache(inner, part)

    return innermost(denoiser, wrap)


def without_approximation(denoiser: Denoiser) -> Denoiser:
    """The denoiser without what is approximate in its caches; an exact one stays."""
    if isinstance(denoiser, WindowCache):
        return denoiser.inner
    if isinstance(denoiser, BlockCache):
        return replace(denoiser, part=None)
    if isinstance(denoiser, Wrapped):
        return replace(denoiser, inner=without_approximation(denoiser.inner))
    return denoiser


@dataclass(frozen=True, eq=False)
class Keeps(Wrapped):
    """What the caches share."""

    inner: Transformer

    @property
    def position_bytes(self) -> int:
        """The bytes of one position of one row."""
        shape, weight = self.inner.network.shape, self.inner.network.embed.weight
        return 2 * shape.layers * shape.kv * shape.each * weight.element_size()

    def _compute(
        self, state: State, rows: Tensor, at: Tensor, past: tuple[Past, ...], seen: Tensor | None, keep: bool = True
    ) -> _Found:
        """These columns `at` [R, W] of rows, of which each sees what `seen` [R, W, W] and the past parts say.

        Keys and values are among the answer only to `keep` them: most steps do not.
        """
        columns = state.columns[rows].gather(1, at)
        tokens = state.tokens[rows].gather(1, at)
        sigma = self.inner.sigma(state, rows)
        with torch.no_grad():
            hidden, used = self.inner.network(tokens, columns, None, sigma, past, keep, None, seen)
        return _Found(hidden, tuple(used), columns)


@dataclass(frozen=True)
class _Found:
    """The network's answer for some columns of some rows."""

    hidden: Tensor  # [R, W, D]
    layers: Layers
    columns: Tensor  # [R, W] int64: counted from the first real token


def _groups(widths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Equal widths together, and their places."""
    for width in torch.unique(widths).tolist():
        yield width, (widths == width).nonzero()[:, 0]


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:  # [N, L] bool -> [N, C] int64, [N, C] bool
    """The chosen columns of each row, from the left, and which of these entries are real."""
    counts = chosen.sum(1, keepdim=True)
    longest = int(counts.max())
    there = torch.arange(longest, device=chosen.device) < counts
    return (~chosen).long().argsort(dim=1, stable=True)[:, :longest], there


def _taken(layers: Layers, rows: Tensor) -> Layers:
    return tuple((keys[rows], values[rows]) for keys, values in layers)


def _everyone(rows: Tensor, count: int) -> bool:
    """Whether these are all rows in their order: then nothing has to be copied."""
    return len(rows) == count and bool((rows == torch.arange(count, device=rows.device)).all())


# --- exact: attention in blocks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenBlock:
    """Each row's open block as it was when all of it was computed."""

    layers: Layers  # [B, H, size, d]
    hidden: Tensor  # [B, size, D]
    number: Tensor  # [B] int64: which block it is; -1: none yet

    def __getitem__(self, rows: Tensor) -> OpenBlock:
        return OpenBlock(_taken(self.layers, rows), self.hidden[rows], self.number[rows])


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
        return replace(self, **each, own=_taken(self.own, rows), open=opened)

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
    def attention(self) -> Blocks:
        blocks = self.inner.attention
        assert blocks is not None
        return blocks

    @property
    def name(self) -> str:
        about = "" if self.part is None else f" (approximate: parts of {self.part} in a block)"
        return f"{self.inner.name}{about}"

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, KeptBlocks]:
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
        for width, group in _groups(high - low):
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
        found = self._compute(state, rows, at, self._past(kept, window), seen, keep)
        hidden = found.hidden
        if self.inner.shift:  # the output before the first column is the edge, or there is none
            before = torch.where(found.columns[:, :1, None] > 0, kept.edge[rows][:, None], hidden[:, :1])
            hidden = torch.cat([before, hidden[:, :-1]], 1)
        if finished:
            kept = _finished(kept, window, found, size)
        if self.part is not None:
            kept = self._opened(state, kept, window, found, hidden)
        return hidden, at, kept

    def _opened(self, state: State, kept: KeptBlocks, window: _Window, found: _Found, hidden: Tensor) -> KeptBlocks:
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
        new = tuple((keys[which], values[which]) for keys, values in found.layers)
        layers = _written(() if old is None else old.layers, batch, rows, at, new, size)
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
            own = kept.own if _everyone(rows, len(kept.end)) else _taken(kept.own, rows)
            past.append(Past(own, end))
        if kept.open is not None and not bool(window.whole.all()):
            size = self.attention.size
            ranks = window.block[:, None] * size + torch.arange(size, device=rows.device)
            elsewhere = (ranks < low[:, None]) | (ranks > window.ranks[:, -1:])
            there = elsewhere & (ranks < kept.count[rows][:, None]) & ~window.whole[:, None]
            past.append(Past(_taken(kept.open.layers, rows), seen=there))
        return tuple(past)

    def _first(self, state: State, most: int) -> KeptBlocks:
        """What was given before the first open block, computed once a prompt, at most `most` prompts at a time."""
        prompts = torch.arange(0, len(state.tokens), state.particles, device=state.tokens.device)
        number, weight = numbers(state, self.attention), self.inner.network.embed.weight
        at, real = _listed((number[prompts] < 0) & state.attend[prompts])
        place, ranked = _listed((number >= 0) & state.attend)
        given: Layers = ()
        length, edge = real.sum(1), weight.new_zeros(len(prompts), weight.shape[1])
        for count, group in _groups(length):
            for some in torch.split(group, most) if count else ():
                block = number[prompts[some]].gather(1, at[some, :count])
                seen = block[:, :, None] >= block[:, None]
                found = self._compute(state, prompts[some], at[some, :count], (), seen)
                columns = torch.arange(count, device=at.device).expand(len(some), -1)
                given = _written(given, len(prompts), some, columns, found.layers, at.shape[1])
                edge = edge.index_copy(0, some, found.hidden[:, -1])
        entry = torch.arange(len(state.tokens), device=prompts.device) // state.particles
        return KeptBlocks(given, length, entry, (), torch.zeros_like(entry), edge[entry], place, ranked.sum(1))


def _finished(kept: KeptBlocks, window: _Window, found: _Found, size: int) -> KeptBlocks:
    """With the blocks before the one that each row is in."""
    rows, ranks, old = window.rows, window.ranks, kept.end[window.rows]
    end = torch.maximum(window.block * size, old)
    longest = max(int(end.max()), kept.stored)
    own = _written(kept.own, len(kept.end), rows, ranks.where(ranks < end[:, None], longest), found.layers, longest)
    last = (end - 1 - ranks[:, 0]).clamp(min=0)
    edge = found.hidden[torch.arange(len(rows), device=rows.device), last]
    edge = edge.where((end > old)[:, None], kept.edge[rows])
    ends, edges = kept.end.index_copy(0, rows, end), kept.edge.index_copy(0, rows, edge)
    return replace(kept, own=own, end=ends, edge=edges)


def _written(old: Layers, batch: int, rows: Tensor, at: Tensor, new: Layers, length: int) -> Layers:
    """Layers [batch, H, length, d] with the new entries of rows at `at` [R, W]; those at `length` are dropped."""
    row, place = (at < length).nonzero(as_tuple=True)

    def renewed(layer: int, part: int) -> Tensor:
        fresh = new[layer][part]
        whole = fresh.new_zeros(batch, fresh.shape[1], length, fresh.shape[3])
        if old:
            whole[:, :, : old[layer][part].shape[2]] = old[layer][part]
        whole[rows[row], :, at[row, place]] = fresh[row, :, place]
        return whole

    return tuple((renewed(layer, 0), renewed(layer, 1)) for layer in range(len(new)))


# --- approximate: full attention --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptRows:
    """Keys, values and hidden states of all columns at each row's last full pass."""

    layers: Layers  # [B, H, L, d]
    hidden: Tensor  # [B, L, D]
    block: Tensor  # [B] int64: the block that the row was in; -1: there was no such pass
    age: Tensor  # [B] int64: looks since then

    def __getitem__(self, rows: Tensor) -> KeptRows:
        return KeptRows(_taken(self.layers, rows), self.hidden[rows], self.block[rows], self.age[rows])


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
    def name(self) -> str:
        right = "all" if self.after is None else self.after
        return f"{self.inner.name} (approximate: cache, blocks of {self.block}, {self.before} before, {right} after)"

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, KeptRows]:
        kept = state.cache if isinstance(state.cache, KeptRows) else None
        block = torch.minimum(first_masked(state), state.open.clamp(min=1) - 1) // self.block
        fresh = torch.ones_like(rows, dtype=torch.bool)
        if kept is not None:
            fresh = kept.block[rows] != block[rows]
            fresh = fresh | (kept.age[rows] + 1 >= self.every) if self.every else fresh
        pads = (~state.attend).sum(1)
        for pad, group in _groups(pads[rows[fresh]]):
            kept = self._refreshed(state, kept, rows[fresh][group], block, pad)
        assert kept is not None
        out = kept.hidden[rows]
        if not bool(fresh.all()):
            old = (~fresh).nonzero()[:, 0]
            kept = replace(kept, age=kept.age.index_add(0, rows[old], torch.ones_like(old)))
            begin, end = self._window(state, block, pads)
            for width, group in _groups((end - begin)[rows[old]]):
                for pad, some in _groups(pads[rows[old[group]]]):
                    places = old[group[some]]
                    at = begin[rows[places], None] + torch.arange(width, device=rows.device)
                    out[places] = self._computed(state, kept, rows[places], at, out[places], pad)
        return out, kept

    def _refreshed(self, state: State, kept: KeptRows | None, rows: Tensor, block: Tensor, pad: int) -> KeptRows:
        """With a full pass of these rows, which have `pad` columns of padding."""
        batch, length = state.tokens.shape
        at = torch.arange(pad, length, device=rows.device).expand(len(rows), -1)
        found = self._compute(state, rows, at, (), None)
        hidden = found.hidden
        if self.inner.shift:
            hidden = torch.where(found.columns[:, :, None] > 0, hidden.roll(1, 1), hidden)
        hidden = torch.nn.functional.pad(hidden, (0, 0, pad, 0))
        if kept is None:
            none = torch.full_like(state.open, -1)
            kept = KeptRows((), hidden.new_zeros(batch, length, hidden.shape[2]), none, none)
        whole = _everyone(rows, batch) and not pad
        every = found.layers if whole else _written(kept.layers, batch, rows, at, found.layers, length)
        return KeptRows(
            every,
            kept.hidden.index_copy(0, rows, hidden),
            kept.block.index_copy(0, rows, block[rows]),
            kept.age.index_fill(0, rows, 0),
        )

    def _window(self, state: State, block: Tensor, pads: Tensor) -> tuple[Tensor, Tensor]:  # [B], [B]
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
        layers = kept.layers if _everyone(rows, len(kept.age)) else _taken(kept.layers, rows)
        real = tuple((keys[:, :, pad:], values[:, :, pad:]) for keys, values in layers)
        found = self._compute(state, rows, at, (Past(real, seen=outside),), None, False)
        hidden, columns = found.hidden, at
        if self.inner.shift:  # outputs belong to the next columns; that of the last one is outside
            first = torch.where(found.columns[:, :1, None] > 0, old.gather(1, _wide(at[:, :1], old)), hidden[:, :1])
            hidden = torch.cat([first, hidden[:, :-1]], 1)
        return old.scatter(1, _wide(columns, old), hidden)


def _wide(at: Tensor, like: Tensor) -> Tensor:  # [R, W] -> [R, W, D]
    return at[:, :, None].expand(-1, -1, like.shape[2])
