"""Command line -> exit status. Every failure is one line on standard error."""

from __future__ import annotations

import os
import re
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path

from unmask.cli import interrupt  # isort: skip - before torch, which takes seconds

import torch

from unmask.cli.parser import COMMANDS, parse
from unmask.decoding.settings import SETTINGS
from unmask.errors import UnmaskError

__all__ = ["COMMANDS", "main"]
NO_MEMORY = "out of memory: lower max-rows, particles, length or the number of prompts"


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - closed by the caller: nobody listens
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    warnings.showwarning = _warn
    try:
        interrupt.allow()
        args = parse(sys.argv[1:] if argv is None else argv)
        status = args.run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt as stop:
        print("unmask: stopped" + (f": {stop}" if str(stop) else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has left: nobody wants the rest; 1, as rich does it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnmaskError as error:
        return _fail(_as_flags(str(error)))
    except (MemoryError, torch.OutOfMemoryError):
        return _fail(NO_MEMORY)
    except RuntimeError as error:  # torch has no kind of its own for the host
        if "allocate" not in str(error):
            raise
        return _fail(NO_MEMORY)
    except OSError as error:
        return _fail(f"{error.filename!r}: {error.strerror}" if error.filename else str(error))
    return int(status or 0)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print("unmask: warning:", " ".join(str(message).split()), file=sys.stderr)


def _fail(message: str) -> int:
    print("unmask: error:", " ".join(message.splitlines()), file=sys.stderr)
    return 2


def _as_flags(message: str) -> str:
    """Settings of several words as they are spelled here, block-length; what is quoted stays."""
    names = "|".join(name for name in SETTINGS if "_" in name)
    return re.sub(rf"(?<![\w'/.-])({names})(?![\w'/.-])", lambda found: found[0].replace("_", "-"), message)
