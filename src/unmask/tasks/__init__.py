"""The public benchmarks: files of questions -> prompts, and texts -> verdicts, as published and strict."""

from __future__ import annotations

from unmask.tasks import countdown, gsm8k, math500, sudoku4
from unmask.tasks.shots import shots
from unmask.tasks.task import Example, Outcome, Program, Run, Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        sudoku4.SUDOKU4,
        sudoku4.DREAM,
        countdown.COUNTDOWN,
        countdown.DREAM,
        gsm8k.GSM8K,
        math500.MATH500,
    )
}

__all__ = ["TASKS", "Example", "Outcome", "Program", "Run", "Task", "shots"]
