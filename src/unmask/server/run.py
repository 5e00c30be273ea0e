"""Host, port and an application -> a server that runs until it is told to stop, and then ends what is under way."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import warnings
from collections.abc import Callable

import uvicorn

from unmask.errors import InputError
from unmask.server.app import make_app
from unmask.server.batcher import Batcher
from unmask.server.order import Shop


class Server(uvicorn.Server):
    """A server that gives requests under way their grace, and then an answer."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self.batcher = batcher

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing on; after the grace, tell whoever still waits."""
        self.batcher.drain()
        timer = asyncio.get_running_loop().call_later(self.batcher.limits.grace, self.batcher.close)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self.batcher.close()


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
            timeout_graceful_shutdown=max(1, int(shop.limits.grace) + 5),
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
