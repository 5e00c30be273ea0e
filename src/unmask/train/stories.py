"""A Source and a seed -> stories that it tells at temperature 1: the ids of those that end within its context.

Rows are sampled together, a token of each at a time, on buffers that keep their place, so that a GPU can replay a step
as a CUDA graph. The cache of keys and values is read in a few widths. A token needs two uniform numbers: one chooses a
group of neighbouring tokens by its probability, the other a token of the group. All numbers of a batch are drawn before
it, on the CPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unmask.core.gpu.device import on
from unmask.evaluate.judge.pieces import BEGIN
from unmask.evaluate.judge.stories import Layer, Source, angles, finished, normed, predicted, projected

BATCH = {"cuda": 4096, "cpu": 64}
WIDTHS = 4  # in which the cache is read
GROUP = 128  # neighbouring tokens, at most
RESERVED = 64  # one story in so many is never trained on
LAST_SPECIAL = 2
Ids = NDArray[np.int32]


def held(text: str) -> bool:
    """Whether a story is reserved for validation; it depends on nothing but its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % RESERVED == 0


def text_of(source: Source, ids: Ids) -> str:
    """A story as the source wrote it, without white space around it."""
    return source.words.decode(ids.tolist()).strip()


def texts(sampler: Sampler, count: int, seed: int) -> list[str]:
    """So many stories that are not reserved, for one's own tokenizer."""
    found: list[str] = []
    for ids in sampler.stories(seed):
        text = text_of(sampler.source, ids)
        if not held(text):
            found.append(text)
        if len(found) == count:
            break
    return found


def sample(source: Source, count: int, seed: int, batch: int | None = None, graph: bool | None = None) -> list[Ids]:
    """The ids of `count` stories; `graph` None compiles and captures the step on a GPU."""
    stories = Sampler(source, batch, graph).stories(seed)
    return [next(stories) for _ in range(count)]


# --- the sampler -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Buffers:
    """The state of a batch; a step changes it in place."""

    tokens: Tensor  # [B] int64, the newest of each row
    position: Tensor  # [1] int64, where they stand
    ended: Tensor  # [B] bool
    rows: Tensor  # [B, T] int32, the tokens after <s>; <s> from the end on
    chance: Tensor  # [T, 2, B] float32, uniform
    keys: tuple[Tensor, ...]  # [B, heads, T, head] of each layer
    values: tuple[Tensor, ...]
    cos: Tensor  # [T, head / 2] float32
    sin: Tensor

    def restart(self, seed: Sequence[int]) -> None:
        """Begin a batch whose numbers depend on the seed only."""
        dice = np.random.default_rng([len(seed), *seed])
        self.chance.copy_(torch.from_numpy(dice.random(tuple(self.chance.shape), dtype=np.float32)))
        self.tokens.fill_(BEGIN)
        self.position.zero_()
        self.ended.zero_()


class Sampler:
    """Batches of stories; the buffers, and on a GPU the captured steps, are made once."""

    def __init__(self, source: Source, batch: int | None = None, graph: bool | None = None) -> None:
        """`graph` compiles and captures the step, by default on a GPU; without it every operation starts on its own."""
        self.source = source
        self.batch = batch or BATCH.get(source.device.type, BATCH["cpu"])
        self.graph = source.device.type == "cuda" if graph is None else graph
        self.buffers = _buffers(source, self.batch)
        self.steps: list[Callable[[], object]] = []  # by position

    @torch.no_grad()
    def rows(self, seed: Sequence[int]) -> Ids:  # [B, T]
        """A batch of rows; those that hold <s> have ended there."""
        with on(self.buffers.tokens):
            if not self.steps:
                self.steps = self._captured() if self.graph else self._plain()
            self.buffers.restart(seed)
            for step in self.steps:
                step()
            found: Ids = self.buffers.rows.cpu().numpy().copy()  # the next batch is written over this one
        return found

    def ended(self, seed: Sequence[int]) -> list[Ids]:
        """The stories of a batch that have ended, without their end."""
        rows = self.rows(seed)
        is_end = rows == BEGIN
        ends = np.where(is_end.any(1), is_end.argmax(1), 0)  # one that ends at once is empty, and left out
        return [row[:end] for row, end in zip(rows, ends, strict=True) if end]

    def stories(self, *seed: int) -> Iterator[Ids]:
        """Stories without an end."""
        number = 0
        while True:
            yield from self.ended([*seed, number])
            number += 1

    def _plain(self) -> list[Callable[[], object]]:
        def step(width: int) -> Callable[[], object]:
            return lambda: _step(self.source, self.buffers, width, _layer, drawn)

        return [step(width) for width in _widths(self.source.shape.context)]

    def _captured(self) -> list[Callable[[], object]]:
        """A CUDA graph of the step for each width of the cache, its parts compiled."""
        layer: LayerStep = torch.compile(_fused_layer, dynamic=False, fullgraph=True)
        draw: Draw = torch.compile(drawn, dynamic=False, fullgraph=True)
        graphs: dict[int, torch.cuda.CUDAGraph] = {}
        widths = _widths(self.source.shape.context)
        self.buffers.restart([0])
        for width in dict.fromkeys(widths):
            side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compilation and first allocations must not be captured
                for _ in range(2):
                    _step(self.source, self.buffers, width, layer, draw)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graphs[width] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[width], capture_error_mode="thread_local"):
                _step(self.source, self.buffers, width, layer, draw)
        return [graphs[width].replay for width in widths]


def _buffers(source: Source, batch: int) -> Buffers:
    shape, device = source.shape, source.device
    size = (batch, shape.heads, shape.context, shape.head)
    caches = [torch.zeros(size, device=device, dtype=source.dtype) for _ in range(2 * shape.layers)]
    cos, sin = angles(shape, device)
    return Buffers(
        torch.full((batch,), BEGIN, device=device),
        torch.zeros(1, device=device, dtype=torch.long),
        torch.zeros(batch, device=device, dtype=torch.bool),
        torch.zeros(batch, shape.context, device=device, dtype=torch.int32),
        torch.zeros(shape.context, 2, batch, device=device),
        tuple(caches[: shape.layers]),
        tuple(caches[shape.layers :]),
        cos,
        sin,
    )


def _widths(context: int) -> list[int]:
    """How much of the cache is read at each position."""
    part = -(-context // WIDTHS)
    return [min(context, (position // part + 1) * part) for position in range(context)]


# --- a step ----------------------------------------------------------------------------------------------------------

LayerStep = Callable[[Layer, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]
Draw = Callable[[Tensor, Tensor], Tensor]


def _step(source: Source, at: Buffers, width: int, layer_step: LayerStep, draw: Draw) -> None:
    """One more token of every row."""
    cos, sin = at.cos[at.position], at.sin[at.position]  # [1, head / 2]
    x = source.embed[at.tokens]
    for layer, keys, values in zip(source.layers, at.keys, at.values, strict=True):
        x = layer_step(layer, x, cos, sin, keys, values, at.position, width)
    chance = at.chance[at.position][0]  # [2, B]
    tokens = draw(predicted(source, normed(x, source.norm)), chance)
    at.ended.logical_or_(tokens <= LAST_SPECIAL)
    at.tokens.copy_(tokens.masked_fill(at.ended, BEGIN))
    at.rows.index_copy_(1, at.position, at.tokens[:, None].int())
    at.position.add_(1)


def _layer(
    layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor, width: int
) -> Tensor:  # [B, D]
    """A layer for one position of every row; its keys and values join the cache."""
    query, key, value = projected(layer, x, keys.shape[1], cos, sin)  # [B, heads, head]
    keys.index_copy_(2, position, key[:, :, None])
    values.index_copy_(2, position, value[:, :, None])
    seen = (torch.arange(width, device=x.device) <= position)[None]
    attended = F.scaled_dot_product_attention(
        query[:, :, None], keys[:, :, :width], values[:, :, :width], attn_mask=seen
    )
    return finished(layer, x, attended.flatten(1))


def _fused_layer(
    layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor, width: int
) -> Tensor:  # [B, D]
    """The same for the compiler: sums of products, which it fuses so that the cache is read once."""
    query, key, value = projected(layer, x, keys.shape[1], cos, sin)
    keys.index_copy_(2, position, key[:, :, None])
    values.index_copy_(2, position, value[:, :, None])
    scores = (query[:, :, None].float() * keys[:, :, :width].float()).sum(-1) * keys.shape[-1] ** -0.5
    unseen = torch.arange(width, device=x.device) > position
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    attended = (weights[..., None] * values[:, :, :width].float()).sum(2)
    return finished(layer, x, attended.to(x.dtype).flatten(1))


def drawn(logits: Tensor, chance: Tensor) -> Tensor:  # [B, V] float32, [2, B] uniform -> [B]
    """A token of each row by its probability: a group of tokens first, then one of the group."""
    size = next(size for size in range(GROUP, 0, -1) if logits.shape[1] % size == 0)
    groups = logits.view(len(logits), -1, size)  # [B, G, size]
    most = logits.amax(-1)
    group = _chosen((groups - most[:, None, None]).exp().sum(-1), chance[0])
    within = groups.gather(1, group[:, None, None].expand(-1, 1, size))[:, 0]
    return group * size + _chosen((within - most[:, None]).exp(), chance[1])


def _chosen(weights: Tensor, chance: Tensor) -> Tensor:  # [B, N], [B] -> [B]
    """The first place where the sum of weights exceeds this share of the whole."""
    sums = weights.cumsum(-1)
    found = (sums <= chance[:, None] * sums[:, -1:]).sum(-1)
    return found.clamp(max=weights.shape[1] - 1)
