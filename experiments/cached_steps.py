"""On a GPU: steps of an 8B model with and without a cache, uncompiled, beside a plain floor. Two minutes.

    PYTHONPATH=src python experiments/cached_steps.py llada 1,8 sdar 1,8

E-SMC at temperature 1 after a prompt of 256 random tokens, random weights in bf16. LLaDA's size: 96 positions in blocks
of 32 with the dual cache (only the block is computed, a full pass where it begins). SDAR's size: 64 positions in blocks
of 4, exact. Then LLaDA's size without a cache, 256 + 256 positions. A step's time ends when the device has finished it.
The floor is a network of LLaDA's shapes in plain torch, each layer compiled, in a CUDA graph: a block of 32 columns
that sees 512 in buffers that nothing copies, with the head on all 32; and all 512 columns, without the head.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask import Recipe
from unmask.core import walk as engine
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.models.made.random_sizes import make
from unmask.models.transformer import Transformer

PROMPT = [(7 * i) % 1000 + 5 for i in range(256)]
CACHED = {
    "llada": {"length": 96, "steps": 96, "block_length": 32, "scope": "block", "cache_block": 32}
    | {"cache_before": 0, "cache_after": 0},
    "sdar": {"length": 64},
}
WIDTH, HEADS, INNER, LAYERS, VOCABULARY, COLUMNS, BLOCK = 4096, 32, 12288, 32, 126464, 512, 32


def steps(model: Transformer, recipe: Recipe) -> list[float]:
    """Milliseconds of each step of the second decode: the first one records."""
    times: list[float] = []
    for _ in range(2):
        times = []
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in engine.walk(*prepare(model, [from_prompt(model, PROMPT, recipe.length or 0)], [0], recipe)):
            torch.cuda.synchronize()
            now = time.perf_counter()
            times.append(1000 * (now - begin))
            begin = now
    return times


def told(name: str, particles: int, times: list[float]) -> None:
    mean = sum(times) / len(times)
    print(
        f"{name}, {particles} particles: median {median(times):.2f} ms, mean {mean:.2f}, longest {max(times):.1f}",
        flush=True,
    )


# --- the floor --------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.up, self.down = weight(2 * INNER, WIDTH), weight(WIDTH, INNER)
        self.norms = torch.ones(2, WIDTH, device="cuda", dtype=torch.bfloat16)

    def forward(self, x: Tensor, kept: tuple[Tensor, Tensor] | None, at: Tensor) -> Tensor:
        rows, count, _ = x.shape
        heads = F.linear(F.rms_norm(x, (WIDTH,), self.norms[0]), self.qkv).view(rows, count, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if kept is not None:
            kept[0].index_copy_(2, at, k)
            kept[1].index_copy_(2, at, v)
            k, v = kept
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, count, WIDTH)
        x = x + F.linear(mixed, self.out)
        gate, up = F.linear(F.rms_norm(x, (WIDTH,), self.norms[1]), self.up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


def timed(run: Callable[[], object], repeats: int) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats * 1000


def floor(counts: list[int]) -> None:
    layers = [torch.compile(Layer(), dynamic=False) for _ in range(LAYERS)]
    head, at = weight(VOCABULARY, WIDTH), torch.arange(COLUMNS // 2, COLUMNS // 2 + BLOCK, device="cuda")
    for rows in counts:
        shape = rows, HEADS, COLUMNS, WIDTH // HEADS
        kept = [tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in layers]
        block, whole = weight(rows, BLOCK, WIDTH), weight(rows, COLUMNS, WIDTH)

        def step(kept: list = kept, block: Tensor = block) -> Tensor:
            x = block
            for layer, pair in zip(layers, kept, strict=True):
                x = layer(x, pair, at)
            return F.linear(x, head)

        def full(whole: Tensor = whole) -> Tensor:
            x = whole
            for layer in layers:
                x = layer(x, None, at)
            return x

        print(
            f"floor, {rows} particles: block {timed(step, 20):.2f} ms, all columns {timed(full, 5):.1f} ms", flush=True
        )


@torch.no_grad()
def main() -> None:
    for size, counts in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        model = make(size, torch.device("cuda"), torch.bfloat16)
        particles = [int(count) for count in counts.split(",")]
        for count in particles:
            recipe = Recipe("semi-ar", "smc", particles=count, temperature=1.0, **CACHED[size])
            told(f"{size}, cached", count, steps(model, recipe))
        for count in particles if size == "llada" else []:
            recipe = Recipe("confidence", "smc", particles=count, temperature=1.0, length=256, steps=40)
            told(f"{size}, no cache", count, steps(model, recipe)[2:])
        del model
        torch.cuda.empty_cache()
        if size == "llada":
            floor(particles)


if __name__ == "__main__":
    main()
