"""Denoiser and Head: what decoding asks of a model; Traits: what a driver may know about it besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.state import Blocks, State, Vocab

SLICE = 1 << 14  # rows of a half-precision head that are float32 at a time: 256 MiB at D = 4096


@dataclass(frozen=True)
class Head:
    """Hidden states -> logits. Without a weight it is the identity, for models that only give logits."""

    width: int  # V, the number of logits
    weight: Tensor | None = None  # [V, D]
    bias: Tensor | None = None  # [V]; also added where there is no weight
    absent: tuple[int, ...] = ()  # ids outside the model's distribution

    @cached_property
    def closed(self) -> dict[tuple[int, ...], Tensor]:
        """Ids -> the bias with -inf at these, [V] float32, filled on first use."""
        return {}

    @cached_property
    def lowered(self) -> dict[tuple[object, ...], Head]:
        """What `lower` has made, by its arguments."""
        return {}

    def lower(self, ids: tuple[int, ...], by: float, hidden: Tensor) -> Head:
        """The head that gives these ids lower logits, for hidden states of this kind; made on first use."""
        key = (ids, by, hidden.device, hidden.dtype)
        if key not in self.lowered:
            exact = hidden.dtype if hidden.dtype == torch.float64 else torch.float32  # as `logits` adds it
            bias = torch.zeros(self.width, dtype=exact, device=hidden.device)
            bias = bias if self.bias is None else bias + self.bias
            self.lowered[key] = replace(self, bias=bias.index_add(0, *_amounts(ids, -by, bias)))
        return self.lowered[key]

    def logits(self, hidden: Tensor) -> Tensor:  # [R, D] -> [R, V], float32 or float64
        """Logits in float32 (float64 where the model is), the absent ids at -inf."""
        scores = hidden if self.weight is None else _linear(hidden, self.weight, self.bias)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        scores = scores + self.bias if self.weight is None and self.bias is not None else scores
        if not self.absent:
            return scores
        columns = torch.tensor(self.absent, device=scores.device)
        return scores.index_fill(1, columns, -torch.inf)


def _amounts(ids: tuple[int, ...], amount: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """An index of these ids and the same amount for each."""
    return torch.tensor(ids, device=like.device), torch.full((len(ids),), amount, dtype=like.dtype, device=like.device)


def _linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # [R, D] -> [R, V]
    """`F.linear`, but half precision is summed and kept in float32."""
    if weight.dtype in (torch.float32, torch.float64):
        return F.linear(hidden, weight, bias)
    if hidden.is_cuda and len(hidden) and torch.__version__ >= "2.8":
        scores = torch.mm(hidden, weight.mT, out_dtype=torch.float32)
    else:
        exact = hidden.float()
        scores = torch.cat([F.linear(exact, part.float()) for part in torch.split(weight, SLICE)], 1)
    return scores if bias is None else scores.add_(bias)


class Tokenizer(Protocol):
    """Text <-> ids."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


@runtime_checkable
class Chats(Protocol):
    """A tokenizer that can write a dialogue, if it has a template."""

    @property
    def template(self) -> str | None: ...
    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The dialogue as text, up to where the answer begins."""
        ...


class Denoiser(Protocol):
    """A masked diffusion model. Row i of the hidden states predicts token i; every quirk stays in the adapter.

    An adapter may also have any member of Traits, whose defaults hold otherwise.
    """

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def head(self) -> Head: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def limit(self) -> int | None:
        """The longest canvas; None: any."""
        ...

    @property
    def cost(self) -> int:
        """Rows through the network per row asked for: 2 under guidance."""
        ...

    @property
    def timed(self) -> bool:
        """Whether the answer depends on `state.time`."""
        ...

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, Any]:
        """Hidden states [R, L, D] of these rows, and the cache of the whole state (None if the model keeps none)."""
        ...


class FixedCache(Protocol):
    """What rows keep, in tensors that stay where they are: a recorded step reads them and changes them in place.

    How much the next look computes is known to the host beforehand. It reads `plan` and says it by `planned`.
    """

    @property
    def kind(self) -> tuple[Any, ...]:
        """Recorded steps with one cache serve another of the same kind, once it has been filled from that."""
        ...

    @property
    def key(self) -> tuple[int, ...]:
        """What is planned: there is a recorded step for each."""
        ...

    def plan(self, state: State, active: Tensor) -> Tensor:
        """Numbers [n] int64 for the host: what the next look at the active rows has to do."""
        ...

    def planned(self, numbers: Sequence[int]) -> FixedCache:
        """The same tensors, and what the host has read."""
        ...

    def __getitem__(self, ancestors: Tensor) -> FixedCache:
        """Every row takes its ancestor's contents, in place."""
        ...

    def part(self, rows: Tensor) -> FixedCache:
        """These rows, in tensors of their own."""
        ...

    def clone(self) -> FixedCache:
        """The same in other tensors."""
        ...

    def idle(self) -> FixedCache:
        """The tensors without the model."""
        ...

    def fill(self, other: Any) -> FixedCache:
        """These tensors with the contents of another cache of the same kind, and with its model."""
        ...


@dataclass(frozen=True)
class Traits:
    """What drivers and decoding ask about a denoiser besides; read by `traits`, so that an adapter needs none of it."""

    recordable: bool = False  # `look` of all rows can be captured as a CUDA graph: no host read, fixed shapes
    keeps_rows: bool = False  # the answer depends on the row's own cache, so equal rows are not interchangeable
    is_compiled: bool = False  # the network is compiled, so compiling the rest of a step pays, too
    recordings: list[Any] | None = None  # where recorded steps are kept for the next walk
    fixed: Callable[[State], FixedCache] | None = None  # what rows of a state keep, if `look` is recorded with it
    recipe: Mapping[str, Any] = field(default_factory=dict)  # default settings, where the user gives none
    attention: Blocks | None = None  # how attention is cut into blocks; None: everything sees everything


def traits(denoiser: Denoiser) -> Traits:
    """The denoiser's own traits, the defaults elsewhere."""
    own = {one.name: getattr(denoiser, one.name) for one in fields(Traits) if hasattr(denoiser, one.name)}
    return Traits(**own)
