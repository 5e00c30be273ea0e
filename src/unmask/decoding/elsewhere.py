"""A model that is in other processes: what decoding has to know of it, without its network.

A crew has the model. It is asked what the model is, and then does segments of walks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from unmask.core.denoiser import Denoiser, Head, Tokenizer, traits
from unmask.core.state import Blocks, Vocab

Job = TypeVar("Job")


@runtime_checkable
class Crew(Protocol):
    """Those who have a model, and do segments on it: a Fleet, or one process."""

    def prepare(self, jobs: Sequence[tuple[Any, Sequence[Any]]]) -> list[Any]:
        """The jobs, each prepared for its items by one who has the model."""

    def each(self, job: Any, items: Sequence[Any]) -> list[Any]:
        """What becomes of each item of a job, in their order."""


@dataclass(frozen=True)
class About:
    """What is known of a denoiser."""

    name: str
    vocab: Vocab
    width: int  # of its head
    absent: tuple[int, ...]
    limit: int | None
    cost: int
    timed: bool
    tokenizer: Tokenizer
    keeps_rows: bool
    attention: Blocks | None
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(model: Denoiser) -> About:
        """A denoiser that is here."""
        head, more = model.head, traits(model)
        kept = (more.keeps_rows, more.attention, dict(more.recipe))
        return About(
            model.name,
            model.vocab,
            head.width,
            head.absent,
            model.limit,
            model.cost,
            model.timed,
            model.tokenizer,
            *kept,
        )


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A denoiser that only its crew can ask; walks with it are done in slices of `size` particles."""

    about: About
    crew: Crew
    job: Any  # what the crew is given: `slices.Segments`
    size: int
    device: torch.device = torch.device("cpu")  # of the canvases

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def vocab(self) -> Vocab:
        return self.about.vocab

    @property
    def head(self) -> Head:
        return Head(self.about.width, absent=self.about.absent)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.about.tokenizer

    @property
    def limit(self) -> int | None:
        return self.about.limit

    @property
    def cost(self) -> int:
        return self.about.cost

    @property
    def timed(self) -> bool:
        return self.about.timed

    @property
    def keeps_rows(self) -> bool:
        return self.about.keeps_rows

    @property
    def attention(self) -> Blocks | None:
        return self.about.attention

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.about.recipe

    def look(self, state: Any, rows: Any) -> Any:
        raise AssertionError(f"{self.name} is in other processes")

    def prepared(self, recipe: Any, form: Any) -> tuple[Elsewhere, Any]:
        """The denoiser as a recipe has it, and the recipe with the blocks of its attention."""
        soon = range(-(-recipe.build_search().particles // self.size))  # slices: workers for them begin to load
        (job,) = self.crew.prepare([(replace(self.job, recipe=recipe, form=form), soon)])
        return replace(self, about=job.about, job=replace(job, about=None)), job.attending

    def each(self, items: Sequence[Any]) -> list[Any]:
        """What the crew makes of each item."""
        return self.crew.each(self.job, items)
