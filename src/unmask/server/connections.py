"""A connection -> HTTP, as long as its client sends whole headers and reads its answers; how many there may be."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER = 10.0  # seconds for the header of a request, from the connection or the last answer on
RESERVED = 64  # descriptors for everything else


def capacity() -> tuple[int, int]:
    """How many connections may be open, and how many are accepted at once, with this process's limit of descriptors."""
    try:
        import resource
    except ImportError:  # not on this system
        return 512, 128
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 1 << 16 if soft == resource.RLIM_INFINITY else min(soft, 1 << 16)
    at_once = max(16, min(512, files // 8))
    return max(16, files - at_once - RESERVED), at_once


class Connection(H11Protocol):
    """Ends if a header is not whole in time, or if the client reads nothing for `patience` seconds."""

    patience = 120.0
    most = 512

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.since = self.loop.time()  # a header is expected
        self.header: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it has no request in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_header()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        """End the connection that has been idle for longest."""
        others = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(others) > self.most:
            min((one for one in others if one.idle), key=lambda one: one.since).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop("header")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.idle:
            self._expect_header()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop("unread")
        self.unread = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("unread")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("header")
        self._stop("unread")
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        self._stop("header")
        self.since = self.loop.time()
        self.header = self.loop.call_later(HEADER, self.transport.abort)

    def _stop(self, timer: str) -> None:
        handle = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)


def bounded(patience: float, most: int) -> type[Connection]:
    """Connections with these limits."""
    return type("Bounded", (Connection,), {"patience": patience, "most": most})
