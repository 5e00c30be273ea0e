"""The name of a model and a job -> rows, in a process of its own: what an actor of a fleet does.

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
from unmask.core.denoiser import Denoiser
from unmask.errors import ModelError, UnmaskError
from unmask.evaluate.crew import Job
from unmask.evaluate.header import machine
from unmask.evaluate.rows import Line
from unmask.models import fingerprint, load
from unmask.models.transformer import compiled
from unmask.models.wrap import Chunked

NO_MEMORY = "lower max-rows, particles, length or batch"


@dataclass(frozen=True)
class Loading:
    """Which model, and how it is loaded and run: all that a worker needs to have the same one."""

    name: str
    dtype: str | None = None
    mask_id: int | None = None
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    shift: bool = False
    blocks: int | None = None
    max_rows: int | None = None
    compile: bool = False
    weights: str | None = None  # the SHA-256 that they must have
    folder: str = ""  # which relative names are relative to

    def load(self, device: str) -> Denoiser:
        """The model on a device."""
        model = load(
            self.name,
            device,
            self.dtype,
            mask_id=self.mask_id,
            tokenizer=self.tokenizer,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            shift=self.shift,
            blocks=self.blocks,
        )
        model = model if self.max_rows is None else Chunked(model, self.max_rows)
        return compiled(model) if self.compile else model


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
        self.model: Denoiser | None = None
        self.job: Job | None = None

    def where(self) -> Place:
        return Place(_node(), socket.gethostname(), os.getpid(), __version__)

    def load(self, loading: Loading, hashed: bool) -> Report:
        """Load the model; `hashed`: and hash its weights, which one worker of a machine does."""
        if loading.folder:
            with suppress(OSError):  # another machine may lack it; a model of the hub does not need it
                os.chdir(loading.folder)
        weights = fingerprint(loading.name, loading.revision) if hashed else None
        if hashed and loading.weights is not None and weights != loading.weights:
            what = f"the weights of {loading.name} on {socket.gethostname()} are others than here"
            raise ModelError(what, "copy the same files to every machine, or give a revision")
        self.model = loading.load(self.device)
        return Report(machine(torch.device(self.device)), weights)

    def prepared(self, job: Job, items: Sequence[Any]) -> Job:
        assert self.model is not None
        return job.prepared(self.model, items)

    def begin(self, job: Job) -> None:
        """The job of the parts that follow, if it can be done on this machine."""
        job.check()
        self.job = job

    def do(self, items: Sequence[Any]) -> list[Line]:
        """The rows of one part."""
        assert self.model is not None and self.job is not None
        rows: list[Line] = []
        try:
            self.job.do(self.model, items, rows.extend)
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
