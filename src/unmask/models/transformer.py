"""Transformer: a bidirectional network with rotary positions, as a denoiser; `random_transformer` makes a small one."""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.denoiser import Head, Tokenizer
from unmask.models.text import Characters
from unmask.state import State, Vocab


class Block(nn.Module):
    """Attention over all real positions, then a gated MLP, each behind an RMS norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, seen: Tensor) -> Tensor:  # [R, L, D], [R, 1, L, d/2], [R, 1, 1, L]
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, attn_mask=seen)
        x = torch.add(x, self.out(mixed.transpose(1, 2).flatten(2)))
        y = self.mlp_norm(x)
        return torch.add(x, self.down(F.silu(self.gate(y)) * self.up(y)))


def rotate(x: Tensor, angles: Tensor) -> Tensor:  # [R, H, L, d]
    """Rotary positions, dimension c paired with c + d/2."""
    a, b = x.chunk(2, 3)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], 3)


class Network(nn.Module):
    """Tokens and their columns -> hidden states."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.pairs = width // heads // 2

    def forward(self, tokens: Tensor, columns: Tensor, attend: Tensor) -> Tensor:  # [R, L] … -> [R, L, D]
        x = self.embed(tokens)
        pace = 10_000.0 ** (-torch.arange(self.pairs, device=tokens.device, dtype=torch.float64) / self.pairs)
        angles = columns.clamp(min=0)[:, None, :, None].double() * pace
        # A padding row may see itself, so that no softmax is empty; nobody sees it.
        seen = attend[:, None, None, :] | torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
        for block in self.blocks:
            x = block(x, angles, seen)
        return torch.as_tensor(self.norm(x))


@dataclass(frozen=True, eq=False)
class Transformer:
    """A Network as a denoiser; the head is tied to the embedding and scaled."""

    network: Network
    vocab: Vocab
    tokenizer: Tokenizer
    sharpness: float = 1.0
    name: str = "transformer"
    limit: int | None = None
    cost: int = 1
    timed: bool = False
    absent: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        return self.network.embed.weight.device

    @cached_property
    def head(self) -> Head:
        weight = self.network.embed.weight
        return Head(len(weight), self.sharpness * weight, absent=self.absent)

    @torch.no_grad()
    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        return self.network(state.tokens[rows], state.columns[rows], state.attend[rows]), None


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
    """A small network of random weights over letters, digits and a few signs: no sense, but every code path."""
    alphabet = string.ascii_lowercase + string.digits + " .,\n"
    mask, eos = len(alphabet) + 1, len(alphabet)
    with torch.device("meta"):  # torch's own initialisation would draw from the global generator
        network = Network(len(alphabet) + 2, width, layers, heads).to(dtype)
    network = network.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * (1.0 if parameter is network.embed.weight else parameter.shape[1] ** -0.5))
    return Transformer(
        network.to(device).eval(),
        Vocab(mask, (eos,), pad=eos),
        Characters(alphabet),
        sharpness=0.3,
        name="random",
        limit=limit,
        absent=(mask,),
    )
