"""The command line's half for puzzles: solve one, make more."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from unmask.cli import flags, show
from unmask.decoding.decode import decode_batch
from unmask.errors import InputError, UnmaskError, unknown
from unmask.evaluate.run import suits
from unmask.models import load
from unmask.tasks import TASKS, files, puzzle_of
from unmask.tasks.countdown import problem_text
from unmask.tasks.puzzles import countdown, held_out, sudoku
from unmask.tasks.sudoku import FIELD

Namespace = argparse.Namespace
KINDS = ("sudoku", "countdown")


def run_solve(args: Namespace) -> int:
    """Solve a puzzle with the bundled model; the exit status is 1 where its answer is wrong."""
    recipe = flags.to_recipe(args)
    name, given = _puzzle(args.puzzle)
    kind = puzzle_of(TASKS[name])
    puzzle = kind.parse(given)
    strange = kind.check(puzzle)
    if strange == sudoku.UNKNOWN:
        warnings.warn(f"the puzzle {strange}", stacklevel=2)
    model = load(args.model or name, args.device)
    suits(TASKS[name], model)
    with show.following() as on_event:
        canvases = [kind.canvas(puzzle)]
        found = decode_batch(model, canvases=canvases, recipe=recipe, trace=args.trace, on_event=on_event)[0]
    answer = kind.answer(found.tokens)
    wrong = kind.fault(answer, puzzle)
    if args.json:
        said = {
            "puzzle": sudoku.write(puzzle) if name == "sudoku" else str(puzzle),
            "answer": answer,
            "strict": wrong is None,
            "fault": wrong,
        }
        print(json.dumps({**said, "strange": strange, **found.to_dict()}))
    else:
        print(show.board(list(map(int, answer))) if name == "sudoku" else answer)
        solved = "solved, as one of several solutions" if strange == sudoku.SEVERAL else "solved"
        print(solved if wrong is None else f"not solved: {wrong}")
        print(show.cost(found))
        if len(found.particles) > 1 and show.alike(found):
            print(show.ALIKE)
    return 0 if wrong is None else 1


def _puzzle(given: str) -> tuple[str, str]:
    """The kind and the text of a puzzle."""
    text = _given(given)
    lines = [line for line in text.splitlines() if line.strip()]
    name = _kind(text)
    boards = [FIELD.findall(line) or len("".join(line.split())) == sudoku.CELLS for line in lines]
    many = len(lines) if name == "countdown" else sum(map(bool, boards))
    solved = name == "sudoku" and any(isinstance(board, list) and len(board) > 1 for board in boards)
    if many > 1 or solved:
        what, whose = (f"{many} puzzles", "solutions") if many > 1 else ("a puzzle", "its solution")
        file = "FILE" if given in ("-", text) else shlex.quote(given)
        way = f"`unmask eval {name} --data {file}` decodes {'them all' if many > 1 else 'it'}"
        raise InputError(f"{given!r} holds {what}{f' with {whose}' if solved else ''}", way)
    if re.fullmatch(r"\s*\d{1,3}([\s;]+\d{1,3}){1,8}[\s;]*", text):
        raise InputError(f"{text.strip()!r} has no commas", f"write {','.join(re.findall('[0-9]+', text))}")
    return name, problem_text(text) if name == "countdown" else text


def _kind(text: str) -> str:
    return "countdown" if "," in text and not FIELD.search(text) else "sudoku"


def too_many(args: Namespace, extra: list[str]) -> UnmaskError:
    """The error for more words than one puzzle."""
    words = [word.strip() for word in (args.puzzle, *extra)]
    if all(re.fullmatch(r"\d{1,3}[,;]?", word) for word in words):
        return InputError(f"{' '.join(words)!r} has blanks", f"write {','.join(word.rstrip(',;') for word in words)}")
    if len("".join(words)) == sudoku.CELLS:
        return InputError(f"{' '.join(words)!r} has blanks", "put quotes around it")
    name = "sudoku" if words[0] == "-" else _kind(_given(args.puzzle))
    way = f"put one on each line of a file, and `unmask eval {name} --data FILE` decodes them all"
    return InputError(f"solve takes one puzzle, and these are {len(words)}", way)


def _given(puzzle: str) -> str:
    """A puzzle as it is, from a file, or from standard input."""
    with suppress(OSError, ValueError):  # a puzzle may be no possible name of a file
        if puzzle == "-" or Path(puzzle).is_file():
            return files.read(puzzle)
    letters = re.search(r"[^\W\d_]|/", puzzle) is not None
    if letters and "," not in puzzle and len("".join(puzzle.split())) != sudoku.CELLS:
        known = "a Sudoku of 81 characters, a countdown like 15,44,79,50, or a file with one of them"
        raise InputError(f"{puzzle!r} is neither a file nor a puzzle", f"give {known}")
    return puzzle


def add_solve(parser: argparse.ArgumentParser) -> None:
    about = "a Sudoku of 81 characters, . or 0 for a blank; a countdown, target last; a file; - reads standard input"
    parser.add_argument("puzzle", metavar="PUZZLE", help=about)
    parser.set_defaults(too_many=too_many)
    parser.add_argument("--model", metavar="NAME", help="a directory with a model of your own instead")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU like cuda [cpu]")
    parser.add_argument("--recipe", metavar="NAME", help="settings from a .toml or .json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", metavar="FILE", help="write every step to this file (JSONL)")
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
    if args.hard and (args.solved or args.task != "sudoku"):
        raise InputError("--hard is for Sudokus to solve", "leave it out")
    if args.solved and args.clues is not None:
        raise InputError("--clues has no effect on solved boards", "leave one of them out")
    if getattr(args, own) is None:
        setattr(args, own, {"clues": 28, "numbers": 4}[own])
    for name in ("count", "seed", own):
        value, (least, most) = getattr(args, name), BOUNDS[name]
        if not least <= value <= most:
            raise InputError(f"{name} is {value}", f"it must be from {least} to {most}")
    if args.output is not None and Path(args.output).exists():
        raise InputError(f"{args.output!r} is there already", "give another name, or remove it")
    if args.output is not None and not Path(args.output).resolve().parent.is_dir():  # known before they are made
        raise InputError(f"there is no folder for {args.output!r}", "make it first")
    clues = None if args.solved else args.clues
    if args.task == "sudoku":
        lines = held_out.sudokus(args.count, clues, args.seed, args.answers, args.hard)
    else:
        lines = held_out.countdowns(args.count, args.numbers, args.seed, args.solved)
    with show.progress() as bar:
        made = list(bar.track(lines, args.count, description="making"))
    kept = [line for line in made if line is not None]
    if not kept:
        raise InputError(
            f"single candidates solve all {len(made)} of them", "make more with --count, or of fewer --clues"
        )
    if args.hard:
        print(f"{len(kept)} of {len(made)} are hard", file=sys.stderr)
    text = "".join(f"{line}\n" for line in kept)
    if args.output is None:
        print(text, end="")
    else:
        try:
            Path(args.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {args.output!r}", str(error.strerror)) from None


BOUNDS = {"count": (1, 10**7), "clues": (17, 81), "numbers": (countdown.LEAST, countdown.MOST), "seed": (0, 2**32)}


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
    about = "sudoku: only those of them that single candidates do not solve, with what these give filled in as clues"
    parser.add_argument("--hard", action="store_true", help=about)
    parser.add_argument("--solved", action="store_true", help="full rows as the model reads them, for `frequencies`")
    parser.add_argument("-o", "--output", metavar="FILE", help="instead of printing them")
