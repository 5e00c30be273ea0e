"""`unmask solve`: one puzzle -> the bundled model's answer, checked."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from unmask.cli import flags, show
from unmask.cli.parser import flag
from unmask.decoding.decode import decode_batch
from unmask.errors import InputError, UnmaskError
from unmask.evaluate.run import suits
from unmask.models import default_recipe, load
from unmask.tasks import TASKS, files, puzzle_of
from unmask.tasks.countdown import problem_text
from unmask.tasks.puzzles import sudoku
from unmask.tasks.sudoku import FIELD


def run_solve(args: Namespace) -> int:
    """Solve a puzzle with the bundled model; the exit status is 1 where its answer is wrong."""
    name, given = _puzzle(args.puzzle)
    kind = puzzle_of(TASKS[name])
    model_name = args.model or name
    recipe = flags.for_model(args, default_recipe(model_name), model_name, canvas=True)
    puzzle = kind.parse(given)
    strange = kind.check(puzzle)
    if strange == sudoku.UNKNOWN:
        warnings.warn(f"the puzzle {strange}", stacklevel=2)
    model = load(model_name, args.device)
    suits(TASKS[name], model)
    with show.following() as on_event:
        canvases = [kind.canvas(puzzle)]
        found = decode_batch(model, canvases=canvases, recipe=recipe, trace=args.trace, on_event=on_event)[0]
    answer = kind.answer(found.tokens)
    wrong = kind.fault(answer, puzzle)
    if args.json:
        graded = {
            "puzzle": sudoku.write(puzzle) if name == "sudoku" else str(puzzle),
            "answer": answer,
            "strict": wrong is None,
            "fault": wrong,
        }
        print(json.dumps({**graded, "strange": strange, **found.to_dict()}))
    else:
        print(show.board(list(map(int, answer))) if name == "sudoku" else answer)
        solved = "solved, as one of several solutions" if strange == sudoku.SEVERAL else "solved"
        print(solved if wrong is None else f"not solved: {wrong}")
        print(found.cost())
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


def add_solve(parser: ArgumentParser) -> None:
    about = "a Sudoku of 81 characters, . or 0 for a blank; a countdown, target last; a file; - reads standard input"
    parser.add_argument("puzzle", metavar="PUZZLE", help=about)
    parser.set_defaults(too_many=too_many)
    flag(parser, "--model NAME", "a directory with a model of your own instead")
    flag(parser, "--device NAME", "cpu, or a GPU like cuda [cpu]", "cpu")
    flag(parser, "--recipe NAME", "settings from a .toml or .json file, or none: not the model's default")
    flag(parser, "--json", "print one JSON object")
    flag(parser, "--trace FILE", "write every step to this file (JSONL)")
    flags.add(parser)
