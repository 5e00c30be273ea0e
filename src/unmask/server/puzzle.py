"""A puzzle as text × a model of such puzzles -> its canvas, and verdicts on what was decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.decoding.decode import Result
from unmask.models import Denoiser
from unmask.server.limits import Refusal
from unmask.tasks import TASKS, Puzzle, puzzle_of
from unmask.tasks.puzzles import countdown

HEADS = {"sudoku": 0, "countdown": countdown.HEAD}  # columns of the problem that are no part of its answer
ALPHABETS = {"sudoku": "123456789", "countdown": countdown.ALPHABET}  # what the tokens of their models spell


@dataclass(frozen=True)
class Riddle:
    """A puzzle that was understood."""

    kind: Puzzle
    puzzle: Any
    strange: str | None  # what is unusual about it, such as several solutions
    head: int  # columns before its answer

    @property
    def canvas(self) -> list[int]:
        return self.kind.canvas(self.puzzle)

    def verdicts(self, result: Result) -> dict[str, Any]:
        """For the last event: what each particle answers, and why that is wrong, null where it is right."""
        answers = [self.kind.answer(one.tokens) for one in result.particles]
        faults = [self.kind.fault(answer, self.puzzle) for answer in answers]
        return {"answers": answers, "faults": faults, "strange": self.strange}

    def verdict(self, result: Result) -> dict[str, Any]:
        """For a choice: its answer, and what is wrong with it; null where it is right."""
        answer = self.kind.answer(result.tokens)
        return {"answer": answer, "fault": self.kind.fault(answer, self.puzzle), "strange": self.strange}


def kind_of(model: Denoiser) -> str | None:
    """The puzzles that a model is made for; None for a model of text."""
    for name, letters in ALPHABETS.items():
        mine = model.vocab.mask == len(letters) and model.head.width in (len(letters), len(letters) + 1)
        if mine and [model.tokenizer.decode([token]) for token in range(len(letters))] == list(letters):
            return name
    return None


def riddle(model: Denoiser, name: str, text: str) -> Riddle:
    """A Sudoku of 81 characters, or a countdown like 15,44,79,50; refused where there is nothing to solve."""
    known = kind_of(model)
    if known is None:
        raise Refusal(400, f"{name} is no model of puzzles", "give a prompt or a canvas", param="puzzle")
    kind = puzzle_of(TASKS[known])
    puzzle = kind.parse(text)
    return Riddle(kind, puzzle, kind.check(puzzle), HEADS[known])
