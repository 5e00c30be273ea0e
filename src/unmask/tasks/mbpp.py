"""MBPP and MBPP+: a sentence and three asserts -> a function, judged by tests that a sandbox runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmask.errors import InputError
from unmask.tasks import files
from unmask.tasks.grading import code, plus
from unmask.tasks.task import Example, Field, Program, Source, Task, named, unrun

STOP = ("\nclass", "\n#", "\nif", "\nprint")
TEST = range(11, 511)  # task ids of the test split


def read(path: Path) -> list[Example]:
    """JSON lines with `text`, `code` and `test_list`; the 500 problems of the test split."""
    found = files.rows(path, "task_id", "text", "code", "test_list")
    return [Example(str(row["task_id"]), row, row["code"]) for row in found if row["task_id"] in TEST]


def read_plus(path: Path) -> list[Example]:
    """The JSON lines of EvalPlus, with `assertion`, `base_input` and `plus_input`."""
    found = files.rows(path, "task_id", "prompt", "entry_point", "canonical_solution", "assertion", "plus_input")
    return [Example(row["task_id"], row | described(row), row["canonical_solution"]) for row in found]


def described(row: files.Row) -> dict[str, object]:
    """The sentence and the asserts of a row of EvalPlus."""
    text = row["prompt"].strip().strip('"').strip().partition("\nassert")[0]
    ahead, *asserts = re.split(r"(?:^|\n)(?=assert\b)", row["assertion"].rstrip())
    if not asserts:
        raise InputError(f"{row['task_id']} has no asserts", "give the file of EvalPlus")
    asserts[0] = (ahead + "\n" + asserts[0]).lstrip()  # a few rows import something first
    return {"text": text, "test_list": asserts}


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The sentence, three asserts, and an opened fence right after them, as Open-dLLM has it."""
    return f"{example.fields['text']} Your code should pass these tests:\n\n{tests(example)}```python\n"


def tests(example: Example) -> str:
    """The asserts that the prompt shows: three, a line each."""
    return "\n".join(example.fields["test_list"][:3])


def extract(text: str, example: Example) -> str | None:
    """The code of the answer, if it parses."""
    found = code.block(text)
    return found if code.parses(found) else None


def published(text: str, example: Example) -> Program:
    """Open-dLLM: the text without fences, and three asserts; no set-up code, and never the plus tests."""
    return _program(text.replace("```", "") + "\n", "\n".join([*example.fields["test_list"][:3], ""]), example)


def tested(text: str, example: Example) -> Program:
    """The code of the answer, then the set-up code, then all asserts."""
    row = example.fields
    tests = "\n".join([row.get("test_setup_code") or "", *row["test_list"], ""])
    return _program(f"{code.block(text)}\n", tests, example)


def _program(answer: str, tests: str, example: Example) -> Program:
    """Tests of what the reference solution defines; what it imports is not taken from the answer."""
    return code.program(answer, tests, code.defined(example.gold), code.imports(example.gold))


def tested_plus(text: str, example: Example) -> Program:
    """All base and plus inputs against the reference."""
    return plus.differential(code.block(text), dict(example.fields))


MBPP = Task(
    name="mbpp",
    about="500 small Python functions from a sentence and three asserts",
    source=Source(
        "mbpp.jsonl from mbpp/ of github.com/google-research/google-research (CC-BY-4.0)",
        "google-research-datasets/mbpp",
        "full/test-00000-of-00001.parquet",
        ("mbpp.jsonl",),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=unrun,
    strict=unrun,
    answer=lambda example: f"{example.gold}\n```",
    length=128,
    stop=STOP,
    programs=(published, tested),
    fields={"text": named("text"), "tests": Field(tests, ("tests",))},
)
PLUS = replace(
    MBPP,
    name="mbpp+",
    about="378 of them; strict runs the plus tests, which the published harness never does",
    source=Source(
        "MbppPlus.jsonl.gz from the releases of github.com/evalplus/mbppplus_release (Apache-2.0)",
        names=("MbppPlus.jsonl.gz", "MbppPlus.jsonl"),
    ),
    read=read_plus,
    seconds=180.0,  # the slowest reference solution takes 30
    programs=(published, tested_plus),
)
