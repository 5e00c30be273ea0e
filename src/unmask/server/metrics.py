"""The work of a server -> the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TEXT = "text/plain; version=0.0.4; charset=utf-8"  # what Prometheus reads
CHOICES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Metrics:
    """The counters, histograms and gauges of one application, in a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, about, labels, buckets=buckets, registry=registry)

        self.requests = counter("unmask_requests", "HTTP requests by path and status.", "path", "status")
        self.choices = counter("unmask_choices", "Choices by outcome: done, failed, cancelled, late.", "how")
        self.tokens = counter("unmask_tokens", "Tokens by kind: given in prompts, shown in answers.", "kind")
        self.evaluations = counter("unmask_evaluations", "Rows that paths asked a network for, by model.", "model")
        self.rows = counter("unmask_rows", "Rows that a network computed, of equal canvases one, by model.", "model")
        self.retried = counter("unmask_retried", "Choices decoded again one by one, because their batch failed.")
        self.joined = counter("unmask_joined", "Choices that joined a running batch, in rows that others had freed.")
        about = "Seconds from a request to the end of its answer, by path."
        self.request_seconds = histogram("unmask_request_seconds", about, SECONDS, "path")
        self.wait_seconds = histogram("unmask_wait_seconds", "Seconds that choices waited in the queue.", SECONDS)
        self.batch_choices = histogram("unmask_batch_choices", "Choices that were decoded together.", CHOICES)
        self.waiting = Gauge("unmask_waiting", "Choices in the queue.", registry=registry)
        self.running = Gauge("unmask_running", "Choices that are decoded now.", registry=registry)
        ProcessCollector(registry=registry)  # process_resident_memory_bytes and others, on Linux

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry).decode()
