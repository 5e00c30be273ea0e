"""GSM8K: a word problem -> a number, judged as lm-eval's flexible-extract does and by the stated answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from unmask.tasks import files
from unmask.tasks.grading.boxes import boxed
from unmask.tasks.task import Example, Source, Task, named

LOOSE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")  # what lm-eval takes for a number
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")  # what lm-eval deletes before it compares
NUMBER = r"-?\s*\$?\s*(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
SAID = (re.compile(rf"####\s*({NUMBER})"), re.compile(rf"answer is:?\s*({NUMBER})", re.IGNORECASE))


def read(path: Path) -> list[Example]:
    """JSON lines with `question` and `answer`, which ends in `#### N`."""
    found = files.rows(path, "question", "answer")
    return [Example(str(n), {"question": row["question"]}, row["answer"]) for n, row in enumerate(found)]


def bare(text: str) -> str:
    """A number or a worked answer, without what lm-eval ignores."""
    for pattern in IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()


def flexible(text: str, example: Example) -> bool:
    """lm-eval's flexible-extract: the last number of the text is the reference."""
    found = LOOSE.findall(text)
    return bool(found) and bare(found[-1].strip()) == bare(example.gold)


def number(text: str) -> Fraction | None:
    """1,234.50, $18, \\$18 or 18\\% as a number."""
    plain = re.sub(r"\\?[$%]|[\s,]|\.$", "", text)
    return Fraction(plain) if re.fullmatch(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)", plain) else None


def extract(text: str, example: Example) -> str | None:
    """The number that the text states as its answer: after ####, in \\boxed{}, or after `answer is`."""
    text = text.replace("−", "-")
    after_hashes, after_words = (found and found[1] for found in (pattern.search(text) for pattern in SAID))
    return after_hashes or boxed(text) or after_words


def strict(text: str, example: Example) -> bool:
    """The stated answer is the same number, however it is written; a number that merely comes last does not count."""
    stated = number(extract(text, example) or "")
    return stated is not None and stated == number(example.gold.rpartition("####")[2])


def ask(example: Example, shots: Sequence[Example]) -> str:
    """Question and answer pairs with blank lines between, as lm-eval writes them."""
    worked = [f"Question: {shot.fields['question']}\nAnswer: {shot.gold}" for shot in shots]
    return "\n\n".join([*worked, f"Question: {example.fields['question']}\nAnswer:"])


GSM8K = Task(
    name="gsm8k",
    about="grade-school word problems, four worked examples of the training file",
    source=Source(
        "test.jsonl and train.jsonl from grade_school_math/data of github.com/openai/grade-school-math (MIT)",
        "openai/gsm8k",
        "main/test-00000-of-00001.parquet",
        ("gsm8k_test.jsonl", "grade_school_math/data/test.jsonl"),
        "main/train-00000-of-00001.parquet",
        ("gsm8k_train.jsonl", "grade_school_math/data/train.jsonl"),
    ),
    read=read,
    ask=ask,
    extract=extract,
    as_published=flexible,
    strict=strict,
    answer=lambda example: f" {example.gold}",
    length=256,
    shots=4,
    pool="train",
    stop=("Question:", "</s>", "<|im_end|>"),
    fields={"question": named("question")},
    solved={"answer": lambda example: example.gold},
)
