"""What a server has done -> the text that Prometheus reads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

Labels = tuple[tuple[str, str], ...]
# name: (kind, help); a histogram has the upper ends of its buckets, too
ABOUT: dict[str, tuple[str, str]] = {
    "unmask_requests_total": ("counter", "HTTP requests by path and status."),
    "unmask_choices_total": ("counter", "Choices by what became of them: done, failed, cancelled, late."),
    "unmask_tokens_total": ("counter", "Tokens by kind: given in prompts, shown in answers."),
    "unmask_evaluations_total": ("counter", "Rows that went through a network, by model."),
    "unmask_retried_total": ("counter", "Choices decoded again by themselves, because their batch failed."),
    "unmask_request_seconds": ("histogram", "From a request to the end of its answer, by path."),
    "unmask_wait_seconds": ("histogram", "What choices waited before they were decoded."),
    "unmask_batch_choices": ("histogram", "Choices that were decoded together."),
    "unmask_waiting": ("gauge", "Choices that wait now."),
    "unmask_running": ("gauge", "Choices that are decoded now."),
    "process_resident_memory_bytes": ("gauge", "Memory that the process holds."),
}
SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0)
BUCKETS = {
    "unmask_request_seconds": SECONDS,
    "unmask_wait_seconds": SECONDS,
    "unmask_batch_choices": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
}


class Metrics:
    """Counters and histograms that any thread may add to, and gauges that are asked when somebody looks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self.seen: dict[tuple[str, Labels], list[float]] = {}  # for each bucket, then the sum
        self.gauges: dict[str, Callable[[], float]] = {"process_resident_memory_bytes": resident}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count."""
        with self.lock:
            self.counts[name, tuple(labels.items())] += amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """One more value of a histogram."""
        ends = BUCKETS[name]
        with self.lock:
            row = self.seen.setdefault((name, tuple(labels.items())), [0.0] * (len(ends) + 2))
            row[next((place for place, end in enumerate(ends) if value <= end), len(ends))] += 1
            row[-1] += value

    def text(self) -> str:
        """All of it, as the text format has it."""
        with self.lock:
            counts, seen = dict(self.counts), {key: list(row) for key, row in self.seen.items()}
        lines: list[str] = []
        for name, (kind, about) in ABOUT.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value:g}" for (n, labels), value in counts.items() if n == name]
            lines += [line for (n, labels), row in seen.items() if n == name for line in _histogram(name, labels, row)]
            if name in self.gauges:
                lines.append(f"{name} {self.gauges[name]():.0f}")
        return "\n".join(lines) + "\n"


def _histogram(name: str, labels: Labels, row: list[float]) -> list[str]:
    reached, lines = 0.0, []
    for end, count in zip([*BUCKETS[name], "+Inf"], row, strict=False):
        reached += count
        lines.append(f"{name}_bucket{_labels((*labels, ('le', str(end))))} {reached:g}")
    return [*lines, f"{name}_sum{_labels(labels)} {row[-1]:.6f}", f"{name}_count{_labels(labels)} {reached:g}"]


def _labels(labels: Labels) -> str:
    """`{path="/v1/models"}`; nothing for none."""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in labels]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    special: Mapping[str, str] = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    return "".join(special.get(character, character) for character in value)


def resident() -> float:
    """Bytes of memory that this process holds now; 0 where nobody says it."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) * 4096.0
