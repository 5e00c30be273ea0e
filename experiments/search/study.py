"""Searches side by side: the same puzzles, seeds and evaluations for every method.

    python experiments/search/study.py run runs/study --side study --device cuda --particles 8
    python experiments/search/study.py report runs/study --side study

Rows hold every particle: its path entropy, its log-probability, its answer and whether that is right. So any choice
at the end can be tried on them without decoding again. `--side study` has puzzles to choose a method by, `--side held`
those that are reported. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import unmask
from unmask import bench, puzzles, rows, show
from unmask import recipe as recipes
from unmask.decode import Result, decode_batch
from unmask.models import Denoiser, fingerprint
from unmask.models.compiled import compiled
from unmask.origin import origin
from unmask.recipe import Recipe
from unmask.search import SEARCHES
from unmask.stats import paired, wilson
from unmask.tasks import TASKS

SEEDS = {"study": 4100, "held": 5100}  # of the puzzles: other ones than any experiment or training has
TOGETHER = {"cpu": 32, "cuda": 8192}  # rows decoded at a time
Line = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """What is decoded, and in which order."""

    task: str
    level: int  # clues, or numbers
    sampler: str
    steps: int  # of one path

    @property
    def name(self) -> str:
        return f"{self.task}{self.level}-{self.sampler}"

    def recipe(self, **more: Any) -> Recipe:
        return Recipe.from_dict({"sampler": self.sampler, "temperature": 1.0, "steps": self.steps, **more})


CELLS = {
    cell.name: cell
    for sampler in ("uniform", "confidence", "entropy")
    for cell in (
        Cell("sudoku", 28, sampler, 27),
        Cell("sudoku", 24, sampler, 29),
        Cell("countdown", 4, sampler, 21),
        Cell("countdown", 5, sampler, 28),
    )
}


def beams(k: int) -> dict[str, Any]:
    """The better half goes on, each twice."""
    return {"search": "beam", "beams": k // 2, "candidates": 2}


EVEN = {"search": "smc", "scheme": "systematic"}
# Names -> settings of K particles; a function is given the cell and K. What is chosen at the end is tried on the rows.
METHODS: dict[str, Any] = {
    "best-of-n": {"search": "best-of-n"},
    "steps": lambda cell, k: {"search": "vanilla", "steps": cell.steps * k},
    "printed": {"search": "smc"},
    "self-rewarding": {"search": "smc", "potential": "likelihood", "strength": 1.0},
    **{f"ess-{share}": {**EVEN, "target": share} for share in (0.5, 0.7, 0.85)},
    "ess-0.7-often": lambda cell, k: {**EVEN, "target": 0.7, "every": max(1, cell.steps // 8)},
    "ess-0.7-twice": lambda cell, k: {**EVEN, "target": 0.7, "every": math.ceil(cell.steps / 3)},
    **{
        f"{name}-0.7": {**EVEN, "potential": name, "target": 0.7}
        for name in ("change", "path", "likelihood", "ahead", "both")
    },
    "path-1": {**EVEN, "potential": "path", "strength": 1.0},
    "below-0.5": {**EVEN, "potential": "path", "strength": 1.0, "below": 0.5},
    "early-0.7": {**EVEN, "target": 0.7, "until": 0.5},
    "late-0.7": {**EVEN, "target": 0.7, "after": 0.5},
    "tempered": {**EVEN, "strength": 100.0, "temper": 2.0},
    "half": lambda cell, k: {**beams(k), "every": max(1, cell.steps // 4)},
    "half-twice": lambda cell, k: {**beams(k), "every": math.ceil(cell.steps / 3)},
    "apart-0.7": {**EVEN, "target": 0.7, "apart": 0.1},
    "reopen-0.7": {**EVEN, "target": 0.7, "reopen": 0.2},
    "reopen-half": {**EVEN, "target": 0.7, "reopen": 0.5},
    "islands-0.7": lambda cell, k: {**EVEN, "target": 0.7, "islands": max(1, k // 4)},
}


def settings(method: str, cell: Cell, k: int) -> Recipe:
    """How a method decodes a cell with K particles."""
    given = METHODS[method]
    given = given(cell, k) if callable(given) else given
    counted = "particles" in recipes.settings(SEARCHES[given["search"]])
    return cell.recipe(**given, **({"particles": k} if counted else {}))


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
            asked = questions(args.out, cell, args.side, args.n)
            for k in args.particles:
                for method in args.methods:
                    recipe = settings(method, cell, k)
                    path = args.out / f"{args.side}-{cell.name}-{k}-{method}.jsonl"
                    about = {"task": task, "model": task, "weights": fingerprint(task), "recipe": recipe.to_dict()}
                    about |= {"dtype": args.dtype, "n": args.n, "side": args.side, "method": method, "k": k}
                    with rows.opened(str(path), {**about, **origin(model.device)}) as kept:
                        decode_missing(model, cell, recipe, asked, kept)


def decode_missing(
    model: Denoiser, cell: Cell, recipe: Recipe, asked: Sequence[bench.Question], kept: rows.Rows
) -> None:
    """The rows that a file lacks."""
    done = {line["number"] for line in kept.kept}
    todo = [one for one in asked if one.number not in done]
    size = max(1, TOGETHER.get(model.device.type, 32) // recipe.build_search().particles)
    grade = bench.grader(TASKS[cell.task])
    for begin in range(0, len(todo), size):
        part = todo[begin : begin + size]
        canvases = [list(one.ask) for one in part]
        found = decode_batch(model, canvases=canvases, recipe=recipe, seeds=[one.number for one in part])
        kept.add(line(cell, one, result, grade, len(part)) for one, result in zip(part, found, strict=True))


def line(cell: Cell, question: bench.Question, found: Result, grade: Callable[..., Any], share: int) -> Line:
    """One puzzle: what every particle came to."""
    kind = bench.puzzle_of(TASKS[cell.task])
    answers = [kind.answer(particle.tokens) for particle in found.particles]
    verdict = {answer: bool(grade(answer, question.example)[1]) for answer in set(answers)}
    names = {answer: place for place, answer in enumerate(dict.fromkeys(answers))}
    lone = all(one.origin == slot for slot, one in enumerate(found.particles))  # no path is another's copy
    along = {"entropies": [[h and round(h, 4) for h in one.state_entropy] for one in found.particles]} if lone else {}
    return {
        **along,
        "number": question.number,
        "evaluations": found.evaluations,
        "seconds": found.seconds / share,
        "steps": found.steps,
        "chosen": found.chosen,
        "entropy": [round(particle.path_entropy, 7) for particle in found.particles],
        "log_prob": [round(particle.log_prob, 5) for particle in found.particles],
        "answer": [names[answer] for answer in answers],
        "right": [verdict[answer] for answer in answers],
    }


# --- choices, tried on rows ------------------------------------------------------------------------------------------


def weighed(row: Line, scale: float) -> int:
    """The answer with the most weight, exp(-scale · summed entropies in nats); its spokesman has the lowest entropy."""
    total = np.array(row["entropy"]) * row["steps"] * math.log(2) * scale
    share = np.exp(total.min() - total)
    votes: dict[int, float] = {}
    for answer, weight in zip(row["answer"], share, strict=True):
        votes[answer] = votes.get(answer, 0.0) + weight
    best = max(votes.values())
    able = [place for place, answer in enumerate(row["answer"]) if votes[answer] >= best * (1 - 1e-9)]
    return min(able, key=lambda place: row["entropy"][place])


def both(row: Line) -> int:
    """The lowest sum of ranks by entropy and by log-probability."""
    entropy, likely = np.array(row["entropy"]), -np.array(row["log_prob"])
    ranks = entropy.argsort(kind="stable").argsort() + likely.argsort(kind="stable").argsort()
    return int(min(range(len(ranks)), key=lambda place: (ranks[place], entropy[place])))


CHOICES: dict[str, Callable[[Line], int]] = {
    "entropy": lambda row: int(np.argmin(row["entropy"])),
    "likelihood": lambda row: int(np.argmax(row["log_prob"])),
    "vote": lambda row: weighed(row, 0.0),
    "agreement": lambda row: weighed(row, 1.0),
    "agreement/4": lambda row: weighed(row, 0.25),
    "agreement×4": lambda row: weighed(row, 4.0),
    "both": both,
}


def right(kept: Sequence[Line], choice: str) -> list[bool]:
    """Whether each puzzle is solved; `oracle` takes the best particle there is."""
    if choice == "oracle":
        return [any(row["right"]) for row in kept]
    return [row["right"][CHOICES[choice](row)] for row in kept]


def report(args: argparse.Namespace) -> None:
    """A table for each cell and K: every method with every choice, against E-BoN."""
    for name in args.cells:
        for k in args.particles:
            paths = {method: args.out / f"{args.side}-{name}-{k}-{method}.jsonl" for method in args.methods}
            found = {method: in_order(path) for method, path in paths.items() if path.exists()}
            if "best-of-n" not in found:
                continue
            base, most = (right(found["best-of-n"], choice) for choice in ("entropy", "oracle"))
            said = (
                f"E-BoN {100 * sum(base) / len(base):.1f}, its oracle {100 * sum(most) / len(most):.1f}, n={len(base)}"
            )
            print(f"\n{args.side} {name} K={k}: {said}")
            for method, kept in found.items():
                cost = sum(row["evaluations"] for row in kept) / sum(row["evaluations"] for row in found["best-of-n"])
                for choice in CHOICES if len(kept[0]["entropy"]) > 1 else ("entropy",):
                    print(f"  {method:16} {choice:12} {against(right(kept, choice), base)}  evaluations x{cost:.2f}")


def in_order(path: Path) -> list[Line]:
    return sorted(rows.read(path).kept, key=lambda row: int(row["number"]))


def against(mine: Sequence[bool], base: Sequence[bool]) -> str:
    """A share with its interval, and the paired difference with its own, in points."""
    low, high = wilson(sum(mine), len(mine))
    found = paired(base, mine)
    share = f"{100 * sum(mine) / len(mine):5.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return f"{share}  {100 * found.difference:+5.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", choices=tuple(SEEDS), default="study")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS), metavar="CELL")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--particles", nargs="+", type=int, default=[8])
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    with show.progress():
        {"run": run, "report": report}[args.what](args)


if __name__ == "__main__":
    main()
