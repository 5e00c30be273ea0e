"""Ctrl-C in the middle of a step -> after the step, so that the state to resume from is never half of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits for the end of what is within; pressed twice, it does not."""
    here = threading.current_thread() is threading.main_thread()  # others get no signals
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def hold(number: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
