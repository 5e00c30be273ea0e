"""Servers on embedded models, and on one that chats."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from serving import Running, running

from unmask import Denoiser, load
from unmask.models.made.fabricate import fabricate


@pytest.fixture(scope="session")
def tiny_llada(tmp_path_factory: pytest.TempPathFactory) -> Denoiser:
    """A random checkpoint that has a chat template."""
    directory = tmp_path_factory.mktemp("models") / "tiny-llada"
    fabricate("llada", Path(directory))
    return load(directory)


@pytest.fixture(scope="session")
def usual(tiny_llada: Denoiser) -> Iterator[Running]:
    """The models that come along, and one that chats."""
    names = ("text", "sudoku", "countdown", "table", "random")
    with running({**{name: load(name) for name in names}, "chatty": tiny_llada}) as here:
        yield here


@pytest.fixture
def client(usual: Running) -> OpenAI:
    return usual.client()


@pytest.fixture(scope="session")
def wait() -> Callable[[Callable[[], bool]], None]:
    """Until something is true."""

    def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.005)

    return until
