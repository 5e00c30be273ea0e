"""Choices in a queue -> batches of equal recipes, decoded in a thread -> messages of each choice.

One batch runs at a time. Between two of its steps, a batch that is far smaller may be decoded first. The next batch
begins with the client for whom least work was done.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from unmask.decoding.decode import Result, decode_batch, in_waves
from unmask.decoding.form import Form
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import Event, OnEvent, Parts
from unmask.decoding.waves import most_paths, paths_of, stages
from unmask.errors import UnmaskError
from unmask.models import Denoiser
from unmask.server.limits import Limits, Refusal, late
from unmask.server.metrics import Metrics

LINGER = 0.004  # a batch begins after this many seconds without a new choice
LONGEST = 0.03  # seconds that the first choice of a batch waits for others
OWN = 0.1  # seconds that a batch runs before it gives way
# a batch gives way to those of at most this part of its work, whose choices are at most this part of one of its own
SMALLER = 4
NESTED = 3  # batches that wait for each other, at most


class Stopped(Exception):
    """Every choice of the batch is closed."""


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


@dataclass
class Clock:
    """The time of a batch: its own, and what it gave to smaller ones."""

    began: float = field(default_factory=time.monotonic)
    given: float = 0.0

    def own(self) -> float:
        return time.monotonic() - self.began - self.given

    def may_give(self) -> bool:
        """Whether it has had its share: half of the time."""
        return self.own() >= max(OWN, self.given)


class Batcher:
    """The thread that decodes. A batch that fails is decoded choice by choice, so that one cannot fail the others."""

    def __init__(self, models: Mapping[str, Denoiser], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics
        self.waiting: list[QueuedChoice] = []
        self.running: Sequence[QueuedChoice] = ()
        self.change = threading.Condition()
        self.nested = 0
        self.served: dict[str, float] = {}  # work that was begun for each client that waits or waited lately
        self.pace: dict[str, float] = {}  # the most work a second that each model has done
        self.moved_at = time.monotonic()  # when a step last began or ended
        self.closing = False
        self.ended = False
        self.broken = ""  # why nothing can be decoded in this process any more
        metrics.waiting.set_function(lambda: len(self.waiting))
        metrics.running.set_function(lambda: len(self.running))
        self.thread = threading.Thread(target=self._run, name="unmask-batcher", daemon=True)
        self.thread.start()

    def submit(self, choices: Sequence[QueuedChoice]) -> None:
        """Queue all of them, or none."""
        with self.change:
            if self.closing:
                raise Refusal(503, "the server is stopping", "retry when it is back")
            self._drop_closed()
            mine = [choice for choice in self.waiting if choices and choice.client == choices[0].client]
            count, work = len(self.waiting), _work(self.waiting)
            self.limits.check_room("choices", len(choices), len(mine), count, self.limits.queue)
            self.limits.check_room("cells × steps", _work(choices), _work(mine), work, self.limits.work)
            self._known(choices)
            self.waiting += choices
            self.change.notify()

    def stuck(self) -> float:
        """Seconds since a step began, where they are more than a request may take; else 0."""
        still = time.monotonic() - self.moved_at
        return still if self.running and still > self.limits.seconds else 0.0

    def cancel(self, choices: Sequence[QueuedChoice], how: str = "cancelled") -> None:
        """Close choices without a message: a batch of only closed choices stops at its next step."""
        for choice in choices:
            if not choice.closed:
                choice.closed = True
                self.metrics.choices.labels(how=how).inc()

    def drain(self) -> None:
        """Accept no new choices; those in the queue are still decoded."""
        with self.change:
            self.closing = True
            self.change.notify()

    def close(self) -> None:
        """Stop at the next step, and answer all open choices with an error."""
        self.drain()
        with self.change:
            self.ended = True
            self.change.notify()
            left = [*self.waiting, *self.running]
        for choice in left:
            choice.close(Refusal(503, "the server stopped before this was decoded", "retry when it is back"))

    def join(self, seconds: float) -> bool:
        """Wait for the thread; True if it has ended."""
        self.thread.join(seconds)
        return not self.thread.is_alive()

    # --- in the thread ---

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._serve(batch)

    def _serve(self, batch: Sequence[QueuedChoice]) -> None:
        """Decode a batch, perhaps between two steps of another."""
        outer = self.running
        self.moved_at = time.monotonic()
        self.running, self.nested = [*outer, *batch], self.nested + 1
        try:
            self._decode(batch)
        except BaseException as error:  # a bug of ours: answer the choices, and keep serving
            self._log(error)
            for choice in batch:
                self._close(choice, error)
        finally:
            self.moved_at = time.monotonic()
            self.running, self.nested = outer, self.nested - 1

    def _give_way(self, batch: Sequence[QueuedChoice], clock: Clock) -> None:
        """Between two steps of a batch: decode choices that wait and are far smaller."""
        if not self.waiting or self.nested >= NESTED or not clock.may_give():
            return
        with self.change:
            each = max(choice.work for choice in batch) // SMALLER
            smaller = [] if self.ended else self._taken(_work(batch) // SMALLER, each)
        if smaller:
            began = time.monotonic()
            self._serve(smaller)
            clock.given += time.monotonic() - began

    def _next(self) -> list[QueuedChoice] | None:
        """The oldest choice and all others of its kind that fit; None at the end."""
        with self.change:
            while not self.waiting:
                if self.closing:
                    return None
                self.change.wait()
            begin = time.monotonic()
            while not self.closing and time.monotonic() < begin + LONGEST:
                before = len(self.waiting)
                if before >= self.limits.batch or (not self.change.wait(LINGER) and len(self.waiting) == before):
                    break
            batch = self._taken()
            return [] if self.ended else batch

    def _taken(self, most: float = math.inf, each: float = math.inf) -> list[QueuedChoice]:
        """The next batch of at most this work, and at most so much of one choice; it waits no longer."""
        self._drop_closed()
        batch = self._batch(most, each)
        self.waiting = [choice for choice in self.waiting if choice not in batch]
        for choice in batch:
            self.served[choice.client] = self.served.get(choice.client, 0.0) + choice.work
        return batch

    def _known(self, choices: Sequence[QueuedChoice]) -> None:
        """A client that comes (back) has no credit from before: it begins beside the one served least."""
        waiting = {choice.client for choice in self.waiting}
        least = min((self.served.get(client, 0.0) for client in waiting), default=0.0)
        new = {choice.client for choice in choices} - waiting
        self.served = {name: self.served.get(name, 0.0) for name in waiting} | dict.fromkeys(new, least)

    def _batch(self, most: float, each: float) -> list[QueuedChoice]:
        batch: list[QueuedChoice] = []
        longest = 0
        for choice in sorted(self.waiting, key=lambda choice: self.served.get(choice.client, 0.0)):  # else by age
            if choice.work > each or (batch and choice.kind != batch[0].kind) or (len(batch) + 1) * choice.work > most:
                continue
            if batch and self._misses([*batch, choice]):
                continue
            longest = max(longest, choice.positions)  # shorter rows are padded
            if batch and (len(batch) + 1) * choice.cells // choice.positions * longest > self.limits.cells:
                break
            batch.append(choice)
            if len(batch) == self.limits.batch:
                break
        return batch

    def _misses(self, batch: Sequence[QueuedChoice]) -> bool:
        """Whether a batch that has half of the time would end after the deadline of one of its choices."""
        seconds = 2 * _work(batch) / self.pace.get(batch[0].model, math.inf)
        return time.monotonic() + seconds > min(choice.deadline for choice in batch)

    def _drop_closed(self) -> None:
        """Close choices after their deadline, and drop closed ones from the queue."""
        self._close_late(self.waiting)
        self.waiting = [choice for choice in self.waiting if not choice.closed]

    def _close_late(self, choices: Sequence[QueuedChoice]) -> None:
        now = time.monotonic()
        for choice in choices:
            if now > choice.deadline and not choice.closed:
                self._close(choice, late(self.limits))

    def _decode(self, batch: Sequence[QueuedChoice]) -> None:
        """Decode a batch; if that fails, each choice alone."""
        if not batch:
            return
        clock = Clock()
        began = clock.began
        self.metrics.batch_choices.observe(len(batch))
        try:
            results = self._results(batch, clock)
        except Stopped:
            return
        except BaseException as error:  # SystemExit and panics of Rust are not Exceptions
            if len(batch) > 1:
                self._retry(batch)
                return
            if not isinstance(error, UnmaskError):
                self._log(error)
            self._close(batch[0], error)
            return
        model = batch[0].model
        self.pace[model] = max(self.pace.get(model, 0.0), _work(batch) / clock.own())
        for choice, result in zip(batch, results, strict=True):
            self._finish(choice, result, began, len(batch))

    def _finish(self, choice: QueuedChoice, result: Result, began: float, together: int) -> None:
        """Answer a decoded choice and count its cost, once."""
        if choice.closed:
            return
        self.metrics.evaluations.labels(model=choice.model).inc(result.evaluations)
        self.metrics.rows.labels(model=choice.model).inc(result.rows)
        self.metrics.wait_seconds.observe(began - choice.queued_at)
        self._close(choice, Decoded(result, began - choice.queued_at, together))

    def _retry(self, batch: Sequence[QueuedChoice]) -> None:
        self.metrics.retried.inc(len(batch))
        for choice in batch:
            if not choice.closed:
                self._decode([choice])

    def _results(self, batch: Sequence[QueuedChoice], clock: Clock) -> list[Result]:
        first, ids = batch[0], [choice.ids for choice in batch]
        tops = [choice.logprobs for choice in batch if choice.logprobs is not None]
        for choice in batch:
            choice.seen = 0
        began = time.monotonic()

        def on_results(done: int, total: int, new: list[Result]) -> None:  # prompts of a stop are done one by one
            for result in new:
                if not batch[result.number].wants_events:
                    self._finish(batch[result.number], result, began, len(batch))

        return decode_batch(
            self.models[first.model],
            ids if first.prompted else None,
            canvases=None if first.prompted else ids,
            recipe=first.recipe,
            stop=first.stop,
            seeds=[choice.seed for choice in batch],
            form=first.form,
            on_event=self._on_event(batch, clock),
            logprobs=max(tops) if tops else None,
            on_results=on_results if in_waves(first.recipe) else None,
        )

    def _on_event(self, batch: Sequence[QueuedChoice], clock: Clock) -> OnEvent:
        """A callback that passes events on, stops a batch without open choices, and gives way."""
        parts, wanted = Parts(), any(choice.wants_events for choice in batch)

        def on_event(event: Event) -> None:
            self.moved_at = time.monotonic()
            self._close_late(batch)
            if all(choice.closed for choice in batch):
                raise Stopped
            if wanted:
                for choice, part in zip(batch, parts(event), strict=True):
                    if part is not None:
                        choice.event(part)
            self._give_way(batch, clock)

        return on_event

    def _close(self, choice: QueuedChoice, last: Decoded | BaseException) -> None:
        """Send the last message of a choice, and count its outcome."""
        timed_out = isinstance(last, Refusal) and last.status == 408
        how = "done" if isinstance(last, Decoded) else "late" if timed_out else "failed"
        if choice.close(last):
            self.metrics.choices.labels(how=how).inc()

    def _log(self, error: BaseException) -> None:
        if "CUDA error" in str(error):  # its context is gone
            self.broken = "the GPU has failed"
        print("unmask: error: decoding failed", file=sys.stderr)
        traceback.print_exception(type(error), error, error.__traceback__)


def _work(choices: Sequence[QueuedChoice]) -> int:
    return sum(choice.work for choice in choices)
