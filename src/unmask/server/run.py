"""A ServeConfig, a host and a port -> a server that runs until a signal, then finishes the requests in progress."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn

from unmask.errors import InputError
from unmask.server import connections
from unmask.server.app import make_app
from unmask.server.batcher import Batcher
from unmask.server.limits import Limits
from unmask.server.middleware import App
from unmask.server.request import ServeConfig

LAST = 0.4  # seconds for clients to read their last message, and for the last step


class Work(Protocol):
    """What is behind an application, as it is ended: the batcher of this process, or the replicas."""

    def drain(self) -> None:
        """Accept nothing new; what was accepted is still decoded."""
        ...

    def close(self) -> None:
        """Answer all open requests with an error."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for the last step; True if it has ended."""
        ...


class Server(uvicorn.Server):
    """A server that lets requests in progress finish within the grace period, and answers the rest with an error."""

    def __init__(self, config: uvicorn.Config, batcher: Work, grace: float) -> None:
        super().__init__(config)
        self.batcher, self.grace = batcher, grace
        self.hurried = False  # after a second signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second stops at once; uvicorn would leave requests without an answer."""
        if self.should_exit:
            self.hurried = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; after the grace period or a second signal, answer open requests with an error.

        The socket stays open meanwhile, so that new requests get 503 instead of a refused connection.
        """
        self.batcher.drain()
        if self.server_state.tasks:
            grace = f"within {self.grace:g} s; Ctrl-C again stops at once"
            print(f"unmask: finishing requests in progress {grace}", file=sys.stderr, flush=True)
        await self._answered(self.grace, lambda: self.hurried)
        self.batcher.close()
        await self._answered(LAST, lambda: False)
        for connection in [*self.server_state.connections] if self.server_state.tasks else []:
            if isinstance(connection.transport, asyncio.WriteTransport):
                connection.transport.abort()  # a client that does not read, or sent half a request
        await super().shutdown(sockets)

    async def _answered(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Wait until no request is open, for at most these seconds, or until `enough`."""
        end = time.monotonic() + seconds
        while self.server_state.tasks and time.monotonic() < end and not enough():
            await asyncio.sleep(0.02)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, or an error in one line."""
    if not 0 <= port < 1 << 16:
        raise InputError(f"the port is {port}", "it must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)  # clients may connect from here on; they wait until the server runs
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen at {host} port {port}", f"{reason}; give another --host or --port") from None
    return found


def is_local(host: str) -> bool:
    """Whether only this machine can reach the host."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def warn_about(host: str, token: str | None) -> None:
    """Warn of a host that other machines can reach."""
    if is_local(host):
        return
    if token is None:
        warnings.warn(f"anyone who can reach {host} can use this server: give it a --token", stacklevel=2)
    else:
        warnings.warn("texts and token travel unencrypted: put a proxy with TLS in front of it", stacklevel=2)


def serve(
    config: ServeConfig,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    token: str | None = None,
    seconds: float | None = None,
    on_ready: Callable[[str, Server], None] = lambda url, server: None,
) -> None:
    """Serve until a signal, or for `seconds`; `on_ready` is called with the URL once the socket is bound."""

    def make(local: bool) -> tuple[App, Batcher]:
        return make_app(config, token, local)

    serve_app(make, config.limits, host, port, token=token, seconds=seconds, on_ready=on_ready)


def serve_app(
    make: Callable[[bool], tuple[App, Work]],
    limits: Limits,
    host: str,
    port: int,
    *,
    token: str | None,
    seconds: float | None,
    on_ready: Callable[[str, Server], None],
) -> None:
    """Serve the application that `make` builds, which is told whether only this machine can reach it."""
    place = listen(host, port)
    with place:
        bound, taken = place.getsockname()[:2]
        warn_about(bound, token)
        app, batcher = make(is_local(bound))
        most, at_once = connections.capacity()
        options = uvicorn.Config(
            app,
            http=connections.bounded(limits.seconds, most),
            backlog=at_once,
            log_level="warning",
            access_log=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        server = Server(options, batcher, limits.grace)
        url = f"http://{f'[{bound}]' if ':' in bound else bound}:{taken}"
        timer = None
        if seconds is not None:
            timer = threading.Timer(seconds, lambda: setattr(server, "should_exit", True))
            timer.daemon = True
        try:
            on_ready(url, server)
            if timer is not None:
                timer.start()
            server.run(sockets=[place])
        finally:
            if timer is not None:
                timer.cancel()
            batcher.close()
            batcher.join(LAST)
