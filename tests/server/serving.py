"""Servers that run in a thread, and models that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from openai import OpenAI

from unmask import Denoiser
from unmask.core.state import State
from unmask.models.wrap import Wrapped
from unmask.server.limits import Limits
from unmask.server.request import ServeConfig
from unmask.server.run import Server, serve


@dataclass(frozen=True, eq=False)
class Slow(Wrapped):
    """Takes its time, and counts how often it was asked."""

    seconds: float = 0.02
    asked: list[int] = field(default_factory=list)  # rows of each call

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        self.asked.append(len(rows))
        time.sleep(self.seconds)
        return self.inner.look(state, rows)


@dataclass(frozen=True, eq=False)
class Poisoned(Wrapped):
    """Raises, or answers with nonsense, where a row begins with a certain token."""

    raises: int
    nonsense: int

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        first = state.tokens[rows].gather(1, state.attend[rows].long().argmax(1)[:, None])[:, 0]
        if bool((first == self.raises).any()):
            raise RuntimeError("poison")
        hidden, cache = self.inner.look(state, rows)
        return hidden.masked_fill((first == self.nonsense)[:, None, None], torch.nan), cache


@dataclass(frozen=True)
class Running:
    """A server, and how to talk to it."""

    url: str
    server: Server
    config: ServeConfig
    thread: threading.Thread

    def client(self, token: str = "none", **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0, timeout=60, **options)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def batcher(self) -> Any:
        return self.server.batcher

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def running(models: dict[str, Denoiser], token: str | None = None, **settings: Any) -> Iterator[Running]:
    """A server in a thread; `usual` and `plain_chat` go to the ServeConfig, the rest are limits."""
    usual, plain = settings.pop("usual", {"temperature": 1.0}), settings.pop("plain_chat", False)
    config = ServeConfig(models, usual, Limits(**settings), plain)
    there, found = threading.Event(), {}

    def ready(url: str, server: Server) -> None:
        found.update(url=url, server=server)
        there.set()

    thread = threading.Thread(target=lambda: serve(config, port=0, token=token, on_ready=ready))
    thread.start()
    assert there.wait(20)
    here = Running(found["url"], found["server"], config, thread)
    try:
        yield here
    finally:
        here.stop()
