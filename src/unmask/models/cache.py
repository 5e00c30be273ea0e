"""Cached: Fast-dLLM's prefix cache as a denoiser around a Transformer. Exact where attention is block-causal.

When a row enters a new block, one full pass is made, which is exact, and the keys and values of all columns before
the block are kept. Until the next block only the columns from there on are computed. All masks lie among them, so
state entropy covers the whole masked set; but under full attention decided tokens before the block no longer see later
decisions: kept keys and values go stale, and the result is approximate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, traits
from unmask.core.state import State
from unmask.errors import SettingError
from unmask.models.network import Kept, Pair
from unmask.models.transformer import Transformer
from unmask.models.wrap import Wrapped, innermost


def cached(denoiser: Denoiser, block: int) -> Denoiser:
    """The denoiser with a prefix cache under its other wrappers."""
    if traits(denoiser).keeps_rows:
        raise SettingError(f"{denoiser.name} has a prefix cache already", "leave cache_block out")

    def wrap(inner: Denoiser) -> Denoiser:
        if not isinstance(inner, Transformer):
            raise SettingError(f"{inner.name} has no keys and values to keep", "leave cache_block out")
        return Cached(inner, block)

    return innermost(denoiser, wrap)


@dataclass(frozen=True, eq=False)
class Cached(Wrapped):
    """Keeps the keys and values before the block of the first mask; `block` counts open positions, as samplers do."""

    inner: Transformer
    block: int

    def __post_init__(self) -> None:
        if self.block < 1:
            raise SettingError(f"the cache's block is {self.block}", "it must be at least 1")

    @property
    def exact(self) -> bool:
        """Whether columns before the block never see later ones, so that what is kept is what would be computed."""
        return self.inner.block_causal

    @property
    def keeps_rows(self) -> bool:
        return not self.exact

    @property
    def position_bytes(self) -> int:
        """The bytes of one position of one row."""
        shape, weight = self.inner.network.shape, self.inner.network.embed.weight
        return 2 * shape.layers * shape.kv * shape.each * weight.element_size()

    @property
    def name(self) -> str:
        if self.exact:
            return self.inner.name
        return f"{self.inner.name} (approximate: prefix cache, blocks of {self.block})"

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Kept | None]:
        begins, kept = self._begins(state), state.cache if isinstance(state.cache, Kept) else None
        old = begins[rows] == (kept.end[rows] if kept is not None else -1)
        known, fresh = old.nonzero()[:, 0], (~old).nonzero()[:, 0]  # places in `rows`
        parts: list[Tensor] = []
        if len(known):
            assert kept is not None
            asked = rows[known]
            old_keys = kept if _everyone(asked, len(begins)) else kept[asked]
            parts.append(self.inner.see(state, asked, old_keys, int(begins[asked].min()))[0])
        if len(fresh):
            hidden, used = self.inner.see(state, rows[fresh], keep=True)
            kept = _written(kept, used, begins, rows[fresh])
            parts.append(hidden)
        return torch.cat(parts)[torch.cat([known, fresh]).argsort()], kept

    def _begins(self, state: State) -> Tensor:  # [B] int64
        """For each row, the column at which the block of its first mask begins; the end where nothing is masked."""
        masked, length = state.masked, state.tokens.shape[1]
        first = torch.where(masked.any(1), masked.to(torch.int8).argmax(1), length)
        rank = state.rank.gather(1, first.clamp(max=length - 1)[:, None])
        opens = state.writable & (state.rank >= rank // self.block * self.block)
        return torch.where(first < length, opens.to(torch.int8).argmax(1), length)


def _everyone(rows: Tensor, count: int) -> bool:
    """Whether these are all rows in their order: then nothing has to be copied."""
    return len(rows) == count and bool((rows == torch.arange(count, device=rows.device)).all())


def _written(kept: Kept | None, used: list[Pair], begins: Tensor, rows: Tensor) -> Kept:
    """The kept keys and values with these rows renewed."""
    if _everyone(rows, len(begins)):
        return Kept(tuple(used), begins)

    def renewed(layer: int, part: int) -> Tensor:
        new = used[layer][part]
        old = new.new_zeros(len(begins), *new.shape[1:]) if kept is None else kept.layers[layer][part]
        return old.index_copy(0, rows, new)

    layers = tuple((renewed(layer, 0), renewed(layer, 1)) for layer in range(len(used)))
    end = torch.full_like(begins, -1) if kept is None else kept.end
    return Kept(layers, end.index_copy(0, rows, begins[rows]))
