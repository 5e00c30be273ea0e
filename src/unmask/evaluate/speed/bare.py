"""Some columns of every row × keys and values of the others -> hidden states: the network's arithmetic and no more.

Keys and values are in fixed buffers that nothing copies, and no attention has a mask: the least that a step in blocks
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.elementwise import modulated, rotate
from unmask.models.network import Block, Network, Pair


@dataclass(frozen=True)
class Columns:
    """How many columns are computed, in groups: each sees the kept ones, the groups before it, and itself."""

    kept: int
    groups: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.groups)

    @property
    def whole(self) -> bool:
        """Whether they are all there are, and see each other."""
        return self.kept == 0 and len(self.groups) == 1


def buffers(network: Network, rows: int, columns: Columns) -> list[Pair]:
    """Random keys and values [rows, H, kept + width, d] of every layer; the last ones are overwritten by each pass."""
    shape, weight = network.shape, network.like
    dice = torch.Generator(weight.device).manual_seed(0)
    size = (rows, shape.kv, columns.kept + columns.width, shape.each)

    def made() -> Tensor:
        return torch.randn(size, dtype=weight.dtype, device=weight.device, generator=dice)

    return [(made(), made()) for _ in range(shape.layers)]


def forward(network: Network, columns: Columns, each: Callable[..., Tensor] | None = None) -> Callable[..., Tensor]:
    """A function of tokens [R, W], their columns [1, W], noise levels, buffers and rotary waves.

    `each` computes a layer, as `layer` does.
    """
    one = each or layer

    def run(tokens: Tensor, at: Tensor, sigma: Tensor | None, kept: list[Pair], *waves: Tensor) -> Tensor:
        x = network._embed(tokens, at)
        condition = network._condition(sigma, x) if network.shape.condition else None
        for block, pair in zip(network.blocks, kept, strict=True):
            assert isinstance(block, Block)
            x = one(block, x, condition, pair, columns, waves)
        last = None if condition is None else network.modulate(condition)[:, None].chunk(2, 2)
        return modulated(network.norm(x), last)

    return run


def layer(
    block: Block, x: Tensor, condition: Tensor | None, kept: Pair, columns: Columns, waves: Sequence[Tensor]
) -> Tensor:
    """Like `Block.forward`, into the buffers and from them, where others are kept."""
    shape = block.shape
    change = None if condition is None else block.modulate(condition)[:, None].chunk(6, 2)
    y = modulated(block.attention_norm(x), None if change is None else change[:2])
    heads = block.qkv(y).unflatten(2, (-1, shape.each)).transpose(1, 2)
    q, k, v = heads.split([shape.heads, shape.kv, shape.kv], 1)
    if shape.qk_norm:
        q, k = block.q_norm(q), block.k_norm(k)
    if waves:
        q, k = rotate(q, *waves), rotate(k, *waves)
    keys, values = (k, v) if columns.whole else kept
    if not columns.whole:
        keys[:, :, columns.kept :], values[:, :, columns.kept :] = k, v
    mixed = block.out(_attended(q.to(v.dtype), keys, values, columns))
    x = x + (mixed if change is None else change[2] * mixed)
    y = block._mlp(modulated(block.mlp_norm(x), None if change is None else change[3:5]))
    return x + (y if change is None else change[5] * y)


def _attended(q: Tensor, keys: Tensor, values: Tensor, columns: Columns) -> Tensor:  # [R, W, H * d]
    """Queries' heads that share keys are stacked: without a mask that is the same, and nothing is repeated."""
    rows, heads, _, each = q.shape
    kv, end, found = keys.shape[1], columns.kept, []
    for width in columns.groups:
        some = q[:, :, end - columns.kept :][:, :, :width]
        end += width
        asking = some.reshape(rows, kv, heads // kv * width, each)
        mixed = F.scaled_dot_product_attention(asking, keys[:, :, :end], values[:, :, :end])
        found.append(mixed.view(rows, heads, width, each))
    return torch.cat(found, 2).transpose(1, 2).flatten(2)
