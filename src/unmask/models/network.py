"""Tokens -> hidden states: the one bidirectional transformer that every family of models is a Shape of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.core.gpu import attention
from unmask.models.elementwise import Added, Norm, added_norm, gated, split_heads
from unmask.models.experts import ExpertMLP, Experts
from unmask.models.packed import Packed, Packing, pack_modules
from unmask.models.seams import carried

FREQUENCIES = 128  # of the time embedding, as in DiT and MDLM
ROTARY, LEARNED = ("rotary", "both"), ("learned", "both")  # kinds of positions


@dataclass(frozen=True)
class Shape:
    """The sizes and switches of a Network."""

    vocabulary: int  # rows of the embedding and of the head
    width: int
    layers: int
    heads: int
    inner: int  # width of the MLP, where a layer has no experts
    kv_heads: int = 0  # key and value heads, each shared by heads / kv_heads queries; 0: as many as heads
    head_width: int = 0  # 0: width / heads
    norm: str = "rms"  # or "layer": mean and variance, weight only
    eps: float = 1e-6
    position: str = "rotary"  # or "learned", or "both", or "grid": row + column + box of a square
    base: float = 10_000.0  # of the rotary frequencies
    places: int = 0  # rows of a learned table, or the side of a grid
    qkv_bias: bool = False
    bias: bool = False  # of the attention's output and of the MLP
    qk_norm: bool = False
    gated: bool = True  # silu(gate) * up; otherwise tanh-GELU
    mlp_bias: bool = False
    tied: bool = False  # the head is the embedding
    head_bias: bool = False
    condition: int = 0  # width of the adaptive modulation by time; 0: none
    logit_scale: float = 1.0
    rotary: int = 0  # dimensions of a head that are turned, the first ones; 0: all
    experts: Experts | None = None  # of layers that have experts instead of one MLP

    @property
    def kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def each(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.width // self.heads


Pair = tuple[Tensor, Tensor]  # keys and values [B, H, L, d]


@dataclass(frozen=True)
class Past:
    """Keys and values [N, H, C, d] of columns that were computed before, in all layers, and which of them a row sees.

    N is the number of rows, or there are fewer entries, each for several rows: `entry` is then the one of each row.
    """

    layers: tuple[Pair, ...]
    count: Tensor | None = None  # [R] int64: a row sees the first ones; None: all
    seen: Tensor | None = None  # [R, C] bool: of these, only some
    entry: Tensor | None = None  # [R] int64; None: each row its own
    low: Tensor | None = None  # [R] int64: those before this one are not seen, and
    gap: Pair | None = None  # [R], [R] int64: nor are those from the first of these columns to the second

    @property
    def columns(self) -> int:
        return self.layers[0][0].shape[2]

    def mask(self, rows: int, device: torch.device) -> Tensor:  # [R, C] bool
        """Who sees what."""
        found = torch.ones(rows, self.columns, dtype=torch.bool, device=device)
        column = torch.arange(self.columns, device=device)
        if self.count is not None:
            found = found & (column < self.count[:, None])
        if self.low is not None:
            found = found & (column >= self.low[:, None])
        if self.gap is not None:
            found = found & ((column < self.gap[0][:, None]) | (column >= self.gap[1][:, None]))
        return found if self.seen is None else found & self.seen

    def spans(self, rows: int) -> Tensor:  # [R, 5] int32
        """The same as numbers: entry, first column, the one after the last, and the gap; `seen` is left out."""
        like = self.layers[0][0]
        entry = torch.arange(rows, device=like.device) if self.entry is None else self.entry
        none = torch.zeros_like(entry)
        count = none + self.columns if self.count is None else self.count
        gap = (none, none) if self.gap is None else self.gap
        return torch.stack([entry, none if self.low is None else self.low, count, *gap], 1).int()


@dataclass(frozen=True)
class _Alike:
    """Rows that see equally many past columns, of the same entries."""

    rows: Tensor | None  # [R'] int64; None: all
    entries: tuple[int | None, ...]  # of each past part
    counts: tuple[int, ...]


def _alike(past: tuple[Past, ...], rows: int) -> list[_Alike]:
    """Groups of rows whose attention has the same shape. What a row computes then does not depend on the others."""
    entries = [[None] * rows if one.entry is None else one.entry.tolist() for one in past]
    counts = [[one.columns] * rows if one.count is None else one.count.tolist() for one in past]
    found: dict[Any, list[int]] = {}
    for row in range(rows):
        key = tuple(part[row] for part in entries), tuple(part[row] for part in counts)
        found.setdefault(key, []).append(row)
    if len(found) == 1:
        return [_Alike(None, *next(iter(found)))]
    device = past[0].layers[0][0].device
    return [_Alike(torch.tensor(some, device=device), *key) for key, some in found.items()]


@dataclass(frozen=True)
class _Sites:
    """Where the computed columns are, and what they may see; the same for all layers."""

    cos: Tensor | None  # [R, 1, S, d/2]
    sin: Tensor | None
    seen: Any  # [R, 1, S, S] bool, or a BlockMask of torch's flex attention; None: everything
    past: tuple[Past, ...]  # what they see besides
    alike: list[_Alike]  # rows together whose attention has the same shape; empty: all at once, with a mask
    spans: list[Tensor]  # [R, 5] int32 of each past part: then a kernel takes all of them as they lie


class Block(nn.Module):
    """Attention over all real positions, then an MLP, each behind a norm; both may be modulated by time."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.shape = shape
        width, all_heads = shape.width, shape.heads + 2 * shape.kv
        self.attention_norm, self.mlp_norm = _norm(shape), _norm(shape)
        self.qkv = nn.Linear(width, all_heads * shape.each, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.heads * shape.each, width, bias=shape.bias)
        self.experts: ExpertMLP | None = None
        if shape.experts is not None and layer in shape.experts.layers:
            self.experts = ExpertMLP(width, shape.experts)
        else:
            self.up = nn.Linear(width, (2 if shape.gated else 1) * shape.inner, bias=shape.bias or shape.mlp_bias)
            self.down = nn.Linear(shape.inner, width, bias=shape.bias or shape.mlp_bias)
        if shape.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(shape.each, eps=shape.eps) for _ in range(2))
        if shape.condition:
            self.modulate = nn.Linear(shape.condition, 6 * width)

    def forward(
        self, x: Tensor, added: Added | None, sites: _Sites, condition: Tensor | None, layer: int, keep: bool
    ) -> tuple[Tensor, Added, Tensor, Tensor]:
        """x [R, S, D] with what is added, what the block adds after that, and the keys and values [R, H, S, d] of these
        columns.

        The last addition is left to the next norm, which reads the sum anyway.
        """
        shape = self.shape
        change = None if condition is None else self.modulate(condition)[:, None].chunk(6, 2)
        x, y = added_norm(x, added, self.attention_norm, None if change is None else change[:2])
        norms = (self.q_norm, self.k_norm) if shape.qk_norm else None
        waves = None if sites.cos is None or sites.sin is None else (sites.cos, sites.sin)
        q, k, v = split_heads(self.qkv(y), shape.heads, shape.kv, norms, waves, keep)
        mixed = self.out(attended(q, k, v, sites, layer).transpose(1, 2).flatten(2))
        added = mixed, None if change is None else change[2]
        x, y = added_norm(x, added, self.mlp_norm, None if change is None else change[3:5])
        return x, (self._mlp(y), None if change is None else change[5]), k, v

    def _mlp(self, y: Tensor) -> Tensor:
        if self.experts is not None:
            return torch.as_tensor(self.experts(y))
        up = self.up(y)
        return torch.as_tensor(self.down(gated(up) if self.shape.gated else F.gelu(up, approximate="tanh")))


# --- attention --------------------------------------------------------------------------------------------------------


def attended(q: Tensor, k: Tensor, v: Tensor, sites: _Sites, layer: int) -> Tensor:  # [R, H, S, d]
    """Attention to these columns and to past ones; each key and value head serves several queries' heads."""
    many, seen = q.shape[1] // k.shape[1], sites.seen
    if sites.alike:
        return _beside(q, k, v, sites, layer)
    if sites.spans:
        parts = zip(sites.past, sites.spans, strict=True)
        kept = [attention.Kept(*one.layers[layer], spans) for one, spans in parts]
        return attention.attend(q, k, v, None if seen is None else seen[:, 0], kept)
    if sites.past:
        seen = _whole(q, seen, sites.past)
        olds = [one.layers[layer] for one in sites.past]
        entries = [slice(None) if one.entry is None else one.entry for one in sites.past]
        k, v = (
            torch.cat([*(old[part][entry] for old, entry in zip(olds, entries, strict=True)), new], 2)
            for part, new in enumerate((k, v))
        )
    k, v = _spread(k, many), _spread(v, many)
    if seen is None or isinstance(seen, Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    from torch.nn.attention.flex_attention import flex_attention  # loads torch's compiler

    mixed: Tensor = flex_attention(q.to(v.dtype), k.to(v.dtype), v, block_mask=seen)  # norms may have widened them
    return mixed


def _as_they_lie(past: tuple[Past, ...], seen: Any) -> bool:
    """Whether the kernel can attend to these parts."""
    plain = all(one.seen is None for one in past) and (seen is None or isinstance(seen, Tensor))
    return 0 < len(past) <= attention.PARTS and plain and attention.usable(*(x for one in past for x in one.layers[0]))


def _whole(q: Tensor, seen: Tensor | None, past: tuple[Past, ...]) -> Tensor:  # [R, 1, S, C + … + S] bool
    """What each column sees of the past parts and of the new one, side by side."""
    rows, width = len(q), q.shape[2]
    seen = torch.ones(1, 1, width, width, dtype=torch.bool, device=q.device) if seen is None else seen
    parts = [one.mask(rows, q.device)[:, None, None].expand(rows, 1, width, -1) for one in past]
    return torch.cat([*parts, seen.expand(rows, 1, width, width)], 3)


def _beside(q: Tensor, k: Tensor, v: Tensor, sites: _Sites, layer: int) -> Tensor:
    """Group by group, one softmax over all parts, none of which is copied: few columns ask, and many are kept."""
    out = torch.empty_like(q)
    for group in sites.alike:
        rows = slice(None) if group.rows is None else group.rows
        seen = sites.seen if sites.seen is None or len(sites.seen) == 1 else sites.seen[rows]
        parts, masks = [(k[rows], v[rows])], [seen]
        for one, entry, count in zip(sites.past, group.entries, group.counts, strict=True):
            pick = rows if entry is None else slice(entry, entry + 1)
            keys, values = one.layers[layer]
            parts.append((keys[pick, :, :count], values[pick, :, :count]))
            whole = one.seen is None and one.low is None and one.gap is None
            masks.append(None if whole else one.mask(len(q), q.device)[rows, None, None, :count])
        out[rows] = _mixed(q[rows], parts, masks)
    return out


def _mixed(q: Tensor, parts: list[Pair], masks: list[Tensor | None]) -> Tensor:  # [R, H, S, d]
    rows, heads, width, each = q.shape
    kv = parts[0][0].shape[1]
    asking = (q * each**-0.5).reshape(rows, kv, -1, each)  # [R, kv, many * S, d]
    scores = []
    for (keys, _), mask in zip(parts, masks, strict=True):
        score = _product(asking, keys.mT)
        if mask is not None:
            mask = mask.expand(rows, 1, width, score.shape[3]).repeat(1, 1, heads // kv, 1)
            score = score.masked_fill(~mask, -torch.inf)
        scores.append(score)
    shares = torch.split(torch.cat(scores, 3).softmax(3), [score.shape[3] for score in scores], 3)
    mixed = shares[0] @ parts[0][1]
    for share, (_, values) in zip(shares[1:], parts[1:], strict=True):
        mixed = mixed + _product(share, values)
    return mixed.view(rows, heads, width, each)


def _product(left: Tensor, right: Tensor) -> Tensor:  # [R, H, A, B] @ [R or 1, H, B, C]
    """Matrix products; rows that share one entry become one product."""
    if len(right) == len(left):
        return left @ right
    rows, heads, many, wide = left.shape
    folded = left.transpose(0, 1).reshape(heads, rows * many, wide) @ right[0]
    return folded.view(heads, rows, many, right.shape[3]).transpose(0, 1)


def _norm(shape: Shape) -> Norm:
    if shape.norm == "rms":
        return nn.RMSNorm(shape.width, eps=shape.eps)
    return nn.LayerNorm(shape.width, eps=shape.eps, bias=False)


def _spread(x: Tensor, many: int) -> Tensor:  # [R, H, L, d] -> [R, H * many, L, d]
    """Each key and value head, repeated for every query head that shares it."""
    return x if many == 1 else x[:, :, None].expand(-1, -1, many, -1, -1).flatten(1, 2)


class Network(nn.Module):
    """Tokens and their columns -> hidden states. It holds the head's weights; `core.beliefs` applies them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = _table(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.layers))
        self.norm = _norm(shape)
        if shape.position in LEARNED:
            self.place = _table(shape.places, shape.width)
        elif shape.position == "grid":
            self.row, self.column, self.box = (_table(shape.places, shape.width) for _ in range(3))
        if shape.condition:
            self.time = nn.ModuleList(
                [nn.Linear(2 * FREQUENCIES, shape.condition), nn.Linear(shape.condition, shape.condition)]
            )
            self.modulate = nn.Linear(shape.condition, 2 * shape.width)
        self.seams: dict[int, torch.device] = {}  # the layers from which on another device has the weights
        if not shape.tied:
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=shape.head_bias)

    def forward(
        self,
        tokens: Tensor,  # [R, L] int64
        columns: Tensor,  # [R, L] int64: counted from the first real token, -1 on padding
        attend: Tensor | None = None,  # [R, L] bool: False on padding; None: there is none
        sigma: Tensor | None = None,  # [R] noise level, for networks with a time input; None: 0
        past: tuple[Past, ...] = (),  # other columns of these rows
        keep: bool = False,
        waves: Pair | None = None,  # of these columns; None: made here
        seen: Any = None,  # [R, L, L] bool: the real columns that each one sees of these, or a BlockMask; None: all
    ) -> tuple[Tensor, list[Pair]]:
        """Hidden states [R, L, D], and, to `keep`, the keys and values [R, H, L, d] of every layer."""
        x = self._embed(tokens, columns)
        sites = self._sites(len(tokens), attend, past, waves or self.waves(columns), seen)
        condition = self._condition(sigma, x) if self.shape.condition else None
        used: list[Pair] = []
        added: Added | None = None
        for layer, block in enumerate(self.blocks):
            if layer in self.seams:
                x, added, sites, condition = carried((x, added, sites, condition), self.seams[layer])
            x, added, k, v = block(x, added, sites, condition, layer, keep)
            if keep:
                used.append((k.contiguous(), v.contiguous()))  # not a view that keeps the queries too
        if self.seams:
            x, added, condition = carried((x, added, condition), self.like.device)
        last = None if condition is None else self.modulate(condition)[:, None].chunk(2, 2)
        return added_norm(x, added, self.norm, last)[1], used

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled logits in float32, for training; decoding applies the head only where it is asked to."""
        weight, bias = (self.embed.weight, None) if self.shape.tied else (self.head.weight, self.head.bias)
        return F.linear(hidden, weight, bias).float() * self.shape.logit_scale

    @property
    def like(self) -> Tensor:
        """A weight of the type and on the device that it computes in; those of packed ones are others."""
        return self.norm.weight

    def _embed(self, tokens: Tensor, columns: Tensor) -> Tensor:
        x = torch.as_tensor(self.embed(tokens)).to(self.like.dtype)
        at, side = columns.clamp(min=0), self.shape.places
        if self.shape.position in LEARNED:
            return torch.add(x, self.place(at))
        if self.shape.position == "grid":
            row, column, small = at // side, at % side, round(side**0.5)
            x = torch.add(x, self.row(row) + self.column(column))
            return torch.add(x, self.box(row // small * small + column // small))
        return x

    def waves(self, columns: Tensor) -> Pair | None:
        """Cosines and sines [R, 1, L, d/2] of the rotary angles of columns.

        Inside the compiled part they would be computed again wherever they are used.
        """
        if self.shape.position not in ROTARY:
            return None
        pairs = (self.shape.rotary or self.shape.each) // 2
        pace = self.shape.base ** (-torch.arange(pairs, device=columns.device, dtype=torch.float64) / pairs)
        angles = columns[:, None, :, None].clamp(min=0).double() * pace
        exact = torch.float64 if self.like.dtype == torch.float64 else torch.float32
        return angles.cos().to(exact), angles.sin().to(exact)

    def _sites(self, rows: int, attend: Tensor | None, past: tuple[Past, ...], waves: Pair | None, seen: Any) -> _Sites:
        seen = seen[:, None] if isinstance(seen, Tensor) else seen
        cos, sin = (None, None) if waves is None else waves
        if attend is not None:
            # A padding position attends to itself, so that no softmax is empty; no other position attends to it.
            itself = torch.eye(attend.shape[1], dtype=torch.bool, device=attend.device)
            real = attend[:, None, None, :]
            seen = (real if seen is None else real & seen) | itself
        here = self.like.device.type
        grouped = bool(past) and here != "cuda" and self.like.dtype in (torch.float32, torch.float64)
        alike = all(one.type == here for one in self.seams.values())
        spans = [one.spans(rows) for one in past] if alike and _as_they_lie(past, seen) else []
        return _Sites(cos, sin, seen, past, _alike(past, rows) if grouped else [], spans)

    def _condition(self, sigma: Tensor | None, x: Tensor) -> Tensor:  # [R, C], or [1, C] where time is left out
        level = torch.zeros(1, device=x.device) if sigma is None else sigma.to(x.device)
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        pace = 10_000.0 ** (-torch.arange(FREQUENCIES, device=x.device, dtype=exact) / FREQUENCIES)
        angles = level.to(exact)[:, None] * pace
        wave = torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype)
        return F.silu(self.time[1](F.silu(self.time[0](wave))))


def _table(rows: int, width: int) -> nn.Embedding:
    """An embedding of unwritten weights; drawing them would even load torch's compiler."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


@cache
def parameter_shapes(shape: Shape) -> Mapping[str, torch.Size]:
    """Name -> shape of every parameter of such a network, which is not built in memory."""
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in Network(shape).named_parameters()}


def empty(
    shape: Shape,
    device: str | torch.device,
    dtype: torch.dtype,
    packing: Mapping[str, Packing] | None = None,
    seams: Mapping[int, torch.device] = MappingProxyType({}),
) -> Network:
    """A Network of unwritten weights, some of them packed; nothing is drawn from the global generator.

    At each of the `seams` the layers of another device begin; the rest is on the first one.
    """
    with torch.device("meta"):
        network = Network(shape)
        pack_modules(network, packing or {})
    network.seams = dict(seams)
    inside = set(network.blocks.modules())
    _unwritten([one for one in network.modules() if one not in inside], device, dtype)
    for layer, block in enumerate(network.blocks):
        device = seams.get(layer, device)
        _unwritten(block.modules(), device, dtype)
    return network.eval()


def _unwritten(modules: Iterable[nn.Module], device: str | torch.device, dtype: torch.dtype) -> None:
    for module in modules:
        for name, parameter in list(module.named_parameters(recurse=False)):  # `to_empty` would import sympy
            kind = parameter.dtype if isinstance(module, Packed) else dtype
            values = torch.empty(parameter.shape, dtype=kind, device=device)
            setattr(module, name, nn.Parameter(values, requires_grad=False))
