"""Times the kernels of `unmask.core.gpu.head` against one plain matrix product, for shapes × layouts: a table.

    PYTHONPATH=src python experiments/fused_sweep.py --quick            # the layouts in use, a minute
    PYTHONPATH=src python experiments/fused_sweep.py --out sweep.jsonl  # every layout of LAYOUTS

The measure is `torch.mm` of the same rows with the same weights into bf16 logits, already allocated. Numbers are
checked against the float64 reference on some rows of every shape. --out keeps the table as rows of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core import beliefs
from unmask.core.beliefs import DrawRule
from unmask.core.gpu import head as fused
from unmask.core.gpu.head import Config, config_for
from unmask.models import Head

LAYOUTS = [
    Config(128, 256, 64, 8, 4),
    Config(128, 256, 64, 8, 3),
    Config(128, 128, 64, 4, 3, 2),
]
HOWS = {"T=0": DrawRule(0.0, ban=(5,)), "T=1": DrawRule(1.0, ban=(5,)), "T=0.7": DrawRule(0.7, ban=(5,))}
CHECKED = 32  # rows compared with the reference


@dataclass(frozen=True)
class Shape:
    batch: int
    length: int
    depth: int
    width: int
    share: float = 1.0  # of the positions that are asked

    def __str__(self) -> str:
        return f"{self.batch}x{self.length} ({self.share:.0%}) D {self.depth} V {self.width}"


SHAPES = [
    Shape(batch, length, depth, width, share)
    for depth, width in ((768, 50_258), (4096, 126_464))
    for batch, length, share in ((1, 64, 1.0), (1, 1024, 1.0), (8, 1024, 0.1), (4, 1024, 1.0), (8, 1024, 1.0))
]


@dataclass(frozen=True)
class Problem:
    hidden: Tensor
    head: Head
    where: Tensor
    tokens: Tensor
    noise: Tensor


def problem(shape: Shape) -> Problem:
    """Random numbers with logits of a spread that models have; absent and banned ids as MDLM has them."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device="cuda", dtype=torch.bfloat16)

    weight = normal(shape.width, shape.depth).mul_(4 / shape.depth**0.5)
    place = shape.batch, shape.length
    where = torch.rand(place, generator=generator, device="cuda") < shape.share
    tokens = torch.randint(shape.width, place, generator=generator, device="cuda")
    noise = torch.rand(place, generator=generator, device="cuda", dtype=torch.float64)
    return Problem(normal(*place, shape.depth), Head(shape.width, weight), where, tokens, noise)


def runs(p: Problem, config: Config | None) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """What is timed, by name."""

    def draw(how: DrawRule) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: fused.draw(p.hidden, p.head, p.where, p.noise, how.temperature, how.ban, config)

    return {
        "weigh": lambda: fused.weigh(p.hidden, p.head, p.where, p.tokens, config),
        **{name: draw(how) for name, how in HOWS.items()},
    }


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median of `repeats`, after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[2:])[repeats // 2]


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph, so that the host's time does not count."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def plain(p: Problem, repeats: int) -> float:
    """Milliseconds of the plain head on the rows asked."""
    assert p.head.weight is not None
    rows, weight = p.hidden[p.where], p.head.weight.mT
    out = torch.empty(len(rows), p.head.width, device="cuda", dtype=torch.bfloat16)
    return milliseconds(lambda: torch.mm(rows, weight, out=out), repeats)


def references(p: Problem) -> tuple[Tensor, dict[str, beliefs.Beliefs | beliefs.Drawn]]:
    """Some of the positions asked, and the float64 numbers there."""
    assert p.head.weight is not None
    asked = p.where.flatten().nonzero()[:, 0]
    at = asked[torch.linspace(0, len(asked) - 1, CHECKED, device="cuda").long()]
    hidden = p.hidden.flatten(0, 1)[at][None].double()
    head = Head(p.head.width, p.head.weight.double())
    everywhere = torch.ones(1, len(at), dtype=torch.bool, device="cuda")
    found: dict[str, beliefs.Beliefs | beliefs.Drawn] = {
        "weigh": beliefs.weigh_reference(hidden, head, everywhere, p.tokens.flatten()[at][None])
    }
    for name, how in HOWS.items():
        found[name] = beliefs.draw_reference(hidden, head, everywhere, p.noise.flatten()[at][None], how)
    return at, found


def differences(
    name: str, found: tuple[Tensor, ...], at: Tensor, expected: beliefs.Beliefs | beliefs.Drawn
) -> tuple[float, int]:
    """The largest difference of a number where the tokens agree, and how many tokens do not."""
    values = [value.flatten()[at] for value in found]
    wanted = [value[0] for value in vars(expected).values()]
    ids = 4 if name == "weigh" else 0
    agree = values[ids] == wanted[ids]
    errors = [
        torch.where(value == want, 0.0, (value.double() - want).abs())[agree].max()
        for place, (value, want) in enumerate(zip(values, wanted, strict=True))
        if place != ids and agree.any()
    ]
    return max(map(float, errors), default=0.0), int((~agree).sum())


def measure(shape: Shape, configs: list[Config | None], repeats: int) -> Iterator[dict[str, object]]:
    """One row for every layout and run."""
    p = problem(shape)
    at, expected = references(p)
    base = plain(p, repeats)
    flops = 2 * int(p.where.sum()) * shape.depth * shape.width
    for config in configs:
        for name, run in runs(p, config).items():
            row: dict[str, object] = {"shape": str(shape), "config": label(config or config_for(p.hidden))}
            try:
                error, wrong = differences(name, run(), at, expected[name])
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                run()
                torch.cuda.synchronize()
                peak = (torch.cuda.max_memory_allocated() - before) / 2**20
                took = milliseconds(captured(run), repeats)
            except Exception as failed:  # a layout that does not fit is a line of the table
                yield {**row, "run": name, "failed": f"{type(failed).__name__}: {failed}"[:200]}
                continue
            figures = {"ms": took, "mm": base, "ratio": took / base, "tflops": flops / took / 1e9}
            yield {**row, "run": name, **figures, "error": error, "other tokens": wrong, "peak MiB": peak}


def label(config: Config) -> str:
    return " ".join(f"{field.name[:3]}{getattr(config, field.name):d}" for field in dataclasses.fields(config)[:10])


def compile_one(job: tuple[Shape, Config | None]) -> None:
    """Fill Triton's cache on disk: kernels depend on depth and width, not on the rows."""
    shape, config = job
    p = problem(dataclasses.replace(shape, batch=1, length=64, share=0.0))
    for run in runs(p, config).values():
        try:
            run()
        except Exception as failed:
            print(label(config or config_for(p.hidden)), type(failed).__name__, failed, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the layouts in use only, fewer repeats")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile ahead")
    parser.add_argument("--depth", type=int, help="only shapes of this depth")
    parser.add_argument("--out", help="file for rows of JSON")
    args = parser.parse_args()
    configs: list[Config | None] = [None] if args.quick else [None, *LAYOUTS]
    shapes = [shape for shape in SHAPES if args.depth in (None, shape.depth)]
    kinds = {shape.depth: shape for shape in shapes}.values()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        pool.map(compile_one, [(shape, config) for shape in kinds for config in configs], chunksize=1)

    rows = []
    columns = ("ms", "mm", "ratio", "tflops", "error", "other tokens", "peak MiB")
    print(f"{'run':6} {'layout':58} " + " ".join(f"{column:>9}" for column in columns))
    for shape in shapes:
        print(f"--- {shape}")
        for row in measure(shape, configs, 5 if args.quick else 10):
            rows.append(row)
            figures = " ".join(f"{row[column]:>9.3g}" for column in columns) if "ms" in row else row["failed"]
            print(f"{row['run']:6} {row['config']:58} {figures}", flush=True)
        torch.cuda.empty_cache()
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
