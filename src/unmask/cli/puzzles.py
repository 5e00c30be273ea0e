"""`unmask puzzles`: a kind, a count and a seed -> puzzles that training never draws."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from unmask.cli import show
from unmask.cli.parser import flag, refuse
from unmask.errors import InputError, unknown
from unmask.tasks.puzzles import countdown, held_out, word_problems

KINDS: dict[str, dict[str, int | str | None]] = {  # their own flags, and the defaults of these
    "sudoku": {"clues": 28},
    "countdown": {"numbers": 4},
    "problems": {"form": "any", "people": None},
}


def run_puzzles(args: Namespace) -> None:
    """Make puzzles that no training has seen, or text of them to count tokens in."""
    if args.task not in KINDS:
        raise unknown("task", args.task, KINDS)
    own = KINDS[args.task]
    others = [name for task in KINDS.values() for name in task if name not in own]
    refuse(args, others, args.task, f"it has {' and '.join(f'--{name}' for name in own)}")
    if args.answers and (args.solved or args.task != "sudoku"):
        raise InputError(
            "--answers is for Sudokus to solve",
            "leave it out: countdown and problems have them, solved boards are them",
        )
    if args.hard and (args.solved or args.task != "sudoku"):
        raise InputError("--hard is for Sudokus to solve", "leave it out")
    if args.solved:
        refuse(args, ("clues",), "solved boards", "leave one of them out")
    for name, default in own.items():
        setattr(args, name, default if getattr(args, name) is None else getattr(args, name))
    if args.form not in (None, *FORMS):
        raise unknown("form", args.form, FORMS)
    bounds = BOUNDS | ({"people": (word_problems.FEWEST, word_problems.PLAIN_MOST)} if args.form == "plain" else {})
    for name in {"count", "seed", *own} & set(bounds):
        value, (least, most) = getattr(args, name), bounds[name]
        if value is not None and not least <= value <= most:
            raise InputError(f"{name} is {value}", f"it must be from {least} to {most}")
    if args.output is not None and Path(args.output).exists():
        raise InputError(f"{args.output!r} is there already", "give another name, or remove it")
    if args.output is not None and not Path(args.output).resolve().parent.is_dir():  # known before they are made
        raise InputError(f"there is no folder for {args.output!r}", "make it first")
    with show.progress() as bar:
        made = list(bar.track(_lines(args), args.count, description="making"))
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
        print(f"{args.output}: {show.many(len(kept), 'line')}", file=sys.stderr)


def _lines(args: Namespace) -> Iterator[str | None]:
    """The puzzles; None for one that is left out."""
    if args.task == "sudoku":
        clues = None if args.solved else args.clues
        return held_out.sudokus(args.count, clues, args.seed, args.answers, args.hard)
    if args.task == "countdown":
        return held_out.countdowns(args.count, args.numbers, args.seed, args.solved)
    return held_out.word_problems(args.count, args.seed, args.form, args.people, args.solved)


FORMS = get_args(word_problems.Form)
BOUNDS = {
    "count": (1, 10**7),
    "clues": (17, 81),
    "numbers": (countdown.LEAST, countdown.MOST),
    "people": (word_problems.FEWEST, word_problems.MOST),
    "seed": (0, 2**32),
}


def add_puzzles(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="sudoku, countdown or problems")
    flag(parser, "--count N", "how many [100]", 100)
    flag(parser, "--clues N", "sudoku: as few as that, where one solution is left [28]")
    flag(parser, "--numbers N", "countdown: of each problem, 3 to 5 [4]")
    flag(parser, "--form NAME", "problems: plain, or any, where half of them have more relations and wordings [any]")
    flag(parser, "--people N", "problems: of each, 2 to 8, or to 6 if plain [all of them]")
    flag(parser, "--seed N", "equal seeds and counts give equal puzzles [0]", 0)
    flag(parser, "--answers", "sudoku: the solution after each, for `train --corpus`")
    about = "sudoku: only those of them that single candidates do not solve, with what these give filled in as clues"
    flag(parser, "--hard", about)
    flag(parser, "--solved", "full rows as the model reads them, for `frequencies`")
    flag(parser, "-o, --output FILE", "instead of printing them")
