"""The application of `unmask serve` in a process of its own, called by requests instead of a socket."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping
from contextlib import aclosing, suppress
from typing import Any

import torch
from prometheus_client.metrics_core import Metric

from unmask.server.app import make_app
from unmask.server.middleware import App
from unmask.server.request import ServeConfig

Message = MutableMapping[str, Any]  # of ASGI
SILENCE = 90.0  # seconds without a word from the front, after which there is none


class Replica:
    """A model in one process, and the application exactly as it is where there is only one."""

    def __init__(self, build: Callable[[], ServeConfig], threads: int, folder: str, wants_token: bool) -> None:
        with suppress(OSError):  # another machine may lack it; a model of the hub does not need it
            os.chdir(folder)
        torch.set_num_threads(threads)
        from ray import serve

        _off_the_network()
        self.context = serve.get_replica_context()
        checked, self.batcher = make_app(build(), "checked by the front" if wants_token else None)
        self.app = checked.app
        self.heard = time.monotonic()
        threading.Thread(target=self._watch, name="unmask-front", daemon=True).start()

    async def answer(self, scope: Message, body: bytes) -> AsyncIterator[list[Message]]:
        """The messages of the response, as they come; the request is cancelled with this."""
        async with aclosing(answered(self.app, scope, body)) as messages:
            async for some in messages:
                yield some

    def check_health(self) -> None:
        """Called by Serve, which replaces a replica that raises."""
        if self.batcher.broken or self.batcher.stuck() or not self.batcher.thread.is_alive():
            raise RuntimeError(f"{self.batcher.broken or 'a step does not end'}: this process has to be replaced")

    def beat(self) -> None:
        """The front is there."""
        self.heard = time.monotonic()

    def collected(self) -> tuple[str, list[Metric]]:
        """The name of this replica, and its metrics."""
        return str(self.context.replica_id.unique_id), list(self.batcher.metrics.registry.collect())

    def close(self) -> None:
        """Stop at the next step, and answer all open choices with an error."""
        self.batcher.close()

    def _watch(self) -> None:
        """Take the application down if its front was killed: on a cluster that stays it would hold its GPUs."""
        from ray import serve

        while time.monotonic() < self.heard + SILENCE:
            time.sleep(SILENCE / 10)
        serve.delete(self.context.app_name, _blocking=False)


def _off_the_network() -> None:
    """Have Serve's port between deployments, which is bound after this, on this machine only.

    It listens at all addresses, and unpickles what it is sent. Requests come as calls of the actor and do not need it.
    """
    from ray.serve._private import constants
    from ray.serve._private import replica as serves

    bind = getattr(serves, "add_port_to_grpc_server", None)  # private: another version may lack it
    if bind is not None and not getattr(constants, "RAY_SERVE_USE_GRPC_BY_DEFAULT", False):
        serves.add_port_to_grpc_server = lambda server, at: bind(server, at.replace("[::]", "127.0.0.1"))


async def answered(app: App, scope: Message, body: bytes) -> AsyncGenerator[list[Message], None]:
    """The messages of an application's response to a request, as they come; it is cancelled with this."""
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # a client that has gone cancels the call
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    work = asyncio.ensure_future(app(scope, receive, sent.put))
    work.add_done_callback(lambda done: sent.put_nowait(None))
    try:
        more = True
        while more:
            some = [await sent.get()]
            while not sent.empty():
                some.append(sent.get_nowait())
            more = None not in some
            yield [message for message in some if message is not None]
        await work
    finally:
        work.cancel()
