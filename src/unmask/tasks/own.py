"""Questions and a grader of the user's -> a Task; `read_task` runs a Python file that defines one.

Such a file is the user's own code and runs with the user's rights: nothing confines it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from unmask.errors import InputError, UnmaskError, first_line, unknown
from unmask.tasks import TASKS, files
from unmask.tasks.task import DefinedIn, Example, Source, Task, Wording, named

Questions = Iterable[Any] | Mapping[str, Any]  # prompts, pairs (prompt, answer), or a mapping prompt -> answer
Grade = Callable[..., Any]  # (text) or (text, answer) -> True or False
Sent = tuple[str, str | None]  # name of a task, or place of its file and the SHA-256
FILE = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)  # my_task.py, or my_task.py:name
MOST = 1_000_000  # questions
WAY = "define one: `@task(questions)` over a function of text and answer (`from unmask import task`)"

# --- a task from Python ----------------------------------------------------------------------------------------------


def task(
    questions: Questions | Callable[[Path], Questions],
    *,
    name: str | None = None,
    length: int = 128,
    chat: bool = False,
    stop: Sequence[str] = (),
    extract: Callable[[str], str | None] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Callable[[Grade], Task]:
    """Make a Task of a grader: a function of the generated text, and of the answer where questions have one.

    `questions` are prompts, pairs (prompt, answer) or a mapping; or a function that reads them from the path that
    `--data` gives. `length` is in tokens. `chat` asks through the model's chat template, `stop` ends the text,
    `extract` finds the answer that a vote counts, `recipe` are settings over the model's default.
    """
    if not isinstance(length, int) or length < 1:
        raise InputError(f"length is {length!r}", "give the number of tokens to generate")
    if name is not None and (not isinstance(name, str) or not name.strip() or not name.isprintable()):
        raise InputError(f"the name of a task is {name!r:.60}", "give a few letters")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise InputError("stop holds something else than texts", "give one or more, none of them empty")
    if recipe is not None and not isinstance(recipe, Mapping):
        raise InputError(f"recipe is a {type(recipe).__name__}", "give settings by their names")

    def made(grade: Grade) -> Task:
        own, about = name or grade.__name__, inspect.getdoc(grade) or "a task of your own"
        right, read = _grader(grade, own), questions if callable(questions) else None
        held = () if callable(questions) else tuple(_examples(questions, own))
        return Task(
            name=own,
            about=about.splitlines()[0],
            source=Source("the file that its function reads, with --data" if read else "the questions in its code"),
            read=lambda path: _examples(_read(read, path, own), own),
            ask=lambda example, shots: str(example.fields["prompt"]),
            extract=lambda text, example: _found(extract, text, own),
            as_published=right,
            strict=right,
            answer=lambda example: example.gold,
            length=length,
            chat=chat,
            stop=stops,
            ready=lambda: _try(right, own, held),
            recipe=dict(recipe or {}),
            fields={"prompt": named("prompt")},
            held=held,
        )

    return made


def _examples(questions: Questions, task: str) -> Iterator[Example]:
    """The questions as Examples, each checked."""
    if isinstance(questions, str | bytes) or not isinstance(questions, Iterable):
        raise InputError(f"the questions of {task} are {type(questions).__name__}", "give a list of pairs, or a dict")
    items = questions.items() if isinstance(questions, Mapping) else questions
    number = -1
    for number, one in enumerate(items):
        if number == MOST:
            raise InputError(f"{task} has more than {MOST:,} questions", "give fewer: they are read before the first")
        pair = (one, None) if isinstance(one, str) else one
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InputError(f"question {number + 1} of {task} is {one!r:.60}", "give a prompt, or (prompt, answer)")
        yield Example(str(number), {"prompt": pair[0], "answer": pair[1]}, "" if pair[1] is None else str(pair[1]))
    if number < 0:
        raise InputError(f"{task} has no questions", "give at least one")


def _read(read: Callable[[Path], Questions] | None, path: Path, task: str) -> Questions:
    """The questions of a file, as the user's function reads them."""
    if read is None:
        raise InputError(f"{task} has its questions in its code", "leave the file out")
    try:
        found = read(path)
        return found if isinstance(found, Mapping | str) or not isinstance(found, Iterable) else list(found)
    except UnmaskError:
        raise
    except Exception as error:
        raise InputError(f"cannot read the questions of {task} from {str(path)!r}", _described(error)) from None


def _grader(grade: Grade, task: str) -> Callable[[str, Example], bool]:
    """The user's function as a grader of a Task."""
    try:
        needed = [one for one in inspect.signature(grade).parameters.values() if one.default is one.empty]
    except (TypeError, ValueError):
        needed = []
    if len(needed) not in (1, 2) or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise InputError(f"the grader of {task} is not a function of (text) or (text, answer)", "give one of them")

    def right(text: str, example: Example) -> bool:
        given = (text, example.fields["answer"])[: len(needed)]
        where = "an empty text" if not text else f"question {int(example.id) + 1}"
        verdict = _called(_verdict, (grade, *given), f"the grader of {task} fails on {where}")
        if type(verdict) is not bool:
            raise InputError(f"the grader of {task} returned {_short(verdict)}", "return True or False")
        return verdict

    return right


def _called(function: Callable[..., Any], given: Sequence[Any], what: str) -> Any:
    """What a function of the user's returns; what it raises, in one line."""
    try:
        return function(*given)
    except UnmaskError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(what, _described(error)) from None


def _verdict(grade: Grade, *given: Any) -> Any:
    """What a grader returns, as a bool if it is one of any library."""
    found = grade(*given)
    return bool(found) if found in (True, False) else found


def _short(value: Any) -> str:
    """A value in an error; of a class of the user's its name, for its own words may fail."""
    plain = value is None or isinstance(value, str | int | float)
    return f"{value!r:.40}" if plain else f"a {type(value).__name__}"


def _try(right: Callable[[str, Example], bool], task: str, held: Sequence[Example]) -> None:
    """Refuse a grader that fails on an empty text, before the long work."""
    for example in held[:1]:
        right("", example)


def _found(extract: Callable[[str], str | None] | None, text: str, task: str) -> str | None:
    """The answer in a text: what `extract` finds, by default all of it."""
    if extract is None:
        return text.strip() or None
    found = _called(extract, (text,), f"extract of {task} fails on {text!r:.40}")
    return None if found is None else str(found)


def questions_sha256(examples: Iterable[Example]) -> str:
    """The hash of questions that are part of a task's code."""
    pairs = [[example.fields.get("prompt"), example.fields.get("answer")] for example in examples]
    try:
        written = json.dumps(pairs, default=lambda value: type(value).__name__)
    except (TypeError, ValueError, RecursionError) as error:  # keys that are no texts, lists inside themselves
        raise InputError("the answers of the questions cannot be told apart", first_line(error)) from None
    return hashlib.sha256(written.encode()).hexdigest()


# --- a task from a file ----------------------------------------------------------------------------------------------


def is_file(name: str) -> bool:
    """Whether this names a Python file, and so not a task of the package."""
    return FILE.fullmatch(name) is not None


def read_task(name: str | Path) -> Task:
    """The task that a Python file defines; `file.py:name` where it defines several. The file is run, unconfined."""
    found = FILE.fullmatch(str(name))
    if found is None:
        raise InputError(f"{str(name)!r} is not a Python file", "give a file that ends in .py")
    path, wanted = Path(found[1]).expanduser(), found[2]
    code = files.raw(path)
    module = _run(path, code)
    tasks = _tasks(module)
    if not tasks:
        raise InputError(f"{str(path)!r} defines no task", WAY)
    if wanted is None and len(tasks) > 1:
        raise InputError(f"{str(path)!r} defines {len(tasks)} tasks", f"choose one, as {path}:{next(iter(tasks))}")
    if wanted is not None and wanted not in tasks:
        raise unknown("task", wanted, tasks)
    sha256 = hashlib.sha256(code).hexdigest()
    name = wanted or next(iter(tasks))
    defined = DefinedIn(path.name, sha256, f"{path.resolve()}:{name}")
    return replace(tasks[name], wording=Wording(path.name, sha256), defined_in=defined)


# --- a task in another process ---------------------------------------------------------------------------------------

GRADES = ("extract", "as_published", "strict", "programs", "puzzle", "stop", "group", "seconds")


def sent(task: Task) -> Sent:
    """The name of a task, or of the file that defines it with its hash: a task holds functions, which stay here."""
    if task.defined_in is not None:
        return task.defined_in.place, task.defined_in.sha256
    known = TASKS.get(task.name)
    if known is None or any(getattr(known, name) != getattr(task, name) for name in GRADES):
        way = "define it in a Python file, and read it with `unmask.tasks.own.read_task`"
        raise InputError(f"the task {task.name} cannot be sent to other processes", way)
    return task.name, None


def received(name: Sent) -> Task:
    """The task that was sent; a file must be there, too, with the same content."""
    task = TASKS[name[0]] if name[1] is None else read_task(name[0])
    if task.defined_in is not None and task.defined_in.sha256 != name[1]:
        raise InputError(
            f"{name[0].rpartition(':')[0]!r} differs on {platform.node()}", "copy the file to every machine"
        )
    return task


def _run(path: Path, code: bytes) -> ModuleType:
    """Run a file as Python does, with its folder first among those that it imports from."""
    module = ModuleType(f"task_file_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        exec(compile(code, str(path), "exec", dont_inherit=True), vars(module))
    except UnmaskError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot run {str(path)!r}", _described(error, str(path))) from None
    return module


def _tasks(module: ModuleType) -> dict[str, Task]:
    """The tasks that a file defines, by the names of its variables; those of the package that it imports are not."""
    known = {id(task) for task in TASKS.values()}
    found: dict[str, Task] = {}
    for name, value in vars(module).items():
        if isinstance(value, Task) and id(value) not in known:
            known.add(id(value))
            found[name] = value
    return found


def _described(error: BaseException, path: str | None = None) -> str:
    """An error of the user's code in one line: where it happened, its class and its text."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == path] if path is not None else frames[1:]
    if line is None and inside:
        line = inside[-1].lineno
    said = error.msg if isinstance(error, SyntaxError) else first_line(error)
    kind = type(error).__name__
    return f"{'' if line is None else f'line {line}: '}{kind}{'' if said == kind else f': {said}'}"
