"""GPQA: a question with four choices -> a letter, judged as lm-eval's flexible-extract does and by what is stated."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from random import Random

from unmask.tasks import files
from unmask.tasks.task import Example, Field, Source, Task, named

LETTERS = "ABCD"
CHOICES = tuple(f"choice{number}" for number in (1, 2, 3, 4))
WRONG = [f"Incorrect Answer {number}" for number in (1, 2, 3)]


def read(path: Path) -> list[Example]:
    """The authors' CSV; the four choices of a question are always in the same order, drawn from its id."""
    found = files.rows(path, "Question", "Correct Answer", *WRONG)
    return [example(str(row.get("Record ID") or number), row) for number, row in enumerate(found)]


def example(number: str, row: files.Row) -> Example:
    """One question with its choices shuffled; lm-eval shuffles with a global seed, anew in every run."""
    right = tidy(row["Correct Answer"])
    choices = Random(number).sample([right, *(tidy(row[name]) for name in WRONG)], 4)
    return Example(number, {"question": row["Question"], "choices": choices}, LETTERS[choices.index(right)])


def tidy(text: str) -> str:
    """A choice without the marks of the dataset, as lm-eval cleans it."""
    return re.sub(r"\[\w+\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def plain(text: str) -> str:
    """Lower case, no punctuation."""
    return "".join(sign for sign in text.lower() if not unicodedata.category(sign).startswith("P"))


def flexible(text: str, example: Example) -> bool:
    """lm-eval: the last (X); else the last choice that is written out; else the last letter after a colon."""
    found = re.findall(r"\(([A-Z])\)", text)
    if found:
        return bool(found[-1] == example.gold)
    choices = [plain(choice.strip()) for choice in example.fields["choices"]]
    found = re.findall("|".join(map(re.escape, choices)), plain(text))
    last = found[-1].strip() if found else ""
    if last:  # a choice with a blank at its end is never met: lm-eval strips what it finds
        return dict(zip(choices, LETTERS, strict=True)).get(last, last.upper()) == example.gold
    found = re.findall(r":\s*([A-D])", text)
    return bool(found) and bool(found[-1] == example.gold)


def extract(text: str, example: Example) -> str | None:
    """The letter after the first `answer is`, or the one that the text begins with."""
    found = re.search(r"answer is:?\s*\(?([A-D])\b\)?", text) or re.match(
        r"\s*(?:\(([A-D])\)|([A-D])\s*(?:[.):]|$))", text
    )
    return None if found is None else next(group for group in found.groups() if group)


def strict(text: str, example: Example) -> bool:
    """The stated letter is the right one; letters and choices that are only mentioned do not count."""
    return extract(text, example) == example.gold


ABOVE = (
    "Here are some example questions from experts. Answer the final question yourself, following the format of the "
    "previous questions exactly.\n"
)


def ask(example: Example, shots: Sequence[Example]) -> str:
    """Questions with lettered choices; the answers of the worked ones are letters in brackets."""
    worked = [f"{_question(shot)} ({shot.gold})" for shot in shots]
    return ABOVE + "\n\n".join([*worked, _question(example)])


def _question(example: Example) -> str:
    return f"Question: {example.fields['question']}\nChoices:\n{lettered(example)}\nAnswer:"


def lettered(example: Example) -> str:
    """The four choices, a line each."""
    choices = zip(LETTERS, example.fields["choices"], strict=True)
    return "\n".join(f"({letter}) {choice}" for letter, choice in choices)


def choice(place: int) -> Field:
    """One of the choices alone."""
    return Field(lambda example: str(example.fields["choices"][place]), (CHOICES[place],))


GPQA = Task(
    name="gpqa",
    about="gpqa_main: 448 questions with four choices, five worked examples among the others",
    source=Source(
        "gpqa_main.csv of the hub's Idavidrein/gpqa (agree to its terms first)",
        "Idavidrein/gpqa",
        "gpqa_main.csv",
        ("gpqa_main.csv",),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=flexible,
    strict=strict,
    answer=lambda example: f" ({example.gold})",
    length=256,
    shots=5,
    pool="others",
    stop=("</s>", "Question:", "<|im_end|>"),
    fields={
        "question": named("question"),
        "choices": Field(lettered, CHOICES),
        **{name: choice(place) for place, name in enumerate(CHOICES)},
    },
    solved={"answer": lambda example: example.gold},
)
