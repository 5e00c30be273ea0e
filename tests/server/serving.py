"""Servers that run in a thread, models that misbehave, and requests byte by byte."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from openai import OpenAI

from unmask import Denoiser, Recipe, decode, load
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
    error: type[BaseException] = RuntimeError

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        first = state.tokens[rows].gather(1, state.attend[rows].long().argmax(1)[:, None])[:, 0]
        if bool((first == self.raises).any()):
            raise self.error("poison")
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


# --- requests, byte by byte ------------------------------------------------------------------------------------------

HEAD = "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
ASK = {"model": "table", "prompt": "se", "max_tokens": 4, "seed": 1}


def post(here: Running, body: bytes, path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
    line = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    try:
        line.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = line.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text
    finally:
        line.close()


def begin(here: Running, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A request on its way; nobody has read its answer."""
    line = socket.create_connection(("127.0.0.1", here.port), timeout=30)
    data = json.dumps(body).encode()
    line.sendall(HEAD.format(path, len(data)).encode() + data)
    return line


def hang_up(line: socket.socket) -> None:
    """Like a client that crashes: nothing is said, the line is dead."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def right(here: Running) -> None:
    """The next request is answered correctly."""
    found = here.client().completions.create(**ASK)
    recipe = Recipe(length=4, seed=1, temperature=1.0)
    assert found.choices[0].text == decode(load("table"), "se", recipe=recipe).text
