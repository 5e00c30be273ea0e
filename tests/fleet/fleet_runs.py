"""What the tests of a fleet run: a task whose grader notes its process, commands, and what is done to their workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from unmask import Recipe
from unmask.cli import main, show
from unmask.evaluate import rows
from unmask.evaluate.fleet import Fleet
from unmask.evaluate.run import asked, resume

# The grader runs in the workers: it notes their process, takes a while, and is lost where a file asks for it.
TASK = """
import os, time
from pathlib import Path
from unmask import task

HERE = Path(__file__).parent

@task([(f"number {number}", str(number)) for number in range(24)], length=8)
def slow(text, answer):
    if text:
        with open(HERE / "pids", "a") as file:
            file.write(f"{os.getpid()} {answer}\\n")
        if (HERE / f"poison{answer}").exists():
            os.kill(os.getpid(), 9)
        if (HERE / f"wrong{answer}").exists():
            return 3
        time.sleep(0.08)
    return len(text) % 2 == 0
"""
RECIPE = Recipe(sampler="uniform", temperature=1.0, length=8)
FLAGS = "--model random --sampler uniform --temperature 1 --batch 2 --gpus 0 --workers 2".split()
SHORT = {"patience": 2.0}
COMMANDS = multiprocessing.get_context("forkserver")  # commands begin with torch imported
COMMANDS.set_forkserver_preload(["unmask.cli.evaluate", "unmask.evaluate.fleet.fleet"])


def kept(path: str = "r.jsonl") -> list[rows.Line]:
    found = rows.read(path)
    numbers = [row["number"] for row in found.kept]
    assert len(numbers) == len(set(numbers)) and Path(path).read_bytes().count(b'"number": ') == len(numbers)
    return sorted((rows.timeless(row) for row in found.kept), key=lambda row: row["number"])


def made(fleet: Fleet, task) -> list[rows.Line]:
    with fleet, rows.opened("r.jsonl", {"task": "slow", "n": 24}) as file:
        resume(task, fleet, asked(task).fit, RECIPE, file, batch=2)
    return kept()


def workers() -> list[int]:
    """The processes that have done something, last ones last."""
    lines = Path("pids").read_text().splitlines() if Path("pids").exists() else []
    return list(dict.fromkeys(int(line.split()[0]) for line in lines))


def once(count: int, act) -> threading.Thread:
    """Do something to a worker as soon as this many are at work."""

    def wait() -> None:
        while len(workers()) < count:
            time.sleep(0.02)
        act(workers()[-1])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


class Command:
    """`unmask eval` in a process of its own."""

    def __init__(self, path: str, *more: str) -> None:
        self.path = path
        self.process = COMMANDS.Process(target=_command, args=([*FLAGS, "--rows", path, *more], os.getcwd(), path))
        self.process.start()

    def until(self, count: int) -> Command:
        """Wait for this many rows."""
        while lines(self.path) < count:
            assert self.process.exitcode is None, self.ended()
            time.sleep(0.02)
        return self

    def ended(self, number: int | None = None) -> tuple[int, str, str]:
        """Its exit status and what it wrote, perhaps after a signal."""
        if number is not None:
            os.kill(self.process.pid, number)
        self.process.join()
        return self.process.exitcode, *(Path(f"{self.path}.{name}").read_text() for name in ("out", "err"))


def _command(words: list[str], folder: str, path: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{path}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["unmask", "eval", "slow.py", *words]
    status = main()
    sys.stdout.flush()
    os._exit(status)


def lines(path: str) -> int:
    return Path(path).read_bytes().count(b'"number": ') if Path(path).exists() else 0


@contextmanager
def killing():
    """Kill a worker of each model of a command once it has made rows; what was killed, and all that was seen."""
    killed, seen = {}, []

    def follow(fleet, *more):
        def on_progress(found):
            seen.append(found)
            begun = killed.setdefault(fleet.loading.name, [found.rows])
            if found.rows > begun[0] and len(begun) == 1:
                begun.append(next(one.place.pid for one in fleet.members.values() if one.loaded))
                os.kill(begun[1], signal.SIGKILL)

        fleet.on_progress = on_progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "follow", follow)
        yield killed, seen
