"""A task, its questions and perhaps a file of others -> the worked examples that each question's prompt shows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from unmask.errors import InputError
from unmask.tasks.task import Example, Task

SEED = 1234  # lm-eval's for worked examples


def shots(task: Task, questions: Sequence[Example], pool: Sequence[Example] | None = None) -> list[list[Example]]:
    """For each question, in the order of the file: the task's own examples, or those of the pool.

    `same`: the first ones of the file itself, for all questions. `train`: drawn anew for every question from another
    file. `others`: drawn from the questions, leaving out the one that is asked.
    """
    if task.shown or not task.shots:
        return [list(task.shown)] * len(questions)
    if pool is None and task.pool == "train":
        raise InputError(f"{task.name} draws its worked examples from another file", "give the training questions")
    found = list(questions if pool is None else pool)
    extra = task.pool == "others"
    if len(found) < task.shots + extra:
        raise InputError(f"{len(found)} questions to draw from", f"{task.name} shows {task.shots} of them")
    if task.pool == "same":
        return [found[: task.shots]] * len(questions)
    dice = Random(SEED)
    drawn = [dice.sample(found, task.shots + extra) for _ in questions]
    pairs = zip(questions, drawn, strict=True)
    return [[one for one in some if not extra or one.id != question.id][: task.shots] for question, some in pairs]
