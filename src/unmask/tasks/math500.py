"""MATH500: a problem -> a formula in a box, judged as a substring (as published) and by what it means."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

from unmask.errors import InputError
from unmask.tasks import files
from unmask.tasks.grading.boxes import boxed
from unmask.tasks.task import Example, Source, Task, named

SECONDS = 5  # for one formula; math-verify can only watch the clock in the main thread


def read(path: Path) -> list[Example]:
    """JSON lines with `problem` and `answer`."""
    found = files.rows(path, "problem", "answer")
    return [
        Example(str(row.get("unique_id", n)), {"problem": row["problem"]}, row["answer"]) for n, row in enumerate(found)
    ]


# --- the graders -----------------------------------------------------------------------------------------------------


def greedy(text: str) -> str:
    """PC-Sampler's extraction: from the last `boxed{` of a line to its last `}`, dots stripped; or of `framebox{`."""
    for name in ("boxed", "framebox"):
        found = re.findall(name + "{(.*)}", text)
        if found and found[-1]:  # an empty last box is passed over
            return str(found[-1]).strip(".")
    return ""


def substring(text: str, example: Example) -> bool:
    """PC-Sampler: the reference occurs in what the greedy extraction finds, so 2 counts where the answer is 12."""
    return example.gold in greedy(text)


def extract(text: str, example: Example) -> str | None:
    """What the last box holds, its braces matched, without a full stop; else the inside of the last <answer>."""
    found = boxed(text)
    if found is None:
        tags = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        found = tags[-1] if tags else None
    return None if found is None else found.strip().strip("$").strip().removesuffix(".")


def strict(text: str, example: Example) -> bool:
    """The answer is the reference, or math-verify finds them equal."""
    answer = extract(text, example)
    return answer is not None and (answer == example.gold.strip() or equal(answer, example.gold))


def equal(answer: str, gold: str) -> bool:
    """Whether math-verify takes two formulas for the same."""
    try:
        from math_verify import parse, verify
    except ImportError:
        way_out = "pip install 'unmask[tasks]'"
        raise InputError("the strict grader of math500 needs math-verify", way_out) from None
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    one, other = (parse(f"${text}$", parsing_timeout=seconds) for text in (gold, answer))
    return bool(one and other and verify(one, other, timeout_seconds=seconds))


# --- the prompt ------------------------------------------------------------------------------------------------------

SHOWN = tuple(  # ours
    Example(str(number), {"problem": problem, "thought": thought}, answer)
    for number, (problem, thought, answer) in enumerate(
        (
            (
                "What is the sum of the first $20$ positive odd integers?",
                "The sum of the first $n$ positive odd integers is $n^2$, and $20^2 = 400$.",
                "400",
            ),
            (
                "Solve $3x + 5 = 2(x - 4)$ for $x$.",
                "The right side is $2x - 8$. Taking $2x + 5$ from both sides gives $x = -13$.",
                "-13",
            ),
            (
                "Two fair dice are rolled. What is the probability that the sum is $9$?",
                "Of $36$ outcomes, $(3,6)$, $(4,5)$, $(5,4)$ and $(6,3)$ have the sum $9$, so it is $\\frac{4}{36}$.",
                "\\frac{1}{9}",
            ),
            (
                "Simplify $\\sqrt{75} - \\sqrt{12}$.",
                "$\\sqrt{75} = 5\\sqrt{3}$ and $\\sqrt{12} = 2\\sqrt{3}$, so the difference is $3\\sqrt{3}$.",
                "3\\sqrt{3}",
            ),
        )
    )
)


def ask(example: Example, shots: Sequence[Example]) -> str:
    """Worked examples with a thought and a boxed answer between tags, and the new problem."""
    worked = [
        f"Q: {shot.fields['problem']}\n\n  A: <think>{shot.fields['thought']}</think>\n"
        f"<answer>\\boxed{{{shot.gold}}}</answer>"
        for shot in shots
    ]
    return "\n\n".join([*worked, f"Q: {example.fields['problem']}\n\n  A:\n"])


MATH500 = Task(
    name="math500",
    about="500 problems of MATH, four worked examples, the answer in a box",
    source=Source(
        "test.jsonl of the hub's HuggingFaceH4/MATH-500 (MIT)",
        "HuggingFaceH4/MATH-500",
        "test.jsonl",
        ("math500.jsonl", "MATH-500/test.jsonl"),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=substring,
    strict=strict,
    answer=lambda example: f"<answer>\\boxed{{{example.gold}}}</answer>",
    length=1024,
    shots=4,
    shown=SHOWN,
    chat=True,
    ready=lambda: equal("1", "1"),
    fields={"problem": named("problem")},
    solved={"thought": lambda example: str(example.fields["thought"]), "answer": lambda example: example.gold},
)
