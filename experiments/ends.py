"""Ends of text: what keeps surest-first decoding from deciding the ends first? Word problems and stories, each remedy.

    python experiments/ends.py run runs/ends.jsonl --model text --problems problems.jsonl --device cuda --seconds 1500
    python experiments/ends.py table runs/ends.jsonl

`run` decodes every problem (JSON lines with `question` and `answer`) and unprompted stories in each of WAYS, problem i
and story i with seed i, and writes one row for each; `--chat` asks through the model's chat template, for LLaDA. A file
that is there is continued. All ways get through the same problems before the next ones come, so that a run that
`--seconds` stops compares equals with equals. `table` prints, for each way: the share of right answers, its paired
difference to no remedy (of 8 paths, to the choice by path entropy), and the share whose worked steps are true as well;
the shares of empty texts and of texts that ended; the tokens before the end; and evaluations. All intervals are 95 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.prompt import Text, encode
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle
from unmask.errors import InputError, UnmaskError
from unmask.evaluate.header import origin, sha256
from unmask.evaluate.rows import JsonLines, parsed
from unmask.evaluate.stats import mean, paired, wilson
from unmask.models import Denoiser, fingerprint
from unmask.models.transformer import compiled
from unmask.tasks import TASKS, Example

Line = dict[str, Any]
KIND = "unmask ends"
SAME = ("model", "weights", "dtype", "problems", "chat", "lengths")  # of a header: a continued run must share them
ROWS = {"cpu": 16, "cuda": 2048}  # rows decoded at a time

# --- the ways --------------------------------------------------------------------------------------------------------

BLOCKS = {size: {"sampler": "semi-ar", "block_length": size} for size in (32, 16)}
LATE, FILL, EIGHT = {"late": ("eos",)}, {"fill_tail": True}, {"search": "best-of-n", "particles": 8, "temperature": 1.0}
REMEDIES: dict[str, Line] = {
    "confidence": {},
    "ends late": LATE,
    **{f"blocks of {size}": how for size, how in BLOCKS.items()},
    **{f"penalty {amount}": {"end_penalty": float(amount)} for amount in (1, 3, 5)},
    "ends banned": {"ban": ("eos",)},
    "fill_tail": FILL,
    "ends late, fill_tail": LATE | FILL,
    **{f"blocks of {size}, fill_tail": how | FILL for size, how in BLOCKS.items()},
    "blocks of 32, ends late": BLOCKS[32] | LATE,
    "blocks of 32, penalty 1": BLOCKS[32] | {"end_penalty": 1.0},
}
ORDERS: dict[str, Line] = {
    "confidence": {},
    "ends late": LATE,
    "blocks of 32": BLOCKS[32],
    "uniform": {"sampler": "uniform"},
}
CHOICES: dict[str, Line] = {"entropy": {}, "entropy, skip_tail": {"skip_tail": True}, "auto": {"search": "auto"}}
WAYS: dict[str, tuple[str, Line]] = {
    **{f"problems: {name}": ("problems", how) for name, how in REMEDIES.items()},
    **{f"stories: {name}": ("stories", how | {"temperature": 0.8}) for name, how in REMEDIES.items()},
    **{
        f"8 paths: {order}, chosen by {choice}": ("problems", EIGHT | how | by)
        for order, how in ORDERS.items()
        for choice, by in CHOICES.items()
    },
}


def base(way: str) -> str:
    """The way that another one is compared with: no remedy, or the choice by path entropy in the same order."""
    group, _, name = way.partition(": ")
    return (
        f"{group}: {name.partition(', chosen by ')[0]}, chosen by entropy"
        if group == "8 paths"
        else f"{group}: confidence"
    )


# --- decoding --------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU
    ways = {name: way for name, way in WAYS.items() if any(part in name for part in args.only or [""])}
    if not ways:
        raise InputError(f"no way has {args.only} in its name", "see WAYS")
    examples = TASKS["problems"].examples(args.problems, args.n)
    model = unmask.load(args.model, args.device, args.dtype)
    model = compiled(model) if args.compile else model
    asked = [_asked(one, args.chat) for one in examples]
    lengths = {"problems": args.length, "stories": args.story_length}
    about = {"kind": KIND, "model": args.model, "weights": fingerprint(args.model), "dtype": args.dtype}
    about |= {"problems": sha256(args.problems), "chat": args.chat, "lengths": lengths, **origin(model.device)}
    with JsonLines(args.file) as file:
        done = _kept(file, about)
        for name, part in _parts(ways, args, len(examples), model):
            todo = [number for number in part if (name, number) not in done]
            if not todo:
                continue
            if time.monotonic() - began > args.seconds:
                print(f"stopped after {args.seconds:g} s: the same command continues", file=sys.stderr)
                return 75
            kind, how = ways[name]
            prompts = [asked[number] if kind == "problems" else "" for number in todo]
            recipe = Recipe(**{"length": lengths[kind], **how})
            found = decode_batch(model, prompts, recipe=recipe, seeds=todo)
            golds = [examples[number] if kind == "problems" else None for number in todo]
            given = [len(encode(model, prompt)) for prompt in prompts]
            file.add(_row(name, number, *one, model) for number, *one in zip(todo, golds, given, found, strict=True))
            print(f"{time.monotonic() - began:6.0f} s  {name}, up to {part[-1]}", file=sys.stderr, flush=True)
    return 0


def _asked(example: Example, chat: bool) -> Text:
    question = str(example.fields["question"])
    return [{"role": "user", "content": question}] if chat else question


def _kept(file: JsonLines, about: Line) -> set[tuple[str, int]]:
    """The rows that a file has already; a new file gets its header."""
    lines = [line for line in file.lines if line is not None]
    if not lines:
        file.add([about])
        return set()
    for name in SAME:
        if lines[0].get(name) != about[name]:
            raise InputError(
                f"{file.path!r} has {name} {lines[0].get(name)!r}", f"not {about[name]!r}: give another file"
            )
    return {(line["way"], line["number"]) for line in lines[1:]}


def _parts(
    ways: dict[str, tuple[str, Line]], args: argparse.Namespace, problems: int, model: Denoiser
) -> Iterator[tuple[str, range]]:
    """Some numbers of a way at a time: every way gets through the first ones before the next ones come."""
    total = {"problems": problems, "stories": args.stories}
    rows = args.rows or ROWS.get(model.device.type, ROWS["cpu"])
    size = max(1, rows // 8)
    for begin in range(0, max(total.values()), size):
        for name, (kind, how) in ways.items():
            together = max(1, rows // how.get("particles", 1))
            for first in range(begin, min(begin + size, total[kind]), together):
                yield name, range(first, min(first + together, begin + size, total[kind]))


def _row(way: str, number: int, gold: Example | None, given: int, found: Result, model: Denoiser) -> Line:
    paths = [_path(one, gold, given, model) for one in found.particles]
    cost = {"steps": found.steps, "evaluations": found.evaluations, "path_entropy": found.path_entropy}
    more = {"paths": paths} if len(paths) > 1 else {}
    return {"way": way, "number": number, **paths[found.chosen], **cost, "text": found.text, **more}


def _path(one: Particle, gold: Example | None, given: int, model: Denoiser) -> Line:
    """Whether a text is right, whether it ended, and its tokens before the end."""
    tokens = one.tokens[given:]
    size = next((place for place, token in enumerate(tokens) if token in model.vocab.eos), len(tokens))
    verdicts = (
        {} if gold is None else dict(zip(("right", "strict"), TASKS["problems"].grades(one.text, gold), strict=True))
    )
    return {**verdicts, "empty": not one.text.strip(), "finish": one.finish, "tokens": size, "surprise": one.surprise}


# --- the table -------------------------------------------------------------------------------------------------------


def table(args: argparse.Namespace) -> int:
    lines = [line for line in parsed(Path(args.file).read_bytes()) if line is not None]
    if not lines or lines[0].get("kind") != KIND:
        raise InputError(f"{args.file!r} has no rows of this script", "make them with `run`")
    ways: dict[str, dict[int, Line]] = defaultdict(dict)
    for line in lines[1:]:
        ways[line["way"]][line["number"]] = line
    for group in ("problems", "stories", "8 paths"):
        some = {name: ways[name] for name in WAYS if name.startswith(group) and ways[name]}
        if some:
            print("\n".join(["", *_grid(group, some)]))
    return 0


def _grid(group: str, ways: dict[str, dict[int, Line]]) -> list[str]:
    """One line of Markdown for each way."""
    graded = group != "stories"
    heads = [
        "way",
        "n",
        *(["right", "difference", "steps true"] if graded else []),
        "empty",
        "ended",
        "tokens",
        "evaluations",
    ]
    heads += ["right of a path", "any right"] if group == "8 paths" else []
    made = [_cells(heads), _cells(["---"] * len(heads))]
    for name, rows in ways.items():
        some = list(rows.values())
        cells = [name.partition(": ")[2], str(len(some))]
        if graded:
            cells += [
                _share(some, lambda row: row["right"]),
                _against(ways.get(base(name), {}), rows),
                _share(some, lambda row: row["strict"]),
            ]
        cells += [_share(some, lambda row: row["empty"]), _share(some, lambda row: row["finish"] == "end")]
        cells += [_mean([row["tokens"] for row in some]), f"{mean([row['evaluations'] for row in some]).value:.0f}"]
        if group == "8 paths":
            paths = [[path["right"] for path in row["paths"]] for row in some]
            cells += [_mean([100 * sum(one) / len(one) for one in paths]), _share(paths, any)]
        made.append(_cells(cells))
    return made


def _share(rows: Sequence[Any], true: Callable[[Any], bool]) -> str:
    count = sum(map(true, rows))
    low, high = wilson(count, len(rows))
    return f"{100 * count / len(rows):.1f} ({100 * low:.1f}–{100 * high:.1f})"


def _mean(values: Sequence[float]) -> str:
    found = mean(values)
    return f"{found.value:.1f}" + ("" if found.low is None else f" ({found.low:.1f}–{found.high:.1f})")


def _against(first: dict[int, Line], second: dict[int, Line]) -> str:
    """The paired difference in points, over the problems that both have."""
    both = [number for number in second if number in first]
    if first is second or not both:
        return "·"
    found = paired([first[one]["right"] for one in both], [second[one]["right"] for one in both])
    return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- the command -----------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="decode what a file lacks")
    one.add_argument("file", help="rows, as JSON lines")
    one.add_argument("--model", default="text", help="a name, a directory or a hub id [text]")
    one.add_argument("--problems", required=True, help="JSON lines; `unmask puzzles problems -o FILE` makes them")
    one.add_argument("--n", type=int, default=500, help="problems [500]")
    one.add_argument("--stories", type=int, default=200, help="unprompted texts [200]")
    one.add_argument("--length", type=int, default=128, help="positions after a question [128]")
    one.add_argument("--story-length", type=int, default=256, help="positions of a story [256]")
    one.add_argument("--device", default="cpu")
    one.add_argument("--dtype", help="by default the model's own")
    one.add_argument("--rows", type=int, help="rows decoded at a time [16; on a GPU 2048]")
    one.add_argument("--seconds", type=float, default=float("inf"), help="after which no further batch begins")
    one.add_argument("--only", nargs="+", metavar="PART", help="only ways with one of these in their names")
    one.add_argument("--chat", action="store_true", help="ask through the model's chat template")
    one.add_argument("--compile", action="store_true", help="compile the network")
    two = commands.add_parser("table", help="print what a file says, as Markdown")
    two.add_argument("file")
    args = parser.parse_args(words)
    try:
        return {"run": run, "table": table}[args.command](args)
    except UnmaskError as error:
        print(f"ends: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
