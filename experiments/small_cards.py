"""What packed layers cost on a GPU: memory while loading and decoding, time of a step, logits, accuracy.

    unmask fabricate llada DIR --size full
    python experiments/small_cards.py load DIR ROWS.jsonl --device cuda --weights int4     # float, int8, int4: one each
    python experiments/small_cards.py time ROWS.jsonl --device cuda
    python experiments/small_cards.py logits ROWS.jsonl --device cuda
    python experiments/small_cards.py table ROWS.jsonl [--accuracy FOLDER]

`load` reads a checkpoint of LLaDA's size in a process of its own and decodes 256 positions with E-SMC and five
particles, without a cache and with one. `time` has one model of each kind on the device, of random weights, and walks
them in turns of 0.3 seconds: blocks of 32 with a cache, where a step reads all weights for few columns, and without a
cache, where arithmetic is the cost. `logits` compares packed networks with their numbers in float32 floats, and the
same in the model's type, whose error is that of its rounding alone. Rows that ROWS.jsonl has are not made again.
`--accuracy` is a folder with rows of `unmask eval TASK --rows FOLDER/TASK-WEIGHTS.jsonl`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from unmask import Recipe, decode_batch, load
from unmask.decoding.prompt import from_prompt
from unmask.evaluate import rows
from unmask.evaluate.header import origin
from unmask.evaluate.speed.walking import EVERY, Walking
from unmask.evaluate.stats import paired, wilson
from unmask.models import memory
from unmask.models.made.random_sizes import make
from unmask.models.network import Network, empty
from unmask.models.packed import packed_of
from unmask.models.transformer import Transformer

Line = dict[str, Any]
KINDS = ("float", "int8", "int4")
TASKS = ("sudoku", "countdown", "problems")
GIB = 2**30
LIMITS = {"int8": 11.0, "int4": 7.0}  # GiB in all, the aim
BLOCK = 32
CACHED = {"sampler": "semi-ar", "block_length": BLOCK, "scope": "block", "cache": True}
CACHED |= {"cache_before": 0, "cache_after": 0}
# name -> particles, recipe, whether it has a cache; prompt and length are --prompt and --length
SETTINGS: dict[str, tuple[int, Line]] = {
    "blocks with a cache, 1 particle": (1, CACHED),
    "blocks with a cache, 5 particles": (5, CACHED),
    "blocks with a cache, 8 particles": (8, CACHED),
    "no cache, 1 particle": (1, {"sampler": "confidence"}),
    "no cache, 5 particles": (5, {"sampler": "confidence"}),
}
LOADED = {
    "no cache": {"sampler": "confidence", "steps": 64, "every": 16},
    "cache in blocks": {"sampler": "semi-ar", "block_length": BLOCK, "steps": 64, "every": 16, "cache_block": BLOCK},
}
QUESTION = "Natalia sold clips to 48 of her friends. How many clips did she sell?"
COLUMNS = {"read as it lies": (4, 64), "unpacked first": (2, 512)}  # rows and columns: up to 512 in all, and more


# --- memory ----------------------------------------------------------------------------------------------------------


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def peak(device: torch.device) -> Line:
    """What is allocated at most since the last time, and what is taken from the device."""
    if not on_gpu(device):
        return {"peak": None, "reserved": None, "taken": None}
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    found = {"peak": torch.cuda.max_memory_allocated(device), "reserved": torch.cuda.max_memory_reserved(device)}
    torch.cuda.reset_peak_memory_stats(device)
    return {**found, "taken": total - free}  # by this process and all others, the driver's own memory included


def run_load(args: argparse.Namespace) -> Iterator[Line]:
    began = time.perf_counter()
    model = load(args.model, args.device, args.dtype, weights=args.weights)
    about = {"weights": args.weights, "bytes": model.bytes, "seconds": round(time.perf_counter() - began, 2)}
    yield {"what": "load", **about, **peak(model.device), "host": memory.host_peak(), **origin(model.device)}
    for name, how in LOADED.items():
        recipe = Recipe(search="smc", particles=5, strength=5.0, select_temperature=0.1, length=args.length, **how)
        if args.steps:
            recipe = recipe.replace(steps=args.steps, every=max(1, args.steps // 4))
        began = time.perf_counter()
        decode_batch(model, [QUESTION], recipe=recipe)
        about = {"weights": args.weights, "how": name, "seconds": round(time.perf_counter() - began, 2)}
        yield {"what": "decode", **about, **peak(model.device), "host": memory.host_peak(), "recipe": recipe.to_dict()}


# --- time ------------------------------------------------------------------------------------------------------------


def run_time(args: argparse.Namespace) -> Iterator[Line]:
    device = torch.device(args.device)
    models = {kind: make(args.size, device, weights=kind) for kind in KINDS}
    prompt = [(7 * i) % 200 + 5 for i in range(args.prompt)]
    for name, (particles, how) in SETTINGS.items():
        if ("time", name) in args.done:
            continue
        recipe = Recipe(search="smc", particles=particles, temperature=1.0, length=args.length, **how)
        bare = "cache" not in how
        first = 2 if bare else BLOCK  # steps that count: all are alike, or those of whole blocks after the first
        canvas = from_prompt(models["float"], prompt, args.length)
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        with torch.no_grad():
            for model in models.values():
                begun(Walking(model, recipe, canvas, first, bare=bare), 2 * first)
            for number in range(args.rounds):
                for kind, found in walked(models, recipe, canvas, first, bare, number).items():
                    times[kind].append(found)
        ms = {kind: round(median(found), 3) for kind, found in times.items()}
        yield {"what": "time", "name": name, "ms": ms, "each": times, "size": args.size, "prompt": args.prompt} | {
            "recipe": recipe.to_dict(), "dtype": str(models["float"].network.like.dtype), **origin(device)
        }  # fmt: skip


def begun(walk: Walking, steps: int) -> None:
    """Some steps, which records them; the recordings are free for the next walk once this one is let go."""
    while walk.go(EVERY) and walk.last is not None and walk.last.step < steps:
        pass


def walked(models: dict[str, Transformer], recipe: Recipe, canvas: Any, first: int, bare: bool, turn: int) -> Line:
    """Milliseconds of a step of each model: one decode of each, in turns."""
    walks = {kind: Walking(model, recipe, canvas, first, bare=bare) for kind, model in models.items()}
    going = list(walks)[turn % len(walks) :] + list(walks)[: turn % len(walks)]
    while going:
        going = [kind for kind in going if walks[kind].go(EVERY)][::-1]
    return {kind: 1000 * walk.done().step for kind, walk in walks.items()}


# --- logits ----------------------------------------------------------------------------------------------------------


def run_logits(args: argparse.Namespace) -> Iterator[Line]:
    device = torch.device(args.device)
    for kind in KINDS[1:]:
        if all(("logits", f"{kind}, {name}") in args.done for name in COLUMNS):
            continue
        model = make(args.size, device, weights=kind)
        exact, half = as_floats(model.network, torch.float32), as_floats(model.network, model.network.like.dtype)
        for name, (many, columns) in COLUMNS.items():
            columns = min(columns, args.prompt + args.length)
            tokens = torch.randint(5, 200, (many, columns), generator=torch.Generator().manual_seed(1)).to(device)
            with torch.no_grad():
                expected = logits(exact, tokens)
                found = {"packed": off(logits(model.network, tokens), expected)}
                found["floats"] = off(logits(half, tokens), expected)
            yield {"what": "logits", "name": f"{kind}, {name}", "columns": many * columns, **found, **origin(device)}
        del model, exact, half
        gc.collect()
        if on_gpu(device):
            torch.cuda.empty_cache()


def as_floats(network: Network, dtype: torch.dtype) -> Network:
    """The same network in floats of this type, with the numbers that are packed."""
    made = empty(network.shape, network.like.device, dtype)
    held = packed_of(network)
    given = {name: one for name, one in network.named_parameters() if name.rpartition(".")[0] not in held}
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(held[name].unpacked(dtype=dtype) if name in held else given[name])
    return made


def logits(network: Network, tokens: Tensor) -> Tensor:
    """The head is that of the floats: it is never packed."""
    columns = torch.arange(tokens.shape[1], device=tokens.device)[None].expand_as(tokens)
    hidden = network(tokens, columns)[0]
    head = network.head if network.head is not None else network.embed
    return torch.nn.functional.linear(hidden, head.weight.to(hidden.dtype)).float()


def off(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, of that of what is expected."""
    return float((found - expected).norm() / expected.norm())


# --- tables ----------------------------------------------------------------------------------------------------------


def table(args: argparse.Namespace) -> None:
    lines = read(args.rows)
    for part in (loaded(lines), timed(lines), compared(lines)):
        if part:
            print("\n".join(part) + "\n")
    if args.accuracy is not None:
        print("\n".join(accuracy(args.accuracy)))


def loaded(lines: Sequence[Line]) -> list[str]:
    made = [
        "| weights | GiB | at most while loading | the aim | seconds | decoding | with a cache | on the device | host |"
    ]
    made.append("|" + "---|" * 9)
    for kind in KINDS:
        one = last(lines, "load", weights=kind)
        if one is None:
            continue
        decodes = [last(lines, "decode", weights=kind, how=how) for how in LOADED]
        known = [decode for decode in decodes if decode is not None]
        cells = [kind, gib(one["bytes"]), gib(one["peak"]), f"≤ {one['bytes'] / GIB + 2:.2f}", f"{one['seconds']:.1f}"]
        cells += [gib(None if decode is None else decode["peak"]) for decode in decodes]
        taken = [decode["taken"] for decode in known if decode["taken"]]
        aim = f" (≤ {LIMITS[kind]:g})" if kind in LIMITS else ""
        cells += [f"{gib(max(taken, default=None))}{aim}", gib(max(each["host"] for each in [one, *known]))]
        made.append(f"| {' | '.join(cells)} |")
    return made if len(made) > 2 else []


def timed(lines: Sequence[Line]) -> list[str]:
    made = ["| a step, ms | float | int8 | of float | int4 | of float |", "|" + "---|" * 6]
    for name in SETTINGS:
        one = last(lines, "time", name=name)
        if one is not None:
            ms = one["ms"]
            shares = [f"{ms[kind]:.2f} | {ms[kind] / ms['float']:.2f}" for kind in KINDS[1:]]
            made.append(f"| {name} | {ms['float']:.2f} | {' | '.join(shares)} |")
    return made if len(made) > 2 else []


def compared(lines: Sequence[Line]) -> list[str]:
    made = ["| logits, off by the share | columns | packed | the same numbers as floats |", "|" + "---|" * 4]
    for name in (f"{kind}, {how}" for kind in KINDS[1:] for how in COLUMNS):
        one = last(lines, "logits", name=name)
        if one is not None:
            made.append(f"| {name} | {one['columns']} | {one['packed']:.4f} | {one['floats']:.4f} |")
    return made if len(made) > 2 else []


def accuracy(folder: Path) -> list[str]:
    """Right answers with each kind of weights, and the paired difference from floats in points, 95 %."""
    made = ["| task | n | float | int8 | difference | int4 | difference |", "|" + "---|" * 7]
    for task in TASKS:
        files = {kind: folder / f"{task}-{kind}.jsonl" for kind in KINDS}
        if not all(file.exists() for file in files.values()):
            continue
        found = {kind: {row["number"]: verdict(row) for row in rows.read(file).kept} for kind, file in files.items()}
        both = sorted(set.intersection(*(set(one) for one in found.values())))
        if not both:
            continue
        right = {kind: [one[number] for number in both] for kind, one in found.items()}
        cells = [task, f"{len(both):,}", share(right["float"])]
        for kind in KINDS[1:]:
            change = paired(right["float"], right[kind])
            low, high = 100 * change.low, 100 * change.high
            cells += [share(right[kind]), f"{100 * change.difference:+.1f} ({low:+.1f} to {high:+.1f})"]
        made.append(f"| {' | '.join(cells)} |")
    return made if len(made) > 2 else []


def verdict(row: Line) -> bool:
    return bool(row["strict"])


def share(right: Sequence[bool]) -> str:
    low, high = wilson(sum(right), len(right))
    return f"{100 * mean(right):.1f} ({100 * low:.1f}–{100 * high:.1f})"


def gib(size: float | None) -> str:
    return "·" if size is None else f"{size / GIB:.2f}"


def last(lines: Iterable[Line], what: str, **about: Any) -> Line | None:
    found = [line for line in lines if line["what"] == what and about.items() <= line.items()]
    return found[-1] if found else None


def read(path: Path) -> list[Line]:
    """Whole lines; none if there is no file."""
    lines = rows.parsed(path.read_bytes()) if path.exists() else []
    return [line for line in lines if line is not None]


# --- the command -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("load", "time", "logits", "table"):
        one = commands.add_parser(name)
        if name == "load":
            one.add_argument("model", help="a directory")
            one.add_argument("--weights", choices=KINDS, required=True)
            one.add_argument("--steps", type=int, help="for a trial")
            one.add_argument("--dtype", help="by default the checkpoint's own")
        one.add_argument("rows", type=Path)
        if name == "table":
            one.add_argument("--accuracy", type=Path, metavar="FOLDER")
            continue
        one.add_argument("--device", default="cpu")
        one.add_argument("--length", type=int, default=256)
        one.add_argument("--prompt", type=int, default=256, help="positions before it, where none is given")
        one.add_argument("--size", default="llada", help="of `unmask bench speed`: tiny for a trial")
        one.add_argument("--rounds", type=int, default=2, help="decodes of each model, of which the median counts")
        one.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing further after so many")
    args = parser.parse_args()
    if args.command == "table":
        table(args)
        return 0
    return measured(args)


def measured(args: argparse.Namespace) -> int:
    """What ROWS.jsonl lacks; 75 if time was up."""
    began, before = time.monotonic(), read(args.rows)
    args.done = {(line["what"], line.get("name")) for line in before}
    if args.command == "load" and last(before, "decode", weights=args.weights, how=list(LOADED)[-1]) is not None:
        return 0
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    work = {"load": run_load, "time": run_time, "logits": run_logits}[args.command]
    for line in work(args):
        if (line["what"], line.get("name")) not in args.done or args.command == "load":
            rows.append(args.rows, [line])
            print(json.dumps({name: line[name] for name in line if name not in ("recipe", "each")}), flush=True)
        if time.monotonic() - began > args.seconds:
            print("time is up: the same command continues", file=sys.stderr)
            return 75
    return 0


if __name__ == "__main__":
    sys.exit(main())
