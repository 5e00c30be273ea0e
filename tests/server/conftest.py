"""Servers that run in a thread, on embedded models and on some that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Denoiser, load
from unmask.models.fabricate import fabricate
from unmask.models.wrap import Wrapped
from unmask.state import State

pytest.importorskip("fastapi")
pytest.importorskip("openai")

from openai import OpenAI

from unmask.server.limits import Limits
from unmask.server.order import Shop
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
    shop: Shop
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
    """A server in a thread; `usual` and `plain_chat` go to the shop, the rest are limits."""
    usual, plain = settings.pop("usual", {"temperature": 1.0}), settings.pop("plain_chat", False)
    shop = Shop(models, usual, Limits(**settings), plain)
    there, found = threading.Event(), {}

    def ready(url: str, server: Server) -> None:
        found.update(url=url, server=server)
        there.set()

    thread = threading.Thread(target=lambda: serve(shop, port=0, token=token, ready=ready))
    thread.start()
    assert there.wait(20)
    here = Running(found["url"], found["server"], shop, thread)
    try:
        yield here
    finally:
        here.stop()


@pytest.fixture(scope="session")
def tiny_llada(tmp_path_factory: pytest.TempPathFactory) -> Denoiser:
    """A random checkpoint that has a chat template."""
    directory = tmp_path_factory.mktemp("models") / "tiny-llada"
    fabricate("llada", Path(directory))
    return load(directory)


@pytest.fixture(scope="session")
def usual(tiny_llada: Denoiser) -> Iterator[Running]:
    """The models that come along, and one that chats."""
    names = ("text", "sudoku", "table", "random")
    with running({**{name: load(name) for name in names}, "chatty": tiny_llada}) as here:
        yield here


@pytest.fixture
def client(usual: Running) -> OpenAI:
    return usual.client()


@pytest.fixture(scope="session")
def wait() -> Callable[[Callable[[], bool]], None]:
    """Until something is true."""

    def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.005)

    return until
