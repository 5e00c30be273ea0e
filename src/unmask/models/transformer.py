"""Transformer: a Network as a denoiser, perhaps compiled; `random_transformer` makes a small one."""

from __future__ import annotations

import copy
import os
import shutil
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.denoiser import Denoiser, Head, Tokenizer
from unmask.core.state import Blocks, State, Vocab, numbers
from unmask.errors import SettingError
from unmask.models.devices import moved
from unmask.models.network import Network, Pair, Shape, empty
from unmask.models.packed import packed_of
from unmask.models.tokenizers import Characters
from unmask.models.wrap import innermost, layers


@dataclass(frozen=True, eq=False)
class Transformer:
    """A Network as a denoiser, with the quirks of its family."""

    network: Network
    vocab: Vocab
    tokenizer: Tokenizer
    name: str = "transformer"
    family: str = "native"
    limit: int | None = None
    absent: tuple[int, ...] = ()
    shift: bool = False  # output i belongs to token i + 1
    noise: Callable[[Tensor], Tensor] | None = None  # diffusion time -> noise level, for networks that want it
    cost: int = 1
    recipe: Mapping[str, Any] = field(default_factory=dict)  # its default settings
    blocks: int | None = None  # open positions to a block, where it was also trained with block-causal attention
    aligned: bool = False  # blocks are counted in columns from the first real token, and attention is always in blocks
    block_causal: bool = False  # a position sees what is given, its own block of open positions, and those before it
    compiled: Callable[..., tuple[Tensor, list[Pair]]] | None = None  # the network, compiled for whole batches

    def __repr__(self) -> str:
        return f"Transformer({self.name!r}, {self.family}, {self.device})"

    @property
    def device(self) -> torch.device:
        return self.network.like.device

    def to(
        self, device: str | torch.device | torch.dtype | None = None, dtype: torch.dtype | str | None = None
    ) -> Transformer:
        """The model on another device, or in another dtype; this one stays as it is."""
        place = moved(self.name, device, dtype)
        packed = {id(one) for module in packed_of(self.network).values() for one in module.parameters()}
        tensors = {
            id(one): nn.Parameter(one.to(device=place[0]) if id(one) in packed else one.to(*place), requires_grad=False)
            for one in self.network.parameters()
        }
        network = copy.deepcopy(self.network, tensors)
        network.seams = network.seams if place[0] is None else {}
        return replace(self, network=network, compiled=None)

    @property
    def timed(self) -> bool:
        return self.noise is not None

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All that have layers of it, in order; the first one has the rest, too."""
        return (self.device, *self.network.seams.values())

    @property
    def bytes(self) -> int:
        """Of the weights."""
        return sum(parameter.nbytes for parameter in self.network.parameters())

    @cached_property
    def head(self) -> Head:
        shape, network = self.network.shape, self.network
        weight = network.embed.weight if shape.tied else network.head.weight
        weight = weight if shape.logit_scale == 1 else shape.logit_scale * weight
        return Head(shape.vocabulary, weight, None if shape.tied else network.head.bias, self.absent)

    @property
    def attention(self) -> Blocks | None:
        """How attention is cut into blocks."""
        return Blocks(self.blocks, self.aligned) if self.block_causal and self.blocks is not None else None

    @torch.no_grad()
    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        if rows.is_cuda or not state.padded or self.compiled is not None:
            return self._pass(state, rows), None
        attend = state.attend[rows]
        pads = (~attend).sum(1)
        if not bool((attend.long().argmax(1) == pads).all()):  # padding on the right, which only other programs write
            return self._pass(state, rows), None
        # Rows of one length together, without their padding: nobody's numbers then depend on a longer neighbour.
        parts, places = [], []
        for pad in torch.unique(pads).tolist():
            places.append((pads == pad).nonzero()[:, 0])
            hidden = self._pass(state, rows[places[-1]], pad)
            parts.append(F.pad(hidden, (0, 0, pad, 0)))
        return torch.cat(parts)[torch.cat(places).argsort()], None

    def _pass(self, state: State, rows: Tensor, cut: int | None = None) -> Tensor:  # [R, L - cut, D]
        """Hidden states of these rows; with `cut`, without that many columns of padding that each of them has."""
        padded, pad = state.padded and cut is None, cut or 0
        columns, waves = self._columns(state, rows, padded, pad)
        attend = state.attend[rows] if padded else None  # without a mask attention takes its fast path
        seen = None if self.attention is None else self._seen(state, rows, self.attention)[:, pad:, pad:]
        run: Callable[..., tuple[Tensor, list[Pair]]] = self.network
        if self.compiled is not None and len(rows) == len(state.tokens):
            run = self.compiled
        tokens = state.tokens[rows, pad:]
        hidden, _ = run(tokens, columns, attend, self.sigma(state, rows), (), False, waves, seen)
        if self.shift:  # the first real token has no left neighbour and keeps its own output
            hidden = torch.where(columns[:, :, None] > 0, hidden.roll(1, 1), hidden)
        return hidden

    def sigma(self, state: State, rows: Tensor) -> Tensor | None:
        """The noise level of these rows, for networks that want it."""
        return None if self.noise is None else self.noise(state.time[rows])

    def _seen(self, state: State, rows: Tensor, blocks: Blocks) -> Tensor:  # [R, L, L] bool
        """What each column sees: its own block and those before it."""
        block = numbers(state, blocks)[rows]
        return block[:, :, None] >= block[:, None, :]

    def _columns(self, state: State, rows: Tensor, padded: bool, pad: int) -> tuple[Tensor, Pair | None]:
        """The columns of these rows, [1, L] where all have the same, and their rotary waves."""
        if padded:
            columns = state.columns[rows]
            return columns, self.network.waves(columns)
        length = state.tokens.shape[1] - pad
        if length not in self._same:
            columns = torch.arange(length, device=self.device)[None]
            self._same[length] = columns, self.network.waves(columns)
        return self._same[length]

    @property
    def recordable(self) -> bool:
        return not self.network.seams  # a CUDA graph is of one device

    @property
    def is_compiled(self) -> bool:
        return self.compiled is not None

    @cached_property
    def recordings(self) -> list[Any]:
        """Recorded steps of walks with this network."""
        return []

    @cached_property
    def _same(self) -> dict[int, tuple[Tensor, Pair | None]]:
        return {}


def compiled(denoiser: Denoiser) -> Denoiser:
    """Calls with all rows of a batch run compiled, once for each size of batch; others run as before.

    It is slower to start and faster in long runs on a GPU; numbers may differ in their last bits.
    """

    def change(inner: Denoiser) -> Denoiser:
        if not isinstance(inner, Transformer):
            raise SettingError(f"{inner.name} has no network of ours to compile", "leave compile out")
        if inner.network.seams:
            raise SettingError(f"{inner.name} is on several devices, and is compiled for one", "leave compile out")
        if not can_compile(inner.device):
            raise SettingError("there is no C++ compiler, which a CPU needs", "leave compile out")
        return replace(inner, compiled=torch.compile(inner.network, dynamic=False))

    return innermost(denoiser, change)


def attention_blocks(denoiser: Denoiser) -> int:
    """Open positions to a block of the block-causal attention that the model was trained with."""
    *_, inner = layers(denoiser)
    if not isinstance(inner, Transformer) or inner.blocks is None:
        what = f"{denoiser.name} was not trained with block-causal attention"
        raise SettingError(what, "leave attention out", setting="attention")
    return inner.blocks


def block_causal(denoiser: Denoiser) -> Denoiser:
    """The denoiser under its other wrappers with the block-causal attention that it was trained with."""
    attention_blocks(denoiser)
    return innermost(denoiser, lambda inner: replace(inner, block_causal=True))  # type: ignore[type-var]


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for the device; for a CPU it is one of C++."""
    return device.type != "cpu" or any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))


def random_transformer(
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    limit: int = 4096,
) -> Transformer:
    """A small network of random weights over letters, digits and a few signs, for tests: it writes nonsense."""
    alphabet = string.ascii_lowercase + string.digits + " .,\n"
    mask, eos = len(alphabet) + 1, len(alphabet)
    network = empty(Shape(len(alphabet) + 2, width, layers, heads, 4 * width, tied=True, logit_scale=0.3), "cpu", dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * (1.0 if parameter is network.embed.weight else parameter.shape[1] ** -0.5))
    return Transformer(
        network.to(device),
        Vocab(mask, (eos,), pad=eos),
        Characters(alphabet),
        name="random",
        limit=limit,
        absent=(mask,),
    )
