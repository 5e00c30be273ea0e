"""A plugin of pytest: the tests that use a GPU, shared among processes, each outcome written when it is there.

    PYTHONPATH=experiments/gpu python -m pytest -p only_cuda --outcomes FOLDER --worker 0/6 [--each 60] FILE...

Every process collects the same tests, and claims one after another by a file that only one of them can make. Before a
test its name is written, after it its outcome, with the reason of a failure: what was cut off is known by name. Tests
that FOLDER has an outcome of are not run again. One that was begun twice and never ended is not begun a third time. A
process that a test has left without a working GPU ends with 86: it is to be started again.
"""

from __future__ import annotations

import faulthandler
import hashlib
import inspect
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import read

LONG = 30  # seconds after its time, when a test that does not even end in Python ends its process
TWICE = 2
BROKEN = 86


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FOLDER")
    parser.addoption("--worker", default="0/1", help="this process, and how many there are")
    parser.addoption("--each", type=int, default=60, help="seconds of a test")


def uses_gpu(item: Any) -> bool:
    """Whether a test needs a GPU, or takes one if it is there."""
    reasons = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif")]
    if any("CUDA" in reason or "GPU" in reason for reason in reasons):
        return True
    return hasattr(item.module, "DEVICE") or "cuda.is_available" in inspect.getsource(item.function)


class Shared:
    """What this process runs, and what it writes."""

    def __init__(self, folder: Path, worker: str, each: int) -> None:
        self.folder, self.each = folder, each
        self.number, self.many = map(int, worker.split("/"))
        folder.joinpath("claims").mkdir(parents=True, exist_ok=True)
        for claim in folder.joinpath("claims").iterdir():
            if claim.read_text() == str(self.number):  # of an earlier process of this number
                claim.unlink()
        lines = list(read(folder))
        self.ended = {line["test"] for line in lines if "outcome" in line}
        begun = Counter(line["test"] for line in lines if "began" in line and line["test"] not in self.ended)
        self.given_up = {test for test, many in begun.items() if many >= TWICE}
        self.file = folder.joinpath(f"outcomes-{self.number}.jsonl").open("a", encoding="utf-8")
        self.file.write("\n")  # a line that was cut off ends here
        self.worst: dict[str, Any] = {}

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        kept = [item for item in items if uses_gpu(item)]
        config.hook.pytest_deselected(items=[item for item in items if not uses_gpu(item)])
        items[:] = []
        for _, some in groupby(kept, lambda item: item.path):
            mine = list(some)
            begin = len(mine) * self.number // self.many  # processes begin apart, and take one file after another
            items += mine[begin:] + mine[:begin]
        names = sorted(item.nodeid for item in kept)
        self.folder.joinpath("collected.json").write_text(json.dumps(names), encoding="utf-8")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.write(test=report.nodeid, outcome="failed", seconds=0.0, why=str(report.longrepr)[-3000:])

    def claimed(self, items: Iterator[Any]) -> Any | None:
        """The next test that no process has."""
        for item in items:
            if item.nodeid in self.ended | self.given_up:
                continue
            name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:24]
            try:
                with self.folder.joinpath("claims", name).open("x") as file:
                    file.write(str(self.number))
            except FileExistsError:
                continue
            return item
        return None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = iter(session.items)
        item = self.claimed(items)
        while item is not None:
            later = self.claimed(items)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)
            item = later
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
        self.worst = {"test": item.nodeid, "outcome": "passed", "seconds": 0.0, "why": ""}
        self.write(test=item.nodeid, began=round(time.time(), 1))
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(self.each)
        faulthandler.dump_traceback_later(self.each + LONG, exit=True, file=self.log())
        try:
            return (yield)
        finally:
            signal.alarm(0)
            faulthandler.cancel_dump_traceback_later()
            self.write(**self.worst)
            if self.worst["outcome"] == "failed" and broken():
                os._exit(BROKEN)  # all that follow would fail

    def log(self) -> Any:
        return self.folder.joinpath(f"hung-{self.number}.txt").open("a", encoding="utf-8")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One of set-up, call and tear-down."""
        self.worst["seconds"] = round(self.worst["seconds"] + report.duration, 2)
        if report.failed:
            self.worst |= {"outcome": "failed", "why": f"{report.when}: {report.longrepr}"[-3000:]}
        elif report.skipped and self.worst["outcome"] == "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.worst |= {"outcome": "skipped", "why": reason[-300:]}


def broken() -> bool:
    """Whether the GPU refuses everything from here on."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def too_long(*_: Any) -> None:
    raise TimeoutError("this test took too long")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--outcomes")
    if folder is not None:
        shared = Shared(folder, config.getoption("--worker"), config.getoption("--each"))
        config.pluginmanager.register(shared, "shared")
