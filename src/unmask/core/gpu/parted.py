"""A step with work of the host in between -> several CUDA graphs, played one after the other, and that work.

A constraint reads canvases on the host. Where a step asks for such work, its recording ends and the next one begins.
The work is done anew whenever the step is played, and its results go into the tensors that the recordings know. Graphs
are only started, so that the network runs while the host works out which tokens are allowed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

Work = Callable[[], tuple[Tensor, ...]]


class Graph(Protocol):
    """Operations on fixed tensors, recorded from `begin` to `end`."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def replay(self) -> None: ...


class Pauses:
    """The work of the host in a step: done at once in the first pass, kept in the second, which is recorded."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.results: list[tuple[Tensor, ...]] = []  # what recordings read: filled in after each work
        self.cut: Callable[[], None] | None = None  # ends a recording and begins the next one

    def __call__(self, work: Work) -> tuple[Tensor, ...]:
        if self.cut is None:
            found = work()
            self.results.append(tuple(one.clone() for one in found))
            return found
        self.cut()
        self.works.append(work)
        return self.results[len(self.works) - 1]

    def play(self, place: int) -> None:
        """The work of one pause, and its results where they are expected."""
        for new, old in zip(self.works[place](), self.results[place], strict=True):
            if new is not old:
                old.copy_(new)


class Parts:
    """The graphs of one step."""

    def __init__(self, pauses: Pauses, device: Device) -> None:
        self.pauses, self.device = pauses, device
        self.graphs: list[Graph] = []

    def record(self, step: Callable[[], None]) -> None:
        """Record a step that was taken once, so that the results of its pauses are known."""
        with self.device.recording():
            self._begin()
            self.pauses.cut = self._cut
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # an error may have ended it
                    self.graphs[-1].end()
                raise
            self.graphs[-1].end()
        assert len(self.pauses.works) == len(self.pauses.results)

    def play(self) -> None:
        """The step: started, and finished up to the last pause."""
        for place, graph in enumerate(self.graphs):
            if place:
                self.pauses.play(place - 1)
            graph.replay()

    def _cut(self) -> None:
        self.graphs[-1].end()
        self._begin()

    def _begin(self) -> None:
        self.graphs.append(self.device.graph())
        self.graphs[-1].begin()


class Device:
    """Where graphs are recorded; those of a step share their memory."""

    def __init__(self) -> None:
        self.side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On a stream of its own, after all that was begun."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream().wait_stream(self.side)

    @contextmanager
    def recording(self) -> Iterator[None]:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        with torch.cuda.stream(self.side):
            yield

    def graph(self) -> Graph:
        return CudaGraph(self.pool)


class CudaGraph:
    """One CUDA graph."""

    def __init__(self, pool: Any) -> None:
        self.graph, self.pool = torch.cuda.CUDAGraph(), pool

    def begin(self) -> None:
        self.graph.capture_begin(self.pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self.graph.capture_end()

    def replay(self) -> None:
        self.graph.replay()
