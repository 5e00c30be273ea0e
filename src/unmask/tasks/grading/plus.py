"""A row of EvalPlus and an answer -> a program that runs all base and plus inputs on it and on the reference."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmask.tasks.files import Row
from unmask.tasks.grading import remote, same
from unmask.tasks.grading.code import apart
from unmask.tasks.task import Program

LEAST, TIMES = 10, 4  # an answer may take 10 seconds and 4 times as long as the reference
DRIVER = """\
{compare}

import copy, io, signal, sys, time

said, sys.stdout = sys.stdout, io.StringIO()
inf, nan = float("inf"), float("nan")
inputs = {inputs}
deepcopy = copy.deepcopy


def expected():
    known = {{"__builtins__": builtins}}
    exec(compile({reference!r}, "reference", "exec", dont_inherit=True), known)
    return [known[{entry!r}](*deepcopy(given)) for given in inputs]


began = time.perf_counter()
wanted = expected()
signal.setitimer(signal.ITIMER_REAL, {least} + {times} * (time.perf_counter() - began))
server = {server!r}
own = {{"__name__": "remote", "__builtins__": __builtins__}}
exec(compile(server, "remote", "exec", dont_inherit=True), own)
function = own["Answer"]({source!r}, server).ask("name", {entry!r})
for given, want in zip(inputs, wanted, strict=True):
    got = function(*given)
    assert same({entry!r}, given, got, want, {tolerance!r}), given
print({proof!r}, file=said)
"""


def differential(source: str, row: Row) -> Program:
    """The answer must give what the reference gives, on every input of the row, and end in time."""
    given = inputs(row["task_id"], [*row["base_input"], *row["plus_input"]])
    reference = row["prompt"] + row["canonical_solution"]
    proof = secrets.token_hex(16)
    code = DRIVER.format(
        server=Path(remote.__file__).read_text(encoding="utf-8"),
        compare=Path(same.__file__).read_text(encoding="utf-8"),
        inputs=repr(given),
        reference=reference,
        source=source,
        entry=row["entry_point"],
        tolerance=row["atol"],
        proof=proof,
        least=LEAST,
        times=TIMES,
    )
    return Program(apart(code), proof)


# --- inputs that JSON cannot say --------------------------------------------------------------------------------------


def _deep(value: Any) -> Any:
    return tuple(map(_deep, value)) if isinstance(value, list) else value


# Which MBPP problems take tuples, sets or complex numbers, and where: numbers of problems -> their inputs as they are.
SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809": (
        lambda given: [tuple(part) for part in given]
    ),
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": (
        lambda given: [[tuple(item) for item in part] for part in given]
    ),
    "75 413 444 753": lambda given: [[tuple(item) for item in given[0]], *given[1:]],
    "106 750": lambda given: [given[0], tuple(given[1])],
    "115": lambda given: [[set(item) if isinstance(item, list) and item else {} for item in given[0]]],
    "124": lambda given: [float(given[0]), complex(given[1])],
    "250 307 405 446 617 720 763 808": lambda given: [tuple(given[0]), *given[1:]],
    "252": lambda given: [complex(given[0])],
    "259 401 445": lambda given: [tuple(tuple(item) for item in part) for part in given],
    "278": lambda given: [tuple(tuple(item) if isinstance(item, list) else item for item in given[0])],
    "580 615 791": _deep,
    "722": lambda given: [{key: tuple(value) for key, value in given[0].items()}, *given[1:]],
}
SHAPE = {f"Mbpp/{number}": shape for numbers, shape in SHAPES.items() for number in numbers.split()}


def inputs(task_id: str, given: list[Any]) -> list[Any]:
    """The inputs of a problem, with the types that its function expects."""
    shape = SHAPE.get(task_id)
    return given if shape is None else [shape(one) for one in given]
