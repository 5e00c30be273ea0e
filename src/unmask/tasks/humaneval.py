"""HumanEval and HumanEval+: a function's head -> its body, judged by tests that a sandbox runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmask.tasks import files
from unmask.tasks.grading import code, plus
from unmask.tasks.task import Example, Field, Program, Source, Task, named, unrun

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


def read(path: Path) -> list[Example]:
    """JSON lines with `prompt`, `entry_point` and `test`."""
    found = files.rows(path, "task_id", "prompt", "entry_point", "test", "canonical_solution")
    return [Example(row["task_id"], row, row["canonical_solution"]) for row in found]


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The head of the function, verbatim."""
    return str(example.fields["prompt"])


def completed(text: str, example: Example) -> str:
    """The prompt and its continuation; a whole function, fenced or not, stands after the prompt's empty one."""
    block = code.block(text)
    whole = re.search(rf"^def +{re.escape(example.fields['entry_point'])}\b", block, re.MULTILINE)
    return str(example.fields["prompt"]) + ("\n\n" if whole else "") + block


def extract(text: str, example: Example) -> str | None:
    """The completed function, if it parses."""
    found = completed(text, example)
    return found if code.parses(found) else None


def sanitised(text: str, example: Example) -> str:
    """Open-dLLM: prompt and text up to a fence, through its sanitiser."""
    raw = example.fields["prompt"] + "\n" + code.before_fence(text)
    return code.sanitised(raw, example.fields["entry_point"])


def tested(source: str, example: Example) -> Program:
    """The code, and the tests of the row with their call; helpers that the prompt defines are those of the row."""
    row = example.fields
    reference = f"{row['prompt']}{row['canonical_solution']}\n"
    return code.program(f"{source}\n", f"{row['test']}\ncheck({row['entry_point']})\n", [row["entry_point"]], reference)


def tested_plus(source: str, example: Example) -> Program:
    """All plus inputs against the reference; where the row has no inputs, its tests hold them."""
    row = dict(example.fields)
    return plus.differential(source, row) if "plus_input" in row else tested(source, example)


HUMANEVAL = Task(
    name="humaneval",
    about="164 Python functions to complete, no examples",
    source=Source(
        "HumanEval.jsonl.gz from data/ of github.com/openai/human-eval (MIT)",
        "openai/openai_humaneval",
        "openai_humaneval/test-00000-of-00001.parquet",
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=unrun,
    strict=unrun,
    answer=lambda example: example.gold,
    length=128,
    stop=STOP,
    programs=(
        lambda text, example: tested(sanitised(text, example), example),
        lambda text, example: tested(completed(text, example), example),
    ),
    fields={"prompt": named("prompt"), "entry_point": Field(lambda example: str(example.fields["entry_point"]))},
)
PLUS = replace(
    HUMANEVAL,
    name="humaneval+",
    about="the same functions with the tests of EvalPlus",
    source=Source(
        "HumanEvalPlus.jsonl.gz from the releases of github.com/evalplus/humanevalplus_release (Apache-2.0)",
        names=("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"),
    ),
    seconds=180.0,  # the slowest reference solution takes 30
    programs=(
        lambda text, example: tested_plus(sanitised(text, example), example),
        lambda text, example: tested_plus(completed(text, example), example),
    ),
)
