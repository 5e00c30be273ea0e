"""`unmask solve`: one puzzle -> the bundled model's answer, checked."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from unmask.cli import flags, show
from unmask.cli.parser import flag
from unmask.core.denoiser import Denoiser
from unmask.decoding.decode import decode_batch
from unmask.decoding.defaults import canonical, over
from unmask.decoding.prompt import encode
from unmask.decoding.recipe import Recipe
from unmask.errors import AlikeWarning, InputError, UnmaskError, many
from unmask.evaluate.run import suits
from unmask.models import default_recipe, load
from unmask.tasks import TASKS, Example, Task, files, in_form, problems, puzzle_of
from unmask.tasks.countdown import problem_text
from unmask.tasks.grading.steps import equations
from unmask.tasks.puzzles import sudoku
from unmask.tasks.sudoku import FIELD

KNOWN = "a Sudoku of 81 characters, a countdown like 15,44,79,50, a word problem, or a file with one of them"
LEAST = 16  # positions for the answer to a word problem


def run_solve(args: Namespace) -> int:
    """Solve a puzzle with the bundled model; the exit status is 1 where its answer is wrong."""
    warnings.simplefilter("ignore", AlikeWarning)  # it is noted below the answer
    name, given = _puzzle(args.puzzle)
    task = in_form(TASKS[name]) if args.constrained else TASKS[name]
    model_name = str(args.model or task.bundled)
    # what is asked says how long the answer is
    recipe = flags.for_model(args, _default(task, model_name), model_name, canvas=True)
    if name == "problems":
        return _work_out(args, recipe, problems.asked(given))
    kind = puzzle_of(task)
    puzzle = kind.parse(given)
    strange = kind.check(puzzle)
    if strange == sudoku.UNKNOWN:
        warnings.warn(f"the puzzle {strange}", stacklevel=2)
    model = load(model_name, args.device)
    suits(task, model)
    with show.following() as on_event:
        canvases = [kind.canvas(puzzle)]
        how = {"recipe": recipe, "trace": args.trace, "on_event": on_event}
        how |= {"matches": task.form if task.constrained else None}
        found = decode_batch(model, canvases=canvases, **how)[0]
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
        show.answer(show.board(list(map(int, answer))) if name == "sudoku" else answer)
        solved = "solved, as one of several solutions" if strange == sudoku.SEVERAL else "solved"
        show.note(solved if wrong is None else f"not solved: {wrong}")
        show.note(found.cost())
        if found.alike:
            show.note(show.ALIKE)
    return 0 if wrong is None else 1


def _default(task: Task, model: str) -> dict[str, Any]:
    """The default settings of a model, with those that the task has for all models."""
    return {**canonical(default_recipe(model)), **task.recipe}


def _work_out(args: Namespace, recipe: Recipe, question: str) -> int:
    """Have a word problem worked out in steps; the exit status is 1 where they are false, or end in no answer."""
    task = problems.PROBLEMS
    model = load(args.model or str(task.bundled), args.device)
    if recipe.length is None:
        recipe = recipe.replace(length=_room(model, question, task.length))
    example = Example("0", {"question": question}, "")
    with show.following() as on_event:
        answer = [lambda text: task.extract(text, example)] if recipe.build_search().choose.needs_answers else None
        how = {"recipe": recipe, "answer": answer, "trace": args.trace, "on_event": on_event}
        found = decode_batch(model, [question], **how, matches=task.form if args.constrained else None)[0]
    stated, wrong, steps = problems.stated(found.text), problems.fault(found.text), equations(found.text)
    if args.json:
        false = [equation for equation, true in steps if not true]
        worked = {"puzzle": question, "answer": stated, "worked": len(steps), "false": false, "fault": wrong}
        print(json.dumps({**worked, **found.to_dict()}))
        return 0 if wrong is None else 1
    show.answer(found.text.strip())
    shown = f"{many(len(steps), 'worked step')}, {'their' if len(steps) > 1 else 'its'} arithmetic is true"
    show.note(f"answer {stated}: {shown}" if wrong is None else f"not solved: {wrong}")
    show.note(found.cost())
    return 0 if wrong is None else 1


def _room(model: Denoiser, question: str, length: int) -> int:
    """The positions for an answer, fewer than `length` after a long question."""
    given = len(encode(model, question))
    room = length if model.limit is None else min(length, model.limit - given)
    if room < LEAST:
        way_out = "tell it in fewer sentences"
        raise InputError(
            f"the question has {given} tokens, and {model.name} holds {model.limit} with the answer", way_out
        )
    return room


def _puzzle(given: str) -> tuple[str, str]:
    """The kind and the text of a puzzle."""
    text = _given(given)
    if not text.strip():
        raise InputError("the puzzle is empty", f"give {KNOWN}")
    lines = [line for line in text.splitlines() if line.strip()]
    name = _kind(text)
    if name == "problems":
        return name, _problem(given, text)
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


def _problem(given: str, text: str) -> str:
    """The question of a word problem: the text itself, or the field of a JSON line as `unmask puzzles` writes it."""
    lines = [line for line in text.splitlines() if line.strip()]
    coded = lines[0].lstrip().startswith("{")
    count = sum(coded or line.rstrip().endswith("?") for line in lines)
    if count > 1:
        file = shlex.quote(given) if coded and given not in ("-", text) else "FILE.jsonl"
        raise InputError(f"{given!r} holds {count} puzzles", f"`unmask eval problems --data {file}` decodes them all")
    if not coded:
        return text
    try:
        return str(json.loads(text)["question"])
    except (ValueError, KeyError, TypeError):
        raise InputError("there is no text `question`", 'write {"question": "Tom has 5 apples. …"}') from None


def _kind(text: str) -> str:
    if not FIELD.search(text) and _in_words(text):
        return "problems"
    return "countdown" if "," in text and not FIELD.search(text) else "sudoku"


def _in_words(text: str) -> bool:
    """Whether a text is sentences, or JSON with a question: neither a board nor numbers nor the name of a file."""
    if re.match(r'\s*\{.*"(question|input)"\s*:', text, re.DOTALL):
        return '"question"' in text
    foreign = any(letter.isalpha() and letter > "ɏ" for letter in text)
    return foreign or len(re.findall(r"(?<!\S)[^\W\d_]+[.,?!]?(?!\S)", text)) > 2


def too_many(args: Namespace, extra: list[str]) -> UnmaskError:
    """The error for more words than one puzzle."""
    words = [word.strip() for word in (args.puzzle, *extra)]
    if all(re.fullmatch(r"\d{1,3}[,;]?", word) for word in words):
        return InputError(f"{' '.join(words)!r} has blanks", f"write {','.join(word.rstrip(',;') for word in words)}")
    if len("".join(words)) == sudoku.CELLS:
        return InputError(f"{' '.join(words)!r} has blanks", "put quotes around it")
    if _in_words(" ".join(words)):
        return InputError(f"{' '.join(words)!r} has blanks", "put quotes around the whole problem")
    name = "sudoku" if words[0] == "-" else _kind(_given(args.puzzle))
    way = f"put one on each line of a file, and `unmask eval {name} --data FILE` decodes them all"
    return InputError(f"solve takes one puzzle, and these are {len(words)}", way)


def _given(puzzle: str) -> str:
    """A puzzle as it is, from a file, or from standard input."""
    with suppress(OSError, ValueError):  # a puzzle may be no possible name of a file
        if puzzle == "-" or Path(puzzle).is_file():
            return files.read(puzzle)
    if _in_words(puzzle):
        return puzzle
    letters = re.search(r"[^\W\d_]|/", puzzle) is not None
    if letters and "," not in puzzle and len("".join(puzzle.split())) != sudoku.CELLS:
        raise InputError(f"{puzzle!r} is neither a file nor a puzzle", f"give {KNOWN}")
    return puzzle


def _notes() -> str:
    """The settings that hold without a flag, which are not the defaults that the flags show."""
    lines = []
    for name in ("sudoku", "countdown", "problems"):
        task = TASKS[name]
        found = over({}, _default(task, str(task.bundled)), str(task.bundled), canvas=True)
        lines.append(f"  {name:10} {found.to_text()}")
    return "\n".join(
        [
            "Brackets show defaults of samplers and searches. The model's default recipe goes before them; flags",
            "override it, and --recipe none leaves it out. `unmask models NAME` shows that of a model; here they are:",
            *lines,
        ]
    )


def add_solve(parser: ArgumentParser) -> None:
    parser.epilog = f"{_notes()}\n\n{parser.epilog}"
    known = "a Sudoku of 81 characters, . or 0 for a blank; a countdown, target last; a word problem in quotes"
    about = f"{known}; a file; - reads standard input"
    parser.add_argument("puzzle", metavar="PUZZLE", help=about)
    parser.set_defaults(too_many=too_many)
    flag(parser, "--model NAME", "a directory with a model of your own instead")
    flag(parser, "--device NAME", "cpu, a GPU like cuda, or auto [cpu]", "cpu")
    flag(parser, "--recipe NAME", "settings from a .toml or .json file, or none: not the model's default")
    flag(parser, "--constrained", "decode the answer in the form of right ones only: countdowns and word problems")
    flag(parser, "--json", "print one JSON object")
    flag(parser, "--trace FILE", "write every step to this file (JSONL)")
    flags.add(parser, below=True)
