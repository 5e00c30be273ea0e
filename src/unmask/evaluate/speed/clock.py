"""Work on a device -> the time and the memory that it takes there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

Made = TypeVar("Made")
# Seconds that calls in a row take together, unless one takes longer. A GPU at its power limit slows down within some
# tenths of a second: what is compared must be as warm.
BLOCK = {"cpu": 0.05, "cuda": 0.3}


def now(device: torch.device) -> float:
    """Seconds, after waiting for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Turns:
    """Pieces of work that are timed in alternation with something else; the time of each is the mean of its turns.

    In a turn a piece is called in a loop, and the device is waited for at the end only.
    """

    def __init__(self, works: Mapping[str, Callable[[], object]], device: torch.device) -> None:
        self.works, self.order, self.device = works, list(works), device
        self.calls = {name: self._calls(work) for name, work in works.items()}
        self.seconds: dict[str, list[float]] = {name: [] for name in works}

    def _calls(self, work: Callable[[], object]) -> int:
        """The number of calls that fills a turn; the first call may be slow and does not count."""
        work()
        began = now(self.device)
        work()
        block = BLOCK.get(self.device.type, 0.05)
        return max(1, int(block / max(now(self.device) - began, 1e-7)))

    def turn(self) -> None:
        """Every piece once, each time beginning with another."""
        self.order = self.order[1:] + self.order[:1]
        for name in self.order:
            work, calls, began = self.works[name], self.calls[name], now(self.device)
            for _ in range(calls):
                work()
            self.seconds[name].append((now(self.device) - began) / calls)

    def ms(self) -> dict[str, float]:
        """Milliseconds of one call, in the mean of the turns since the last time."""
        found = {name: 1000 * statistics.mean(each) for name, each in self.seconds.items()}
        for each in self.seconds.values():
            each.clear()
        return found


def peak(work: Callable[[], Made], device: torch.device) -> tuple[Made, int | None]:
    """The result of the work, and the peak of allocated bytes above those before it; None on a CPU."""
    if device.type != "cuda":
        return work(), None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    made = work()
    torch.cuda.synchronize(device)
    return made, torch.cuda.max_memory_allocated(device) - before
