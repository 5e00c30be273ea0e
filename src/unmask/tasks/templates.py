"""A file of text with <<fields>> -> a task that asks with it.

What stands between <<examples>> and <<end>> is written once for every worked example; without these marks the prompt
shows none but its own. A mark that ends a line takes the end of the line with it. All else is kept as it is, the last
newline too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unmask.errors import InputError, unknown
from unmask.tasks import files
from unmask.tasks.task import Example, Task, Wording

MOST = 1 << 20  # characters
FIELD = re.compile(r"<<([A-Za-z_][A-Za-z0-9_]*)>>")  # GSM8K's <<48/2=24>> is text
BLOCK = re.compile(r"<<examples>>\n?(.*?)<<end>>\n?", re.DOTALL)
MARKS = {"examples": "end", "end": "examples"}  # each needs the other

Texts = Mapping[str, Callable[[Example], str]]  # the name of a field -> what it says of a question


def with_prompt(task: Task, path: str | Path) -> Task:
    """The task, asked with the prompt of a file."""
    sha256 = hashlib.sha256(files.raw(Path(path))).hexdigest()
    return worded(task, files.read(path), Wording(Path(path).name, sha256))


def worded(task: Task, text: str, wording: Wording) -> Task:
    """The task, asked with a template."""
    if task.puzzle is not None:
        raise InputError(f"{task.name} has no prompt, its model is given a canvas", "leave the prompt out")
    if len(text) > MOST:
        raise InputError(f"the prompt {wording.name!r} has more than {MOST:,} characters", "give a shorter one")
    if text.count("<<examples>>") > 1:
        raise InputError(f"the prompt {wording.name!r} has <<examples>> twice", "worked examples stand in one place")
    before, *rest = BLOCK.split(text)
    _check(task, text, before, rest, wording.name)
    shown, after = rest or (None, "")
    question: Texts = {name: one.text for name, one in task.fields.items()}
    worked: Texts = {**question, **task.solved}

    def ask(example: Example, shots: Sequence[Example]) -> str:
        examples = [] if shown is None else [_filled(shown, worked, shot) for shot in shots]
        return "".join([_filled(before, question, example), *examples, _filled(after, question, example)])

    made = replace(task, ask=ask, wording=wording)
    return made if shown is not None else replace(made, shots=0, shown=(), pool="")


def _filled(text: str, fields: Texts, example: Example) -> str:
    return FIELD.sub(lambda found: fields[found[1]](example), text)


# --- what can be wrong with one --------------------------------------------------------------------------------------


def _check(task: Task, text: str, before: str, rest: Sequence[str], name: str) -> None:
    """Refuse a template that cannot ask the questions of the task."""
    if not text.strip():
        raise InputError(f"the prompt {name!r} is empty", f"it needs {_marks(task.fields)}")
    used = FIELD.findall("".join([before, *rest[1:]]))
    for mark, other in MARKS.items():
        if mark in used:
            raise InputError(f"the prompt {name!r} has <<{mark}>> without <<{other}>>", "write both, or neither")
    for field in used:
        if field in task.solved:
            raise InputError(f"the prompt {name!r} gives <<{field}>> away", "write it between <<examples>> and <<end>>")
        _check_known(field, task.fields, name)
    said = {part for field in used for part in task.fields[field].says}
    for part in (part for field in task.fields.values() for part in field.says if part not in said):
        ways = [field for field, one in task.fields.items() if part in one.says]
        raise InputError(f"the prompt {name!r} leaves out the {part} of {task.name}", f"write {_marks(ways, 'or')}")
    if rest:
        _check_examples(task, FIELD.findall(rest[0]), name)


def _check_examples(task: Task, used: Collection[str], name: str) -> None:
    if not task.shots:
        raise InputError(f"the prompt {name!r} has <<examples>>", f"{task.name} has none, leave them out")
    for field in used:
        _check_known(field, {**task.fields, **task.solved}, name)
    if not task.solved.keys() & set(used):
        raise InputError(f"the examples of the prompt {name!r} have no answer", f"write {_marks(task.solved, 'or')}")


def _check_known(field: str, known: Collection[str], name: str) -> None:
    if field not in known:
        error = unknown("field", field, known)
        raise InputError(f"the prompt {name!r}: {error.message}", error.hint)


def _marks(fields: Collection[str], word: str = "and") -> str:
    marks = [f"<<{field}>>" for field in fields]
    return f" {word} ".join([", ".join(marks[:-1]), marks[-1]] if marks[1:] else marks)
