"""Requests of lm-eval as jobs of a crew: texts, likelihoods, and whether answers are greedy; and what a model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.core.denoiser import Denoiser, Tokenizer
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.likelihood import Piece, Question, greedy, score
from unmask.decoding.trace import OnEvent
from unmask.evaluate.crew import Store
from unmask.evaluate.lm_eval.arguments import TextRequest
from unmask.evaluate.rows import Line
from unmask.models.wrap import Guided

QUESTIONS = 64  # whose likelihoods are a part; the network gets fewer rows at a time


@dataclass(frozen=True)
class Plain:
    """What jobs have in common that can be done anywhere, and whose rows are not refilled."""

    size: int  # items of a part

    @property
    def refills(self) -> bool:
        return False

    def check(self) -> None:
        """Nothing is graded here."""


@dataclass(frozen=True)
class About(Plain):
    """What is known of a model, once it is prepared; there is nothing to do."""

    size: int = 1
    name: str = ""
    device: str = ""
    limit: int | None = None
    tokenizer: Tokenizer | None = None

    def prepared(self, model: Denoiser, items: Sequence[object]) -> About:
        return About(1, model.name, str(model.device), model.limit, model.tokenizer)

    def do(self, model: Denoiser, items: Sequence[object], store: Store, on_event: OnEvent | None = None) -> None:
        """Nothing."""


# --- texts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """A text that is requested."""

    number: int  # its place among the requests
    ids: list[int]
    dropped: int  # tokens of the prompt, at its left, that have no room
    seed: int


@dataclass(frozen=True)
class Texts(Plain):
    """Prompts -> texts up to their stop strings, and what they took."""

    ask: TextRequest

    def prepared(self, model: Denoiser, items: Sequence[Prompt]) -> Texts:
        return self

    def do(self, model: Denoiser, items: Sequence[Prompt], store: Store, on_event: OnEvent | None = None) -> None:
        votes = self.ask.recipe.build_search().choose.needs_answers
        found = decode_batch(
            model,
            [one.ids for one in items],
            recipe=self.ask.recipe,
            seeds=[one.seed for one in items],
            stop=self.ask.until,
            answer=self.ask.cut if votes else None,
        )
        store([self._row(*pair) for pair in zip(items, found, strict=True)])

    def _row(self, one: Prompt, result: Result) -> Line:
        return {
            "number": one.number,
            "text": self.ask.cut(result.text),
            "path_entropy": result.path_entropy,
            "steps": result.steps,
            "calls": result.calls,
            "evaluations": result.evaluations,
            "lineages": result.lineages,
            "seed": result.seed,
            "prompt_tokens": len(one.ids),
            "dropped_tokens": one.dropped,
            "recipe": result.recipe.to_dict(),
        }


# --- likelihoods -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """An answer whose likelihood is asked."""

    number: int  # its place among the requests
    question: Question


@dataclass(frozen=True)
class Bounds(Plain):
    """Answers -> bounds of their likelihoods."""

    draws: int
    together: int  # rows through the network at a time
    guidance: float = 0.0

    def prepared(self, model: Denoiser, items: Sequence[Scored]) -> Bounds:
        return self

    def do(self, model: Denoiser, items: Sequence[Scored], store: Store, on_event: OnEvent | None = None) -> None:
        denoiser = Guided(model, self.guidance) if self.guidance > 0 else model
        for place, bound in score(denoiser, [one.question for one in items], self.draws, self.together):
            store([{"number": items[place].number, "bound": bound}])


def longest_first(items: Sequence[Scored]) -> list[Scored]:
    """In the order in which `score` takes them, so that parts have answers of like lengths."""
    return sorted(items, key=lambda one: -max((len(p.given) + len(p.target) for p in one.question.pieces), default=0))


@dataclass(frozen=True)
class Answer:
    """A piece of an answer that may be greedy."""

    number: int  # its place among the pieces
    piece: Piece


@dataclass(frozen=True)
class Greedy(Plain):
    """Pieces of answers -> whether they are what greedy decoding gives, and the evaluations that it took to know."""

    guidance: float = 0.0

    def prepared(self, model: Denoiser, items: Sequence[Answer]) -> Greedy:
        return self

    def do(self, model: Denoiser, items: Sequence[Answer], store: Store, on_event: OnEvent | None = None) -> None:
        found = greedy(model, [one.piece for one in items], self.guidance)
        pairs = zip(items, found, strict=True)
        store([{"number": one.number, "greedy": flag, "evaluations": more} for one, (flag, more) in pairs])
