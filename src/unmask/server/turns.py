"""Work that takes long before a request is queued, as compiling a constraint -> a few threads, each client in turn.

All other requests have threads of their own, so that none of them waits for such work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from unmask.server.limits import Limits, late

Found = TypeVar("Found")
THREADS = 2


class Turns:
    """Where the requests of each client wait for each other, and their first ones for a thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="unmask-turns")
        self.locks: dict[str, asyncio.Lock] = {}  # of each client that waits
        self.waiting: dict[str, int] = {}

    async def run(self, client: str, work: Callable[[], Found]) -> Found:
        """The value of the work, done when it is the client's turn."""
        waiting, mine = sum(self.waiting.values()), self.waiting.get(client, 0)
        self.limits.check_room("constraints", 1, mine, waiting, self.limits.queue)
        lock = self.locks.setdefault(client, asyncio.Lock())
        self.waiting[client] = mine + 1
        try:
            return await asyncio.wait_for(self._done(lock, work), self.limits.seconds)
        except asyncio.TimeoutError:
            raise late(self.limits) from None
        finally:
            self.waiting[client] -= 1
            if not self.waiting[client]:
                del self.waiting[client], self.locks[client]

    async def _done(self, lock: asyncio.Lock, work: Callable[[], Found]) -> Found:
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def close(self) -> None:
        """Begin nothing that waits."""
        self.threads.shutdown(wait=False, cancel_futures=True)
