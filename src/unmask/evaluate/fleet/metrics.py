"""The progress of a fleet -> Ray's metrics, which its dashboards and Prometheus read with the prefix ray_."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unmask.errors import many


@dataclass(frozen=True)
class Progress:
    """Where a fleet stands."""

    ready: int  # workers
    asked: int
    lost: int  # workers, so far
    again: int  # parts that were begun again
    rows: int  # that were made
    rate: float  # of them a second, since the first part was handed out

    def __str__(self) -> str:
        again = f", {many(self.again, 'part')} again" if self.again else ""
        return f"{self.ready} of {many(self.asked, 'worker')}, {self.rate:.2f} rows/s{again}"


# Gauges, the totals too: Ray sends the growth of a counter again where sending it took too long, and adds it twice
GAUGES = {
    "rows_total": "rows that were made",
    "workers_lost_total": "workers that were lost",
    "parts_again_total": "parts that were begun again, as their worker was lost or late",
    "workers": "workers that are ready",
    "rows_per_second": "rows a second since the first part",
}


def metered(run: str) -> Callable[[Progress], None]:
    """A function that records where a fleet stands; `run` is in the names of its actors, too."""
    from ray.util.metrics import Gauge

    gauges = {name: Gauge(f"unmask_{name}", about, tag_keys=("run",)) for name, about in GAUGES.items()}

    def record(now: Progress) -> None:
        found = (now.rows, now.lost, now.again, now.ready, now.rate)
        for gauge, value in zip(gauges.values(), found, strict=True):
            gauge.set(value, {"run": run})

    return record
