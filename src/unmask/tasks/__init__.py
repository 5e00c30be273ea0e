"""The public benchmarks: files of questions -> prompts, and texts -> verdicts, as published and strict."""

from __future__ import annotations

from unmask.tasks import countdown, gpqa, gsm8k, humaneval, math500, mbpp, sudoku4, sudoku9
from unmask.tasks.shots import shots
from unmask.tasks.task import Example, Outcome, Program, Run, Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        sudoku9.SUDOKU9,
        sudoku4.SUDOKU4,
        sudoku4.DREAM,
        countdown.COUNTDOWN,
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

__all__ = ["TASKS", "Example", "Outcome", "Program", "Run", "Task", "shots"]
