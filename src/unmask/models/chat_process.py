"""A chat template × messages -> the text of the prompt, rendered by a process with limits of memory and time."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InputError

SECONDS = 5.0  # for one dialogue
MEMORY = 1 << 30  # bytes of address space
START = """
import sys, types
sys.path[:] = {0!r}
# without torch and the rest of unmask
for name, path in (("unmask", {1!r}), ("unmask.models", {2!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from unmask.models.chat import answer_lines
answer_lines({3!r}, {4!r})
"""


class Renderer:
    """A process that renders one dialogue after the other; it is started by the first, and again after its end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0  # a fork must not share it

    def render(self, template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """The dialogue up to where the answer begins; `names` are bos_token and the like."""
        turns = [dict(message) for message in messages]
        question = json.dumps([template, turns, dict(names)]).encode() + b"\n"
        if not self.lock.acquire(timeout=2 * SECONDS):
            raise InputError("the chat template is busy with other messages", "retry later")
        try:
            line = self._ask(question)
        finally:
            self.lock.release()
        if not line.endswith(b"\n"):
            limits = f"more than {SECONDS:g} s or {MEMORY >> 20} MiB"
            raise InputError(f"the chat template takes {limits} for these messages", "use another template")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InputError(*answer["error"])
        return str(answer["text"])

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.communicate()
        self.process = None

    def _ask(self, question: bytes) -> bytes:
        """The answer of the process; cut or empty if it came to its limits."""
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            self._start()
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        line = b""
        try:
            with contextlib.suppress(OSError):  # it has ended
                self.process.stdin.write(question)
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            return line
        finally:
            timer.cancel()
            if not line.endswith(b"\n"):  # also after Ctrl-C, or the next question would get this answer
                self.close()

    def _start(self) -> None:
        self.close()
        here = Path(__file__).parent
        start = START.format([path or os.getcwd() for path in sys.path], str(here.parent), str(here), SECONDS, MEMORY)
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", start]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.owner = os.getpid()
            assert self.process.stdout is not None
            ready = self.process.stdout.readline()  # the clock starts afterwards
        except OSError as error:
            raise InputError("the process for chat templates did not start", str(error)) from None
        if not ready:
            raise InputError("the process for chat templates ended at its start", "is jinja2 installed?")


RENDERER = Renderer()
atexit.register(RENDERER.close)
