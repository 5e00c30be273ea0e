"""Stories: is the path of least surprise more probable to the source than that of lowest path entropy, and as diverse?

    python experiments/search/stories.py record runs/stories.jsonl --device cuda -n 512 --limit 60
    python experiments/search/stories.py judge runs/stories.jsonl runs/stories.judged.jsonl --judge llama2.data
    python experiments/search/stories.py report runs/stories.jsonl runs/stories.judged.jsonl

`record` decodes stories out of nothing: 256 positions in 64 steps, uniform order, temperature 1, eight independent
paths with seeds 0 to n - 1; matrix products in TF32 on a GPU. A row has the entropy, surprise, log-probability and
diversity of every path, and the texts that a choice takes: the first path, E-BoN's, that of `auto` (least surprise: the
order is planned, so that it does not look again) and the likeliest. All have the same paths, so equal evaluations but
the first. `judge` reads these texts with the source of the stories in float32, their ends included; `report` prints
means and paired differences with bootstrap intervals over seeds. Diversity is the entropy of the counts of a text's
tokens, in nats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import unmask
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.evaluate import rows
from unmask.evaluate.header import origin
from unmask.evaluate.judge import Rules, diversity, load_judge, opinions
from unmask.evaluate.stats import bootstrap
from unmask.models import fingerprint

Row = dict[str, Any]
RECIPE = {"sampler": "uniform", "steps": 64, "temperature": 1.0, "length": 256, "search": "best-of-n", "particles": 8}
CHOICES: dict[str, Callable[[Row], int]] = {
    "one path": lambda row: 0,
    "E-BoN": lambda row: least(row["entropy"]),
    "auto": lambda row: least(row["surprise"]),
    "likeliest": lambda row: least([-one for one in row["log_prob"]]),
}


def least(values: list[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)


def record(args: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("high")
    began, model = time.monotonic(), unmask.load(args.model, args.device)
    recipe = Recipe(**{**RECIPE, "steps": args.steps})
    about = {"set": "stories", "model": args.model, "weights": fingerprint(args.model), "recipe": recipe.to_dict()}
    with rows.opened(str(args.file), {**about, "n": args.n, "seeds": "0 …", **origin(model.device)}) as kept:
        done = {line["number"] for line in kept.kept}
        todo = [number for number in range(args.n) if number not in done]
        for begin in range(0, len(todo), args.together):
            if time.monotonic() - began > args.limit:
                sys.exit(75)
            some = todo[begin : begin + args.together]
            found = decode_batch(model, [""] * len(some), recipe=recipe, seeds=some)
            kept.add([line(model, number, one) for number, one in zip(some, found, strict=True)])
            print(f"{len(kept.kept)} of {args.n}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def line(model: Any, number: int, found: Any) -> Row:
    written = [content(model, one.tokens) for one in found.particles]
    row = {
        "number": number,
        "evaluations": found.evaluations,
        "rows": found.rows,
        "entropy": [round(one.path_entropy, 6) for one in found.particles],
        "surprise": [float(f"{one.surprise:.6g}") for one in found.particles],
        "log_prob": [round(one.log_prob, 4) for one in found.particles],
        "diversity": [round(diversity(tokens), 5) if tokens else 0.0 for tokens in written],
        "tokens": [len(tokens) for tokens in written],
        "ended": [int(one.finish == "end") for one in found.particles],
    }
    slots = sorted({take(row) for take in CHOICES.values()})
    return row | {"texts": {str(at): found.particles[at].text for at in slots}}


def content(model: Any, tokens: list[int]) -> list[int]:
    """The tokens before the first end."""
    ends = [place for place, token in enumerate(tokens) if token in model.vocab.eos]
    return tokens[: ends[0]] if ends else tokens


def judge(args: argparse.Namespace) -> None:
    reader, told = load_judge(args.judge, args.device), rows.read(args.file)
    todo = [(row, at) for row in told.kept for at in row["texts"]]
    about = {"judge": reader.name, "n": len(todo), **origin(reader.device)}
    with rows.opened(str(args.judged), about) as kept:
        done = {line["number"] for line in kept.kept}
        todo = [(row, at) for row, at in todo if 100 * row["number"] + int(at) not in done]
        empty = [(row, at) for row, at in todo if not row["texts"][at].strip()]
        kept.add({"number": 100 * row["number"] + int(at), "ln_ppl": None} for row, at in empty)
        todo = [one for one in todo if one not in empty]
        texts, ended = [row["texts"][at] for row, at in todo], [bool(row["ended"][int(at)]) for row, at in todo]
        left = iter(todo)
        for some in opinions(reader, texts, Rules(ends=True), ended=ended):
            pairs = [(one, next(left)) for one in some]
            kept.add({"number": 100 * row["number"] + int(at), "ln_ppl": one.ln_ppl} for one, (row, at) in pairs)


def report(args: argparse.Namespace) -> None:
    told, judged = rows.read(args.file), {one["number"]: one["ln_ppl"] for one in rows.read(args.judged).kept}
    values: dict[str, list[list[float]]] = {name: [] for name in CHOICES}
    empty = dict.fromkeys(CHOICES, 0)
    for row in told.kept:
        slots = {name: take(row) for name, take in CHOICES.items()}
        found = {name: judged.get(100 * row["number"] + at) for name, at in slots.items()}
        for name, one in found.items():
            empty[name] += one is None
        if any(one is None for one in found.values()):
            continue
        for name, at in slots.items():
            values[name].append([float(found[name] or 0.0), row["diversity"][at], row["tokens"][at], row["ended"][at]])
    table = np.array([values[name] for name in CHOICES])  # [choices, texts, figures]
    n = table.shape[1]

    def measure(places: NDArray[np.int64]) -> dict[str, float]:
        means = table[:, places].mean(1)
        found = {}
        for at, name in enumerate(CHOICES):
            for figure, what in enumerate(("ln_ppl", "diversity", "tokens", "ended")):
                found[f"{name} {what}"] = float(means[at, figure])
                found[f"{name} less E-BoN {what}"] = float(means[at, figure] - means[1, figure])
        return found

    figures = bootstrap(measure, list(range(n)))
    about = told.header
    print(f"{n} stories of {len(told.kept)}, the others have an empty text ({empty})")
    print(f"{about['machine']}, commit {about['commit']}, weights {about['weights'][:6]}\n")
    print("| choice | ln PPL | less E-BoN | diversity | less E-BoN | tokens | ended |\n|" + "---|" * 7)
    for name in CHOICES:
        parts = []
        for what in ("ln_ppl", "diversity"):
            parts += [said(figures[f"{name} {what}"]), said(figures[f"{name} less E-BoN {what}"], "+")]
        tokens, ended = figures[f"{name} tokens"][0], figures[f"{name} ended"][0]
        print(f"| {name} | " + " | ".join(parts) + f" | {tokens:.0f} | {ended:.3f} |")
    spent = sum(row["evaluations"] for row in told.kept) / len(told.kept)
    print(f"\n{spent:.0f} evaluations a story for all but one path.")


def said(figure: tuple[float | None, float | None, float | None], sign: str = "") -> str:
    value, low, high = figure
    if value is None or low is None or high is None:
        return f"{value}"
    return f"{value:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "judge", "report"))
    parser.add_argument("file", type=Path)
    parser.add_argument("judged", type=Path, nargs="?")
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--steps", type=int, default=RECIPE["steps"])
    parser.add_argument("--together", type=int, default=64, help="stories decoded at a time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further batch begins")
    parser.add_argument("--model", default="text")
    parser.add_argument("--judge", default="stories15M")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.what != "record" and args.judged is None:
        parser.error("give the file of judgements, too")
    {"record": record, "judge": judge, "report": report}[args.what](args)


if __name__ == "__main__":
    main()
