"""The command line's half for puzzles and texts: solve one, or measure a model on a file of them, make more."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from unmask import __version__, corpus, countdown, evaluate, flags, show, sudoku
from unmask.decode import decode_batch
from unmask.errors import InputError, unknown
from unmask.evaluate import KINDS
from unmask.models import Denoiser, load
from unmask.models.tokens import Pieces
from unmask.models.transformer import Transformer
from unmask.train import text
from unmask.train.grids import grids
from unmask.train.problems import problems

Namespace = argparse.Namespace
TASKS = (*KINDS, "text")


def run_solve(args: Namespace) -> int:
    """Solve a puzzle with the embedded model; the exit status is 1 where its answer is wrong."""
    recipe = flags.to_recipe(args)
    name, given = _puzzle(args.puzzle)
    kind = KINDS[name]
    puzzle = kind.parse(given)
    strange = kind.check(puzzle)
    if strange == sudoku.UNKNOWN:
        warnings.warn(f"the puzzle {strange}", stacklevel=2)
    model = load(args.model or name, args.device)
    evaluate.suits(name, model)
    with show.following() as watch:
        canvases = [kind.canvas(puzzle)]
        found = decode_batch(model, canvases=canvases, recipe=recipe, trace=args.trace, watch=watch)[0]
    answer = kind.answer(found.tokens)
    wrong = kind.fault(answer, puzzle)
    if args.json:
        said = {"puzzle": kind.write(puzzle), "answer": answer, "strict": wrong is None, "fault": wrong}
        print(json.dumps({**said, "strange": strange, **found.to_dict()}))
    else:
        print(show.board(list(map(int, answer))) if name == "sudoku" else answer)
        solved = "solved, as one of several solutions" if strange == sudoku.SEVERAL else "solved"
        print(solved if wrong is None else f"not solved: {wrong}")
        print(show.cost(found))
    return 0 if wrong is None else 1


def _puzzle(given: str) -> tuple[str, str]:
    """The kind and the text of a puzzle."""
    text = _given(given)
    lines = [line for line in text.splitlines() if line.strip()]
    name = "countdown" if "," in text else "sudoku"
    many = len(lines) if name == "countdown" else sum(len("".join(line.split())) == sudoku.CELLS for line in lines)
    if many > 1:
        raise InputError(f"{given!r} holds {many} puzzles", f"`unmask eval {name} --data FILE` decodes them all")
    if re.fullmatch(r"\s*\d{1,3}([\s;]+\d{1,3}){1,8}[\s;]*", text):
        raise InputError(f"{text.strip()!r} has no commas", f"write {','.join(re.findall('[0-9]+', text))}")
    return name, evaluate.problem_text(text) if name == "countdown" else text


def _given(puzzle: str) -> str:
    """A puzzle as it is, from a file, or from standard input."""
    with suppress(OSError, ValueError):  # a puzzle may be no possible name of a file
        if puzzle == "-" or Path(puzzle).is_file():
            return corpus.read(puzzle)
    letters = re.search(r"[^\W\d_]|/", puzzle) is not None
    if letters and "," not in puzzle and len("".join(puzzle.split())) != sudoku.CELLS:
        known = "a Sudoku of 81 characters, a countdown like 15,44,79,50, or a file with one of them"
        raise InputError(f"{puzzle!r} is no file and no puzzle", f"give {known}")
    return puzzle


def add_solve(parser: argparse.ArgumentParser) -> None:
    about = "a Sudoku of 81 characters, . or 0 for a blank; a countdown, target last; a file; - reads standard input"
    parser.add_argument("puzzle", metavar="PUZZLE", help=about)
    parser.add_argument("--model", metavar="NAME", help="a directory with a model of your own instead")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU like cuda [cpu]")
    parser.add_argument("--recipe", metavar="NAME", help="settings from a .toml or .json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", metavar="FILE", help="write every step to this file (JSONL)")
    flags.add(parser)


def run_eval(args: Namespace) -> None:
    """Decode a file of puzzles and say how many are solved; of text, how many bits a byte costs."""
    if args.task not in TASKS:
        raise unknown("task", args.task, TASKS)
    if args.limit is not None and args.limit < 1:
        raise InputError(f"limit is {args.limit}", "it must be at least 1")
    _probe(args.rows, args.data)
    if args.task == "text":
        _eval_text(args)
        return
    recipe = flags.to_recipe(args)
    sifted = evaluate.sift(args.task, KINDS[args.task].read(args.data, args.limit))
    remark = sifted.remark()
    if remark is not None:
        warnings.warn(f"{args.data!r}: {remark}", stacklevel=2)
    model = load(args.model or args.task, args.device)
    about = _about(args, model) | {"recipe": recipe.to_dict()}
    began = time.perf_counter()
    with _rows(args.rows, about) as keep, show.evaluating(len(sifted.fit)) as watch:
        rows = evaluate.run(args.task, model, sifted.fit, recipe, lambda new: keep(map(vars, new)), watch)
    found = evaluate.summary(rows, began) | {"skipped": len(sifted.skipped)}
    print(json.dumps(about | found) if args.json else show.measured(found))


def _eval_text(args: Namespace) -> None:
    flags.none(args, "text, whose NELBO needs no decoding")
    model = load(args.model or "text", args.device)
    if not (
        isinstance(model, Transformer)
        and isinstance(model.tokenizer, Pieces)
        and model.network.shape.tied
        and model.vocab.mask == text.MASK
    ):
        raise InputError(f"{model.name} is no model that `unmask train text` made", "give such a model")
    words = model.tokenizer.fast
    began = time.perf_counter()
    rows = text.windows(text.pack([args.data], words), model.limit or text.LENGTH)[: args.limit]
    with show.progress() as bar:
        task = bar.add_task(f"{len(rows)} windows", total=len(rows))
        each = text.nelbo(model.network, rows, tell=lambda done: bar.update(task, completed=done))
    sizes = text.widths(words)[rows].sum(1)
    middle, low, high = text.bits_per_byte(each, sizes)
    pairs = zip(each.tolist(), sizes.tolist(), strict=True)
    about = _about(args, model)
    with _rows(args.rows, about) as keep:
        keep({"window": n, "nats": nats, "bytes": size} for n, (nats, size) in enumerate(pairs))
    found = {"n": len(rows), "bits_per_byte": middle, "low": low, "high": high, "bytes": int(sizes.sum())}
    found |= {"evaluations": len(rows) * text.DRAWS, "seconds": time.perf_counter() - began}
    if args.json:
        print(json.dumps(about | found))
    else:
        sure = "" if low is None else f" ({low:.4f}–{high:.4f})"
        print(f"{middle:.4f} bits a byte{sure} · {len(rows)} windows · {found['seconds']:.1f} s")


def _about(args: Namespace, model: Denoiser) -> dict[str, Any]:
    """Where the figures come from."""
    sha256 = None if args.data == "-" else hashlib.sha256(Path(args.data).read_bytes()).hexdigest()
    return {"task": args.task, "model": model.name, "data": args.data, "sha256": sha256, "version": __version__}


def _probe(path: str | None, data: str) -> None:
    """Refuse a file of rows that cannot be written, before the long work; what is in it stays until there are rows."""
    if path is None:
        return
    if Path(path).resolve() == Path(data).resolve():
        raise InputError(f"{path!r} holds the data", "give another file for the rows")
    with _writing(path), open(path, "a", encoding="utf-8"):
        pass


@contextmanager
def _rows(path: str | None, about: dict[str, Any]) -> Iterator[Callable[[Iterable[dict[str, Any]]], None]]:
    """A function that writes rows as JSON lines, where a file is given: at once, so that an interrupt keeps them."""
    kept = 0

    def keep(rows: Iterable[dict[str, Any]]) -> None:
        nonlocal kept
        lines = [json.dumps(row | about) + "\n" for row in rows]
        if path is not None and lines:
            with _writing(path), open(path, "a" if kept else "w", encoding="utf-8") as file:
                file.writelines(lines)
            kept += len(lines)

    try:
        yield keep
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*([f"{kept} rows are in {path!r}"] if kept else [])) from None


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path!r}", str(error.strerror)) from None


def _write(path: str, content: str) -> None:
    with _writing(path):
        Path(path).write_text(content, encoding="utf-8")


def add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=", ".join(TASKS))
    about = "sudoku: a field of 81 characters on each line; countdown: lines like 15,44,79,50, or JSON lines with them"
    parser.add_argument("--data", required=True, metavar="FILE", help=f"{about} as `input`; text: documents")
    few = "only the first N puzzles or windows of text, of which a CPU reads about one a second [all]"
    parser.add_argument("--limit", type=int, metavar="N", help=few)
    parser.add_argument("--rows", metavar="FILE", help="write every answer to this file (JSONL)")
    parser.add_argument("--model", metavar="NAME", help="a directory with a model of your own instead")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU like cuda [cpu]")
    parser.add_argument("--recipe", metavar="NAME", help="settings from a .toml or .json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags.add(parser)


def run_puzzles(args: Namespace) -> None:
    """Make puzzles that no training has seen, or text of them to count tokens in."""
    if args.task not in KINDS:
        raise unknown("task", args.task, KINDS)
    own, other = ("clues", "numbers") if args.task == "sudoku" else ("numbers", "clues")
    if getattr(args, other) is not None:
        raise InputError(f"--{other} has no effect on {args.task}", f"it has --{own}")
    if args.answers and (args.solved or args.task != "sudoku"):
        raise InputError(
            "--answers is for Sudokus to solve", "leave it out: countdown has them, solved boards are them"
        )
    if args.solved and args.clues is not None:
        raise InputError("--clues has no effect on solved boards", "leave one of them out")
    if getattr(args, own) is None:
        setattr(args, own, {"clues": 28, "numbers": 4}[own])
    for name in ("count", "seed", own):
        value, (least, most) = getattr(args, name), BOUNDS[name]
        if not least <= value <= most:
            raise InputError(f"{name} is {value}", f"it must be from {least} to {most}")
    dice = np.random.default_rng([args.seed, PUZZLES])
    lines = _boards(args, dice) if args.task == "sudoku" else _problems(args, dice)
    with show.progress() as bar:
        text = "".join(f"{line}\n" for line in bar.track(lines, args.count, description="making"))
    if args.output is None:
        print(text, end="")
    else:
        _write(args.output, text)


PUZZLES = 7  # a stream of random numbers that training does not use
BOUNDS = {"count": (1, 10**7), "clues": (17, 81), "numbers": (countdown.LEAST, countdown.MOST), "seed": (0, 2**32)}


def _boards(args: Namespace, dice: np.random.Generator) -> Iterator[str]:
    order = Random(args.seed)
    for grid in grids(args.count, dice).tolist():
        if args.solved:
            yield sudoku.write(grid)
        else:
            made = sudoku.write(sudoku.puzzle(grid, args.clues, order))
            yield f"{made} {sudoku.write(grid)}" if args.answers else made


def _problems(args: Namespace, dice: np.random.Generator) -> Iterator[str]:
    for row in problems(args.count, args.numbers, dice, held=not args.solved).tolist():
        example = {"input": str(countdown.problem(row)), "output": countdown.answer(row)}
        yield "".join(countdown.ALPHABET[token] for token in row) if args.solved else json.dumps(example)


def add_puzzles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=" or ".join(KINDS))
    parser.add_argument("--count", type=int, default=100, metavar="N", help="how many [100]")
    about = "sudoku: as few as that, where one solution is left [28]"
    parser.add_argument("--clues", type=int, metavar="N", help=about)
    parser.add_argument("--numbers", type=int, metavar="N", help="countdown: of each problem, 3 to 5 [4]")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds and counts give equal puzzles [0]"
    )
    parser.add_argument("--answers", action="store_true", help="sudoku: the solution after each, for `train --corpus`")
    parser.add_argument("--solved", action="store_true", help="full rows as the model reads them, for `frequencies`")
    parser.add_argument("-o", "--output", metavar="FILE", help="instead of printing them")
