"""Searches side by side: the same puzzles or texts, seeds and evaluations for every method.

    python experiments/search/study.py run runs/study --side study --device cuda --particles 8
    python experiments/search/study.py judge runs/study --side study
    python experiments/search/study.py report runs/study --side study
    python experiments/search/study.py pack runs/study --side study --into results/rows

`kept.py` finds the rows again, `report.py` makes the tables, `pack.py` the small file, `draw.py` the pictures of it.
Rows hold every particle: its path entropy, its log-probability, its answer and whether that is right, or its text. So
any choice at the end can be tried on them without decoding again; `judge` reads the texts that a choice takes.
The sides `study` and `second` have puzzles to choose a method by, `held` those that are reported. A run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from choices import CHOICES, Line
from kept import in_order, place, readable, source
from methods import CELLS, METHODS, Cell, goes, register, settings
from pack import pack
from report import report

import unmask
from unmask.cli import show
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, UnmaskError
from unmask.evaluate import rows
from unmask.evaluate.header import origin
from unmask.evaluate.judge import diversity, load_judge, opinions
from unmask.evaluate.run import Question, canvases, grader
from unmask.models import Denoiser, fingerprint
from unmask.models.transformer import compiled
from unmask.tasks import TASKS, puzzle_of
from unmask.tasks.puzzles import held_out

SEEDS = {"study": 4100, "second": 5100, "held": 6100}  # of puzzles that no experiment and no training has
TOGETHER = {"cpu": 32, "cuda": 8192}  # rows decoded at a time


# --- the run ---------------------------------------------------------------------------------------------------------


def questions(out: Path, cell: Cell, side: str, n: int) -> list[Question]:
    """Puzzles of one side, made once, as a model is asked them."""
    path = out / f"{side}-{cell.task}{cell.level}-{n}.txt"
    if not path.exists():
        make = held_out.sudokus if cell.task == "sudoku" else held_out.countdowns
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{one}\n" for one in make(n, cell.level, SEEDS[side] + cell.level)))
        os.replace(new, path)  # several processes may make it
    task = TASKS[cell.task]
    return canvases(task, task.examples(str(path)))


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
                    path = place(args, cell.name, k, method)
                    with rows.opened(str(path), {**about, **origin(model.device)}) as kept:
                        if kept.header["n"] != n:
                            raise InputError(
                                f"{str(path)!r} has {kept.header['n']} puzzles", "give that -n, or another folder"
                            )
                        decode = texts(model, args) if task == "text" else puzzled(model, cell, args)
                        decode_missing(model, recipe, n, kept, decode)


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
    kind, grade = puzzle_of(task), grader(task)

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
            for method in (one for one in args.methods if source(args, name, k, one).exists()):
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
    register()
    try:
        with show.progress():
            {"run": run, "judge": judge, "report": report, "pack": pack}[args.what](args)
    except UnmaskError as error:
        sys.exit(f"study: {error}")


if __name__ == "__main__":
    main()
