"""One choice of a request, in the queue or in a batch, and the messages that it gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from unmask.decoding.form import Form
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Result
from unmask.decoding.trace import Event
from unmask.decoding.waves import most_paths, paths_of, stages


@dataclass(frozen=True)
class Decoded:
    """A result with the time and the company in which it was decoded."""

    result: Result
    waited: float  # seconds in the queue
    batch: int  # choices that were decoded together


Message = Event | Decoded | BaseException


@dataclass(eq=False)
class QueuedChoice:
    """One choice of a request, in the queue or in a batch."""

    model: str
    ids: list[int]
    prompted: bool  # the ids are a prompt, else a canvas
    recipe: Recipe  # without its seed
    seed: int
    positions: int
    deadline: float  # of time.monotonic
    on_message: Callable[[Message], None]  # called in the batcher's thread
    wants_events: bool = False
    logprobs: int | None = None
    client: str = ""  # the address that asks
    form: Form | None = None  # what the text must be
    stop: tuple[str, ...] = ()  # what ends the text after a prompt
    queued_at: float = field(default_factory=time.monotonic)
    begun_at: float = 0.0  # when its batch began, or when it joined one
    together: int = 1  # choices of its batch, the most at one time
    closed: bool = False  # answered or cancelled
    seen: int = 0  # events of the current decode
    sent: int = 0  # events that were passed on

    @property
    def kind(self) -> tuple[object, ...]:
        """Choices of one kind are decoded together."""
        return self.model, self.prompted, self.recipe, self.logprobs is None, self.form, self.stop

    @cached_property
    def cells(self) -> int:
        return most_paths(self.recipe) * self.positions

    @cached_property
    def work(self) -> int:
        """Cells × steps, about, of all samplers that the recipe may come to."""
        return sum(
            paths_of(stage.build_search()) * self.positions * int(stage.get("steps") or stage.length or self.positions)
            for stage in stages(self.recipe)
        )

    def begin(self) -> None:
        """A batch takes it."""
        self.begun_at, self.together, self.seen = time.monotonic(), 1, 0

    def event(self, event: Event) -> None:
        """Pass an event on, unless it was sent before its batch failed and is decoded again."""
        self.seen += 1
        if self.wants_events and not self.closed and self.seen > self.sent:
            self.sent = self.seen
            self.on_message(event)

    def close(self, last: Decoded | BaseException) -> bool:
        """Send the last message; False if the choice was closed already."""
        was_open, self.closed = not self.closed, True
        if was_open:
            self.on_message(last)
        return was_open


def work_of(choices: Sequence[QueuedChoice]) -> int:
    return sum(choice.work for choice in choices)
