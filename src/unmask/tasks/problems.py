"""Word problems: who has how many, in sentences -> worked steps and a number, judged by it and by the steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InputError, many
from unmask.tasks import files
from unmask.tasks.grading.steps import equations
from unmask.tasks.gsm8k import LOOSE, NUMBER, number
from unmask.tasks.puzzles.word_problems import SOLUTION
from unmask.tasks.task import Example, Source, Task, named

STATED = re.compile(rf"answer is:?\s*({NUMBER})", re.IGNORECASE)
ENGLISH = frozenset(
    "how many much has have had does do did than the and are what there more fewer less as times twice half together "
    "find number left is he she who gives give gave buys costs each them they were was with for from every".split()
)
AMOUNTS = frozenset("one two three four five six seven eight nine ten eleven twelve twenty dozen hundred".split())
EQUATION = r"[0-9]+ [-+*/] [0-9]+ = [0-9]+"
FORM = rf"( [A-Z][A-Za-z ]* {EQUATION}(, {EQUATION})*( [a-z]+)*\.)+ The answer is [0-9]+\."
WAY_OUT = "write it like: Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?"

# --- questions -------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Example]:
    """JSON lines with `question` and `answer`, a number or a text that holds one; perhaps `steps` and a `solution`."""
    found = []
    for place, row in enumerate(files.rows(path, "question", "answer"), 1):
        try:
            fields = {"question": asked(row["question"]), "steps": _steps(row)}
            solution = row.get("solution")
            fields |= {"solution": solution} if isinstance(solution, str) else {}
            found.append(Example(str(place - 1), fields, gold(row["answer"])))
        except InputError as error:
            raise InputError(f"row {place} of {str(path)!r}: {error.message}", error.hint) from None
    return found


def asked(question: Any) -> str:
    """A question with single blanks, as the model reads it; refused if it cannot be a word problem in English."""
    if not isinstance(question, str):
        raise InputError(f"the question {question!r} is not text", WAY_OUT)
    text = " ".join(question.split())
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", text)]
    short = text if len(text) <= 60 else f"{text[:57]}…"
    if not words:
        raise InputError(f"the question {short!r} has no words" if text else "the question is empty", WAY_OUT)
    letters = [letter for letter in text if letter.isalpha()]
    latin = sum(letter < "ɐ" for letter in letters)
    if 2 * latin < len(letters) or len(ENGLISH.intersection(words)) < 2:
        raise InputError(f"the question {short!r} is not in English", "the bundled model reads English problems only")
    if not re.search("[0-9]", text) and not AMOUNTS.intersection(words):
        raise InputError(f"the question {short!r} has no number", WAY_OUT)
    return text


def gold(answer: Any) -> str:
    """The number of a reference answer: 8, "8", or a text that ends in `#### 8` or says that the answer is 8."""
    text = str(answer).strip()
    found = [text.rpartition("####")[2], *STATED.findall(text)[-1:]]
    numbers = LOOSE.findall(text)
    found += numbers if len(numbers) == 1 else []
    for one in found if type(answer) in (int, float, str) else ():
        if number(one) is not None:
            return _bare(one)
    short = text if len(text) <= 60 else f"{text[:57]}…"
    raise InputError(f"the answer {short!r} is not a number", 'give a number, or a text that ends in "#### 8"')


def _bare(text: str) -> str:
    return re.sub(r"[\s$,]|\.$", "", text)


def _steps(row: dict[str, Any]) -> int | None:
    """The worked steps of the reference, where the file has them."""
    if re.fullmatch("[0-9]{1,4}", str(row.get("steps", ""))):
        return int(row["steps"])
    worked = next((row[name] for name in ("solution", "answer") if "=" in str(row.get(name, ""))), "")
    return len(equations(str(worked))) or None


def group(example: Example) -> str | None:
    """The questions that it is counted with: those of as many worked steps, or sentences where these are not known."""
    steps = example.fields.get("steps")
    if steps is not None:
        return many(steps, "step")
    return many(len(re.findall("[.?!](?= |$)", example.fields["question"])), "sentence")


# --- verdicts --------------------------------------------------------------------------------------------------------


def stated(text: str) -> str | None:
    """The number after the last `answer is`."""
    found = STATED.findall(text)
    return _bare(found[-1]) if found else None


def fault(text: str) -> str | None:
    """What is wrong with worked steps, whatever the question; None where nothing is."""
    found = equations(text)
    wrong = [equation for equation, true in found if not true]
    if wrong:
        return ", ".join(f"{equation} is false" for equation in wrong)
    if "?" in text:
        return "it asks a question of its own"
    if stated(text) is None:
        return "it states no answer"
    return None if found else "it has no worked step"


def loose(text: str, example: Example) -> bool:
    """The number after `answer is`, or the last one of a text without these words, is the reference."""
    found = stated(text) or next(iter(LOOSE.findall(text)[-1:]), "")
    return number(found) is not None and number(found) == number(example.gold)


def strict(text: str, example: Example) -> bool:
    """The stated number is the reference, and there are worked steps that are all true."""
    return fault(text) is None and loose(text, example)


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The question alone: the model was trained on questions that their solutions continue."""
    return str(example.fields["question"])


PROBLEMS = Task(
    name="problems",
    about="word problems with worked steps for the bundled model of text",
    source=Source("JSON lines with question and answer, which `unmask puzzles problems -o FILE` writes"),
    read=read,
    ask=ask,
    extract=lambda text, example: stated(text),
    as_published=loose,
    strict=strict,
    answer=lambda example: str(example.fields.get("solution", f" The answer is {example.gold}.")),
    length=SOLUTION,
    bundled="text",
    recipe={"temperature": 0.0},  # a sum has one answer
    group=group,
    fields={"question": named("question")},
    form=FORM,
)
