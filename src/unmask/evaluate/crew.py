"""Jobs × items -> rows as they come. `Here` is the crew of one process; others send the parts of jobs to many.

A part is a pure function of the job, the model and its items: done twice it gives the same rows, so that whatever was
lost is done again. Rows are stored by the process that runs the job, and by no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from unmask.core.denoiser import traits
from unmask.errors import UnmaskError
from unmask.evaluate.parts import Part, cut, lacking
from unmask.evaluate.rows import Line, Rows

if TYPE_CHECKING:  # a judge decodes nothing
    from unmask.decoding.trace import OnEvent

Store = Callable[[list[Line]], None]


class Job(Protocol):
    """A kind of work on a model, or a judge, made of values that can be sent to another process."""

    @property
    def size(self) -> int:
        """Items that are decoded together."""

    @property
    def refills(self) -> bool:
        """Whether prompts stop early and the next ones take their rows, so that a part may be of any size."""

    def check(self) -> None:
        """Refuse what cannot be done on this machine, before the long work."""

    def prepared(self, model: Any, items: Sequence[Any]) -> Job:
        """The job after all checks of its items that need the model's tokenizer and not its network."""

    def do(self, model: Any, items: Sequence[Any], store: Store, on_event: OnEvent | None = None) -> None:
        """Decode the items of a part together, and store their rows, once or as they come."""


@dataclass(frozen=True)
class Work:
    """A job and its items in order; `done` are the numbers of those that have rows, `store` gets the other rows."""

    job: Job
    items: Sequence[Any]
    store: Store
    done: Collection[int] = ()
    on_end: Callable[[], None] = lambda: None  # called once all items have rows
    prepared: bool = False  # whether its job is


@runtime_checkable
class Crew(Protocol):
    """Those who do the parts of jobs."""

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

    @property
    def origin(self) -> Mapping[str, Any]:
        """What the header of rows says of who makes them: fields that differ from those of this process."""

    def prepare(self, jobs: Sequence[tuple[Job, Sequence[Any]]]) -> list[Job]:
        """The jobs, each prepared for its items by one who has the model."""

    def work(self, jobs: Sequence[Job], parts: Sequence[Part], store: Callable[[Part, list[Line]], None]) -> None:
        """Do all parts; `store` is called in this process with the rows of each, in any order, perhaps twice."""


@dataclass(frozen=True)
class Here:
    """One process with a loaded model: part after part."""

    model: Any
    on_event: OnEvent | None = None
    refill: int | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def name(self) -> str:
        return str(self.model.name)

    @property
    def settings(self) -> Mapping[str, Any]:
        return traits(self.model).recipe

    @property
    def origin(self) -> Mapping[str, Any]:
        return {}

    def prepare(self, jobs: Sequence[tuple[Job, Sequence[Any]]]) -> list[Job]:
        return [job.prepared(self.model, items) for job, items in jobs]

    def work(self, jobs: Sequence[Job], parts: Sequence[Part], store: Callable[[Part, list[Line]], None]) -> None:
        for part in parts:
            jobs[part.job].do(self.model, part.items, partial(store, part), self.on_event)

    def each(self, job: Job, items: Sequence[Any]) -> list[Any]:
        """What becomes of each item of a job: a walk in slices is done so."""
        return each(self, job, items)


def each(crew: Crew, job: Job, items: Sequence[Any]) -> list[Any]:
    """What becomes of each item of a job, in their order; every item is a part of its own."""
    found: dict[int, list[Any]] = {}

    def store(part: Part, rows: list[Any]) -> None:
        found.setdefault(part.number, rows)

    parts = cut(items, 1)
    crew.work([job], parts, store)
    lost = [part.number for part in parts if part.number not in found]
    if lost:
        what = f"workers were lost while they did slices {', '.join(str(one + 1) for one in lost[:4])}"
        raise UnmaskError(what, "no slice can be left out: leave skip_lost out, and give a smaller slice_size")
    return [row for part in parts for row in found[part.number]]


def crew_of(model: Any, on_event: OnEvent | None = None) -> Crew:
    """The crew that is given, or this process with the model or judge that is given."""
    return model if isinstance(model, Here | Crew) else Here(model, on_event)


def run(crew: Crew, works: Sequence[Work]) -> None:
    """The rows of all items of all works but for what is done, each stored once; their parts stand in one line."""
    left = [_left(crew, work) for work in works]
    todo = [(work, parts) for work, parts in zip(works, left, strict=True) if parts]
    for work, parts in zip(works, left, strict=True):
        if not parts:
            work.on_end()
    if not todo:
        return
    missing = [{one.number for one in work.items} - set(work.done) for work, _ in todo]

    def keep(part: Part, rows: list[Line]) -> None:
        work, lacks = todo[part.job][0], missing[part.job]
        new = [row for row in rows if row["number"] in lacks]
        lacks.difference_update(row["number"] for row in new)
        if new:
            work.store(new)
        if new and not lacks:
            work.on_end()

    raw = iter(crew.prepare([(work.job, work.items) for work, _ in todo if not work.prepared]))
    jobs = [work.job if work.prepared else next(raw) for work, _ in todo]
    line = [replace(part, job=job) for job, (_, parts) in enumerate(todo) for part in parts]
    crew.work(jobs, [replace(part, number=number) for number, part in enumerate(line)], keep)


def _left(crew: Crew, work: Work) -> list[Part]:
    """The parts that lack rows."""
    job, count = work.job, max(1, len(work.items))
    size = job.size if not job.refills else count if crew.refill is None else job.size * crew.refill
    return lacking(cut(work.items, size), work.done, job.refills)


def resumed(
    job: Job,
    items: Sequence[Any],
    crew: Crew,
    kept: Rows,
    on_rows: Callable[[], None] = lambda: None,
    on_end: Callable[[], None] = lambda: None,
) -> Work:
    """What a file of rows lacks; `on_rows` is called after each batch."""

    def store(new: list[Line]) -> None:
        kept.note(crew.origin)  # which workers make them
        kept.add(new)
        on_rows()

    return Work(job, items, store, {int(row["number"]) for row in kept.kept}, on_end)
