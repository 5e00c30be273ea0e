"""Every HTTP request -> checked before anything reads it: host, token, kind and size of its body; and counted."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from unmask.server.limits import Limits, Refusal
from unmask.server.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/healthz", "/openapi.json")  # what needs no token; and all below /web/
ASKED = ("/v1/completions", "/v1/chat/completions", "/v1/paths")
COUNTED = (*OPEN, "/metrics", "/v1/models", "/v1/recipes", *ASKED)
HERE = ("localhost", "127.0.0.1", "::1")
DRAINED = 1 << 26  # bytes of a body that is too large which are read, so that the client hears why


@dataclass(frozen=True)
class Gate:
    """An application behind its checks."""

    app: App
    limits: Limits
    metrics: Metrics
    token: str | None = None
    local: bool = True  # without a token, only names of this machine: a page of another site may name it, too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499  # nobody heard the answer

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._check(scope)
                body = await self._body(scope, receive)
            except Refusal as refused:
                answer = JSONResponse(refused.body, refused.status, refused.headers)
                await answer(scope, receive, noting)
                return
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # its body is left out later
            await self.app(asked, receive if body is None else _again(body, receive), noting)
        finally:
            path = scope["path"] if scope["path"] in COUNTED else "other"
            self.metrics.add("unmask_requests_total", path=path, status=str(status))
            self.metrics.observe("unmask_request_seconds", time.perf_counter() - began, path=path)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self.token is None and self.local and name not in HERE:
            raise Refusal(
                421, f"{name!r} is no name of this machine", "use localhost, or start the server with a token"
            )
        if self.token is not None and scope["path"] not in OPEN and not scope["path"].startswith("/web/"):
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
                said = "this server wants its token as bearer token"
                raise Refusal(401, said, "give it to the client as api_key", code="invalid_api_key")
        sent = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and sent != b"application/json":
            raise Refusal(415, f"the content type is {sent.decode('latin-1')!r}", "send application/json")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body of a POST; None: there is none to read."""
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
            said = f"the request has more than {self.limits.body:,} bytes"
            raise Refusal(413, said, "send less", code="body_too_large")
        return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then whatever comes after it."""
    first = True

    async def again() -> MutableMapping[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
