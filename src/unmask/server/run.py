"""Host, port and an application -> a server that runs until it is told to stop, and then ends what is under way."""

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

import uvicorn

from unmask.errors import InputError
from unmask.server.app import make_app
from unmask.server.batcher import Batcher
from unmask.server.request import Shop

LAST = 0.4  # seconds in which those who are told that it is over may read it, and a last step may end


class Server(uvicorn.Server):
    """A server that gives requests under way their grace, and then an answer."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self.batcher = batcher
        self.hurried = False  # told to stop a second time

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops gently, the next at once; uvicorn's own way would leave requests without an answer."""
        if self.should_exit:
            self.hurried = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing on; after the grace, or a second signal, tell whoever still waits.

        The door stays open meanwhile, so that whoever comes hears that the server is stopping.
        """
        self.batcher.drain()
        if self.server_state.tasks:
            said = f"finishing what is under way, {self.batcher.limits.grace:g} s at most; Ctrl-C again stops at once"
            print(f"unmask: {said}", file=sys.stderr, flush=True)
        await self._answered(self.batcher.limits.grace, lambda: self.hurried)
        self.batcher.close()
        await self._answered(LAST, lambda: False)
        for connection in [*self.server_state.connections] if self.server_state.tasks else []:
            if isinstance(connection.transport, asyncio.WriteTransport):
                connection.transport.abort()  # it does not read, or never sent all of its request
        await super().shutdown(sockets)

    async def _answered(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Wait until no request is open, or for so long, or until it is enough."""
        end = time.monotonic() + seconds
        while self.server_state.tasks and time.monotonic() < end and not enough():
            await asyncio.sleep(0.02)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, or an error in one line."""
    if not 0 <= port < 1 << 16:
        raise InputError(f"the port is {port}", "it must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)  # from here on clients may come; they wait until the server runs
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen at {host} port {port}", f"{reason}; give another --host or --port") from None
    return found


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def warn_about(host: str, token: str | None) -> None:
    """What is risky about this place."""
    if is_local(host):
        return
    if token is None:
        warnings.warn(f"anyone who can reach {host} can use this server: give it a --token", stacklevel=2)
    else:
        warnings.warn("texts and token travel unencrypted: put a proxy with TLS in front of it", stacklevel=2)


def serve(
    shop: Shop,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    token: str | None = None,
    seconds: float | None = None,
    ready: Callable[[str, Server], None] = lambda url, server: None,
) -> None:
    """Serve until a signal, or for so many seconds; `ready` is called with the address once it is bound."""
    place = listen(host, port)
    with place:
        bound, taken = place.getsockname()[:2]
        warn_about(bound, token)
        gate, batcher = make_app(shop, token, is_local(bound))
        config = uvicorn.Config(
            gate,
            log_level="warning",
            access_log=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        server = Server(config, batcher)
        ready(f"http://{f'[{bound}]' if ':' in bound else bound}:{taken}", server)
        timer = None
        if seconds is not None:
            timer = threading.Timer(seconds, lambda: setattr(server, "should_exit", True))
            timer.daemon = True
            timer.start()
        try:
            server.run(sockets=[place])
        finally:
            if timer is not None:
                timer.cancel()
            batcher.close()
