"""Choices in a queue -> batches of equal recipes, decoded in a thread -> messages of each choice.

One batch runs at a time. Between two of its steps, a batch that is far smaller may be decoded first. The next batch
begins with the client for whom least work was done. Between two waves of a batch, choices of its kind whose turn it is
take the rows that became free.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence

from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.joining import Asked, decode_joining
from unmask.decoding.trace import Event, OnEvent, Parts
from unmask.errors import UnmaskError
from unmask.models import Denoiser
from unmask.server.batcher.batch import Batch
from unmask.server.batcher.choice import Decoded, QueuedChoice, work_of
from unmask.server.limits import Limits, Refusal, late
from unmask.server.metrics import Metrics

LINGER = 0.004  # a batch begins after this many seconds without a new choice
LONGEST = 0.03  # seconds that the first choice of a batch waits for others
# a batch gives way to those of at most this part of its work, whose choices are at most this part of one of its own
SMALLER = 4
NESTED = 3  # batches that wait for each other, at most


class Stopped(Exception):
    """Every choice of the batch is closed."""


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
            count, work = len(self.waiting), work_of(self.waiting)
            self.limits.check_room("choices", len(choices), len(mine), count, self.limits.queue)
            self.limits.check_room("cells × steps", work_of(choices), work_of(mine), work, self.limits.work)
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
        while (choices := self._next()) is not None:
            if choices:
                self._serve(choices)

    def _serve(self, choices: Sequence[QueuedChoice]) -> None:
        """Decode a batch, perhaps between two steps of another; only the outermost is refilled."""
        outer = self.running
        self.moved_at = time.monotonic()
        self.running, self.nested = [*outer, *choices], self.nested + 1
        batch = Batch(choices, refills=self.nested == 1)
        try:
            self._decode(batch)
        except BaseException as error:  # a bug of ours: answer the choices, and keep serving
            self._log(error)
            for choice in batch.choices:
                self._close(choice, error)
        finally:
            self.moved_at = time.monotonic()
            self.running, self.nested = outer, self.nested - 1

    def _give_way(self, batch: Batch) -> None:
        """Between two steps of a batch: decode choices that wait and are far smaller."""
        if not self.waiting or self.nested >= NESTED or not batch.clock.may_give():
            return
        with self.change:
            each = max(choice.work for choice in batch.choices) // SMALLER
            smaller = [] if self.ended else self._taken(work_of(batch.choices) // SMALLER, each)
        if smaller:
            began = time.monotonic()
            self._serve(smaller)
            batch.clock.given += time.monotonic() - began

    def _joining(self, batch: Batch) -> list[QueuedChoice]:
        """Between two waves: choices that join a batch, as long as the next one in turn is of its kind and fits."""
        with self.change:
            batch.drop_closed()
            self._drop_closed()
            joining: list[QueuedChoice] = []
            while batch.refills and batch.choices and self.waiting and not self.ended:
                choice = min(self.waiting, key=self._share)
                if not self._joins(choice, batch):
                    break
                self._take([choice])
                batch.add([choice])
                joining.append(choice)
            if batch.refills:
                self.running = batch.choices
            self.metrics.joined.inc(len(joining))
            return joining

    def _joins(self, choice: QueuedChoice, batch: Batch) -> bool:
        """Whether a batch may have this choice, too: it is no larger than one that begins with all of them."""
        together = [*batch.choices, choice]
        if choice.kind != batch.first.kind or len(together) > self.limits.batch or self._misses(together):
            return False
        longest = max(one.positions for one in together)
        return not self._too_large(choice, max(batch.most, len(together)), longest)

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
        self._take(batch)
        return batch

    def _take(self, choices: Sequence[QueuedChoice]) -> None:
        """They wait no longer, and count as work of their clients."""
        self.waiting = [choice for choice in self.waiting if choice not in choices]
        for choice in choices:
            self.served[choice.client] = self._share(choice) + choice.work

    def _share(self, choice: QueuedChoice) -> float:
        """The work that was begun for its client: the least is the next in turn; of equal ones the oldest."""
        return self.served.get(choice.client, 0.0)

    def _known(self, choices: Sequence[QueuedChoice]) -> None:
        """A client that comes (back) has no credit from before: it begins beside the one served least."""
        waiting = {choice.client for choice in self.waiting}
        least = min((self.served.get(client, 0.0) for client in waiting), default=0.0)
        new = {choice.client for choice in choices} - waiting
        self.served = {name: self.served.get(name, 0.0) for name in waiting} | dict.fromkeys(new, least)

    def _batch(self, most: float, each: float) -> list[QueuedChoice]:
        batch: list[QueuedChoice] = []
        longest = 0
        for choice in sorted(self.waiting, key=self._share):
            if choice.work > each or (batch and choice.kind != batch[0].kind) or (len(batch) + 1) * choice.work > most:
                continue
            if batch and self._misses([*batch, choice]):
                continue
            longest = max(longest, choice.positions)  # shorter rows are padded
            if batch and self._too_large(choice, len(batch) + 1, longest):
                break
            batch.append(choice)
            if len(batch) == self.limits.batch:
                break
        return batch

    def _too_large(self, choice: QueuedChoice, choices: int, longest: int) -> bool:
        """Whether so many choices like this one have more cells than a batch may."""
        return choices * choice.cells // choice.positions * longest > self.limits.cells

    def _misses(self, batch: Sequence[QueuedChoice]) -> bool:
        """Whether a batch that has half of the time would end after the deadline of one of its choices."""
        seconds = 2 * work_of(batch) / self.pace.get(batch[0].model, math.inf)
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

    def _decode(self, batch: Batch) -> None:
        """Decode a batch; if that fails, each choice alone."""
        self.metrics.batch_choices.observe(len(batch.choices))
        try:
            if batch.in_waves:
                self._decode_waves(batch)
            else:
                self._decode_whole(batch)
        except Stopped:
            return
        except BaseException as error:  # SystemExit and panics of Rust are not Exceptions
            if len(batch.choices) > 1:
                self._retry(batch.choices)
                return
            if not isinstance(error, UnmaskError):
                self._log(error)
            for choice in batch.choices:
                self._close(choice, error)
            return
        model = batch.first.model
        self.pace[model] = max(self.pace.get(model, 0.0), batch.done / batch.clock.own())

    def _finish(self, batch: Batch, choice: QueuedChoice, result: Result) -> None:
        """Answer a decoded choice and count its cost, once."""
        batch.done += choice.work
        if choice.closed:
            return
        self.metrics.evaluations.labels(model=choice.model).inc(result.evaluations)
        self.metrics.rows.labels(model=choice.model).inc(result.rows)
        waited = choice.begun_at - choice.queued_at
        self.metrics.wait_seconds.observe(waited)
        self._close(choice, Decoded(result, waited, choice.together))

    def _retry(self, choices: Sequence[QueuedChoice]) -> None:
        self.metrics.retried.inc(len(choices))
        for choice in choices:
            if not choice.closed:
                self._decode(Batch([choice]))

    def _decode_whole(self, batch: Batch) -> None:
        """Decode a batch whose choices all begin and end together."""
        first, ids = batch.first, [choice.ids for choice in batch.choices]
        tops = [choice.logprobs for choice in batch.choices if choice.logprobs is not None]
        results = decode_batch(
            self.models[first.model],
            ids if first.prompted else None,
            canvases=None if first.prompted else ids,
            recipe=first.recipe,
            stop=first.stop,
            seeds=[choice.seed for choice in batch.choices],
            form=first.form,
            on_event=self._on_event(batch),
            logprobs=max(tops) if tops else None,
        )
        for choice, result in zip(batch.choices, results, strict=True):
            self._finish(batch, choice, result)

    def _decode_waves(self, batch: Batch) -> None:
        """Decode a batch whose choices are done one by one, with those that join it."""
        first, begin = batch.first, list(batch.choices)

        def asked(choice: QueuedChoice) -> Asked:
            return Asked(
                choice.ids,
                choice.seed,
                on_result=lambda result: self._finish(batch, choice, result),
                wanted=lambda: not choice.closed,
                on_event=choice.event if choice.wants_events else None,
                logprobs=choice.logprobs,
            )

        def more() -> list[Asked]:
            new = [*begin, *self._joining(batch)]
            begin.clear()
            return [asked(choice) for choice in new]

        decode_joining(
            self.models[first.model],
            more,
            first.recipe,
            canvases=not first.prompted,
            stop=first.stop,
            form=first.form,
            on_step=lambda: self._after_step(batch),
        )

    def _on_event(self, batch: Batch) -> OnEvent:
        """A callback that passes events on."""
        parts, wanted = Parts(), any(choice.wants_events for choice in batch.choices)

        def on_event(event: Event) -> None:
            if wanted:
                for choice, part in zip(batch.choices, parts(event), strict=True):
                    if part is not None:
                        choice.event(part)
            self._after_step(batch)

        return on_event

    def _after_step(self, batch: Batch) -> None:
        """Stop a batch without open choices, or give way."""
        self.moved_at = time.monotonic()
        self._close_late(batch.choices)
        if batch.over:
            raise Stopped
        self._give_way(batch)

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
