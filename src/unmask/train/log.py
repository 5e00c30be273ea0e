"""The log of a training: its events <-> the lines of log.jsonl; and a picture of them, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.evaluate.rows import JsonLines, parsed
from unmask.evaluate.stats import is_finite
from unmask.report import chart
from unmask.report.chart import Curve

LOG, PLOT = "log.jsonl", "loss.svg"
KNOWN = {"event", "step", "seconds"}  # fields of a validation that are not figures of it
Event = dict[str, Any]


def open_log(directory: Path) -> JsonLines:
    """The log of a training. It is locked: no other training can use the directory."""
    path = directory / LOG
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}", error.strerror or "give another DIR") from None
    return JsonLines(path)


def read_log(directory: Path) -> list[Event]:
    """The events of a training. Those that a resumed run repeated are left out, and damaged lines too."""
    events: list[Event] = []
    for event in filter(_is_event, parsed((directory / LOG).read_bytes())):
        assert event is not None
        if event["event"] == "start":
            events = [earlier for earlier in events if earlier["step"] <= event["step"]]
        events.append(event)
    return events


def _is_event(value: Event | None) -> bool:
    return value is not None and isinstance(value.get("event"), str) and isinstance(value.get("step"), int)


def draw(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Two panels over the steps: the loss, smoothed and raw; every figure of the validations."""
    loss: Curve = [
        (event["step"], event["loss"]) for event in events if event["event"] == "step" and is_finite(event.get("loss"))
    ]
    checks = [event for event in events if event["event"] == "validation"]
    names = [name for name in (checks[-1] if checks else {}) if name not in KNOWN]
    figures = {name: [(event["step"], event[name]) for event in checks if is_finite(event.get(name))] for name in names}
    values = sorted(y for _, y in [*loss, *smooth(loss)])
    most = values[int(0.95 * (len(values) - 1))] if values else None  # the first losses are outliers
    curves = {"each logged step": loss, "smoothed": smooth(loss)}
    panels = [partial(chart.panel, title="loss, nats a token", curves=curves, most=most, pale=("each logged step",))]
    if figures:
        panels.append(partial(chart.panel, title="validation", curves=figures))
    chart.save(path, panels)


def smooth(curve: Curve, share: float = 0.2) -> Curve:
    """A moving average that weighs each new point by `share`, and by more at first."""
    found: Curve = []
    for number, (x, y) in enumerate(curve):
        last = y if not found else found[-1][1]
        found.append((x, last + max(share, 1 / (1 + number / 2)) * (y - last)))
    return found
