"""Times the network with and without the kernels of `unmask.core.gpu.layer`, and compiled: milliseconds of one forward.

    PYTHONPATH=src python experiments/fused_layer.py                          # three sizes, a minute
    PYTHONPATH=src python experiments/fused_layer.py --sizes dream,llada2 --layers 8
    PYTHONPATH=src python experiments/fused_layer.py --no-compile             # kernels and their layouts only

Networks have the published widths, few layers and a small vocabulary, and random weights in bf16. Every forward is a
CUDA graph. "8x32" computes 32 columns of 8 rows, which see 480 kept ones besides. The second table times each kernel in
several layouts, in a graph of CALLS calls on the same numbers: these are in the GPU's cache, as in the network.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.gpu import layer
from unmask.core.gpu.layer import Layout
from unmask.models import elementwise
from unmask.models.families.blueprint import Config
from unmask.models.families.dream import DREAM
from unmask.models.made import random_sizes
from unmask.models.network import Network, Past, empty

CALLS = 40  # of one kernel in a graph
KEPT = 480  # columns that a block sees besides its own
LAYOUTS = {
    "added_norm": [Layout(norm=8), Layout(norm=16), Layout(norm=32)],
    "split_heads": [Layout(heads=heads, turn=turn) for heads, turn in ((16, 16), (16, 8), (32, 16), (32, 32), (8, 8))],
    "gated": [Layout(gate=gate, open=open) for gate, open in ((2048, 16), (2048, 8), (1024, 8), (4096, 16))],
    "add_chosen": [Layout(gate=gate, open=open) for gate, open in ((2048, 16), (1024, 8), (512, 8))],
}
PLAIN = "plain"


@dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    kept: int = 0

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


CASES = [Case(1, 512), Case(5, 512), Case(8, 32, KEPT)]


def made(size: str, layers: int) -> Network:
    """A network of the published widths."""
    families = {name: (one.family, one.config) for name, one in random_sizes.SIZES.items()}
    family, config = (families | {"dream": (DREAM, DREAM.published.full)})[size]
    shape = replace(family.read(Config(config)).shape, layers=layers, vocabulary=1024)
    if shape.experts is not None:
        sparse = tuple(at for at in shape.experts.layers if at < layers)
        shape = replace(shape, experts=replace(shape.experts, layers=sparse))
    network = empty(shape, "cuda", torch.bfloat16)
    random_sizes._fill(network, torch.Generator("cuda").manual_seed(0))
    return network


def inputs(network: Network, case: Case) -> tuple[Any, ...]:
    """What `Network.forward` takes."""
    shape, dice = network.shape, torch.Generator("cuda").manual_seed(1)
    tokens = torch.randint(shape.vocabulary, (case.rows, case.columns), device="cuda", generator=dice)
    columns = torch.arange(case.kept, case.kept + case.columns, device="cuda")[None]
    sigma = torch.full((case.rows,), 0.7, device="cuda") if shape.condition else None
    size, past = (case.rows, shape.kv, case.kept, shape.each), ()
    if case.kept:
        pairs = [
            torch.randn(2, *size, dtype=torch.bfloat16, device="cuda", generator=dice) for _ in range(shape.layers)
        ]
        past = (Past(tuple((pair[0], pair[1]) for pair in pairs)),)
    return tokens, columns, None, sigma, past, False, network.waves(columns)


# --- time -------------------------------------------------------------------------------------------------------------


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph, so that the host's time does not count."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Callable[[], object], repeats: int = 15, calls: int = 5) -> float:
    """Of one call: the median over `repeats`, each of some calls in a row."""
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return median(times[2:])


class Without:
    """Inside it, no kernel of a layer is used."""

    def __enter__(self) -> None:
        self.usable = layer.usable
        layer.usable = lambda *_: False

    def __exit__(self, *_: object) -> None:
        layer.usable = self.usable


# --- the network ------------------------------------------------------------------------------------------------------


def measure(network: Network, case: Case, compile: bool) -> dict[str, float]:
    """Milliseconds, and how far hidden states are from the plain ones, of the largest of those."""
    given, found = inputs(network, case), {}
    with Without():
        expected = network(*given)[0].double()
        found[PLAIN] = milliseconds(captured(lambda: network(*given)))
    runs: dict[str, Callable[..., Any]] = {"fused": network}
    if compile:
        torch._dynamo.reset()
        runs["compiled"] = torch.compile(network, dynamic=False)
    for name, run in runs.items():
        begin = time.perf_counter()
        hidden = run(*given)[0].double()
        torch.cuda.synchronize()
        found[f"{name}, first call, s"] = time.perf_counter() - begin
        found[name] = milliseconds(captured(lambda run=run: run(*given)))
        found[f"{name}, off by"] = float((hidden - expected).abs().max() / expected.abs().max())
    return found


# --- the kernels ------------------------------------------------------------------------------------------------------


def calls(network: Network, case: Case) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Name, call and bytes that it has to move, of each kernel that this network uses."""
    shape, block = network.shape, network.blocks[0]
    dice, tokens = torch.Generator("cuda").manual_seed(2), case.rows * case.columns

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.bfloat16, device="cuda", generator=dice)

    x, y = (normal(case.rows, case.columns, shape.width) for _ in range(2))
    shift, scale, gate = normal(case.rows, 1, 3 * shape.width).chunk(3, 2) if shape.condition else (None,) * 3
    change = None if shift is None or scale is None else (shift, scale)
    yield (
        "added_norm",
        lambda: elementwise.added_norm(x, (y, gate), block.mlp_norm, change),
        2 * 4 * tokens * shape.width,
    )
    waves = network.waves(torch.arange(case.columns, device="cuda")[None])
    if waves is not None:
        qkv = normal(case.rows, case.columns, (shape.heads + 2 * shape.kv) * shape.each)
        norms = (block.q_norm, block.k_norm) if shape.qk_norm else None
        moved = 2 * 2 * tokens * (shape.heads + shape.kv) * shape.each + 2 * waves[0].nbytes
        yield "split_heads", lambda: elementwise.split_heads(qkv, shape.heads, shape.kv, norms, waves, False), moved
    if shape.gated:
        both = normal(case.rows, case.columns, 2 * shape.inner)
        yield "gated", lambda: elementwise.gated(both), 2 * 3 * tokens * shape.inner
    else:
        both = normal(case.rows, case.columns, shape.inner)
        yield "tanh-GELU, torch", lambda: F.gelu(both, approximate="tanh"), 2 * 2 * tokens * shape.inner
    if shape.experts is not None:
        count, used = min(32, shape.experts.count), shape.experts.used
        parts, total = normal(count, tokens, shape.width), torch.zeros(tokens, shape.width, device="cuda")
        chosen = torch.rand(tokens, count, device="cuda", generator=dice).topk(used, 1).indices
        weights = torch.rand(tokens, used, device="cuda", generator=dice)
        moved = (2 * used + 8) * tokens * shape.width
        yield "add_chosen", lambda: layer.add_chosen(total, parts, weights, chosen, 0), moved


def layouts(network: Network, case: Case) -> Iterator[str]:
    """A line for each kernel and layout."""
    standing = layer.LAYOUT
    for name, run, moved in calls(network, case):

        def line(what: str, run: Callable[[], object] = run, name: str = name, moved: int = moved) -> str:
            def many() -> None:
                for _ in range(CALLS):
                    run()

            took = milliseconds(captured(many), 5, 2) / CALLS
            return f"  {name:16} {what:24} {1000 * took:8.2f} us {moved / took / 1e6:8.0f} GB/s"

        if name != "add_chosen":
            with Without():
                yield line(PLAIN)
        for layout in LAYOUTS.get(name, []):
            layer.LAYOUT = layout
            changed = [field.name for field in dataclasses.fields(layout) if name in USES[field.name]]
            label = " ".join(f"{field} {getattr(layout, field)}" for field in changed)
            yield line(label + (" *" if all(getattr(layout, f) == getattr(standing, f) for f in changed) else ""))
        layer.LAYOUT = standing


USES = {
    "norm": ("added_norm",),
    "heads": ("split_heads",),
    "turn": ("split_heads",),
    "gate": ("gated", "add_chosen"),
    "open": ("gated", "add_chosen"),
}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="llada,sdar,mdlm", help=f"some of {', '.join(random_sizes.SIZES)}, dream")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-layouts", action="store_true")
    args = parser.parse_args()
    begin = time.perf_counter()
    print(
        f"torch {torch.__version__} on {torch.cuda.get_device_name()}, {args.layers} layers; * marks the layout in use"
    )
    columns = (PLAIN, "fused", "compiled", "fused / compiled", "plain / compiled")
    columns += ("fused, off by", "compiled, off by", "fused, first call, s", "compiled, first call, s")
    for size in args.sizes.split(","):
        network = made(size, args.layers)
        for case in CASES:
            found = measure(network, case, not args.no_compile)
            for name in (PLAIN, "fused"):
                found[f"{name} / compiled"] = found[name] / found.get("compiled", float("nan"))
            figures = ", ".join(f"{name} {found[name]:.4g}" for name in columns if name in found)
            print(f"{size} {case}: {figures}", flush=True)
        for case in () if args.no_layouts else CASES:
            print(f"{size} {case}, kernels:", *layouts(network, case), sep="\n", flush=True)
        del network
        torch.cuda.empty_cache()
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
