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


COUNTERS = {
    "rows": "rows that were made",
    "workers_lost": "workers that were lost",
    "parts_again": "parts that were begun again, as their worker was lost or late",
}
GAUGES = {"workers": "workers that are ready", "rows_per_second": "rows a second since the first part"}


def metered(run: str) -> Callable[[Progress], None]:
    """A function that records where a fleet stands; `run` is in the names of its actors, too."""
    from ray.util.metrics import Counter, Gauge

    tags, keys = {"run": run}, ("run",)
    counters = {name: Counter(f"unmask_{name}", about, tag_keys=keys) for name, about in COUNTERS.items()}
    gauges = {name: Gauge(f"unmask_{name}", about, tag_keys=keys) for name, about in GAUGES.items()}
    before = dict.fromkeys(COUNTERS, 0)

    def record(now: Progress) -> None:
        for name, count in (("rows", now.rows), ("workers_lost", now.lost), ("parts_again", now.again)):
            if count > before[name]:
                counters[name].inc(count - before[name], tags)
                before[name] = count
        gauges["workers"].set(now.ready, tags)
        gauges["rows_per_second"].set(now.rate, tags)

    return record
