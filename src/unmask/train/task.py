"""TrainTask: what `unmask train` needs to know of a model, its data, and their batches made ahead of time."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.evaluate.run import canvases, run
from unmask.models.network import Network
from unmask.tasks.task import Example, Task
from unmask.train.initial import as_denoiser

Array = np.ndarray[Any, Any]


class TrainData(Protocol):
    """Where training tokens come from."""

    def batch(self, number: int, size: int) -> tuple[Array, Array]:
        """Clean tokens [size, L] and what may be masked, [L] or [size, L] bool; a pure function of its number."""
        ...

    def validate(self, network: Network) -> dict[str, float]:
        """Figures of a network on held-out data."""
        ...


@dataclass(frozen=True)
class DataOptions:
    """The user's settings for the data of a task; a task refuses those that have no effect on it."""

    directory: Path
    held: int = 256  # examples to validate on, of each kind
    exclude: tuple[str, ...] = ()  # files of problems that must not be trained on
    corpus: tuple[str, ...] = ()  # files of texts or puzzles to train on
    heldout: str | None = None  # a text file to validate on
    tokenizer: str | None = None  # a tokenizer.json instead of one made of the corpus
    stories: str | None = None  # the weights that stories are sampled from, or a directory with shards of stories
    device: str = "cpu"
    weights: Path | None = None  # the model.safetensors that training starts from
    seed: int = 0  # of data that are made in the background

    def __post_init__(self) -> None:
        if self.held < 1:
            raise InputError(f"held is {self.held}", "it must be at least 1")

    def only(self, task: str, *names: str) -> None:
        """Refuse options that only other tasks take."""
        for name in ("exclude", "corpus", "heldout", "tokenizer", "stories"):
            if getattr(self, name) and name not in names:
                raise InputError(f"--{name} has no effect on {task}", "leave it out")


@dataclass(frozen=True)
class TrainTask:
    """A model to train."""

    data: TrainData
    config: Mapping[str, Any]  # config.json of the model
    mask: int
    about: Mapping[str, Any] = field(default_factory=dict)  # about the data, for the log
    prepare: Callable[[], Mapping[str, Any]] = dict  # the long work on the data, done last; more of `about`
    begin: Callable[[Network], None] = lambda network: None  # sets weights that should not be random
    close: Callable[[], None] = lambda: None  # ends what `prepare` started
    block_size: int = 0  # open positions to a block, where block-causal attention is learnt, too


def share_solved(task: Task, config: Mapping[str, Any], network: Network, examples: Iterable[Example]) -> float:
    """The share of puzzles that confidence order solves at temperature 0, one token a step."""
    model = as_denoiser(task.name, config, network)
    rows = run(task, model, canvases(task, list(examples)), Recipe("confidence"))
    return sum(row.strict for row in rows) / len(rows)


def hashes(paths: Iterable[str]) -> dict[str, str]:
    """File name -> SHA-256."""
    return {Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths}


# --- batches ---------------------------------------------------------------------------------------------------------


_data: TrainData  # of a worker


def _begin(data: TrainData) -> None:
    """A worker has one thread, ignores Ctrl-C, and has a lower priority than its parent, which has to compile first."""
    global _data
    _data = data
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _batch(number: int, size: int) -> tuple[Array, Array]:
    return _data.batch(number, size)


class Batches:
    """Batches in order, made in the background by `workers` other processes, or by one thread where there are none."""

    def __init__(self, data: TrainData, seed: int, size: int, workers: int, first: int) -> None:
        self.seed, self.size, self.next = seed, size, first
        fresh = get_context("spawn")  # a fork would share the state of CUDA
        self.pool: Executor = ThreadPoolExecutor(1)
        self.make = data.batch
        if workers:  # each gets the data once: they may be large
            self.pool, self.make = ProcessPoolExecutor(workers, fresh, _begin, (data,)), _batch
        self.depth = 2 + 3 * workers
        self.waiting: list[Future[tuple[Array, Array]]] = []

    def __enter__(self) -> Iterator[tuple[Array, Array]]:
        return self._batches()

    def _batches(self) -> Iterator[tuple[Array, Array]]:
        while True:
            while len(self.waiting) < self.depth:
                number = self.seed * 2**32 + self.next
                self.waiting.append(self.pool.submit(self.make, number, self.size))
                self.next += 1
            yield self.waiting.pop(0).result()

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
