"""The language model, measured: word problems in several orders with eight paths, and stories.

    python experiments/language.py decode runs/language.jsonl --model text --device cuda --limit 200
    python experiments/language.py problems runs/language.jsonl
    python experiments/language.py stories runs/language.jsonl runs/stories     # samples as JSON lines, a file a set
    python experiments/language.py decode runs/blocks.jsonl --only blocks --n 512 --rows 64
    python experiments/language.py curve runs/blocks.jsonl                      # what a search gains by its particles
    python experiments/language.py losses runs/losses.jsonl --shards runs/text --models text runs/text-8

`decode` writes one row for each question or story of each set in SETS: every particle with its text, path entropy,
surprise, log-probability and whether it ended. Sets that are in the file are not decoded again; after --limit seconds
no further set begins. `problems` prints the share right of one path, of the path that each chooser takes, of the
majority's answer and of any path, with 95 % intervals, and by the number of worked steps. `stories` writes one file
for each set, for `unmask judge` and `experiments/story_quality.py`; texts that are word problems are marked there.
`curve` prints, for the sets of blocks, the share right of the first 1, 2, 4 and 8 paths by each choice, and of E-SMC
with as many particles. `losses` validates models as a training does, all on the reserved stories beside the first shard
of the training in --shards.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.evaluate.header import origin
from unmask.evaluate.stats import wilson
from unmask.models import fingerprint
from unmask.models.transformer import compiled
from unmask.tasks.grading.steps import equations
from unmask.tasks.problems import stated
from unmask.train.documents import Documents, held_problems

N, SEED, LENGTH = 512, 1, 128
SEMI = {"sampler": "semi-ar", "block_length": 32, "fill_tail": True}
BLOCK = {"sampler": "semi-ar", "block_length": 16, "fill_tail": True, "attention": "block"}
LEFT = {**BLOCK, "block_length": 1}  # from left to right, a position a step
LAST = {"late": ("eos",)}
LATE = {"sampler": "confidence", "late": ("eos",)}
EIGHT = {"search": "best-of-n", "particles": 8}
EVEN = {"sampler": "uniform", "temperature": 1.0}
STORY = {"length": 256}
SAID = "The answer is "  # a text that has it is a word problem
SKIP = {"skip_tail": True}  # the same texts: only their path entropy differs
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "problems block": ("problems", BLOCK),
    "problems semi-ar 32": ("problems", SEMI),
    "problems semi-ar 16": ("problems", {**SEMI, "block_length": 16}),
    "problems confidence": ("problems", {"sampler": "confidence"}),
    "problems confidence, ends late": ("problems", LATE),
    "stories uniform 256": ("stories", {**EVEN, **STORY, "steps": 256}),
    "stories uniform 128": ("stories", {**EVEN, **STORY, "steps": 128}),
    "stories uniform 64": ("stories", {**EVEN, **STORY, "steps": 64}),
    "stories block T 0.8": ("stories", {**BLOCK, **LAST, **STORY, "temperature": 0.8}),
    "stories block T 1": ("stories", {**BLOCK, **LAST, **STORY, "temperature": 1.0}),
    "any form block": ("any", BLOCK),
    "any form semi-ar 32": ("any", SEMI),
    "problems uniform T 1 x 8": ("problems", {**EVEN, **EIGHT}),
    "problems block T 0.7 x 8": ("problems", {**BLOCK, **EIGHT, "temperature": 0.7}),
    "problems semi-ar 32 T 0.7 x 8": ("problems", {**SEMI, **EIGHT, "temperature": 0.7}),
    "problems confidence, ends late, T 0.7 x 8": ("problems", {**LATE, **EIGHT, "temperature": 0.7}),
    "problems block, selection 0.3 x 8": ("problems", {**BLOCK, **EIGHT, "select_temperature": 0.3}),
    "any form uniform T 1 x 8": ("any", {**EVEN, **EIGHT}),
    "any form block T 0.7 x 8": ("any", {**BLOCK, **EIGHT, "temperature": 0.7}),
    "stories block T 0.9": ("stories", {**BLOCK, **LAST, **STORY, "temperature": 0.9}),
    "stories block uniform T 1": ("stories", {**BLOCK, **STORY, **EVEN}),
    "stories block left to right T 1": ("stories", {**BLOCK, **STORY, "block_length": 1, "temperature": 1.0}),
    "stories block, ends not late": ("stories", {**BLOCK, **STORY, "temperature": 0.8}),
    "stories semi-ar 32 T 0.8": ("stories", {**SEMI, **STORY, "temperature": 0.8}),
    "problems uniform": ("problems", {"sampler": "uniform"}),
    "problems confidence T 0.7 x 8": ("problems", {"sampler": "confidence", **EIGHT, "temperature": 0.7}),
    "stories uniform 256, skip_tail": ("stories", {**EVEN, **STORY, **SKIP, "steps": 256}),
    "stories uniform 128, skip_tail": ("stories", {**EVEN, **STORY, **SKIP, "steps": 128}),
    "stories uniform 64, skip_tail": ("stories", {**EVEN, **STORY, **SKIP, "steps": 64}),
    "stories left to right T 0.6": ("stories", {**LEFT, **STORY, "temperature": 0.6}),
    "stories left to right T 0.7": ("stories", {**LEFT, **STORY, "temperature": 0.7}),
    "stories left to right T 0.8": ("stories", {**LEFT, **STORY, "temperature": 0.8}),
    "stories blocks of 2 T 0.7": ("stories", {**BLOCK, **STORY, "block_length": 2, "temperature": 0.7}),
    "stories blocks of 4 T 0.7": ("stories", {**BLOCK, **STORY, "block_length": 4, "temperature": 0.7}),
    "problems left to right": ("problems", LEFT),
    "problems left to right T 0.7": ("problems", {**LEFT, "temperature": 0.7}),
    "problems block T 0.7": ("problems", {**BLOCK, "temperature": 0.7}),
}
# Block-causal, many positions at once: orders in which one path is not nearly always right.
QUICK = {"sampler": "sdar", "attention": "block", "threshold": 0.5, "temperature": 0.7}
PAIRWISE = {"sampler": "uniform", "attention": "block", "steps": 64, "temperature": 1.0, "fill_tail": True}
for _name, _order in (("blocks threshold 0.5", QUICK), ("blocks uniform 64 steps", PAIRWISE)):
    SETS[f"{_name} x 8"] = ("any", {**_order, **EIGHT})
    for _k in (2, 4, 8):
        SETS[f"{_name} smc x {_k}"] = ("any", {**_order, "search": "smc", "particles": _k})
CHOOSERS: dict[str, Callable[[dict[str, Any]], float]] = {
    "E-BoN": lambda one: one["path_entropy"],
    "auto (surprise)": lambda one: one["surprise"],
    "likelihood": lambda one: -one["log_prob"],
}


# --- decoding --------------------------------------------------------------------------------------------------------


def decode(args: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU
    began, path = time.monotonic(), Path(args.file)
    done = {row["set"] for row in rows(path)} if path.exists() else set()
    model = unmask.load(args.model, args.device, args.dtype)
    about = {"weights": fingerprint(args.model), "dtype": args.dtype, **origin(model.device)}
    model = compiled(model) if args.compile else model
    unknown = [name for name in args.sets or () if name not in SETS]
    if unknown:
        raise SystemExit(f"there is no set {unknown[0]!r}: see SETS")
    made_of = {"problems": held_problems(args.n, SEED), "any": held_problems(args.n, SEED, "any")}
    for name, (kind, settings) in SETS.items():
        if name in done or not name.startswith(args.only) or (args.sets and name not in args.sets):
            continue
        if time.monotonic() - began > args.limit:
            print(f"{name}: left out, {args.limit:g} s are over", file=sys.stderr, flush=True)
            continue
        start = time.monotonic()
        recipe = Recipe(**({"length": LENGTH} | settings))
        problems = made_of.get(kind, [])
        asked = [one.question for one in problems] or [""] * args.n
        together = max(1, args.rows // (recipe.particles or 1))
        made = []
        for begin in range(0, len(asked), together):
            seeds = list(range(begin, min(len(asked), begin + together)))
            made += decode_batch(model, asked[begin : begin + together], recipe=recipe, seeds=seeds)
        with path.open("a", encoding="utf-8") as file:
            for place, result in enumerate(made):
                row = {"set": name, "kind": kind, "number": place, "recipe": recipe.to_dict(), "steps": result.steps}
                row |= about if place == 0 else {}
                row |= {
                    "evaluations": result.evaluations,
                    "particles": [particle(model, one) for one in result.particles],
                }
                if problems:
                    one = problems[place]
                    row |= {"question": one.question, "answer": one.answer, "people": one.people, "needed": one.steps}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def particle(model: Any, one: Any) -> dict[str, Any]:
    ended = any(token in model.vocab.eos for token in one.tokens)
    found = {"text": one.text, "path_entropy": one.path_entropy, "surprise": one.surprise, "log_prob": one.log_prob}
    return found | {"ended": ended}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- problems --------------------------------------------------------------------------------------------------------


def problems(args: argparse.Namespace) -> None:
    for name, some in sets(Path(args.file), "problems", "any").items():
        right = [[answer(one["text"]) == row["answer"] for one in row["particles"]] for row in some]
        strict = [
            [each and true_steps(one["text"]) for each, one in zip(marks, row["particles"], strict=True)]
            for marks, row in zip(right, some, strict=True)
        ]
        spent = sum(row["evaluations"] for row in some) / len(some)
        empty = sum(not one["text"].strip() for row in some for one in row["particles"]) / sum(map(len, right))
        print(f"{name}: n {len(some)}, {spent:.0f} evaluations, empty {empty:.3f}")
        print(f"  one path {single(right)}, steps true as well {single(strict)}")
        if len(right[0]) > 1:
            for chooser, score in CHOOSERS.items():
                picked = [marks[best(row, score)] for marks, row in zip(right, some, strict=True)]
                print(f"  {chooser} {share(picked)}")
            print(f"  vote {share([vote(row) == row['answer'] for row in some])}")
            print(f"  any of {len(right[0])} {share([any(marks) for marks in right])}")
        needed = defaultdict(list)
        for row, marks in zip(some, right, strict=True):
            needed[row["needed"]].append(sum(marks) / len(marks))
        by = ", ".join(f"{steps}: {sum(each) / len(each):.3f} ({len(each)})" for steps, each in sorted(needed.items()))
        print(f"  one path by worked steps: {by}")


def curve(args: argparse.Namespace) -> None:
    found = sets(Path(args.file), "any")
    for name, some in found.items():
        if not (name.startswith("blocks") and name.endswith(" x 8")) or " smc" in name:
            continue
        print(f"{name}: n {len(some)}")
        for k in (1, 2, 4, 8):
            few = [{**row, "particles": row["particles"][:k]} for row in some]
            right = [[answer(one["text"]) == row["answer"] for one in row["particles"]] for row in few]
            spent = sum(row["evaluations"] for row in some) * k / 8 / len(some)
            parts = [f"  {k} paths, {spent:.1f} evaluations: "]
            for chooser, score in CHOOSERS.items():
                picked = [marks[best(row, score)] for marks, row in zip(right, few, strict=True)]
                parts.append(f"{chooser} {share(picked)}")
            parts.append(f"vote {share([vote(row) == row['answer'] for row in few])}")
            parts.append(f"any {share([any(marks) for marks in right])}")
            other = found.get(name.replace(" x 8", f" smc x {k}"))
            if other:
                picked = [
                    answer(row["particles"][best(row, CHOOSERS["E-BoN"])]["text"]) == row["answer"] for row in other
                ]
                cost = sum(row["evaluations"] for row in other) / len(other)
                parts.append(f"E-SMC {share(picked)} for {cost:.1f}")
            print(parts[0] + ", ".join(parts[1:]))


def sets(path: Path, *kinds: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(path):
        if row["kind"] in kinds:
            found[row["set"]].append(row)
    return found


def answer(text: str) -> float | None:
    said = stated(text)
    return None if said is None else float(said)


def true_steps(text: str) -> bool:
    steps = equations(text)
    return bool(steps) and all(true for _, true in steps)


def best(row: dict[str, Any], score: Callable[[dict[str, Any]], float]) -> int:
    return min(range(len(row["particles"])), key=lambda place: score(row["particles"][place]))


def vote(row: dict[str, Any]) -> float | None:
    said = [value for one in row["particles"] if (value := answer(one["text"])) is not None]
    return Counter(said).most_common(1)[0][0] if said else None


def share(right: list[bool]) -> str:
    low, high = wilson(sum(right), len(right))
    return f"{sum(right) / len(right):.3f} ({low:.3f}–{high:.3f})"


def single(right: list[list[bool]]) -> str:
    """The mean over all paths; the interval is over questions."""
    each = torch.tensor([[float(mark) for mark in marks] for marks in right]).mean(1)
    half = 1.96 * float(each.std()) / math.sqrt(len(each))
    return f"{float(each.mean()):.3f} (± {half:.3f})"


# --- losses ----------------------------------------------------------------------------------------------------------


def losses(args: argparse.Namespace) -> None:
    data = Documents(args.shards, args.held)
    for name in args.models:
        model = unmask.load(name, args.device)
        found = {
            "model": Path(name).name,
            "weights": fingerprint(name),
            "held": args.held,
            **data.validate(model.network),
        }
        with Path(args.file).open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(found, file=sys.stderr, flush=True)


# --- stories ---------------------------------------------------------------------------------------------------------


def stories(args: argparse.Namespace) -> None:
    place = Path(args.directory)
    place.mkdir(parents=True, exist_ok=True)
    for name, some in sets(Path(args.file), "stories").items():
        path = place / f"{name.removeprefix('stories ').replace(' ', '-')}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in some:
                one = row["particles"][0]
                finish = "end" if one["ended"] else "length"
                row = {"number": row["number"], "text": one["text"], "path_entropy": one["path_entropy"]}
                row |= {"steps": some[0]["steps"], "finish": finish, "problem": SAID in one["text"]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        ended = sum(row["particles"][0]["ended"] for row in some)
        words = sum(len(row["particles"][0]["text"].split()) for row in some) / len(some)
        print(
            f"{path}: n {len(some)}, ended {share([True] * ended + [False] * (len(some) - ended))}, {words:.0f} words"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("decode")
    one.add_argument("--model", default="text")
    one.add_argument("--device", default="cpu")
    one.add_argument("--n", type=int, default=N)
    one.add_argument("--rows", type=int, default=1024, help="rows decoded together")
    one.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further set begins")
    one.add_argument("--only", default="", help="sets whose names begin so")
    one.add_argument("--sets", nargs="+", metavar="NAME", help="these sets")
    one.add_argument("--dtype", help="by default the model's own")
    one.add_argument("--compile", action="store_true", help="compile the network: pays where all rows have one length")
    two, three, four, five = (commands.add_parser(name) for name in ("problems", "stories", "curve", "losses"))
    for each, work in ((one, decode), (two, problems), (three, stories), (four, curve), (five, losses)):
        each.add_argument("file")
        each.set_defaults(work=work)
    three.add_argument("directory")
    five.add_argument("--shards", required=True, help="the directory of a training")
    five.add_argument("--models", nargs="+", required=True)
    five.add_argument("--held", type=int, default=N, help="reserved stories and problems, at most")
    five.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
