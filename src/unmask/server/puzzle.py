"""A puzzle as text × a model of such puzzles -> its canvas, and verdicts on the decoded answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.decoding.decode import Result
from unmask.models import Denoiser
from unmask.server.limits import Refusal
from unmask.tasks import TASKS, Puzzle, puzzle_of
from unmask.tasks.puzzles import countdown

HEADS = {"sudoku": 0, "countdown": countdown.HEAD}  # columns of the problem before its answer
ALPHABETS = {"sudoku": "123456789", "countdown": countdown.ALPHABET}  # the tokens of their models


@dataclass(frozen=True)
class ParsedPuzzle:
    """A puzzle of a request."""

    kind: Puzzle
    puzzle: Any
    warning: str | None  # a peculiarity, such as several solutions
    head: int  # columns before its answer

    @property
    def canvas(self) -> list[int]:
        return self.kind.canvas(self.puzzle)

    def verdicts(self, result: Result) -> dict[str, Any]:
        """Fields of the end event: the answer of each particle, and its fault; null for a right answer."""
        answers = [self.kind.answer(one.tokens) for one in result.particles]
        faults = [self.kind.fault(answer, self.puzzle) for answer in answers]
        return {"answers": answers, "faults": faults, "strange": self.warning}

    def verdict(self, result: Result) -> dict[str, Any]:
        """Fields of a choice: its answer, and its fault; null for a right answer."""
        answer = self.kind.answer(result.tokens)
        return {"answer": answer, "fault": self.kind.fault(answer, self.puzzle), "strange": self.warning}


def kind_of(model: Denoiser) -> str | None:
    """The kind of puzzle that a model solves; None for a model of text."""
    for name, letters in ALPHABETS.items():
        fits = model.vocab.mask == len(letters) and model.head.width in (len(letters), len(letters) + 1)
        if fits and [model.tokenizer.decode([token]) for token in range(len(letters))] == list(letters):
            return name
    return None


def parse_puzzle(model: Denoiser, name: str, text: str) -> ParsedPuzzle:
    """A Sudoku of 81 characters, or a countdown like 15,44,79,50; refused if nothing is left to solve."""
    known = kind_of(model)
    if known is None:
        raise Refusal(400, f"{name} is not a model of puzzles", "give a prompt or a canvas", param="puzzle")
    kind = puzzle_of(TASKS[known])
    puzzle = kind.parse(text)
    return ParsedPuzzle(kind, puzzle, kind.check(puzzle), HEADS[known])
