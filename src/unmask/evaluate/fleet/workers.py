"""The name of a model and jobs -> rows, in a process of its own: what an actor of a fleet does.

A worker holds a model and nothing else that matters. It writes no files.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from unmask._version import __version__
from unmask.errors import ModelError, UnmaskError
from unmask.evaluate.crew import Job
from unmask.evaluate.header import machine
from unmask.evaluate.loading import Source
from unmask.evaluate.rows import Line

NO_MEMORY = "lower max-rows, particles, length, batch or slice"


@dataclass(frozen=True)
class Place:
    """Where a worker is."""

    node: str  # Ray's name of the machine
    host: str
    pid: int
    version: str


@dataclass(frozen=True)
class Report:
    """What a worker has loaded."""

    kind: str  # of GPU or processor
    weights: str | None  # None also where it was not asked to hash them


class Worker:
    """One process with a model; its methods are called one after another."""

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        torch.set_num_threads(threads)
        self.model: Any = None
        self.jobs: dict[int, Job] = {}  # by their place in the line

    def where(self) -> Place:
        return Place(_node(), socket.gethostname(), os.getpid(), __version__)

    def load(self, loading: Source, hashed: bool) -> Report:
        """Load the model; `hashed`: and hash its weights, which one worker of a machine does."""
        if loading.folder:
            with suppress(OSError):  # another machine may lack it; a model of the hub does not need it
                os.chdir(loading.folder)
        weights = loading.fingerprint() if hashed else None
        if hashed and loading.sha256 is not None and weights != loading.sha256:
            what = f"the weights of {loading.name} on {socket.gethostname()} are others than here"
            raise ModelError(what, "copy the same files to every machine, or give a revision")
        self.model = loading.load(self.device)
        return Report(machine(torch.device(self.device)), weights)

    def prepared(self, job: Job, items: Sequence[Any]) -> Job:
        return job.prepared(self.model, items)

    def begin(self, place: int, job: Job) -> None:
        """The job of parts that follow, if it can be done on this machine."""
        job.check()
        self.jobs[place] = job

    def do(self, place: int, items: Sequence[Any]) -> list[Line]:
        """The rows of one part of the job at this place."""
        rows: list[Line] = []
        try:
            self.jobs[place].do(self.model, items, rows.extend)
        except torch.OutOfMemoryError:
            raise UnmaskError(f"out of memory on {socket.gethostname()}", NO_MEMORY) from None
        except RuntimeError as error:
            if "CUDA error" in str(error):  # its context is gone: only a new process can go on
                os._exit(1)
            raise
        return rows


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def end(pid: int) -> None:
    """End a process of this machine that may be frozen."""
    with suppress(OSError):
        os.kill(pid, 9)
