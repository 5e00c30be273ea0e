"""Approximate caches under full attention: what does each window cost and save, on the bundled models?

    python experiments/caches.py decode runs/countdown.jsonl --task countdown --n 500 --seconds 3600
    python experiments/caches.py states runs/stories.jsonl --task stories --n 6
    python experiments/caches.py columns --length 256 --prompts 100 800
    python experiments/caches.py table results/rows/caches.jsonl.xz
    python experiments/caches.py draw results/rows/caches.jsonl.xz results/figures

`decode` solves reserved puzzles in blocks from left to right with each cache in CACHES: one position a step (`one`: as
many steps as positions, shared among the blocks), the same at temperature 1 (`drawn`), and all above 0.9 (`many`). All
caches get through the same puzzles before the next ones come, so that a run that `--seconds` stops compares equals with
equals; a file that is there is continued. `states` follows the exact paths of 8 particles at temperature 1 and asks
every cache at each of their states. `columns` counts the columns a step of long canvases, one position a step, which do
not depend on the model. `pack` joins files of rows.

Columns are those that the network computed, without padding, counted where it is called. Seconds are those of the
processor, on one thread, so that other work on the machine does not count. `table` prints paired differences to exact,
with 95 % intervals; `draw` makes one picture a task.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import unmask
from unmask.core.beliefs import weigh
from unmask.core.entropy import state_entropy
from unmask.core.state import State, first_masked
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, UnmaskError
from unmask.evaluate.header import origin
from unmask.evaluate.rows import JsonLines, parsed
from unmask.evaluate.run import canvases
from unmask.evaluate.stats import Difference, paired, spearman, wilson
from unmask.models import Denoiser, fingerprint
from unmask.models.cache import WindowCache
from unmask.models.transformer import Transformer, random_transformer
from unmask.models.wrap import Wrapped
from unmask.tasks import TASKS, Example
from unmask.tasks.puzzles import countdown, held_out

Line = dict[str, Any]
KIND, SEED = "unmask caches", 11
SAME = ("task", "what", "weights", "n", "seed", "settings")  # of a header: a continued run must share them
CACHES: dict[str, Line | None] = {  # before, after, every
    "exact": None,
    "prefix": {"before": 0},
    "prefix, 16 before": {"before": 16},
    "prefix, 32 before": {"before": 32},
    "window 16": {"before": 16, "after": 16},
    "window 8": {"before": 8, "after": 8},
    "dual": {"before": 0, "after": 0},
    "prefix, every 4": {"before": 0, "every": 4},
    "window 8, every 4": {"before": 8, "after": 8, "every": 4},
    "dual, every 4": {"before": 0, "after": 0, "every": 4},
    "dual, every 8": {"before": 0, "after": 0, "every": 8},
}
FEW = ("exact", "prefix", "prefix, 32 before", "window 16", "dual")  # where not all are tried
ORDERS: dict[str, Line] = {
    "one": {"sampler": "semi-ar"},
    "drawn": {"sampler": "semi-ar", "temperature": 1.0},
    "many": {"sampler": "fast-dllm", "threshold": 0.9},
}
PATHS = {"search": "best-of-n", "particles": 8, "temperature": 1.0}
GIVEN, CONTINUED = 96, 64  # tokens of a story


@dataclass(frozen=True)
class Questions:
    """How a task is asked."""

    model: str
    main: int  # the length of blocks with which all caches are tried
    blocks: tuple[int, ...]  # the other ones
    together: int  # rows at a time
    settings: Line = field(default_factory=dict)


TEXT = {"length": 128, "fill_tail": True}
SETS = {
    "countdown": Questions("countdown", countdown.EQUATION, (8, 32), 50),
    "sudoku": Questions("sudoku", 16, (8, 32), 50),
    "problems": Questions("text", 32, (16,), 25, TEXT),
    "stories": Questions("text", 32, (), 8, {"length": CONTINUED, "fill_tail": True}),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("decode", "states"):
        one = commands.add_parser(name)
        one.add_argument("file", help="rows, as JSON lines")
        one.add_argument("--task", choices=list(SETS), required=True)
        one.add_argument("--model", help="by default the bundled one")
        one.add_argument("--n", type=int, required=True, help="puzzles; of `states`, each with 8 paths")
        one.add_argument("--seconds", type=float, default=float("inf"), help="after which no further batch begins")
        one.add_argument("--only", nargs="+", metavar="PART", help="only cells with one of these in their names")
        one.add_argument("--until", type=int, help="no more puzzles than this now")
    one = commands.add_parser("columns")
    one.add_argument("--length", type=int, default=256, help="open positions [256]")
    one.add_argument("--block", type=int, default=32, help="open positions to a block [32]")
    one.add_argument("--prompts", type=int, nargs="+", default=[100, 800], help="tokens of the prompt [100 800]")
    for name, last in (("table", None), ("draw", "folder"), ("pack", "out")):
        one = commands.add_parser(name)
        one.add_argument("files", nargs="+")
        if last is not None:
            one.add_argument(last)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    try:
        COMMANDS[args.command](args)
    except UnmaskError as error:
        print(f"caches: error: {error}", file=sys.stderr)
        return 2
    return 0


# --- questions -------------------------------------------------------------------------------------------------------


def examples(task: str, n: int) -> list[Example]:
    """Reserved puzzles; of a hundred word problems the short ones come first, so that there is little padding."""
    if task == "countdown":
        made = (json.loads(line) for line in held_out.countdowns(n, 4, SEED))
        return [Example(str(place), {"input": one["input"]}, one["output"]) for place, one in enumerate(made)]
    if task == "sudoku":
        boards = (line for line in held_out.sudokus(n, 28, SEED) if line is not None)
        return [Example(str(place), {"input": board}, "") for place, board in enumerate(boards)]
    found = [json.loads(line) for line in held_out.word_problems(n, SEED)]
    hundreds = (sorted(found[at : at + 100], key=lambda one: len(one["question"])) for at in range(0, n, 100))
    ordered = [one for hundred in hundreds for one in hundred]
    return [Example(str(place), one, str(one["answer"])) for place, one in enumerate(ordered)]


def given(task: str, model: Denoiser, n: int) -> list[Any]:
    """What each row begins with: a canvas, a question, or the first tokens of a story that the model wrote."""
    if task == "stories":
        recipe = Recipe(**{**model.recipe, "length": 256, "temperature": 1.0, "seed": SEED})  # type: ignore[attr-defined]
        told = [one.tokens for one in decode_batch(model, [""] * (4 * n), recipe=recipe)]
        long = [one[:GIVEN] for one in told if not set(one[: GIVEN + CONTINUED]) & set(model.vocab.eos)]
        return long[:n]  # of those that are not over by then
    if task == "problems":
        return [str(one.fields["question"]) for one in examples(task, n)]
    return [one.ask for one in canvases(TASKS[task], examples(task, n))]


def recipe_of(task: str, order: str, block: int, cache: str) -> Recipe:
    return Recipe(**SETS[task].settings, **ORDERS[order], block_length=block, **window_of(cache))


def window_of(cache: str) -> Line:
    """The settings of a cache in a recipe."""
    window = CACHES[cache]
    return {} if window is None else {"cache": True, **{f"cache_{name}": value for name, value in window.items()}}


# --- decoding --------------------------------------------------------------------------------------------------------


@dataclass
class Columns:
    """Counts the columns that a network computes, without padding."""

    count: int = 0

    def __call__(self, network: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        tokens, columns, *_ = inputs
        self.count += int((columns >= 0).expand_as(tokens).sum())


def cells(task: str, only: Sequence[str] | None) -> dict[str, tuple[str, int, str]]:
    """Name -> order, length of a block and cache."""
    asked = SETS[task]
    found = {}
    for order in ORDERS:
        for block in (asked.main, *(asked.blocks if order != "drawn" else ())):
            for cache in CACHES if block == asked.main else FEW:
                found[f"{order} {block}: {cache}"] = (order, block, cache)
    return {name: cell for name, cell in found.items() if any(part in name for part in only or [""])}


def answers(args: argparse.Namespace) -> None:
    began, asked = time.monotonic(), SETS[args.task]
    if args.task == "stories":
        raise InputError("stories have no verdict", "use `states`")
    model = unmask.load(args.model or asked.model)
    rows, golds = given(args.task, model, args.n), examples(args.task, args.n)
    counted = Columns()
    _network(model).network.register_forward_pre_hook(counted)
    with JsonLines(args.file) as file:
        done = _kept(file, _about(args, model))
        for begin in range(0, min(args.n, args.until or args.n), asked.together):
            part = range(begin, min(begin + asked.together, args.n))
            for name, cell in cells(args.task, args.only).items():
                if (name, begin) in done:
                    continue
                if time.monotonic() - began > args.seconds:
                    print(f"stopped after {args.seconds:g} s: the same command continues", file=sys.stderr)
                    return
                counted.count, start = 0, time.process_time()
                found = _decoded(args.task, model, rows[begin : part.stop], recipe_of(args.task, *cell), list(part))
                cost = {"columns": counted.count / len(part), "seconds": time.process_time() - start}
                cost["seconds"] /= len(part)
                graded = zip(part, golds[begin : part.stop], found, strict=True)
                file.add(_row(args.task, name, *one) | cost for one in graded)
                print(f"{time.monotonic() - began:6.0f} s  {name}, up to {part[-1]}", file=sys.stderr, flush=True)


def _decoded(task: str, model: Denoiser, rows: list[Any], recipe: Recipe, seeds: list[int]) -> list[Result]:
    if TASKS[task].puzzle is None:
        return decode_batch(model, rows, recipe=recipe, seeds=seeds)
    return decode_batch(model, canvases=rows, recipe=recipe, seeds=seeds)


def _row(task: str, name: str, number: int, gold: Example, found: Result) -> Line:
    puzzle = TASKS[task].puzzle
    text = found.text if puzzle is None else puzzle.answer(found.tokens)
    _, right = TASKS[task].grades(text, gold)
    digest = hashlib.sha256(json.dumps(found.tokens).encode()).hexdigest()[:8]
    entropy = float(f"{found.path_entropy:.7g}")
    return {
        "cell": name, "number": number, "right": right, "path_entropy": entropy,
        "evaluations": found.evaluations, "tokens": digest,
    }  # fmt: skip


def _network(model: Denoiser) -> Transformer:
    if not isinstance(model, Transformer):
        raise InputError(f"{model.name} has no network of ours", "give one of the bundled models")
    return model


def _about(args: argparse.Namespace, model: Denoiser) -> Line:
    name = args.model or SETS[args.task].model
    what = {"kind": KIND, "what": args.command, "task": args.task, "model": name, "weights": fingerprint(name)}
    return what | {"n": args.n, "seed": SEED, "settings": SETS[args.task].settings, **origin(model.device)}


def _kept(file: JsonLines, about: Line) -> set[tuple[str, int]]:
    """The cells and numbers that a file has already; a new file gets its header."""
    lines = [line for line in file.lines if line is not None]
    if not lines:
        file.add([about])
        return set()
    for name in SAME:
        if lines[0].get(name) != about[name]:
            raise InputError(f"{file.path!r} has {name} {lines[0].get(name)!r}", f"not {about[name]!r}: give another")
    return {(line["cell"], line["number"]) for line in lines[1:]}


# --- the same states -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Watched(Wrapped):
    """The exact model, and beside it what every cache would have believed at the same states."""

    caches: dict[str, WindowCache]
    counted: Columns
    kept: dict[str, Any] = field(default_factory=dict)
    found: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))  # [R, 4] each
    columns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    rows: list[Tensor] = field(default_factory=list)

    @property
    def keeps_rows(self) -> bool:
        return True  # so that every row is asked about, equal ones too

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        exact = self._counted("exact", self.inner, state.replace(cache=None), rows)
        self.rows.append(rows)
        surest = None
        for name, hidden in (("exact", exact), *self._others(state, rows)):
            some = state.take(rows)
            beliefs = weigh(hidden, self.head, some.masked, some.tokens)
            block = self.caches["prefix"].block
            current = some.masked & (some.rank // block == (first_masked(some) // block)[:, None])
            place = beliefs.top.where(current, -torch.inf).argmax(1)
            surest = place if surest is None else surest
            token = beliefs.best.gather(1, surest[:, None])[:, 0]
            found = torch.stack([state_entropy(beliefs.entropy, some.masked), place.double(), token.double()], 1)
            self.found[name].append(found)
        return exact, None

    def _others(self, state: State, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        for name, cache in self.caches.items():
            yield name, self._counted(name, cache, state.replace(cache=self.kept.get(name)), rows)

    def _counted(self, name: str, model: Denoiser, state: State, rows: Tensor) -> Tensor:
        before = self.counted.count
        hidden, self.kept[name] = model.look(state, rows)
        self.columns[name] += self.counted.count - before
        return hidden


def states(args: argparse.Namespace) -> None:
    began, asked = time.monotonic(), SETS[args.task]
    model = _network(unmask.load(args.model or asked.model))
    rows = given(args.task, model, args.n)
    counted = Columns()
    model.network.register_forward_pre_hook(counted)
    windows = {name: {"before": 0, **window} for name, window in CACHES.items() if window is not None}
    recipe = Recipe(**asked.settings, sampler="semi-ar", block_length=asked.main, **PATHS)
    with JsonLines(args.file) as file:
        done = _kept(file, _about(args, model))
        for number, row in enumerate(rows):
            if ("exact", number) in done:
                continue
            if time.monotonic() - began > args.seconds:
                print(f"stopped after {args.seconds:g} s: the same command continues", file=sys.stderr)
                return
            caches = {name: WindowCache(model, asked.main, **window) for name, window in windows.items()}
            watched = Watched(model, caches, counted)
            how = (
                {"canvases": [row]}
                if args.task in TASKS and TASKS[args.task].puzzle is not None
                else {"prompts": [row]}
            )
            decode_batch(watched, **how, recipe=recipe, seeds=[number])
            file.add({"cell": name, "number": number, **one} for name, one in _compared(watched).items())
            print(f"{time.monotonic() - began:6.0f} s  up to {number}", file=sys.stderr, flush=True)


def _compared(watched: Watched) -> dict[str, Line]:
    """For each cache, over all states of 8 paths: errors of state and path entropies, and how often choices agree."""
    rows = torch.cat(watched.rows)
    exact = torch.cat(watched.found["exact"])
    found = {}
    for name, parts in watched.found.items():
        mine = torch.cat(parts)
        paths = [_by_path(one[:, 0], rows) for one in (exact, mine)]
        found[name] = {
            "states": len(rows),
            "columns": watched.columns[name] / len(rows),
            "state_error": float((mine[:, 0] - exact[:, 0]).abs().mean() / exact[:, 0].mean()),
            "path_error": float(np.abs(paths[1] - paths[0]).mean() / paths[0].mean()),
            "path_bias": float((paths[1] - paths[0]).mean() / paths[0].mean()),
            "rank": spearman(paths[0], paths[1]),
            "position": float((mine[:, 1] == exact[:, 1]).double().mean()),
            "token": float((mine[:, 2] == exact[:, 2]).double().mean()),
        }
    return found


def _by_path(values: Tensor, rows: Tensor) -> Any:
    """The mean over the states of each row."""
    return np.array([float(values[rows == row].mean()) for row in rows.unique()])


def long_canvases(args: argparse.Namespace) -> None:
    """What a step computes on long canvases; a random network of one layer is enough to count it."""
    model = random_transformer(width=8, layers=1, heads=1)
    counted = Columns()
    model.network.register_forward_pre_hook(counted)
    heads = ["cache", *(f"prompt of {prompt}" for prompt in args.prompts)]
    lines = [heads, ["---"] * len(heads)]
    whole: dict[int, int] = {}
    for cache in CACHES:
        line = [cache]
        for prompt in args.prompts:
            counted.count = 0
            recipe = Recipe("semi-ar", block_length=args.block, length=args.length, **window_of(cache))
            steps = unmask.decode(model, [0] * prompt, recipe=recipe).evaluations
            whole.setdefault(prompt, counted.count)
            line.append(f"{counted.count / steps:.0f} ({whole[prompt] / counted.count:.1f}×)")
        lines.append(line)
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))


# --- what came out ---------------------------------------------------------------------------------------------------

Cells = dict[str, dict[int, Line]]  # cell -> number -> row


def read(paths: Sequence[str]) -> list[tuple[Line, Cells]]:
    """Headers and rows, of files as they are written or packed."""
    found: list[tuple[Line, Cells]] = []
    for path in paths:
        content = Path(path).read_bytes()
        for line in parsed(lzma.decompress(content) if path.endswith(".xz") else content):
            if line is not None and line.get("kind") == KIND:
                found.append((line, defaultdict(dict)))
            elif line is None or not found:
                raise InputError(f"{path!r} has no rows of this script", "make them with `decode` or `states`")
            else:
                found[-1][1][line["cell"]][line["number"]] = line
    return found


def pack(args: argparse.Namespace) -> None:
    if not args.out.endswith(".xz"):
        raise InputError(f"{args.out!r} does not end in .xz", "the last name is that of the packed file")
    with lzma.open(args.out, "wt", preset=9, encoding="utf-8") as file:
        for head, found in read(args.files):
            file.write(json.dumps(head) + "\n")
            for rows in found.values():
                file.writelines(json.dumps(_short(row)) + "\n" for row in rows.values())


def _short(row: Line) -> Line:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}


@dataclass(frozen=True)
class Figures:
    """A cache against exact, over the rows that both have."""

    n: int
    right: int
    gap: Difference  # of the shares solved
    changed: float  # share of rows with other tokens
    entropy: float  # mean |path entropy - exact|, as a share of the mean
    columns: float  # a step
    share: float  # columns of a whole answer, of exact
    seconds: float  # of exact
    evaluations: float


def compared(exact: dict[int, Line], rows: dict[int, Line]) -> Figures:
    both = sorted(exact.keys() & rows.keys())
    old, new = [exact[one] for one in both], [rows[one] for one in both]
    gap = paired([one["right"] for one in old], [one["right"] for one in new])

    def total(some: list[Line], name: str) -> float:
        return float(sum(one[name] for one in some))

    pairs = list(zip(old, new, strict=True))
    return Figures(
        len(both),
        sum(one["right"] for one in new),
        gap,
        sum(a["tokens"] != b["tokens"] for a, b in pairs) / len(both),
        sum(abs(a["path_entropy"] - b["path_entropy"]) for a, b in pairs) / total(old, "path_entropy"),
        total(new, "columns") / total(new, "evaluations"),
        total(new, "columns") / total(old, "columns"),
        total(new, "seconds") / total(old, "seconds"),
        total(new, "evaluations") / len(both),
    )


def table(args: argparse.Namespace) -> None:
    for head, found in read(args.files):
        print(f"\n{head['task']}; {head['machine']}; {head['date'][:10]}; commit {head['commit']}; seed {head['seed']}")
        if head["what"] == "decode":
            for group in dict.fromkeys(name.partition(":")[0] for name in found):
                order, block = group.split()
                print(f"\n{TITLES[order]}, blocks of {block}, {_steps(found[f'{group}: exact'])} steps\n")
                _print(_answers(found, group))
        else:
            total = sum(row["states"] for row in found["exact"].values())
            print(f"\n{total} states of {len(found['exact'])} × 8 paths at temperature 1\n")
            _print(_states(found))


def _print(lines: Iterator[list[str]]) -> None:
    print("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _steps(rows: dict[int, Line]) -> str:
    return f"{_mean(list(rows.values()), 'evaluations'):.1f}"


def _answers(found: Cells, group: str) -> Iterator[list[str]]:
    heads = "cache|n|solved, %|against exact|answers changed|path entropy off by|columns a step|of exact|time, of exact"
    yield heads.split("|")
    yield ["---"] * 9
    for cache in CACHES:
        if f"{group}: {cache}" not in found:
            continue
        one = compared(found[f"{group}: exact"], found[f"{group}: {cache}"])
        low, high = wilson(one.right, one.n)
        solved = f"{100 * one.right / one.n:.0f} ({100 * low:.0f}–{100 * high:.0f})"
        beside = [_points(one.gap), f"{100 * one.changed:.0f} %", f"{100 * one.entropy:.1f} %"]
        beside = ["·"] * 3 if cache == "exact" else beside
        yield [cache, str(one.n), solved, *beside, f"{one.columns:.1f}", f"{one.share:.2f}", f"{one.seconds:.2f}"]


def _points(gap: Difference) -> str:
    return f"{100 * gap.difference:+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})"


def base(cell: str) -> str:
    return f"{cell.partition(': ')[0]}: exact"


def _states(found: Cells) -> Iterator[list[str]]:
    heads = (
        "cache|columns a step|state entropy off by|path entropy off by|rank of paths (lowest)|same position|same token"
    )
    yield heads.split("|")
    yield ["---"] * 7
    for cache, rows in found.items():
        some = list(rows.values())
        errors = [f"{100 * _mean(some, name):.1f} %" for name in ("state_error", "path_error")]
        ranks = [row["rank"] for row in some if math.isfinite(row["rank"])]  # without those whose paths are all alike
        rank = f"{np.mean(ranks):.2f} ({min(ranks):.2f})" if ranks else "·"
        same = [f"{100 * _mean(some, name):.1f} %" for name in ("position", "token")]
        yield [cache, f"{_mean(some, 'columns'):.1f}", *errors, rank, *same]


def _mean(rows: Sequence[Line], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


# --- pictures --------------------------------------------------------------------------------------------------------

MARKS = dict(zip(CACHES, ["*", "o", "s", "D", "^", "v", "x", "o", "v", "x", "x"], strict=True))
TITLES = {"one": "one position a step", "drawn": "the same at temperature 1", "many": "all above 0.9"}
COLOURS = ("#2563eb", "#d97706", "#059669")


def draw(args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "unmask", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3}
    )
    for head, found in read(args.files):
        if head["what"] == "decode":
            there = [order for order in ORDERS if any(name.startswith(order) for name in found)]
            figure, panels = pyplot.subplots(
                1, len(there), figsize=(4 * len(there) + 1, 3.8), constrained_layout=True, sharey=True, squeeze=False
            )
            for axes, order in zip(panels[0], there, strict=True):
                _draw_answers(axes, {name: rows for name, rows in found.items() if name.startswith(order)})
                axes.set(title=TITLES[order])
            panels[0][0].set(ylabel="solved, points against exact")
        else:
            figure, axes = pyplot.subplots(figsize=(5.6, 3.8), constrained_layout=True)
            for name, rows in found.items():
                some = list(rows.values())
                x, y = _mean(some, "columns"), 100 * _mean(some, "path_error")
                axes.plot(x, y, MARKS[name], ms=5, color=_shade(name, COLOURS[0]), label=name)
            axes.set(xlabel="columns a step", ylabel="error of path entropy, %")
        figure.legend(*_legend(figure), loc="outside lower center", ncols=4, frameon=False, fontsize=7)
        what = "" if head["what"] == "decode" else "-states"
        path = Path(args.folder) / f"caches-{head['task']}{what}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        print(path)


def _draw_answers(axes: Any, found: Cells) -> None:
    """Points against exact over columns a step; a colour for each length of blocks, a mark for each cache."""
    for colour, block in zip(COLOURS, dict.fromkeys(name.partition(":")[0] for name in found), strict=False):
        for name, rows in found.items():
            if name.startswith(f"{block}:"):
                cache, one = name.partition(": ")[2], compared(found[base(name)], rows)
                y, low, high = (100 * end for end in (one.gap.difference, one.gap.low, one.gap.high))
                style = {"fmt": MARKS[cache], "ms": 5, "lw": 0.6, "color": _shade(cache, colour), "label": cache}
                axes.errorbar([one.columns], [y], [[y - low], [high - y]], **style)
        axes.plot([], [], "-", color=colour, label=f"blocks of {block.split()[1]}")
    axes.set(xlabel="columns a step")


def _shade(cache: str, colour: str) -> str:
    """Paler where full passes come every few steps."""
    return colour if "every" not in cache else f"{colour}{'66' if cache.endswith('8') else '99'}"


def _legend(figure: Any) -> tuple[list[Any], list[str]]:
    """Each name once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return list(found.values()), list(found)


COMMANDS = {"decode": answers, "states": states, "columns": long_canvases, "table": table, "draw": draw, "pack": pack}

if __name__ == "__main__":
    sys.exit(main())
