"""What the caches share: columns of a row computed against kept keys and values, and tensors that stay in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.core.gpu import attention
from unmask.core.state import State
from unmask.models.network import Pair, Past
from unmask.models.seams import carried
from unmask.models.transformer import Transformer
from unmask.models.wrap import Wrapped

Layers = tuple[Pair, ...]  # keys and values [N, H, C, d] of all layers
Own = TypeVar("Own", bound="Fixed")


@dataclass(frozen=True, eq=False)
class Keeps(Wrapped):
    """What the caches share."""

    inner: Transformer

    @property
    def position_bytes(self) -> int:
        """The bytes of one position of one row."""
        shape, weight = self.inner.network.shape, self.inner.network.like
        return 2 * shape.layers * shape.kv * shape.each * weight.element_size()

    def compute(
        self, state: State, rows: Tensor, at: Tensor, past: tuple[Past, ...], seen: Tensor | None, keep: bool = True
    ) -> Found:
        """These columns `at` [R, W] of rows, of which each sees what `seen` [R, W, W] and the past parts say.

        Keys and values are among the answer only to `keep` them: most steps do not.
        """
        columns = state.columns[rows].gather(1, at)
        tokens = state.tokens[rows].gather(1, at)
        sigma = self.inner.sigma(state, rows)
        with torch.no_grad():
            hidden, used = self.inner.network(tokens, columns, None, sigma, past, keep, None, seen)
        return Found(hidden, tuple(used), columns)


@dataclass(frozen=True)
class Found:
    """The network's answer for some columns of some rows."""

    hidden: Tensor  # [R, W, D]
    layers: Layers
    columns: Tensor  # [R, W] int64: counted from the first real token


def groups(widths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Equal widths together, and their places."""
    for width in torch.unique(widths).tolist():
        yield width, (widths == width).nonzero()[:, 0]


def taken(layers: Layers, rows: Tensor) -> Layers:
    """Layers of these rows; each stays on its device."""
    there = {device: rows.to(device) for device in {keys.device for keys, _ in layers}}
    return tuple((keys[there[keys.device]], values[there[keys.device]]) for keys, values in layers)


def everyone(rows: Tensor, count: int) -> bool:
    """Whether these are all rows in their order: then nothing has to be copied."""
    return len(rows) == count and bool((rows == torch.arange(count, device=rows.device)).all())


def written(old: Layers, batch: int, rows: Tensor, at: Tensor, new: Layers, length: int) -> Layers:
    """Layers [batch, H, length, d] with the new entries of rows at `at` [R, W]; those at `length` are dropped."""
    row, place = (at < length).nonzero(as_tuple=True)
    here = (rows[row], at[row, place], row, place)
    there = {device: carried(here, device) for device in {keys.device for keys, _ in new}}

    def renewed(layer: int, part: int) -> Tensor:
        fresh = new[layer][part]
        to_row, to_place, row, place = there[fresh.device]
        whole = fresh.new_zeros(batch, fresh.shape[1], length, fresh.shape[3])
        if old:
            whole[:, :, : old[layer][part].shape[2]] = old[layer][part]
        whole[to_row, :, to_place] = fresh[row, :, place]
        return whole

    return tuple((renewed(layer, 0), renewed(layer, 1)) for layer in range(len(new)))


# --- for recorded steps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fixed:
    """Tensors of all rows, and layers of keys and values."""

    @property
    def _tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        for one in fields(self):
            value = getattr(self, one.name)
            found += [value] if isinstance(value, Tensor) else []
            found += [side for pair in value for side in pair] if isinstance(value, tuple) else []
        return found

    cache: Any  # the denoiser; None while nobody decodes

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Of all tensors."""
        return tuple(tuple(one.shape) for one in self._tensors)

    def idle(self: Own) -> Own:
        """The tensors without the model."""
        return replace(self, cache=None)

    def fill(self: Own, other: Own) -> Own:
        """These tensors with the contents of another one of the same kind, and with its model."""
        for mine, theirs in zip(self._tensors, other._tensors, strict=True):
            mine.copy_(theirs)
        return replace(self, cache=other.cache)

    def clone(self: Own) -> Own:
        """The same in other tensors."""
        return replace(self, **self.changed(Tensor.clone))

    def changed(self, function: Any, *names: str) -> dict[str, Any]:
        """`function` of the named fields, of all by default, that are tensors; of each tensor where they are layers."""
        found: dict[str, Any] = {}
        for name in names or [one.name for one in fields(self)]:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                found[name] = function(value)
            elif isinstance(value, tuple):
                found[name] = tuple((function(keys), function(values)) for keys, values in value)
        return found


def moved(layers: Layers, ancestors: Tensor, ends: Tensor) -> None:
    """Rows take the keys and values of their ancestors, the first `ends` columns, in place."""
    if layers and attention.usable(layers[0][0]):
        attention.move(layers, ancestors, ends)
        return
    for pair in layers:
        for one in pair:
            one.copy_(one[ancestors])


def shown(hidden: Tensor, at: Tensor, valid: Tensor, length: int) -> Tensor:  # [R, W, D] -> [R, L, D]
    """Hidden states laid out at their columns [R, W], zero elsewhere."""
    out = hidden.new_zeros(len(hidden), length + 1, hidden.shape[2])  # the last column is for what is not valid
    return laid(out, hidden, at.where(valid, length))[:, :length]


def laid(out: Tensor, hidden: Tensor, at: Tensor) -> Tensor:
    return out.scatter_(1, at[:, :, None].expand(-1, -1, hidden.shape[2]), hidden)


def sees(valid: Tensor) -> Tensor:  # [R, W] -> [R, W, W] bool
    """Every column sees the valid ones; another one sees itself, so that no softmax is empty."""
    return valid[:, None] | torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
