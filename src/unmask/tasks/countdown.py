"""Countdown: three to five numbers and a target -> equations that make it, judged as published and in truth."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from unmask.errors import InputError
from unmask.tasks import files
from unmask.tasks.grading.python_sums import python_sum
from unmask.tasks.puzzles import countdown
from unmask.tasks.task import Example, Puzzle, Source, Task, named

SIGNS = str.maketrans("×÷−", "*/-")  # how people write them
END = r"(?!\.?[0-9]| *=| *[-+*/] *[0-9(])"  # where a result is not the beginning of something longer
STEP = rf"[0-9(][0-9+\-*/() ]*= *[0-9]+(?:\.0+)?{END}"  # one equation, its left side being any arithmetic
CHAIN = re.compile(rf"(?<![0-9.+\-*/]){STEP}(?: *, *{STEP})*")
FIRST = re.compile(r"\d+[-+*/]\d+")  # how Dream wants a left side to begin
COUNTED = re.compile(r"\d+(?=[-+*/.=])")  # the numbers of an equation that Dream counts


def example(number: str, problem: str, gold: str) -> Example:
    """A problem like `15,44,79,50`, the target last."""
    return Example(number, {"input": problem}, gold)


def read(path: Path) -> list[Example]:
    """JSON lines with `input` and `output`."""
    found = files.rows(path, "input", "output")
    return [example(str(number), row["input"], row["output"]) for number, row in enumerate(found)]


def read_problems(path: Path) -> Iterator[Example]:
    """Lines like `15,44,79,50`, or JSON lines with such an `input`: the problems of the bundled model."""
    found = 0
    for number, line in enumerate(files.unpacked(path).splitlines(), 1):
        if line.strip():
            try:
                problem = countdown.parse(problem_text(line))
            except InputError as error:
                raise InputError(f"line {number} of {str(path)!r}: {error.message}", error.hint) from None
            yield example(str(found), str(problem), "")
            found += 1
    if not found:
        raise InputError(f"there is no countdown in {str(path)!r}", "each line needs numbers and a target: 15,44,79,50")


def problem_text(line: str) -> str:
    """The problem in a line of a file: as it is, or the `input` of a JSON object."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        problem = json.loads(line)["input"]
    except (ValueError, KeyError):
        problem = None
    if not isinstance(problem, str):
        raise InputError("there is no text `input`", 'write {"input": "15,44,79,50"}')
    return problem


# --- arithmetic ------------------------------------------------------------------------------------------------------


def value(text: str) -> tuple[Fraction, list[str]] | None:
    """What an arithmetic text comes to, and the numbers in it; None where it is not arithmetic."""
    if len(text) > 200 or not re.fullmatch(r"[0-9+\-*/() ]+", text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        used: list[str] = []
        return _value(tree, used), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr, used: list[str]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(str(node.value))
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise ValueError("not arithmetic")
    one, other = _value(node.left, used), _value(node.right, used)
    if isinstance(node.op, ast.Add):
        return one + other
    if isinstance(node.op, ast.Sub):
        return one - other
    if isinstance(node.op, ast.Mult):
        return one * other
    if isinstance(node.op, ast.Div):
        return one / other
    raise ValueError("not arithmetic")


def makes(equations: Sequence[str], numbers: Sequence[str], target: str) -> bool:
    """Whether the equations hold, use every number and every result but the last once, and end with the target."""
    left, last = list(numbers), ""
    for equation in equations:
        sides = equation.split("=")
        found = value(sides[0]) if len(sides) == 2 else None
        if found is None or not re.fullmatch(r"[0-9]{1,18}", sides[1]) or found[0] != int(sides[1]):
            return False
        for number in found[1]:
            if number not in left:
                return False
            left.remove(number)
        last = sides[1]
        left.append(last)
    return len(left) == 1 and last == target


# --- the graders -----------------------------------------------------------------------------------------------------


def substring(text: str, example: Example) -> bool:
    """PC-Sampler: the reference formula occurs in the text, character by character."""
    return example.gold in text


def dream(text: str, example: Example) -> bool:
    """Dream: every left side has the value of its right side to Python, and all numbers that it counts are used up.

    Its faults are kept: `**` and brackets are fine after a first sum, and a number before a bracket is not counted.
    """
    *numbers, target = example.fields["input"].split(",")
    left = Counter(numbers)
    for equation in text.split(","):
        sides = equation.split("=")
        if len(sides) != 2 or not FIRST.match(sides[0]) or not _as_float(sides[1], python_sum(sides[0])):
            return False
        left.subtract(COUNTED.findall(equation))
        left[sides[1]] += 1
    left[target] -= 1
    return text.rpartition("=")[2] == target and not any(left.values())


def _as_float(text: str, value: complex | None) -> bool:
    """Whether Python reads this number from a text."""
    try:
        return value is not None and value == float(text)
    except ValueError:
        return False


def extract(text: str, example: Example) -> str | None:
    """The first chain of equations after the first `answer is`, or of the whole text without it."""
    stated = re.split(r"answer is:?", text, maxsplit=1, flags=re.IGNORECASE)[-1]
    found = CHAIN.search(stated.translate(SIGNS))
    if found is None or re.search("[0-9] +[0-9]", found[0]):  # 3 0 is not 30
        return None
    return re.sub(r" |\.0+", "", found[0])


def strict(text: str, example: Example) -> bool:
    """Any equations that make the target."""
    answer = extract(text, example)
    *numbers, target = (part.strip() for part in example.fields["input"].split(","))
    return answer is not None and makes(answer.split(","), numbers, target)


def right(text: str, example: Example) -> bool:
    """The whole text is equations that make the target, as the bundled model writes them."""
    return countdown.fault(text, countdown.parse(example.fields["input"])) is None


# --- the prompts -----------------------------------------------------------------------------------------------------

RULES = (
    "You are given some numbers and, after them, a target number. Reach the target with additions, subtractions, "
    "multiplications and divisions, using every given number exactly once. Write the calculation as equations with "
    "commas between them and end with: The answer is: FORMULA"
)
SHOWN = (  # PC-Sampler's three worked examples, which are rows 1, 4 and 18 of the test file
    example("0", "15,44,79,50", "44-15=29,79-29=50"),
    example("3", "1,2,12,25", "2*12=24,1+24=25"),
    example("17", "3,85,5,30", "85+5=90,90/3=30"),
)


def spoken(example: Example) -> str:
    return f"The answer is: {example.gold}"


def ask(example: Example, shots: Sequence[Example]) -> str:
    """The rules, worked examples that end in `The answer is: FORMULA`, and the new question."""
    worked = [f"Question: {shot.fields['input']}\nSolution: {spoken(shot)}" for shot in shots]
    return "\n\n".join([RULES, *worked, f"New Question: {example.fields['input']}\nSolution: "])


def ask_dream(example: Example, shots: Sequence[Example]) -> str:
    """Pairs of a problem and its equations, for a model without a chat."""
    worked = [f"Input: {shot.fields['input']}\nOutput: {shot.gold}\n\n" for shot in shots]
    return f"{''.join(worked)}Input: {example.fields['input']}\nOutput: "


FIELDS = {"input": named("input")}
SOLVED = {"answer": lambda example: example.gold}

COUNTDOWN = Task(
    name="countdown",
    about="countdown of three to five numbers for the bundled model",
    source=Source("cd3_test.jsonl from eval/data of github.com/DreamLM/Dream (Apache-2.0)"),
    read=read_problems,
    ask=lambda example, shots: str(example.fields["input"]),
    extract=lambda text, example: text or None,
    as_published=dream,
    strict=right,
    answer=lambda example: next(countdown.solutions(countdown.parse(example.fields["input"])), ""),
    length=countdown.columns(countdown.MOST) - countdown.HEAD,
    bundled="countdown",
    puzzle=Puzzle(
        countdown.MASK, countdown.parse, countdown.check, countdown.canvas, countdown.answer, countdown.fault
    ),
    form=countdown.FORM,
)
CHAT = Task(
    name="countdown-chat",
    about="countdown as a chat; the reference formula must be met to the letter",
    source=Source("cd3_test.jsonl from eval/data of github.com/DreamLM/Dream (Apache-2.0)", names=("cd3_test.jsonl",)),
    read=read,
    ask=ask,
    extract=extract,
    as_published=substring,
    strict=strict,
    answer=spoken,
    length=128,
    shots=3,
    shown=SHOWN,
    chat=True,
    fields=FIELDS,
    solved=SOLVED,
)
DREAM = Task(
    name="countdown-dream",
    about="countdown as Dream's evaluation asks and grades it",
    source=Source("cd4_test.jsonl from eval/data of github.com/DreamLM/Dream (Apache-2.0)", names=("cd4_test.jsonl",)),
    read=read,
    ask=ask_dream,
    extract=extract,
    as_published=dream,
    strict=strict,
    answer=lambda example: example.gold,
    length=32,
    shots=8,
    pool="same",
    stop=("\n",),
    fields=FIELDS,
    solved=SOLVED,
)
