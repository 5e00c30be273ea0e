"""One request in progress: its choices in the queue, their messages, and the response, whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from unmask.decoding.trace import Canvases, Event
from unmask.server.answer import ChoiceText, Writer, choice_text, logprobs, number, path_field, request_field
from unmask.server.batcher import Batcher, Decoded, Message, QueuedChoice
from unmask.server.limits import Refusal, late, refusal
from unmask.server.request import ParsedRequest
from unmask.server.stream import SentText, sse

PENDING = 10_000  # unread events of a request
Found = TypeVar("Found")
Indexed = tuple[int, Event | Decoded]  # a message, and the index of its choice


class ActiveRequest:
    """The choices of a request, from the queue to their last message."""

    def __init__(self, request: ParsedRequest, batcher: Batcher, events: bool = False, client: str = "") -> None:
        self.request, self.batcher, self.writer, self.client = request, batcher, Writer(request), client
        self.loop = asyncio.get_running_loop()
        self.messages: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()
        self.deadline = time.monotonic() + batcher.limits.seconds
        self.canvases = [Canvases() for _ in request.choices]
        self.texts: dict[int, ChoiceText] = {}  # of the decoded choices, by index
        wants_events = events or request.stream or request.logprobs is not None
        self.queued = [self._queued(index, wants_events) for index in range(len(request.choices))]

    def _queued(self, index: int, wants_events: bool) -> QueuedChoice:
        request, choice = self.request, self.request.choices[index]

        def on_message(message: Message) -> None:  # in the batcher's thread
            if isinstance(message, dict) and self.messages.qsize() > PENDING:
                queued.close(Refusal(408, "the events were not read in time", "read faster", code="timeout"))
                return
            try:
                self.loop.call_soon_threadsafe(self.messages.put_nowait, (index, message))
            except RuntimeError:  # the loop is closed
                queued.closed = True

        queued = QueuedChoice(
            request.name,
            choice.ids,
            request.prompted,
            request.recipe,
            choice.seed,
            len(choice.canvas.tokens),
            self.deadline,
            on_message,
            wants_events,
            request.logprobs,
            self.client,
            request.form,
            request.stop if request.prompted else (),
        )
        return queued

    def submit(self) -> None:
        """Queue the choices."""
        self.batcher.submit(self.queued)

    def cancel(self) -> None:
        """Cancel the choices that are still open."""
        self.batcher.cancel(self.queued)

    async def next(self) -> Indexed:
        """The next message; an error is raised."""
        try:
            index, message = await asyncio.wait_for(self.messages.get(), max(0.0, self.deadline - time.monotonic()))
        except asyncio.TimeoutError:
            self.batcher.cancel(self.queued, "late")
            raise late(self.batcher.limits) from None
        if isinstance(message, BaseException):
            raise refusal(message)
        return index, message

    async def first(self) -> list[Indexed]:
        """The messages up to the first step: an error before it can still have an HTTP status."""
        found = [await self.next()]
        while isinstance(found[-1][1], dict) and found[-1][1]["event"] == "start":
            found.append(await self.next())
        return found

    async def _from(self, first: list[Indexed]) -> AsyncIterator[Indexed]:
        """The first messages, then all others."""
        for message in first:
            yield message
        while True:
            yield await self.next()

    async def answer(self) -> dict[str, Any]:
        """The whole response."""
        while len(self.texts) < len(self.queued):
            self._receive(*await self.next())
        return self.writer.answer([self.texts[index] for index in range(len(self.queued))])

    def _receive(self, index: int, message: Event | Decoded) -> None:
        """Apply an event to the canvases of its choice, or keep the text of a decoded choice."""
        if not isinstance(message, Decoded):
            self.canvases[index].apply(message)
            return
        choice = self.request.choices[index]
        text = self.texts[index] = choice_text(self.request, choice, message, self.canvases[index])
        self.batcher.metrics.tokens.labels(kind="shown").inc(text.decided)

    async def stream(self, first: list[Indexed]) -> AsyncIterator[bytes]:
        """Chunks as OpenAI sends them: text once it is final, or the events of a search and then its text."""
        request = self.request
        pairs = zip(request.choices, self.canvases, strict=True)
        sent = [SentText(choice, canvases, request.model, request.stop) for choice, canvases in pairs]
        try:
            async for index, message in self._from(first):
                self._receive(index, message)
                if isinstance(message, Decoded):
                    chunks = self._last_chunks(index, sent[index])
                else:
                    chunks = self._chunks(index, message, sent[index])
                for chunk in chunks:
                    yield sse(chunk)
                if len(self.texts) == len(self.queued):
                    break
            if request.include_usage:
                yield sse(self.writer.last(list(self.texts.values())))
            yield sse("[DONE]")
        except Refusal as error:
            yield sse(error.body)

    def _chunks(self, index: int, event: Event, sent: SentText) -> list[dict[str, Any]]:
        """The chunks of one event."""
        request, writer = self.request, self.writer
        chunks = [writer.chunk(index, role=True)] if request.chat and event["event"] == "start" else []
        if not request.streams_text:
            return [*chunks, writer.chunk(index, unmask={"event": public(event, request, index)})]
        text, places = sent.more()
        if text or (places and request.logprobs is not None):
            chunks.append(writer.chunk(index, text, logprobs(request, sent.known, places)))
        return chunks

    def _last_chunks(self, index: int, sent: SentText) -> list[dict[str, Any]]:
        """The rest of a decoded choice, and its finish reason; the last choice also has the figures of the request."""
        request, one = self.request, self.texts[index]
        text, places = sent.rest(one.known.spelling, len(one.text))
        chunks = [self.writer.chunk(index, text, logprobs(request, one.known, places))] if text or places else []
        field = path_field(one, request.choices[index].puzzle)
        last = self.writer.chunk(index, finish=one.reason, unmask=field)
        if len(self.texts) == len(self.queued):
            last["unmask"] = request_field(request, [self.texts[place].decoded for place in sorted(self.texts)])
        return [*chunks, last]

    async def paths(self, first: list[Indexed]) -> AsyncIterator[bytes]:
        """The events of a trace; the end event waits for the result, whose verdicts it holds."""
        puzzle, end = self.request.choices[0].puzzle, None
        try:
            async for index, message in self._from(first):
                if isinstance(message, Decoded):
                    assert end is not None
                    yield sse({**end, **({} if puzzle is None else puzzle.verdicts(message.result))}, "end")
                    break
                event = public(message, self.request, index)
                if event["event"] == "end":
                    end = event
                else:
                    yield sse(event, event["event"])
        except Refusal as error:
            yield sse(error.body, "error")


def public(event: Event, request: ParsedRequest, index: int) -> Event:
    """An event as it is sent: with the seed in its recipe, and null for numbers that are not finite."""
    if event["event"] == "start":
        recipe = {**event["recipe"], "seed": request.choices[index].seed}
        return {**event, "model": request.name, "recipe": recipe}
    if event["event"] == "end":
        return {**event, **{name: [number(one) for one in event[name]] for name in ("path_entropy", "log_evidence")}}
    return event


class EventStream(StreamingResponse):
    """A stream of server-sent events; the request is cancelled when it ends for any reason."""

    def __init__(self, active: ActiveRequest, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.active = active

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.active.cancel()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Found]) -> Found:
    """The value of the work, unless the client disconnects first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "the client has disconnected")
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
