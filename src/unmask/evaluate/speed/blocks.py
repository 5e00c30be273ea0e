"""A decode with a cache, watched step by step -> the columns that its steps have to compute, and what it keeps.

All is counted from the canvas of a benchmark, which is a prompt without padding and then masks. What an implementation
computes besides does not count: this is for the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from torch import Tensor

from unmask.core.denoiser import Denoiser, traits
from unmask.core.state import State, first_masked
from unmask.core.step import Moment
from unmask.errors import InputError
from unmask.evaluate.speed.bare import Columns
from unmask.models.cache import BlockCache, Keeps, KeptBlocks, KeptRows, Layers, WindowCache
from unmask.models.cache.blocks import FixedBlocks
from unmask.models.cache.windows import FixedRows
from unmask.models.wrap import Wrapped, layers

# --- which columns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scheme:
    """Which columns a look at a row computes: one block of attention, or a window around a block of the sampler."""

    given: int  # columns before the first block
    length: int  # columns in all
    size: int  # columns to a block
    window: WindowCache | None = None  # None: attention is in blocks, and finished ones are final
    part: int | None = None  # columns to a part of such a block that is computed alone
    counted: int | None = None  # positions to a block of the sampler whose masks alone count; None: all do

    def block(self, state: State) -> Tensor:  # [B] int64
        """The block that each row is in."""
        front = state.front if self.window is None else first_masked(state)
        return front.clamp(max=self.length - self.given - 1) // self.size

    def span(self, block: int) -> tuple[int, int]:
        """The first column of a block and the one after its last."""
        first = self.given + block * self.size
        return first, min(first + self.size, self.length)

    def reach(self, block: int) -> tuple[int, int]:
        """The same of what is computed between two refreshes."""
        first, end = self.span(block)
        if self.window is None:
            return first, end
        cache = self.window
        right = self.length if cache.after is None else min(end + cache.after, self.length)
        return max(0, first - cache.before - int(cache.inner.shift)), right


def scheme(denoiser: Denoiser, state: State, block_length: int | None, scope: str) -> Scheme | None:
    """That of a denoiser as it decodes, with a sampler's blocks; None: every step computes every column."""
    attention, kept = traits(denoiser).attention, cache(denoiser)
    counted = block_length if scope == "block" else None
    prompt, length = int((~state.writable[0]).sum()), state.tokens.shape[1]
    if attention is not None:
        given = prompt // attention.size * attention.size if attention.aligned else prompt
        part = kept.part if isinstance(kept, BlockCache) else None
        return Scheme(given, length, attention.size, part=part, counted=counted)
    if isinstance(kept, WindowCache):
        return Scheme(prompt, length, kept.block, kept, counted=counted)
    return None


def cache(denoiser: Denoiser) -> Keeps | None:
    """The cache among the wrappers of a denoiser."""
    return next((one for one in layers(denoiser) if isinstance(one, Keeps)), None)


def uncached(denoiser: Denoiser) -> Denoiser:
    """The denoiser without the cache among its wrappers."""
    if isinstance(denoiser, Keeps):
        return denoiser.inner
    return replace(denoiser, inner=uncached(denoiser.inner)) if isinstance(denoiser, Wrapped) else denoiser


# --- step by step -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """One row in one step."""

    entered: bool  # it is in another block than before
    refreshed: bool  # more than the block or the window is computed
    width: int  # columns that are computed, or would be without a refresh
    kept: int  # columns that these see besides
    whole: int  # columns that a refresh computes, and
    stored: int  # of finished blocks, which are computed once more to be kept
    masks: int  # masked positions among those that are computed


class Watch:
    """Called with every moment of a decode; has the looks of each step."""

    def __init__(self, scheme: Scheme, state: State) -> None:
        self.scheme, self.steps = scheme, list[list[Look]]()
        rows = len(state.tokens)
        self.last, self.opened, self.age = [-1] * rows, [-1] * rows, [0] * rows  # by row
        self._see(state)

    def _see(self, state: State) -> None:
        """What the next step looks at; the tensors of a moment do not outlive it."""
        self.blocks, self.masked = self.scheme.block(state).tolist(), state.masked.cpu()
        self.cache: Any = state.cache

    def __call__(self, moment: Moment) -> None:
        self.steps.append([self._look(row) for row in moment.active.nonzero()[:, 0].tolist()])
        if moment.resampled is not None:
            rows = moment.resampled.ancestors.tolist()
            self.last, self.opened, self.age = (
                [one[row] for row in rows] for one in (self.last, self.opened, self.age)
            )
        self._see(moment.state)

    def _look(self, row: int) -> Look:
        scheme, block, last = self.scheme, self.blocks[row], self.last[row]
        entered, self.last[row] = block != last, block
        (first, end), (begin, stop) = scheme.span(block), scheme.reach(block)
        if scheme.window is not None:
            self.age[row] += 1
            refreshed = entered or 0 < scheme.window.every <= self.age[row]
            self.age[row] = 0 if refreshed else self.age[row]
            masks = self._masks(row, 0, scheme.length) if refreshed else self._masks(row, begin, stop)
            width = stop - begin
            return Look(entered, refreshed, width, scheme.length - width, scheme.length, 0, masks)
        stored = (block - last) * scheme.size if entered and last >= 0 else 0
        width, refreshed = end - first, entered
        if scheme.part is not None:
            width, refreshed = min(scheme.part, width), self._whole(row, block)
        return Look(entered, refreshed, width, end - width, end - first, stored, self._masks(row, first, end))

    def _masks(self, row: int, begin: int, end: int) -> int:
        """Masked positions of these columns that count."""
        scheme, at = self.scheme, self.masked[row, begin:end].nonzero()[:, 0] + begin - self.scheme.given
        if scheme.counted is None or not len(at):
            return len(at)
        return int((at < (int(at[0]) // scheme.counted + 1) * scheme.counted).sum())

    def _whole(self, row: int, block: int) -> bool:
        """Whether all of a block is computed: not since its first position was decided, or a part begins."""
        masked, (first, end), part = self.masked[row], self.scheme.span(block), self.scheme.part
        assert part is not None
        inside = masked[first:end].nonzero()[:, 0]
        begin = first + (int(inside[0]) // part * part if len(inside) else 0)
        whole = bool(masked[begin]) or self.opened[row] != block
        if whole and not bool(masked[first]):
            self.opened[row] = block
        return whole


@dataclass(frozen=True)
class Pace:
    """What the timed steps of a decode compute, in the mean."""

    first: int  # the step at which they begin: a block is entered, and the one before it is not timed
    inner: Columns  # between two refreshes
    refresh: Columns | None  # None: all columns
    public: Columns  # what a public loop with a cache computes in between: the block
    entered: float  # share of looks that enter a block
    refreshed: float  # share of looks that refresh, of all rows and steps
    masks: list[int]  # of all rows, in each step


def pace(scheme: Scheme, steps: Sequence[Sequence[Look]], least: int) -> Pace:
    """From the looks of each step but the `least` first. Whole blocks count, so that each has its refresh."""
    later = [step for step, looks in enumerate(steps) if step >= least and any(look.entered for look in looks)]
    if not later:
        what = f"the decode has one block of {scheme.size} positions"
        raise InputError(what, "take a longer one: the first block is not timed")
    timed = [looks for looks in steps[later[0] :] if looks]
    every = [look for looks in timed for look in looks]
    fresh = [look for look in every if look.refreshed]
    width, kept = (round(mean(numbers)) for numbers in zip(*((one.width, one.kept) for one in every), strict=True))
    whole, stored = (round(mean(numbers)) for numbers in zip(*((one.whole, one.stored) for one in fresh), strict=True))
    inner = public = Columns(kept, (width,))
    refresh = None
    if scheme.window is None:
        refresh = Columns(max(0, kept + width - whole - stored), (stored, whole) if stored else (whole,))
    else:
        public = Columns(scheme.length - scheme.size, (scheme.size,))
    return Pace(
        later[0],
        inner,
        refresh,
        public,
        sum(look.entered for look in every) / len(every),
        len(fresh) / len(every),
        [sum(look.masks for look in looks) for looks in timed],
    )


# --- what is kept -----------------------------------------------------------------------------------------------------


def kept(denoiser: Denoiser, watch: Watch) -> dict[str, int] | None:
    """Bytes of keys and values at the end of a decode, those of the prompt and those of the rows; and the arithmetic.

    The latter is bytes a position × positions, of the prompt once, or twice under guidance.
    """
    keeps, found = cache(denoiser), watch.cache
    while found is not None and not isinstance(found, KeptBlocks | KeptRows | FixedBlocks | FixedRows):
        found = getattr(found, "inner", None)  # under guidance
    if found is None or keeps is None:
        return None
    scheme, each = watch.scheme, keeps.position_bytes
    rows = len(found.age if isinstance(found, KeptRows | FixedRows) else found.entry)
    times = rows // len(watch.last)
    if isinstance(found, KeptRows | FixedRows):
        prompt, own = 0, _bytes(found.layers)
        positions = 0, scheme.length
    elif isinstance(found, FixedBlocks):  # room for all blocks, and for one that is not to be seen
        prompt, own = _bytes(found.given), _bytes(found.own)
        positions = scheme.given, (-(-(scheme.length - scheme.given) // scheme.size) + 1) * scheme.size
    else:
        prompt = _bytes(found.given)
        own = found.bytes - prompt
        opened = 0 if found.open is None else scheme.size
        positions = scheme.given, max(watch.last) * scheme.size + opened
    return {
        "prompt_positions": positions[0],
        "prompt_bytes": prompt,
        "rows": rows,
        "row_positions": positions[1],
        "rows_bytes": own,
        "position_bytes": each,
        "expected_bytes": each * (times * positions[0] + rows * positions[1]),
    }


def _bytes(kept: Layers) -> int:
    return sum(one.nbytes for pair in kept for one in pair)
