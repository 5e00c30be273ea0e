"""Command line -> exit status. Every failure is one line on standard error.

Nothing heavy is imported before the command is known, and then only what that command needs.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

from unmask.cli.parser import COMMANDS, parse
from unmask.errors import UnmaskError

__all__ = ["COMMANDS", "main"]
ARGUMENTS = {"slice_size": "--slice", "skip_lost": "--skip-lost"}  # of Python: flag
AGAIN = 1.0  # seconds after which another SIGTERM counts: timeout, for one, sends it to the process and to its group
NO_MEMORY = "out of memory: lower max-rows, particles, length or the number of prompts"


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    own = argv is None and threading.current_thread() is threading.main_thread()  # the process is the command's
    terms: list[float] = []
    if own:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # registered first, so it runs last
    try:
        return _run(sys.argv[1:] if argv is None else argv, terms if own else None)
    except KeyboardInterrupt as stop:
        if own:
            signal.signal(signal.SIGINT, _leave)  # pressed again on the way out, it would raise in others' clean-up
        print("unmask: stopped" + (f": {stop}" if str(stop) else ""), file=sys.stderr)
        return 143 if terms else 130


def _run(argv: list[str], terms: list[float] | None) -> int:
    """Run one command; its exit status, or that of its failure."""
    try:
        with _stops_at_once():
            _prepare()
            args = parse(argv)
        with nullcontext() if terms is None or hasattr(args, "own_signals") else _stopped_by_term(terms):
            status = args.run(args)
            sys.stdout.flush()
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:  # the reader has left: nobody wants the rest; 1, as rich does it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnmaskError as error:
        return _fail(_as_flags(str(error)))
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeErrors: out of memory, on a device or the host
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        return _fail(NO_MEMORY)
    except OSError as error:
        return _fail(f"{error.filename!r}: {error.strerror}" if error.filename else str(error))
    return int(status or 0)


def _prepare() -> None:
    """Streams that never fail, and warnings of one line."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - None where the caller has closed it
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character
    warnings.showwarning = _warn


@contextmanager
def _stops_at_once() -> Iterator[None]:
    """Ctrl-C ends the process: packages take seconds to import, and some of them swallow a KeyboardInterrupt."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"unmask: stopped\n")
    os._exit(130)


@contextmanager
def _stopped_by_term(terms: list[float]) -> Iterator[None]:
    """SIGTERM stops the command as Ctrl-C does, also where Ctrl-C is ignored; `terms` gets the time of each."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # whoever started the process has it ignored
        yield
        return
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker that was forked: it has nothing to keep
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        terms.append(time.monotonic())
        if len(terms) < 2 or terms[-1] - terms[-2] > AGAIN:
            raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGTERM, stop)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if terms else signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(130)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print("unmask: warning:", " ".join(str(message).split()), file=sys.stderr)


def _fail(message: str) -> int:
    print("unmask: error:", " ".join(message.splitlines()), file=sys.stderr)
    return 2


def _as_flags(message: str) -> str:
    """The message with names of settings spelled as flags, block-length, and of arguments; quoted words stay."""
    if "unmask.decoding.settings" not in sys.modules:  # then it names no setting
        return message
    from unmask.decoding.settings import SETTINGS

    flags = {name: name.replace("_", "-") for name in SETTINGS if "_" in name} | ARGUMENTS
    return re.sub(rf"(?<![\w'/.-])({'|'.join(flags)})(?![\w'/.-])", lambda found: flags[found[0]], message)
