"""Independent paths with all that a choice, a stop or an escalation may go by: recorded once, tried again offline.

    python experiments/search/paths.py record runs/paths --cells sudoku24-eb countdown4-eb --n 200 --paths 16
    python experiments/search/paths.py search runs/paths --cells sudoku24-uniform --n 200

`record` writes, for each puzzle or problem of a cell, every path in the order of its slot: path entropy, surprise, the
log-probability of its tokens, the second look at it, its evaluations, its answer (equal ones have equal numbers) and
whether that is right; and the rows that the network computed for all of them. All distinct answers are looked at; the
evaluations of a look are counted when a rule takes it. Paths of a prompt are those of best-of-n with its seed, so that
fewer paths, waves and stops are prefixes. `stops.py` computes what each rule would have done. `search` decodes the same
prompts with searches that resample, in their strongest published form, eight particles each, and one path with a step
for every position. On a GPU, too, equal canvases are computed once, so that rows are counted as on a CPU.
`many.py` runs the cells in parallel on one device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch

import unmask
from unmask.core.gpu import recorded
from unmask.decoding.decode import layout, prepare
from unmask.decoding.finish import Reading, finished
from unmask.decoding.recipe import Recipe
from unmask.errors import UnmaskError
from unmask.evaluate import rows
from unmask.evaluate.header import origin
from unmask.evaluate.run import canvases, grader
from unmask.models import fingerprint
from unmask.search import look
from unmask.tasks import TASKS, puzzle_of
from unmask.tasks.gsm8k import number as number_of
from unmask.tasks.problems import stated
from unmask.tasks.puzzles import held_out
from unmask.train.documents import held_problems

PUZZLES = 1000  # of a task; a cell takes the first n of them
SEED = 7100  # of puzzles and problems that no training and no earlier study has
PATHS = {"search": "best-of-n", "choose": "look"}
HOT = {"temperature": 1.0}
SELECT = {"temperature": 0.0, "select_temperature": 0.1}
TEXT = {"length": 96}
ORDERS: dict[str, dict[str, dict[str, Any]]] = {
    "sudoku24": {
        "uniform": {"sampler": "uniform", "steps": 29, **HOT},
        "confidence": {"sampler": "confidence", "steps": 29, **HOT},
        "selected": {"sampler": "confidence", "steps": 29, **SELECT},
        "entropy": {"sampler": "entropy", "steps": 29, **HOT},
        "eb": {"sampler": "eb", **HOT},
        "fast-dllm": {"sampler": "fast-dllm", **HOT},
        "pc": {"sampler": "pc", "background": "sudoku", "steps": 29, **SELECT},
        "p2": {"sampler": "p2", "steps": 29, **HOT},
    },
    "countdown4": {
        "uniform": {"sampler": "uniform", "steps": 21, **HOT},
        "confidence": {"sampler": "confidence", "steps": 21, **HOT},
        "selected": {"sampler": "confidence", "steps": 21, **SELECT},
        "entropy": {"sampler": "entropy", "steps": 21, **HOT},
        "eb": {"sampler": "eb", **HOT},
        "fast-dllm": {"sampler": "fast-dllm", **HOT},
        "pc": {"sampler": "pc", "background": "countdown", "steps": 21, **SELECT},
    },
    "problems": {
        "uniform": {"sampler": "uniform", "steps": 32, **HOT, **TEXT},
        "confidence": {"sampler": "confidence", "steps": 24, **HOT, **TEXT},
        "selected": {"sampler": "confidence", "steps": 24, **SELECT, **TEXT},
        "eb": {"sampler": "eb", "bound": 0.5, **HOT, **TEXT},
        "fast-dllm": {"sampler": "fast-dllm", "threshold": 0.5, "block_length": 32, **HOT, **TEXT},
        "semi-ar": {"sampler": "semi-ar", "block_length": 32, "steps": 24, **HOT, **TEXT},
        "pc": {"sampler": "pc", "background": "text", "steps": 24, **SELECT, **TEXT},
        "block": {"sampler": "sdar", "attention": "block", "threshold": 0.5, "temperature": 0.7, **TEXT},
    },
}
TWO_A_STEP = {"sudoku28": 27, "cd3": 14, "cd4": 21, "cd5": 28, "countdown5": 28}  # steps of the planned orders
for _task, _steps in TWO_A_STEP.items():
    _like = ORDERS["sudoku24" if _task == "sudoku28" else "countdown4"]
    ORDERS[_task] = {_name: one | ({"steps": _steps} if "steps" in one else {}) for _name, one in _like.items()}
CELLS = {f"{task}-{order}": (task, settings) for task, orders in ORDERS.items() for order, settings in orders.items()}
MODELS = {"sudoku24": "sudoku", "sudoku28": "sudoku", "problems": "text"}  # countdown for the others


METHODS: dict[str, dict[str, Any]] = {
    # the paper's: after a quarter, the half and three quarters of the steps; its strength is 10 on countdown, else 5
    "printed": {"search": "smc", "particles": 8},
    # as published: weights by p, resampled where the effective sample size is under a half, the likeliest path
    "self-rewarding": {"search": "smc", "particles": 8, "potential": "likelihood", "strength": 0.6931, "below": 0.5}
    | {"choose": "likelihood"},
    "self-rewarding-surprise": {"search": "smc", "particles": 8, "potential": "likelihood", "strength": 0.6931}
    | {"below": 0.5, "choose": "surprise"},
    "one-path": {"search": "vanilla"},
}


def method(task: str, settings: dict[str, Any], name: str) -> Recipe:
    """The recipe of a method in a cell."""
    given = {**settings, **METHODS[name]}
    if name == "printed" and MODELS.get(task, "countdown") == "countdown":
        given["strength"] = 10.0
    if name == "one-path":
        given.pop("steps", None)
    return Recipe(**given)


class Asked:
    """The questions of a task, and the verdict on an answer."""

    def __init__(self, task: str, n: int, data: Path | None, puzzles: Path | None = None) -> None:
        self.puzzle = task != "problems"
        if not self.puzzle:
            made = held_problems(n, SEED, "any")
            self.given: list[Any] = [one.question for one in made]
            self.gold = [one.answer for one in made]
            return
        name = MODELS.get(task, "countdown")
        self.task, self.kind = TASKS[name], puzzle_of(TASKS[name])
        if task.startswith("cd"):
            assert data is not None, "the public files are given with --data"
            examples = self.task.examples(str(data / f"{task}_test.jsonl"))[:n]
        else:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "some.txt")
                file.write_text("".join(f"{one}\n" for one in lines_of(task, n, puzzles)))
                examples = self.task.examples(str(file))
        self.asked = canvases(self.task, examples)
        self.given, self.grade = [list(one.ask) for one in self.asked], grader(self.task)

    def answer(self, number: int, particle: Any) -> tuple[Any, bool]:
        if not self.puzzle:
            found = stated(particle.text)
            return particle.text, found is not None and number_of(found) == self.gold[number]
        text = self.kind.answer(particle.tokens)
        return text, bool(self.grade(text, self.asked[number].example)[1])


def lines_of(task: str, n: int, puzzles: Path | None) -> list[str]:
    """The first n of a thousand puzzles, from the file that has them if there is one."""
    file = None if puzzles is None else puzzles / f"{task}.txt"
    if file is not None and file.exists():
        lines = file.read_text().splitlines()
        assert len(lines) == PUZZLES, f"{file} has {len(lines)} puzzles"
        return lines[:n]
    level = int(task.lstrip("abcdefghijklmnopqrstuvwxyz"))
    make = held_out.sudokus if MODELS.get(task) == "sudoku" else held_out.countdowns
    made = [str(one) for one in islice(make(PUZZLES, level, SEED + level), n if file is None else None)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{one}\n" for one in made))
        os.replace(new, file)  # several processes may make it
    return made[:n]


def puzzles(args: argparse.Namespace) -> None:
    """The puzzles of the cells as files: making a thousand Sudokus takes half a minute."""
    for task in dict.fromkeys(CELLS[cell][0] for cell in args.cells):
        if task != "problems" and not task.startswith("cd"):
            lines_of(task, PUZZLES, args.puzzles)


@contextmanager
def sharing() -> Iterator[None]:
    """Have the steps taken that compute equal canvases once, on a GPU as well. Others are recorded there."""
    before, recorded.can_record = recorded.can_record, lambda setup, state: False
    try:
        yield
    finally:
        recorded.can_record = before


def record(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cells:
        model = unmask.load(MODELS.get(CELLS[name][0], "countdown"), args.device, args.dtype)
        record_cell(args, name, model, Asked(CELLS[name][0], args.n, args.data, args.puzzles))


def record_cell(args: argparse.Namespace, name: str, model: Any, asked: Asked) -> None:
    task, settings = CELLS[name]
    recipe = Recipe(**PATHS, **settings, particles=args.paths)
    model_name = MODELS.get(task, "countdown")
    about = {"cell": name, "model": model_name, "weights": fingerprint(model_name), "recipe": recipe.to_dict()}
    about |= {"n": args.n, "seeds": "0 …", "puzzles": SEED, "dtype": args.dtype}
    with rows.opened(str(args.out / f"{name}.jsonl"), {**about, **origin(model.device)}) as kept, sharing():
        each = (args.out / f"{name}.tokens").open("a", encoding="utf-8") if args.tokens else None
        for some in missing(kept, args):
            kept.add(decoded(model, recipe, asked, some, args.paths, each))
            print(f"{name}: {len(kept.kept)} of {args.n}", file=sys.stderr, flush=True)


def missing(kept: rows.Rows, args: argparse.Namespace) -> Iterator[list[int]]:
    """The numbers of prompts that a file lacks, so many at a time."""
    done = {line["number"] for line in kept.kept}
    todo = [number for number in range(min(args.n, args.first or args.n)) if number not in done]
    for begin in range(0, len(todo), args.together):
        yield todo[begin : begin + args.together]


def search(args: argparse.Namespace) -> None:
    """The prompts of cells under each method: whether the returned answer is right, and each of its paths."""
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    for cell in args.cells:
        model = unmask.load(MODELS.get(CELLS[cell][0], "countdown"), args.device, args.dtype)
        asked = Asked(CELLS[cell][0], args.n, args.data, args.puzzles)
        for name in args.methods:
            search_cell(args, cell, name, model, asked)


def search_cell(args: argparse.Namespace, cell: str, name: str, model: Any, asked: Asked) -> None:
    task, settings = CELLS[cell]
    recipe, model_name = method(task, settings, name), MODELS.get(task, "countdown")
    about = {"cell": cell, "method": name, "model": model_name, "weights": fingerprint(model_name)}
    about |= {"recipe": recipe.to_dict(), "n": args.n, "seeds": "0 …", "puzzles": SEED, "dtype": args.dtype}
    with rows.opened(str(args.out / f"{cell}.{name}.jsonl"), {**about, **origin(model.device)}) as kept, sharing():
        for some in missing(kept, args):
            kept.add(searched(model, recipe, asked, some))
        print(f"{cell}, {name}: {len(kept.kept)} of {args.n}", file=sys.stderr, flush=True)


def searched(model: Any, recipe: Recipe, asked: Asked, numbers: list[int]) -> Iterator[dict[str, Any]]:
    given = [asked.given[number] for number in numbers]
    what: dict[str, Any] = {"canvases" if asked.puzzle else "prompts": given}
    for number, found in zip(numbers, unmask.decode_batch(model, recipe=recipe, seeds=numbers, **what), strict=True):
        right = [asked.answer(number, one)[1] for one in found.particles]
        yield {
            "number": number,
            "right": int(right[found.chosen]),
            "any": int(any(right)),
            "evaluations": found.evaluations,
            "rows": found.rows,
            "lineages": found.lineages,
            "each": [int(one) for one in right],
            "entropy": [short(one.path_entropy) for one in found.particles],
            "surprise": [short(one.surprise) for one in found.particles],
            "log_prob": [short(one.log_prob) for one in found.particles],
        }


@torch.no_grad()
def decoded(
    model: Any, recipe: Recipe, asked: Asked, numbers: list[int], k: int, tokens: TextIO | None = None
) -> Iterator[dict[str, Any]]:
    given = [asked.given[number] for number in numbers]
    laid = layout(model, None if asked.puzzle else given, given if asked.puzzle else None, recipe)
    denoiser, state, sampler, search, rules = prepare(model, laid, numbers, recipe)
    found = finished(denoiser, state, sampler, search, rules, Reading(laid))
    after, tally = look.look(denoiser, found.state, found.tally, answers=k)
    looks = after.look.tolist()
    if tokens is not None:
        keep_tokens(denoiser, found.state, numbers, k, tokens)
    for place, number in enumerate(numbers):
        mine = slice(place * k, place * k + k)
        pairs = [asked.answer(number, one) for one in found.particles[mine]]
        names = {answer: at for at, answer in enumerate(dict.fromkeys(answer for answer, _ in pairs))}
        yield {
            "number": number,
            "open": int(found.state.open[mine][0]),
            "rows": int(found.tally.rows[mine].sum()),
            "evaluations": found.tally.evaluations[mine].tolist(),
            "looks": (tally.evaluations - found.tally.evaluations)[mine].tolist(),
            "entropy": [short(one.path_entropy) for one in found.particles[mine]],
            "surprise": [short(one.surprise) for one in found.particles[mine]],
            "log_prob": [short(one.log_prob) for one in found.particles[mine]],
            "look": [short(one) for one in looks[mine]],
            "answer": [names[answer] for answer, _ in pairs],
            "right": [int(right) for _, right in pairs],
        } | ({} if asked.puzzle else {"said": said([one.text for one in found.particles[mine]])})


def said(texts: list[str]) -> list[int]:
    """The answers that texts state: equal ones have equal numbers, none is -1."""
    found = [None if (one := stated(text)) is None else number_of(one) for text in texts]
    names = {answer: at for at, answer in enumerate(dict.fromkeys(one for one in found if one is not None))}
    return [-1 if one is None else names[one] for one in found]


def keep_tokens(denoiser: Any, state: Any, numbers: list[int], k: int, file: TextIO) -> None:
    """Every token that was written, with its log-probability then, and given the other half of its answer."""
    first = dict[tuple[int, tuple[int, ...]], int]()
    whose = [first.setdefault((row // k, tuple(line)), row) for row, line in enumerate(state.tokens.tolist())]
    again, _ = look.each_token(denoiser, state, torch.tensor(sorted(first.values()), device=state.tokens.device))
    again = again[torch.tensor(whose)]
    for place, number in enumerate(numbers):
        line = {"number": number, "tokens": [], "then": [], "again": []}
        for row in range(place * k, place * k + k):
            columns = state.writable[row].nonzero()[:, 0]
            line["tokens"].append(state.tokens[row, columns].tolist())
            line["then"].append([short(one) for one in state.token_logp[row, columns].tolist()])
            line["again"].append([short(one) for one in again[row, columns].tolist()])
        file.write(json.dumps(line) + "\n")
    file.flush()


def short(value: float) -> float:
    return float(f"{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "search", "puzzles"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/paths"))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS), metavar="CELL")
    parser.add_argument("-n", "--n", type=int, default=1000)
    parser.add_argument("--paths", type=int, default=32)
    parser.add_argument("--first", type=int, help="only so many of the n prompts for now; the same command goes on")
    parser.add_argument("--puzzles", type=Path, metavar="FOLDER", help="where the puzzles are kept once they are made")
    parser.add_argument("--together", type=int, default=2, help="prompts decoded at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", action="store_true", help="write CELL.tokens too: each token's log-probabilities")
    parser.add_argument("--data", type=Path, help="the folder of the public cd3, cd4 and cd5 files")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    args = parser.parse_args()
    try:
        {"record": record, "search": search, "puzzles": puzzles}[args.what](args)
    except UnmaskError as error:
        sys.exit(f"paths: {error}")


if __name__ == "__main__":
    main()
