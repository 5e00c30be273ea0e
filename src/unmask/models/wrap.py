"""Denoisers around denoisers: guidance, rows in chunks, counted calls. They can be nested in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, FixedCache, Head, Tokenizer, traits
from unmask.core.state import Blocks, Cache, State, Vocab
from unmask.errors import SettingError


@dataclass(frozen=True, eq=False)
class Wrapped:
    """A denoiser that behaves like the inner one in all that it does not override."""

    inner: Denoiser

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def vocab(self) -> Vocab:
        return self.inner.vocab

    @property
    def head(self) -> Head:
        return self.inner.head

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inner.tokenizer

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def limit(self) -> int | None:
        return self.inner.limit

    @property
    def cost(self) -> int:
        return self.inner.cost

    @property
    def timed(self) -> bool:
        return self.inner.timed

    @property
    def keeps_rows(self) -> bool:
        return traits(self.inner).keeps_rows

    @property
    def is_compiled(self) -> bool:
        return traits(self.inner).is_compiled

    @property
    def recipe(self) -> Mapping[str, Any]:
        return traits(self.inner).recipe

    @property
    def attention(self) -> Blocks | None:
        return traits(self.inner).attention

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        return self.inner.look(state, rows)


def layers(denoiser: Denoiser) -> Iterator[Denoiser]:
    """The denoiser, what it wraps, and so on."""
    yield denoiser
    while isinstance(denoiser, Wrapped):
        denoiser = denoiser.inner
        yield denoiser


def innermost(denoiser: Denoiser, change: Callable[[Denoiser], Denoiser]) -> Denoiser:
    """The same wrappers around `change` of what they wrap."""
    if isinstance(denoiser, Wrapped):
        return replace(denoiser, inner=innermost(denoiser.inner, change))
    return change(denoiser)


@dataclass(frozen=True)
class _Both:
    """The inner cache of a state that holds every row twice: unchanged, then with its given tokens masked."""

    inner: Cache
    rows: int

    def __getitem__(self, rows: Tensor) -> _Both:
        return _Both(self.inner[torch.cat([rows, rows + self.rows])], len(rows))


@dataclass(frozen=True)
class _FixedBoth(_Both):
    """The same in tensors that stay where they are."""

    inner: Any  # a FixedCache

    @property
    def kind(self) -> tuple[Any, ...]:
        return "both", *self.inner.kind

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(self.inner.key)

    def plan(self, state: State, active: Tensor) -> Tensor:
        numbers: Tensor = self.inner.plan(_twice(state), torch.cat([active, active]))
        return numbers

    def planned(self, numbers: Sequence[int]) -> _FixedBoth:
        return replace(self, inner=self.inner.planned(numbers))

    def __getitem__(self, ancestors: Tensor) -> _FixedBoth:
        return replace(self, inner=self.inner[torch.cat([ancestors, ancestors + self.rows])])

    def part(self, rows: Tensor) -> _FixedBoth:
        return _FixedBoth(self.inner.part(torch.cat([rows, rows + self.rows])), len(rows))

    def clone(self) -> _FixedBoth:
        return replace(self, inner=self.inner.clone())

    def idle(self) -> _FixedBoth:
        return replace(self, inner=self.inner.idle())

    def fill(self, other: _FixedBoth) -> _FixedBoth:
        return replace(self, inner=self.inner.fill(other.inner))


def _twice(state: State) -> State:
    """Every row, and then every row again; without what they keep."""
    everyone = torch.arange(len(state.tokens), device=state.tokens.device)
    return state.replace(cache=None).take(torch.cat([everyone, everyone]))


@dataclass(frozen=True, eq=False)
class Guided(Wrapped):
    """Classifier-free guidance: u + (scale + 1)(c - u), u from the row whose given tokens are masked.

    It commutes with a linear head, so hidden states are combined and the vocabulary is applied once.
    """

    scale: float

    @property
    def recordable(self) -> bool:
        return traits(self.inner).recordable

    @property
    def cost(self) -> int:
        return 2 * self.inner.cost

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, _Both | None]:
        """One call with every row twice: unchanged, and with its given tokens masked."""
        count, twice = len(state.tokens), _twice(state)
        blind = twice.tokens.where(twice.writable | ~twice.attend, state.vocab.mask)
        second = torch.arange(2 * count, device=rows.device) >= count
        kept = state.cache.inner if isinstance(state.cache, _Both) else None
        both = twice.replace(tokens=blind.where(second[:, None], twice.tokens), cache=kept)
        hidden, cache = self.inner.look(both, torch.cat([rows, rows + count]))
        with_prompt, without = hidden.chunk(2)
        guided = without + (self.scale + 1) * (with_prompt - without)
        guided = guided.where(without.isfinite(), with_prompt)  # -inf is the same with any prompt
        if isinstance(state.cache, _FixedBoth):
            return guided, replace(state.cache, inner=cache)
        return guided, None if cache is None else _Both(cache, count)

    @property
    def fixed(self) -> Callable[[State], _FixedBoth] | None:
        inner = traits(self.inner).fixed
        return None if inner is None else partial(self._fixed, inner)

    def _fixed(self, inner: Callable[[State], FixedCache], state: State) -> _FixedBoth:
        assert isinstance(state.cache, _Both)
        return _FixedBoth(inner(_twice(state).replace(cache=state.cache.inner)), len(state.tokens))


@dataclass(frozen=True, eq=False)
class Chunked(Wrapped):
    """At most `rows` rows through the network at a time: bounded memory for many particles."""

    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SettingError(f"rows at a time is {self.rows}", "it must be at least 1")

    @property
    def recordable(self) -> bool:
        return traits(self.inner).recordable

    @property
    def fixed(self) -> Callable[[State], FixedCache] | None:
        return traits(self.inner).fixed

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        parts = []
        for begin in range(0, len(rows), self.rows):
            hidden, cache = self.inner.look(state, rows[begin : begin + self.rows])
            state = state.replace(cache=cache)
            parts.append(hidden)
        return torch.cat(parts), state.cache


@dataclass
class Count:
    """What has gone through a denoiser."""

    calls: int = 0
    rows: int = 0


@dataclass(frozen=True, eq=False)
class Counted(Wrapped):
    """Counts calls and rows, for checks and benchmarks: `counted.count.rows`."""

    count: Count = field(default_factory=Count)

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        self.count.calls += 1
        self.count.rows += len(rows)
        return self.inner.look(state, rows)
