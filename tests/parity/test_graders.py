"""Every recorded verdict of a public grader, through `as_published`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask.tasks import TASKS, Example, countdown, sudoku4

Line = dict[str, Any]


def dream_sudoku(line: Line) -> Example:
    return sudoku4.with_lines(sudoku4.example("", "".join(line["input"].split()), ""), line["input"])


# The task whose grader was recorded, and the question of a recorded line.
RECORDED: dict[str, tuple[str, Callable[[Line], Example]]] = {
    "sudoku": ("sudoku4", lambda line: sudoku4.example("", line["reference"], line["reference"])),
    "countdown": ("countdown-chat", lambda line: countdown.example("", "", line["reference"])),
    "dream_countdown": ("countdown-dream", lambda line: countdown.example("", line["input"], "")),
    "dream_sudoku": ("sudoku4-dream", dream_sudoku),
    "math500": ("math500", lambda line: Example("", {}, line["reference"])),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(metafunc.config.getoption("--recordings")) / "graders"
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    rows = [(name, line) for name, lines in files.items() for line in lines]
    ids = [f"{name}/{number}" for name, lines in files.items() for number in range(len(lines))]
    metafunc.parametrize(("name", "line"), rows, ids=ids)


def test_verdict(name: str, line: Line) -> None:
    task, question = RECORDED[name]
    assert TASKS[task].as_published(line["response"], question(line)) is line["correct"]
