"""The public benchmarks: files of questions -> prompts, and texts -> verdicts, as published and strict."""

from __future__ import annotations

from unmask.tasks import countdown, gpqa, gsm8k, humaneval, math500, mbpp, problems, sudoku, sudoku4
from unmask.tasks.task import Example, Outcome, Program, Puzzle, Run, Task, in_form, puzzle_of, shots
from unmask.tasks.templates import with_prompt

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        sudoku.SUDOKU,
        countdown.COUNTDOWN,
        problems.PROBLEMS,
        sudoku4.SUDOKU4,
        sudoku4.DREAM,
        countdown.CHAT,
        countdown.DREAM,
        gsm8k.GSM8K,
        math500.MATH500,
        gpqa.GPQA,
        humaneval.HUMANEVAL,
        humaneval.PLUS,
        mbpp.MBPP,
        mbpp.PLUS,
    )
}

__all__ = [
    "TASKS",
    "Example",
    "Outcome",
    "Program",
    "Puzzle",
    "Run",
    "Task",
    "in_form",
    "puzzle_of",
    "shots",
    "with_prompt",
]
