"""Every HTTP request -> checks of its host, token, content type and size before the application; and metrics."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from unmask.server.limits import TWO_LENGTHS, Limits, Refusal
from unmask.server.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/healthz", "/openapi.json")  # without a token, as is all below /web/
COUNTED = (*OPEN, "/metrics", "/v1/models", "/v1/recipes", "/v1/completions", "/v1/chat/completions", "/v1/paths")
LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?", re.IGNORECASE)
OWN = (b"cross-origin-resource-policy", b"same-origin")  # or a page of another site could tell that unmask runs
DRAINED = 1 << 26  # bytes that are read of a body that is too large, so that the client gets the error


@dataclass(frozen=True)
class Middleware:
    """An application behind its checks."""

    app: App
    limits: Limits
    metrics: Metrics
    token: str | None = None
    local: bool = True  # without a token, accept only local host names: a page of another site may resolve to us

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499  # unless a response is sent

        async def counted_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), OWN]}
            await send(message)

        try:
            try:
                self._check(scope)
                body = await self._body(scope, receive)
            except Refusal as refused:
                answer = JSONResponse(refused.body, refused.status, refused.headers)
                await answer(scope, receive, counted_send)
                return
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # uvicorn drops the body of HEAD
            await self.app(asked, receive if body is None else _with_body(body, receive), counted_send)
        finally:
            path = scope["path"] if scope["path"] in COUNTED else "other"
            self.metrics.requests.labels(path=path, status=str(status)).inc()
            self.metrics.request_seconds.labels(path=path).observe(time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.token is None and self.local and not LOCAL.fullmatch(host):
            message = f"{host!r} is not a name of this machine"
            raise Refusal(421, message, "use localhost, or start the server with a token")
        if b"content-length" in headers and b"transfer-encoding" in headers:  # a proxy may go by the other one
            hint = "send content-length or transfer-encoding"
            raise Refusal(400, "the request has two lengths", hint, code=TWO_LENGTHS)
        if self.token is not None and scope["path"] not in OPEN and not scope["path"].startswith("/web/"):
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
                message = "this server needs its token as bearer token"
                raise Refusal(401, message, "give it to the client as api_key", code="invalid_api_key")
        sent = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and sent != b"application/json":
            raise Refusal(415, f"the content type is {sent.decode('latin-1')!r}", "send application/json")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body of a POST; None for other methods."""
        if scope["method"] != "POST":
            return None
        try:
            return await asyncio.wait_for(self._read(receive), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, "the request did not arrive in time", "send it faster", code="timeout") from None

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self.limits.body:
                parts.append(part)
        if size > self.limits.body:
            about = f"the request has more than {self.limits.body:,} bytes"
            raise Refusal(413, about, "send less", code="body_too_large")
        return b"".join(parts)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body in one piece, then the messages after it."""
    first = True

    async def replayed() -> MutableMapping[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
