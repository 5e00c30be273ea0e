"""Denoisers around a Transformer that compute some columns of a row against kept keys and values of the others.

`BlockCache` is exact, for attention in blocks. `WindowCache` is approximate, for full attention.
"""

from __future__ import annotations

from dataclasses import replace

from unmask.core.denoiser import Denoiser, traits
from unmask.errors import SettingError
from unmask.models.cache.blocks import BlockCache, KeptBlocks
from unmask.models.cache.kept import Keeps, Layers
from unmask.models.cache.windows import KeptRows, WindowCache
from unmask.models.transformer import Transformer
from unmask.models.wrap import Wrapped, innermost

__all__ = [
    "BlockCache", "Keeps", "KeptBlocks", "KeptRows", "Layers", "WindowCache", "block_cached", "cached",
    "without_approximation",
]  # fmt: skip


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
