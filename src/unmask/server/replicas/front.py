"""Requests -> a replica each, whose response is passed on: the application of the process that clients connect to.

A request whose replica is lost before its response has begun is sent to another one: equal seeds give equal tokens.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import JSONResponse, PlainTextResponse

from unmask._version import __version__
from unmask.server.app import STOPPING
from unmask.server.limits import Limits, Refusal, late
from unmask.server.metrics import TEXT, Metrics
from unmask.server.middleware import Receive, Scope, Send
from unmask.server.stream import sse

Message = MutableMapping[str, Any]
TRIES = 3  # replicas that a request may be lost with
SLACK = 5.0  # seconds for a replica to say itself that a request is late
PATIENCE = 5.0  # seconds for an answer about health or metrics
# of a scope: plain values
PASSED = {"type", "asgi", "http_version", "scheme", "method", "path", "raw_path", "root_path", "query_string"}
PASSED |= {"headers", "server", "client"}


class Messages(Protocol):
    """The messages of one response, as a replica sends them."""

    async def __anext__(self) -> list[Message]: ...

    def cancel(self) -> None: ...


class Replicas(Protocol):
    """Those who answer."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """What is raised where a replica was lost."""
        ...

    def ask(self, scope: Message, body: bytes) -> Messages:
        """Have the replica with the shortest queue answer a request."""
        ...

    async def collected(self) -> list[tuple[str, list[Metric]]]:
        """The names and metrics of all of them."""
        ...

    def close(self) -> None:
        """Have all of them answer open requests with an error."""
        ...


class Gone(Exception):
    """The client has disconnected."""


class Front:
    """The application that clients see, behind the same checks as that of one process."""

    def __init__(self, replicas: Replicas, limits: Limits, metrics: Metrics) -> None:
        self.replicas, self.limits, self.metrics = replicas, limits, metrics
        self.closing = False
        self.closed = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])  # it has nothing to begin or end
        body = (await receive()).get("body", b"") if scope["method"] == "POST" else b""
        path = scope["path"]
        if self.closing and (path == "/healthz" or scope["method"] == "POST"):
            answer: Any = JSONResponse(**self._stopping(path))
        elif path == "/metrics" and scope["method"] == "GET":
            answer = PlainTextResponse(await self._metrics(), media_type=TEXT)
        else:
            try:
                await self._pass_on({name: scope[name] for name in PASSED if name in scope}, body, receive, send)
                return
            except Refusal as refused:
                answer = JSONResponse(refused.body, refused.status, refused.headers)
            except Gone:
                return
        await answer(scope, receive, send)

    # --- in order ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Accept no new requests; those in progress are still answered."""
        self.closing = True

    def close(self) -> None:
        """Answer all open requests with an error."""
        self.closing = True
        if not self.closed.is_set():
            self.closed.set()
            threading.Thread(target=self.replicas.close, daemon=True).start()  # it waits, and the loop may not

    def join(self, seconds: float) -> bool:
        """Nothing is left here to wait for."""
        return True

    def _stopping(self, path: str) -> dict[str, Any]:
        if path == "/healthz":
            about = {"status": "stopping", "message": STOPPING, "version": __version__, "models": []}
            return {"content": about, "status_code": 503}
        refused = Refusal(503, "the server is stopping", "retry when it is back")
        return {"content": refused.body, "status_code": 503, "headers": refused.headers}

    # --- one request -------------------------------------------------------------------------------------------------

    async def _pass_on(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Have a replica answer, or after it was lost another one, unless the response has begun."""
        gone = asyncio.ensure_future(_disconnected(receive))
        first: dict[str, Any] = {}  # the start of the response
        try:
            for _ in range(TRIES):
                try:
                    await self._answered(self.replicas.ask(scope, body), gone, send, first, self._seconds(scope))
                    return
                except self.replicas.lost:
                    if first:
                        await self._break_off(scope["path"], first, send)
                        return
                    self.metrics.retried.inc()
            raise Refusal(503, f"{TRIES} replicas were lost with this request", "see the server's log")
        finally:
            gone.cancel()

    def _seconds(self, scope: Message) -> float:
        """Until the first message: a replica says itself that a request is late, if there is one."""
        return PATIENCE if scope["path"] == "/healthz" else self.limits.seconds + SLACK

    async def _answered(
        self, messages: Messages, gone: asyncio.Future[None], send: Send, first: dict[str, Any], seconds: float
    ) -> None:
        """Send all messages; `first` takes the one that begins the response."""
        while True:
            step = asyncio.ensure_future(messages.__anext__())
            try:
                both: set[asyncio.Future[Any]] = {step, gone}
                await asyncio.wait(both, timeout=None if first else seconds, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    raise Gone() if gone.done() else late(self.limits) if seconds > PATIENCE else nobody()
            finally:
                if not step.done():
                    messages.cancel()
                    step.add_done_callback(_dropped)
            try:
                some = step.result()
            except StopAsyncIteration:
                return
            for message in some:
                first.update({} if first else message)
                await send(message)
            if some and some[-1]["type"] == "http.response.body" and not some[-1].get("more_body", False):
                return

    async def _break_off(self, path: str, first: Message, send: Send) -> None:
        """End a stream whose replica was lost with an error; of another response nothing more can be said."""
        kinds = dict(first["headers"]).get(b"content-type", b"")
        if not kinds.startswith(b"text/event-stream"):
            raise ConnectionError("a replica was lost in the middle of a response")
        error = Refusal(503, "the process that decoded this was lost", "ask again: others are there")
        last = sse(error.body, "error") if path == "/v1/paths" else sse(error.body)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    # --- metrics -----------------------------------------------------------------------------------------------------

    async def _metrics(self) -> str:
        """Those of all replicas by their names, and of this process as `front`."""
        try:
            found = await asyncio.wait_for(self.replicas.collected(), PATIENCE)
        except asyncio.TimeoutError:
            found = []
        return together([("front", list(self.metrics.registry.collect())), *found])


def nobody() -> Refusal:
    """The answer about health where no replica gives one."""
    return Refusal(503, "no replica answers", "wait for one to start")


def _dropped(step: asyncio.Future[Any]) -> None:
    """Have nobody told of what is not waited for any more."""
    if not step.cancelled():
        step.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def together(found: list[tuple[str, list[Metric]]]) -> str:
    """The metrics of several processes as one text, each with the label `replica`."""
    families: dict[str, Metric] = {}
    for name, metrics in found:
        for metric in metrics:
            kept = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit))
            kept.samples += [one._replace(labels={**one.labels, "replica": name}) for one in metric.samples]
    registry = CollectorRegistry()
    registry.register(_Given(list(families.values())))
    return generate_latest(registry).decode()


class _Given(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics
