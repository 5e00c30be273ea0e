"""A job × items -> rows as they come. `Here` is the crew of one process; others send the parts of a job to many.

A part is a pure function of the job, the model and its items: done twice it gives the same rows, so that whatever was
lost is done again. Rows are stored by the process that runs the job, and by no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from unmask.core.denoiser import Denoiser, traits
from unmask.decoding.trace import OnEvent
from unmask.evaluate.parts import Part, cut, lacking
from unmask.evaluate.rows import Line

Store = Callable[[list[Line]], None]


class Job(Protocol):
    """A kind of work on a model, made of values that can be sent to another process."""

    @property
    def size(self) -> int:
        """Items that are decoded together."""

    @property
    def refills(self) -> bool:
        """Whether prompts stop early and the next ones take their rows, so that a part may be of any size."""

    def check(self) -> None:
        """Refuse what cannot be done on this machine, before the long work."""

    def prepared(self, model: Denoiser, items: Sequence[Any]) -> Job:
        """The job after all checks of its items that need the model's tokenizer and not its network."""

    def do(self, model: Denoiser, items: Sequence[Any], store: Store, on_event: OnEvent | None = None) -> None:
        """Decode the items of a part together, and store their rows, once or as they come."""


@runtime_checkable
class Crew(Protocol):
    """Those who do the parts of a job."""

    @property
    def device(self) -> torch.device:
        """Where parts are decoded."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The default settings of the model."""

    @property
    def refill(self) -> int | None:
        """Batches in a part whose rows are refilled; None: all items are one part."""

    def prepare(self, job: Job, items: Sequence[Any]) -> Job:
        """The job, prepared by one who has the model."""

    def work(self, job: Job, parts: Sequence[Part], store: Store) -> None:
        """Do all parts; `store` is called in this process with the rows of each, in any order, perhaps twice."""


@dataclass(frozen=True)
class Here:
    """One process with a loaded model: part after part."""

    model: Denoiser
    on_event: OnEvent | None = None
    refill: int | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return traits(self.model).recipe

    def prepare(self, job: Job, items: Sequence[Any]) -> Job:
        return job.prepared(self.model, items)

    def work(self, job: Job, parts: Sequence[Part], store: Store) -> None:
        for part in parts:
            job.do(self.model, part.items, store, self.on_event)


def crew_of(model: Denoiser | Crew, on_event: OnEvent | None = None) -> Crew:
    """The crew that is given, or this process with the model that is given."""
    return model if isinstance(model, Crew) else Here(model, on_event)


def run(crew: Crew, job: Job, items: Sequence[Any], store: Store, done: Collection[int] = ()) -> None:
    """The rows of all items but for the numbers in `done`, each stored once."""
    whole = job.refills and crew.refill is None
    size = max(1, len(items)) if whole else job.size * (crew.refill or 1) if job.refills else job.size
    todo = lacking(cut(items, size), done, job.refills)
    if not todo:
        return
    there = set(done)

    def keep(rows: list[Line]) -> None:
        new = [row for row in rows if row["number"] not in there]
        there.update(row["number"] for row in new)
        if new:
            store(new)

    crew.work(crew.prepare(job, items), todo, keep)
