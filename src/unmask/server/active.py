"""One order on its way: its jobs in the queue, what they say, and the answer, at once or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from unmask.decoding.trace import Canvases, Event
from unmask.server.answer import Said, Writer, logprobs, number, path, said, whole
from unmask.server.batcher import Batcher, Done, Heard, Job, late
from unmask.server.limits import Refusal, refusal
from unmask.server.request import Order
from unmask.server.stream import Settled, sse

PENDING = 10_000  # events that a reader may be behind
Found = TypeVar("Found")


class Visit:
    """The jobs of an order, from the first to the last thing that they say."""

    def __init__(self, order: Order, batcher: Batcher, events: bool = False) -> None:
        self.order, self.batcher = order, batcher
        self.loop = asyncio.get_running_loop()
        self.box: asyncio.Queue[tuple[int, Heard]] = asyncio.Queue()
        self.deadline = time.monotonic() + batcher.limits.seconds
        self.canvases = [Canvases() for _ in order.choices]
        listens = events or order.stream or order.logprobs is not None
        self.jobs = [self._job(index, listens) for index in range(len(order.choices))]

    def _job(self, index: int, listens: bool) -> Job:
        order, choice = self.order, self.order.choices[index]

        def hear(heard: Heard) -> None:  # in the batcher's thread
            if isinstance(heard, dict) and self.box.qsize() > PENDING:
                job.finish(Refusal(408, "the events were not read in time", "read faster", code="timeout"))
                return
            try:
                self.loop.call_soon_threadsafe(self.box.put_nowait, (index, heard))
            except RuntimeError:  # the loop is closed: nobody listens
                job.over = True

        job = Job(
            order.name,
            choice.ids,
            order.prompted,
            order.recipe,
            choice.seed,
            len(choice.canvas.tokens),
            self.deadline,
            hear,
            listens,
            order.logprobs,
        )
        return job

    def begin(self) -> None:
        """Queue the jobs."""
        self.batcher.submit(self.jobs)

    def end(self) -> None:
        """Whatever is still under way is not wanted any more."""
        self.batcher.cancel(self.jobs)

    async def next(self) -> tuple[int, Event | Done]:
        """What a job says next; what went wrong is raised."""
        try:
            index, heard = await asyncio.wait_for(self.box.get(), max(0.0, self.deadline - time.monotonic()))
        except asyncio.TimeoutError:
            self.batcher.cancel(self.jobs, "late")
            raise late(self.batcher.limits) from None
        if isinstance(heard, BaseException):
            raise refusal(heard)
        return index, heard

    async def first(self) -> list[tuple[int, Event | Done]]:
        """What is said until the first step is taken: an error before it still has a status of its own."""
        said = [await self.next()]
        while isinstance(said[-1][1], dict) and said[-1][1]["event"] == "start":
            said.append(await self.next())
        return said

    async def _from(self, first: list[tuple[int, Event | Done]]) -> AsyncIterator[tuple[int, Event | Done]]:
        """What was said already, then whatever follows."""
        for message in first:
            yield message
        while True:
            yield await self.next()

    async def answer(self, writer: Writer) -> dict[str, Any]:
        """All of it, at once."""
        found: dict[int, Said] = {}
        while len(found) < len(self.jobs):
            index, heard = await self.next()
            if isinstance(heard, Done):
                found[index] = self.said(index, heard)
            else:
                self.canvases[index].apply(heard)
        return writer.answer([found[index] for index in range(len(self.jobs))])

    def said(self, index: int, done: Done) -> Said:
        """One choice, and its tokens counted."""
        order = self.order
        one = said(order, order.choices[index], done, self.canvases[index])
        self.batcher.metrics.add("unmask_tokens_total", one.decided, kind="shown")
        return one

    async def stream(self, writer: Writer, first: list[tuple[int, Event | Done]]) -> AsyncIterator[bytes]:
        """Chunks as OpenAI sends them: text as it settles, or the events of a search and then its text."""
        try:
            found: dict[int, Said] = {}
            order = self.order
            pairs = zip(order.choices, self.canvases, strict=True)
            settled = [Settled(choice, canvases, order.model, order.stop) for choice, canvases in pairs]
            async for index, heard in self._from(first):
                for chunk in self._chunks(writer, index, heard, settled[index], found):
                    yield sse(chunk)
                if len(found) == len(self.jobs):
                    break
            if self.order.usage:
                yield sse(writer.last(list(found.values())))
            yield sse("[DONE]")
        except Refusal as error:
            yield sse(error.body)

    def _chunks(
        self, writer: Writer, index: int, heard: Event | Done, settled: Settled, found: dict[int, Said]
    ) -> list[dict[str, Any]]:
        """What one thing that a job says becomes."""
        order = self.order
        if not isinstance(heard, Done):
            self.canvases[index].apply(heard)
            chunks = [writer.chunk(index, role=True)] if order.chat and heard["event"] == "start" else []
            if not order.settles:
                return [*chunks, writer.chunk(index, unmask={"event": clean(heard, order, index)})]
            text, places = settled.more()
            if text or (places and order.logprobs is not None):
                chunks.append(writer.chunk(index, text, logprobs(order, settled.known, places)))
            return chunks
        one = found[index] = self.said(index, heard)
        text, places = settled.rest(one.known.spelling, len(one.text))
        chunks = [writer.chunk(index, text, logprobs(order, one.known, places))] if text or places else []
        last = writer.chunk(index, finish=one.finish, unmask=path(heard, order.choices[index].riddle))
        if len(found) == len(self.jobs):
            last["unmask"] = whole(order, [found[place].done for place in sorted(found)])
        return [*chunks, last]

    async def paths(self, first: list[tuple[int, Event | Done]]) -> AsyncIterator[bytes]:
        """The events of a trace."""
        try:
            riddle, end = self.order.choices[0].riddle, None
            async for index, heard in self._from(first):
                if isinstance(heard, Done):
                    assert end is not None
                    yield sse({**end, **({} if riddle is None else riddle.verdicts(heard.result))}, "end")
                    break
                event = clean(heard, self.order, index)
                if event["event"] == "end":
                    end = event  # until the result is there, too
                else:
                    yield sse(event, event["event"])
        except Refusal as error:
            yield sse(error.body, "error")


def clean(event: Event, order: Order, index: int) -> Event:
    """An event as it is sent: with the seed in its recipe, and null for what is not finite."""
    if event["event"] == "start":
        recipe = {**event["recipe"], "seed": order.choices[index].seed}
        return {**event, "model": order.name, "recipe": recipe}
    if event["event"] == "end":
        return {**event, **{name: [number(one) for one in event[name]] for name in ("path_entropy", "log_evidence")}}
    return event


class Stream(StreamingResponse):
    """A stream of server-sent events; when it ends, however it ends, so does the visit."""

    def __init__(self, visit: Visit, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.visit.end()


async def unless_gone(request: Request, work: Coroutine[Any, Any, Found]) -> Found:
    """What the work gives, unless the client hangs up before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "the client has left")
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
