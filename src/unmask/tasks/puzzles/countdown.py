"""Countdown: numbers and a target -> exact solutions, and why an answer is wrong; the text that the model reads.

In the public text format a problem is `15,44,79,50`, the last number being the target, and an answer is
`44-15=29,79-29=50`: every number is used once, and so is every result but the last. The model sees the same characters
in fixed columns: numbers from the largest to the smallest and set to the right, blanks between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from unmask.errors import InputError, many

ALPHABET = "0123456789+-*/=,: "
MASK = len(ALPHABET)
LEAST, MOST = 3, 5  # numbers of a problem
HEAD = 18  # columns of the problem: five numbers, and the target after a colon
LEFT, RIGHT = 4, 3  # digits of an equation's larger operand and of its result; of its smaller operand
EQUATION = LEFT + 1 + RIGHT + 1 + LEFT + 1  # with the comma after it, which the last one lacks
NUMBER = "(0|[1-9][0-9]{0,17})"


def _cell(width: int) -> str:
    """A pattern of numbers set to the right of this many columns."""
    longer = [f" {{{width - size}}}[1-9][0-9]{{{size - 1}}}" for size in range(2, width + 1)]
    return f"({'|'.join([f' {{{width - 1}}}[0-9]', *longer])})"


_EQUATION = f"{_cell(LEFT)}[-+*/]{_cell(RIGHT)}={_cell(LEFT)}"
FORM = f"{_EQUATION}(,{_EQUATION})*"  # of answers as the model writes them


@dataclass(frozen=True)
class Problem:
    """Make the target of all the numbers."""

    numbers: tuple[int, ...]
    target: int

    def __str__(self) -> str:
        return ",".join(map(str, (*self.numbers, self.target)))


def parse(text: str) -> Problem:
    """A problem like `15,44,79,50`: three to five numbers and the target, all from 1 to 99."""
    parts = [part.strip() for part in text.strip().split(",")]
    way_out = "write a countdown as numbers and the target: 15,44,79,50"
    for part in parts:
        if not part and len(parts) > 1:
            raise InputError(f"a number is missing beside a comma of {text.strip()!r}", way_out)
        if not re.fullmatch(r"-?[0-9]{1,9}", part):
            raise InputError(f"{part!r} is not a number", way_out)
        if not 1 <= int(part) <= 99:
            raise InputError(f"{part} is not from 1 to 99", "the model knows numbers and targets from 1 to 99")
    if not LEAST <= len(parts) - 1 <= MOST:
        raise InputError(
            f"there are {many(len(parts) - 1, 'number')} and a target",
            f"give {LEAST} to {MOST} numbers, the target last",
        )
    numbers = tuple(map(int, parts))
    return Problem(numbers[:-1], numbers[-1])


# --- what is true ----------------------------------------------------------------------------------------------------


def solutions(problem: Problem) -> Iterator[str]:
    """Every answer, larger operands first; orders of the same equations count as different answers."""
    yield from _finish(problem.numbers, problem.target, "")


def check(problem: Problem) -> str | None:
    """Refuse a problem without a solution; there is no remark on the others, which mostly have several."""
    if next(solutions(problem), None) is None:
        raise InputError(f"no answer makes {problem.target} of these numbers", "every number is used once; change one")
    return None


def _finish(numbers: tuple[int, ...], target: int, written: str) -> Iterator[str]:
    if len(numbers) == 1:
        if numbers[0] == target:
            yield written[1:]
        return
    tried = set()
    for i, one in enumerate(numbers):
        for j in range(i):
            a, b = max(one, numbers[j]), min(one, numbers[j])
            if (a, b) in tried:
                continue
            tried.add((a, b))
            rest = numbers[:j] + numbers[j + 1 : i] + numbers[i + 1 :]
            for sign, result in _results(a, b):
                yield from _finish((*rest, result), target, f"{written},{a}{sign}{b}={result}")


def _results(a: int, b: int) -> Iterator[tuple[str, int]]:
    """What a and b can become, a not being less than b: whole numbers, from 0."""
    yield "+", a + b
    yield "-", a - b
    yield "*", a * b
    if b and a % b == 0:
        yield "/", a // b


def fault(answer: str, problem: Problem) -> str | None:
    """Why an answer is wrong, in a few words; None where it is right."""
    left = list(problem.numbers)
    result = None
    for equation in answer.split(","):
        found = re.fullmatch(f" *{NUMBER} *([-+*/]) *{NUMBER} *= *{NUMBER} *", equation)
        if found is None:
            return f"{equation!r} is not an equation"
        a, sign, b, result = int(found[1]), found[2], int(found[3]), int(found[4])
        for number in (a, b):
            if number not in left:
                return f"{number} in {equation} is not there, or used before"
            left.remove(number)
        if not _holds(a, sign, b, result):
            return f"{equation} is false"
        left.append(result)
    if len(left) > 1:
        return f"{', '.join(map(str, left[:-1]))} left over"
    return None if result == problem.target else f"it ends with {result}, not {problem.target}"


def _holds(a: int, sign: str, b: int, result: int) -> bool:
    if sign == "/":
        return b != 0 and a == b * result
    return result == {"+": a + b, "-": a - b, "*": a * b}[sign]


# --- what the model reads --------------------------------------------------------------------------------------------


def columns(count: int) -> int:
    """The length of a canvas for a problem of `count` numbers."""
    return HEAD + EQUATION * (count - 1) - 1


def canvas(problem: Problem) -> list[int]:
    """Token ids: the problem, then masks for the answer."""
    if not isinstance(problem, Problem):
        raise InputError(f"{problem!r} is not a Problem", "make one with countdown.parse")
    numbers = ",".join(f"{number:2}" for number in sorted(problem.numbers, reverse=True))
    head = f"{numbers:14}:{problem.target:2}:"
    return [*(ALPHABET.index(c) for c in head), *[MASK] * (columns(len(problem.numbers)) - HEAD)]


def problem(tokens: list[int]) -> Problem:
    """The problem at the head of a canvas."""
    head = "".join(ALPHABET[token] for token in tokens[:HEAD])
    return parse(f"{head[:14].strip()},{head[15:17]}")


def answer(tokens: list[int]) -> str:
    """The answer in a full canvas, without its blanks; one inside a number shows as _, as a mask does."""
    text = "".join(ALPHABET[token] if token < MASK else "_" for token in tokens[HEAD:])
    return re.sub("(?<=[0-9]) +(?=[0-9])", "_", text).replace(" ", "")
