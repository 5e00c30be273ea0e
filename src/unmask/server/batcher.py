"""Jobs in a queue -> batches of equal recipes, one after the other, in a thread of their own -> what each job hears."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import Event, Parts
from unmask.errors import UnmaskError
from unmask.models import Denoiser
from unmask.server.limits import Limits, Refusal
from unmask.server.metrics import Metrics

LINGER = 0.004  # seconds without a new job after which a batch begins
LONGEST = 0.03  # seconds that the first job of a batch waits for others


class Stopped(Exception):
    """Nobody waits for this walk any more."""


@dataclass(frozen=True)
class Done:
    """A result, and how it came about."""

    result: Result
    waited: float  # seconds before it was decoded
    batch: int  # choices that were decoded together


Heard = Event | Done | BaseException


@dataclass(eq=False)
class Job:
    """One choice: a canvas, a seed, and somebody who waits for it."""

    model: str
    ids: list[int]
    prompted: bool  # the ids are a prompt, else a canvas
    recipe: Recipe  # without its seed
    seed: int
    positions: int
    deadline: float  # of time.monotonic
    hear: Callable[[Heard], None]  # called in the batcher's thread
    listens: bool = False  # whether it wants events
    logprobs: int | None = None
    asked: float = field(default_factory=time.monotonic)
    over: bool = False  # answered, or given up
    heard: int = 0  # events, in the decode that is under way
    told: int = 0  # events, all that were passed on

    @property
    def kind(self) -> tuple[object, ...]:
        """Jobs of one kind are decoded together."""
        return self.model, self.prompted, self.recipe, self.logprobs is None

    @property
    def cells(self) -> int:
        return self.recipe.build_search().particles * self.positions

    def tell(self, event: Event) -> None:
        """Pass an event on, unless it was already heard before its batch failed."""
        self.heard += 1
        if self.listens and not self.over and self.heard > self.told:
            self.told = self.heard
            self.hear(event)

    def finish(self, end: Done | BaseException) -> bool:
        """The last that it hears; whether anybody still waited."""
        waited, self.over = not self.over, True
        if waited:
            self.hear(end)
        return waited


class Batcher:
    """One thread that decodes. What fails as a batch is decoded job by job: a failure stays with its job."""

    def __init__(self, models: Mapping[str, Denoiser], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics
        self.waiting: list[Job] = []
        self.running: Sequence[Job] = ()
        self.change = threading.Condition()
        self.closing = False
        self.ended = False
        metrics.gauges["unmask_waiting"] = lambda: len(self.waiting)
        metrics.gauges["unmask_running"] = lambda: len(self.running)
        self.thread = threading.Thread(target=self._run, name="unmask-batcher", daemon=True)
        self.thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of them on, or none."""
        with self.change:
            if self.closing:
                raise Refusal(503, "the server is stopping", "ask again when it is back")
            self._forget()
            if len(self.waiting) + len(jobs) > self.limits.queue:
                said = f"{len(self.waiting)} choices wait already, of at most {self.limits.queue}"
                raise Refusal(429, said, "ask again in a while", code="queue_full")
            self.waiting += jobs
            self.change.notify()

    def cancel(self, jobs: Sequence[Job], how: str = "cancelled") -> None:
        """Nobody waits for them any more: a walk of only such jobs stops at its next step."""
        for job in jobs:
            if not job.over:
                job.over = True
                self.metrics.add("unmask_choices_total", how=how)

    def drain(self) -> None:
        """Take nothing on any more; what is under way goes on."""
        with self.change:
            self.closing = True
            self.change.notify()

    def close(self) -> None:
        """Stop at the next step; whoever still waits is told."""
        self.drain()
        with self.change:
            self.ended = True
            self.change.notify()
            left = [*self.waiting, *self.running]
        for job in left:
            job.finish(Refusal(503, "the server stopped before this was decoded", "ask again when it is back"))

    def join(self, seconds: float) -> bool:
        """Wait for the thread; whether it has ended."""
        self.thread.join(seconds)
        return not self.thread.is_alive()

    # --- in the thread ---

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            self.running = batch
            try:
                self._decode(batch)
            except BaseException as error:  # our own mistake: tell those who wait, and go on
                self._log(error)
                for job in batch:
                    self._end(job, error)
            self.running = ()

    def _next(self) -> list[Job] | None:
        """The oldest job and all others of its kind that fit; None at the end."""
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
            self._forget()
            batch = self._chosen()
            self.waiting = [job for job in self.waiting if job not in batch]
            return [] if self.ended else batch

    def _chosen(self) -> list[Job]:
        batch: list[Job] = []
        longest = 0
        for job in self.waiting:
            if batch and job.kind != batch[0].kind:
                continue
            longest = max(longest, job.positions)  # shorter rows are padded
            if batch and (len(batch) + 1) * job.cells // job.positions * longest > self.limits.cells:
                break
            batch.append(job)
            if len(batch) == self.limits.batch:
                break
        return batch

    def _forget(self) -> None:
        """Drop jobs that nobody waits for, or whose time is up."""
        now = time.monotonic()
        for job in self.waiting:
            if now > job.deadline:
                self._end(job, late(self.limits))
        self.waiting = [job for job in self.waiting if not job.over]

    def _decode(self, batch: Sequence[Job]) -> None:
        """Decode; after a failure, each by itself."""
        if not batch:
            return
        began = time.monotonic()
        self.metrics.observe("unmask_batch_choices", len(batch))
        try:
            results = self._results(batch)
        except Stopped:
            return
        except Exception as error:
            results = None
            if len(batch) == 1:
                if not isinstance(error, UnmaskError):
                    self._log(error)
                self._end(batch[0], error)
                return
        if results is None:
            self.metrics.add("unmask_retried_total", len(batch))
            for job in batch:
                if not job.over:
                    self._decode([job])
            return
        for job, result in zip(batch, results, strict=True):
            self.metrics.add("unmask_evaluations_total", result.evaluations, model=job.model)
            self.metrics.observe("unmask_wait_seconds", began - job.asked)
            self._end(job, Done(result, began - job.asked, len(batch)))

    def _results(self, batch: Sequence[Job]) -> list[Result]:
        first, ids = batch[0], [job.ids for job in batch]
        tops = [job.logprobs for job in batch if job.logprobs is not None]
        for job in batch:
            job.heard = 0
        return decode_batch(
            self.models[first.model],
            ids if first.prompted else None,
            canvases=None if first.prompted else ids,
            recipe=first.recipe,
            seeds=[job.seed for job in batch],
            on_event=self._watch(batch),
            logprobs=max(tops) if tops else None,
        )

    def _watch(self, batch: Sequence[Job]) -> Callable[[Event], None]:
        """Hands events to those who listen, and stops a walk that nobody waits for."""
        parts, listening = Parts(), any(job.listens for job in batch)

        def watch(event: Event) -> None:
            now = time.monotonic()
            for job in batch:
                if now > job.deadline and not job.over:
                    self._end(job, late(self.limits))
            if all(job.over for job in batch):
                raise Stopped
            if listening:
                for job, part in zip(batch, parts(event), strict=True):
                    if part is not None:
                        job.tell(part)

        return watch

    def _end(self, job: Job, end: Done | BaseException) -> None:
        """Tell a job how it ended, and count it."""
        how = "done" if isinstance(end, Done) else "late" if _is_late(end) else "failed"
        if job.finish(end):
            self.metrics.add("unmask_choices_total", how=how)

    def _log(self, error: BaseException) -> None:
        print("unmask: error: decoding failed", file=sys.stderr)
        traceback.print_exception(type(error), error, error.__traceback__)


def late(limits: Limits) -> Refusal:
    """The answer after too long a time."""
    said = f"not decoded within {limits.seconds:g} seconds"
    return Refusal(408, said, "ask for fewer steps, particles or tokens, or when less is going on", code="timeout")


def _is_late(end: Done | BaseException) -> bool:
    return isinstance(end, Refusal) and end.status == 408
