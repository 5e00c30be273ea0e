"""A running program -> its output and why it was ended: time, output and memory are watched from outside."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any

from unmask.tasks.sandbox.tree import overfull

START = 10.0  # seconds in which the program has to begin; its own count from there
LOOK = 0.05  # seconds between two looks at all processes of the program
MARKS = 4096  # bytes on the descriptor that says how the program fares


def members(group: int = 0, parent: int = 0) -> Iterator[tuple[int, int, int]]:
    """Process, threads and bytes in memory, of a process group or the children of a process."""
    page = os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if (group and int(fields[2]) == group) or (parent and int(fields[1]) == parent):
                    yield int(name), int(fields[17]), int(fields[21]) * page


def share(process: int, whole: int) -> int:
    """Bytes in memory with what several processes share divided among them; all, where the kernel does not tell."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except PermissionError:
        return whole
    except OSError:  # it has ended
        return 0


def nameless(processes: Iterable[int | str]) -> dict[tuple[int, int], int]:
    """Bytes on the disk of files that processes hold open and that have no name any more, each once."""
    found = {}
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for name in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"/proc/{process}/fd/{name}")
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found


def kill_all(child: int) -> None:
    """Nothing that the program started is alive afterwards: its group, and what has come to the guard as an orphan."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for process, _, _ in members(parent=os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Watch:
    """What was written so far, and the verdict if it came from outside."""

    def __init__(self, limits: dict[str, Any], streams: dict[int, int], lifeline: int, work: str | None) -> None:
        self.limits, self.streams, self.lifeline = limits, streams, lifeline
        self.work = work  # the temporary directory, where the kernel does not limit it
        self.own = nameless(["self"]) if work else {}  # what the program is given
        self.kept = dict.fromkeys(streams.values(), b"")
        self.why = ""
        self.start, self.seconds = time.monotonic(), 0.0
        for descriptor in streams:
            os.set_blocking(descriptor, False)

    def take(self, descriptor: int) -> bool:
        """Read once; False at the end of the stream, or where there is nothing."""
        name = self.streams[descriptor]
        most = MARKS if name == 4 else self.limits["output_bytes"]
        try:
            data = os.read(descriptor, 2**16)
        except BlockingIOError:
            return False
        self.kept[name] += data
        if len(self.kept[name]) > most:
            self.why = self.why or "too much output"
            self.kept[name] = self.kept[name][:most]
        return bool(data)

    def drain(self) -> None:
        """What is left in the streams."""
        for descriptor in self.streams:
            while self.take(descriptor) and len(self.kept[self.streams[descriptor]]) < self.limits["output_bytes"]:
                pass

    def look(self, child: int) -> None:
        """Memory and number of all the program's processes together."""
        found = list(members(group=child))
        if sum(threads for _, threads, _ in found) > self.limits["processes"] + 1:  # and the keeper
            self.why = "too many processes"
        most = self.limits["memory_bytes"]
        if sum(size for _, _, size in found) > most and sum(share(process, size) for process, _, size in found) > most:
            self.why = "out of memory"
        if self.work:
            held = nameless(process for process, _, _ in found)
            hidden = sum(size for file, size in held.items() if file not in self.own)
            if overfull(self.work, self.limits["file_bytes"] - hidden):
                self.why = "too many files"

    def until_it_ends(self, child: int) -> int:
        """Wait for the end of the program, or bring it about; its status as a shell gives it."""
        wake, signalled = os.pipe()
        for descriptor in (wake, signalled):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        poll = select.poll()
        for descriptor in (*self.streams, self.lifeline, wake):
            poll.register(descriptor, select.POLLIN)
        began, deadline, next_look = False, self.start + START, self.start + 2 * LOOK
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            now = time.monotonic()
            if not began and self.kept[4]:
                began, self.start, deadline = True, now, now + self.limits["seconds"]
            if not self.why and not ended and now >= deadline:
                self.why = "timed out"
            if not self.why and not ended and now >= next_look:
                self.look(child)
                next_look = time.monotonic() + LOOK
            if self.why and not ended:
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(child, 0)
            if ended:
                self.seconds = time.monotonic() - self.start
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            for descriptor, _ in poll.poll(max(0.0, min(deadline, next_look) - now) * 1000):
                if descriptor == self.lifeline:
                    self.why = "stopped"  # unmask itself is gone
                elif descriptor == wake:
                    os.read(wake, 512)
                elif not self.take(descriptor):
                    poll.unregister(descriptor)
