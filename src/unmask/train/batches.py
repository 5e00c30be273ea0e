"""A source of training tokens -> its batches in order, made ahead of time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np
import torch

from unmask.models.network import Network

Numbers = np.ndarray[Any, Any]


class Source(Protocol):
    """Where training tokens come from."""

    def batch(self, number: int, size: int) -> tuple[Numbers, Numbers]:
        """Clean tokens [size, L] and which columns may be masked [L] bool; a pure function of its number."""
        ...

    def validate(self, network: Network) -> dict[str, float]:
        """Figures of a network on held-out data."""
        ...


_source: Source  # of a worker


def _begin(source: Source) -> None:
    """A worker has one thread, leaves Ctrl-C to its parent and goes after it, which has to compile first."""
    global _source
    _source = source
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _batch(number: int, size: int) -> tuple[Numbers, Numbers]:
    return _source.batch(number, size)


class Ahead:
    """Batches in order, made in the background by `workers` other processes, or by one thread where there are none."""

    def __init__(self, source: Source, seed: int, size: int, workers: int, first: int) -> None:
        self.source, self.seed, self.size, self.next = source, seed, size, first
        fresh = get_context("spawn")  # a fork would share the state of CUDA
        self.pool: Executor = ThreadPoolExecutor(1)
        self.make = source.batch
        if workers:  # each is given the source once: it may hold much
            self.pool, self.make = ProcessPoolExecutor(workers, fresh, _begin, (source,)), _batch
        self.depth = 2 + 3 * workers
        self.waiting: list[Future[tuple[Numbers, Numbers]]] = []

    def __enter__(self) -> Iterator[tuple[Numbers, Numbers]]:
        return self._batches()

    def _batches(self) -> Iterator[tuple[Numbers, Numbers]]:
        while True:
            while len(self.waiting) < self.depth:
                number = self.seed * 2**32 + self.next
                self.waiting.append(self.pool.submit(self.make, number, self.size))
                self.next += 1
            yield self.waiting.pop(0).result()

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
