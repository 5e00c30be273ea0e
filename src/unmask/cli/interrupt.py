"""Ctrl-C while the command line is still being imported -> one line and exit status 130, as later."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"unmask: stopped\n")
    os._exit(130)


def _is_command() -> bool:
    """Whether this process is the command `unmask`, or `python -m unmask`, which has its name only later."""
    name = Path(sys.argv[0]).stem if sys.argv else ""
    named = name == "unmask" or (name == "-m" and "unmask" in sys.orig_argv)
    return named and parent_process() is None  # a process of its own has the parent's name


def allow() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)
