"""Searches side by side: the same puzzles or texts, seeds and evaluations for every method.

    python experiments/search/study.py run runs/study --side study --device cuda --particles 8
    python experiments/search/study.py judge runs/study --side study
    python experiments/search/study.py report runs/study --side study
    python experiments/search/study.py pack runs/study --side study --into docs/rows

Rows hold every particle: its path entropy, its log-probability, its answer and whether that is right, or its text. So
any choice at the end can be tried on them without decoding again; `judge` reads the texts that a choice takes.
The sides `study` and `second` have puzzles to choose a method by, `held` those that are reported. A run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from choices import CHOICES, Line, first, offered
from methods import CELLS, METHODS, Cell, goes, settings

import unmask
from unmask import bench, puzzles, rows, show
from unmask.decode import Result, decode_batch
from unmask.judge import load_judge, opinions
from unmask.judge.figures import bootstrap
from unmask.models import Denoiser, fingerprint
from unmask.models.compiled import compiled
from unmask.origin import origin
from unmask.recipe import Recipe
from unmask.stats import Difference as Gain
from unmask.stats import paired, wilson
from unmask.tasks import TASKS
from unmask.tasks.text import diversity

SEEDS = {"study": 4100, "second": 5100, "held": 6100}  # of puzzles that no experiment and no training has
MORE = (4, 8, 16, 32, 64)  # particles of which fewer may be taken
TOGETHER = {"cpu": 32, "cuda": 8192}  # rows decoded at a time
JUDGED = (
    "entropy",
    "geometric",
    "likelihood",
    "surprise",
)  # choices whose texts are read; those by answers are the same


# --- the run ---------------------------------------------------------------------------------------------------------


def questions(out: Path, cell: Cell, side: str, n: int) -> list[bench.Question]:
    """Puzzles of one side, made once, as a model is asked them."""
    path = out / f"{side}-{cell.task}{cell.level}-{n}.txt"
    if not path.exists():
        make = puzzles.sudokus if cell.task == "sudoku" else puzzles.countdowns
        path.write_text("".join(f"{one}\n" for one in make(n, cell.level, SEEDS[side] + cell.level)))
    task = TASKS[cell.task]
    return bench.canvases(task, task.examples(str(path)))


def run(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    for task in dict.fromkeys(CELLS[name].task for name in args.cells):
        model = unmask.load(task, args.device, args.dtype)
        model = compiled(model) if args.compile else model
        for cell in (CELLS[name] for name in args.cells if CELLS[name].task == task):
            for k in args.particles:
                for method in (method for method in args.methods if goes(method, cell)):
                    recipe, n = settings(method, cell, k), args.texts if task == "text" else args.n
                    about = {"task": task, "model": task, "weights": fingerprint(task), "recipe": recipe.to_dict()}
                    about |= {"dtype": args.dtype, "n": n, "side": args.side, "method": method, "k": k}
                    with rows.opened(str(place(args, cell.name, k, method)), {**about, **origin(model.device)}) as kept:
                        decode = texts(model, args) if task == "text" else puzzled(model, cell, args)
                        decode_missing(model, recipe, n, kept, decode)


def place(args: argparse.Namespace, cell: str, k: int, method: str, kind: str = "jsonl") -> Path:
    return Path(args.out / f"{args.side}-{cell}-{k}-{method}.{kind}")


Decode = Callable[[Recipe, list[int]], Iterator[Line]]


def decode_missing(model: Denoiser, recipe: Recipe, n: int, kept: rows.Rows, decode: Decode) -> None:
    """The rows that a file lacks."""
    done = {line["number"] for line in kept.kept}
    todo = [number for number in range(n) if number not in done]
    size = max(1, TOGETHER.get(model.device.type, 32) // recipe.build_search().particles)
    for begin in range(0, len(todo), size):
        kept.add(decode(recipe, todo[begin : begin + size]))


def puzzled(model: Denoiser, cell: Cell, args: argparse.Namespace) -> Decode:
    """Puzzles by their numbers -> rows."""
    task = TASKS[cell.task]
    asked = {one.number: one for one in questions(args.out, cell, args.side, args.n)}
    kind, grade = bench.puzzle_of(task), bench.grader(task)

    def decode(recipe: Recipe, numbers: list[int]) -> Iterator[Line]:
        canvases = [list(asked[number].ask) for number in numbers]
        for number, found in zip(
            numbers, decode_batch(model, canvases=canvases, recipe=recipe, seeds=numbers), strict=True
        ):
            answers = [kind.answer(particle.tokens) for particle in found.particles]
            verdict = {answer: bool(grade(answer, asked[number].example)[1]) for answer in set(answers)}
            yield line(found, number, list(asked[number].ask).count(model.vocab.mask), len(numbers), answers) | {
                "right": [verdict[answer] for answer in answers]
            }

    return decode


def texts(model: Denoiser, args: argparse.Namespace) -> Decode:
    """Seeds -> rows with the texts that came of nothing."""

    def decode(recipe: Recipe, numbers: list[int]) -> Iterator[Line]:
        seeds = [1000 * SEEDS[args.side] + number for number in numbers]
        for number, found in zip(
            numbers, decode_batch(model, [""] * len(seeds), recipe=recipe, seeds=seeds), strict=True
        ):
            said = [particle.text for particle in found.particles]
            yield line(found, number, recipe.length or 0, len(numbers), said) | {
                "text": said,
                "diversity": [round(diversity(particle.tokens), 6) for particle in found.particles],
            }

    return decode


def line(found: Result, number: int, holes: int, share: int, answers: Sequence[Any]) -> Line:
    """What every particle came to; equal answers have equal numbers."""
    names = {answer: place for place, answer in enumerate(dict.fromkeys(answers))}
    lone = all(one.origin == slot for slot, one in enumerate(found.particles))  # no path is another's copy
    along = {"entropies": [[h and round(h, 4) for h in one.state_entropy] for one in found.particles]} if lone else {}
    return {
        **along,
        "number": number,
        "open": holes,
        "evaluations": found.evaluations,
        "seconds": found.seconds / share,
        "steps": found.steps,
        "chosen": found.chosen,
        "entropy": [round(particle.path_entropy, 7) for particle in found.particles],
        "log_prob": [round(particle.log_prob, 5) for particle in found.particles],
        "surprise": [float(f"{particle.surprise:.6g}") for particle in found.particles],
        "answer": [names[answer] for answer in answers],
    }


# --- the judge -------------------------------------------------------------------------------------------------------


def judge(args: argparse.Namespace) -> None:
    """Read the texts that the choices take: ln PPL of each, kept beside the rows."""
    reader = load_judge(args.judge, args.device, args.dtype) if args.judge else load_judge(device=args.device)
    for name in (name for name in args.cells if CELLS[name].task == "text"):
        for k in args.particles:
            for method in (one for one in args.methods if place(args, name, k, one).exists()):
                kept = in_order(args, name, k, method)
                about = {"judge": reader.name, "n": args.texts * k, "side": args.side, "method": method, "k": k}
                path = str(place(args, name, k, method, "judged.jsonl"))
                with rows.opened(path, {**about, **origin(reader.device)}) as read:
                    done = {divmod(one["number"], k) for one in read.kept}
                    taken = {(row["number"], CHOICES[choice](row)) for row in kept for choice in readable(kept)}
                    todo = sorted(taken - done)
                    said = {(row["number"], at): text for row in kept for at, text in enumerate(row["text"])}
                    left = iter(todo)
                    for some in opinions(reader, [said[one] for one in todo]):
                        read.add(
                            {"number": number * k + at, "ln_ppl": one.ln_ppl}
                            for one, (number, at) in zip(some, left)  # noqa: B905
                        )


# --- the report ------------------------------------------------------------------------------------------------------


def right(kept: Sequence[Line], choice: str) -> list[bool]:
    """Whether each puzzle is solved; `oracle` takes the best particle there is."""
    if choice == "oracle":
        return [any(row["right"]) for row in kept]
    return [row["right"][CHOICES[choice](row)] for row in kept]


def report(args: argparse.Namespace) -> None:
    """A table for each cell and K: every method with every choice, against E-BoN."""
    for name in args.cells:
        for k in args.particles:
            found = {method: in_order(args, name, k, method) for method in ("best-of-n", *args.methods)}
            whole = {method: kept for method, kept in found.items() if kept and len(kept) == len(found["best-of-n"])}
            if "best-of-n" in whole:
                (told_texts if CELLS[name].task == "text" else told_puzzles)(args, name, k, whole)
    for k in args.particles:
        left_out(args, k)


def left_out(args: argparse.Namespace, k: int) -> None:
    """Leave one task out: what is best on the mean of the other's cells, and what it is worth here."""
    gains: dict[str, dict[tuple[str, str], Gain]] = {}  # by cell, then by method and choice
    for name in (name for name in args.cells if CELLS[name].task != "text"):
        found = {method: in_order(args, name, k, method) for method in ("best-of-n", *args.methods)}
        if kept := found.get("best-of-n"):
            base = right(kept, "entropy")
            whole = {method: mine for method, mine in found.items() if len(mine) == len(base)}
            gains[name] = {
                (method, choice): paired(base, right(mine, choice))
                for method, mine in whole.items()
                for choice in offered(mine)
            }
    for task in {CELLS[name].task for name in gains}:
        others, mine = ([name for name in gains if (CELLS[name].task == task) == here] for here in (False, True))
        able = set.intersection(*(set(gains[name]) for name in gains)) if others else set()
        if able:
            best = max(sorted(able), key=lambda one: sum(gains[name][one].difference for name in others))
            worst = min((gains[name][best].low, name) for name in mine)
            mean = sum(gains[name][best].difference for name in mine) / len(mine)
            said = f"{100 * mean:+.1f} points on its {len(mine)} cells, lowest bound {100 * worst[0]:+.1f} ({worst[1]})"
            print(f"\n{args.side} K={k}, without {task} the best is {' by '.join(best)}: {said}")


def told_puzzles(args: argparse.Namespace, name: str, k: int, found: dict[str, list[Line]]) -> None:
    base, most = (right(found["best-of-n"], choice) for choice in ("entropy", "oracle"))
    said = f"E-BoN {100 * sum(base) / len(base):.1f}, its oracle {100 * sum(most) / len(most):.1f}, n={len(base)}"
    print(f"\n{args.side} {name} K={k}: {said}")
    for method, kept in found.items():
        for choice in offered(kept):
            said = against(right(kept, choice), base)
            print(f"  {method:16} {choice:12} {said}  evaluations x{cost(kept, found['best-of-n']):.2f}")


def told_texts(args: argparse.Namespace, name: str, k: int, found: dict[str, list[Line]]) -> None:
    first = judged(args, name, k, "best-of-n", found["best-of-n"], "entropy")
    said = f"ln PPL {first[0].mean():.3f}, diversity {first[1].mean():.3f}, n={len(first[0])}"
    print(f"\n{args.side} {name} K={k}: E-BoN {said}")
    for method, kept in found.items():
        for choice in readable(kept):
            mine = judged(args, name, k, method, kept, choice)
            less, alike = (spread(a - b) for a, b in zip(mine, first, strict=True))
            said = f"ln PPL {mine[0].mean():.3f} {less}  diversity {mine[1].mean():.3f} {alike}"
            print(f"  {method:16} {choice:12} {said}  evaluations x{cost(kept, found['best-of-n']):.2f}")


def readable(kept: list[Line]) -> list[str]:
    return [choice for choice in JUDGED if choice in offered(kept)]


def judged(args: argparse.Namespace, name: str, k: int, method: str, kept: list[Line], choice: str) -> Any:
    """ln PPL and diversity of the texts that a choice takes."""
    path = place(args, name, k, method, "judged.jsonl")
    read = {divmod(one["number"], k): one["ln_ppl"] for one in (rows.read(path).kept if path.exists() else [])}
    taken = [CHOICES[choice](row) for row in kept]
    return (
        np.array([read.get((row["number"], at), np.nan) for row, at in zip(kept, taken, strict=True)]),
        np.array([row["diversity"][at] for row, at in zip(kept, taken, strict=True)]),
    )


def spread(differences: Any) -> str:
    """A mean with the 95 % interval of a bootstrap."""
    found = bootstrap(lambda places: {"mean": float(differences[places].mean())}, range(len(differences)), 10_000)
    mean, low, high = (np.nan if one is None else one for one in found["mean"])
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def cost(mine: Sequence[Line], base: Sequence[Line]) -> float:
    return sum(row["evaluations"] for row in mine) / sum(row["evaluations"] for row in base)


def pack(args: argparse.Namespace) -> None:
    """Rows small enough for a repository: what each choice would have come to."""
    with lzma.open(args.into / f"search-{args.side}.jsonl.xz", "wt", preset=9, encoding="utf-8") as file:
        for name in args.cells:
            for k in args.particles:
                for method in (one for one in args.methods if source(args, name, k, one).exists()):
                    header, kept = rows.read(source(args, name, k, method)).header, in_order(args, name, k, method)
                    if len(kept) == header["n"]:
                        columns = packed_texts(args, name, k, method, kept) if "text" in name else packed(kept)
                        head = {"cell": name, **header, "k": k, "paths": header["k"], "columns": [*columns]}
                        lines = zip(*columns.values(), strict=True)
                        file.write("".join(f"{json.dumps(line)}\n" for line in (head, *map(list, lines))))


def packed(kept: list[Line]) -> dict[str, list[Any]]:
    """The verdict of each choice as a digit, and the oracle's."""
    choices = (*offered(kept), "oracle")
    marks = ["".join(map(str, map(int, row))) for row in zip(*(right(kept, one) for one in choices), strict=True)]
    return {**numbers(kept), " ".join(choices): marks}


def packed_texts(args: argparse.Namespace, name: str, k: int, method: str, kept: list[Line]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = numbers(kept)
    for choice in readable(kept):
        for kind, column in zip(("ln_ppl", "diversity"), judged(args, name, k, method, kept, choice), strict=True):
            columns[f"{choice} {kind}"] = [round(float(one), 4) if np.isfinite(one) else None for one in column]
    return columns


def numbers(kept: list[Line]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in kept] for name in ("number", "evaluations")}


def source(args: argparse.Namespace, name: str, k: int, method: str) -> Path:
    """Where the rows of a run are; those of fewer independent paths may be among those of more."""
    path = place(args, name, k, method)
    more = [place(args, name, many, method) for many in MORE if many > k and method == "best-of-n"]
    return next((one for one in (path, *more) if one.exists()), path)


def in_order(args: argparse.Namespace, name: str, k: int, method: str) -> list[Line]:
    """The rows of a run, none where there was none; fewer independent paths are the first of more."""
    path = source(args, name, k, method)
    kept = sorted(rows.read(path).kept if path.exists() else [], key=lambda row: int(row["number"]))
    return kept if path == place(args, name, k, method) else [first(row, k) for row in kept]


def against(mine: Sequence[bool], base: Sequence[bool]) -> str:
    """A share with its interval, and the paired difference with its own, in points."""
    low, high = wilson(sum(mine), len(mine))
    found = paired(base, mine)
    share = f"{100 * sum(mine) / len(mine):5.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return f"{share}  {100 * found.difference:+5.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "judge", "report", "pack"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", choices=tuple(SEEDS), default="study")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS), metavar="CELL")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--particles", nargs="+", type=int, default=[8])
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=256, help="how many texts, where there are no puzzles")
    parser.add_argument("--into", type=Path, default=Path(), help="the folder of what is packed")
    parser.add_argument("--judge", help="another judge of texts than the default one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    with show.progress():
        {"run": run, "judge": judge, "report": report, "pack": pack}[args.what](args)


if __name__ == "__main__":
    main()
