"""Fixtures: a small checkpoint, a mark that no code may leave, and no test that hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .small import write


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError("a test took half a minute")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def ring() -> Callable[[], object]:
    """To be called before every case: thirty seconds later it is broken off."""
    return lambda: signal.alarm(30)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A good checkpoint of a few kilobytes."""
    return write(tmp_path / "small")


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists(), "code of the checkpoint ran"
