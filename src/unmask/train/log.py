"""The log of a training: its events <-> the lines of log.jsonl."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

LOG = "log.jsonl"
Event = dict[str, Any]


def open_log(directory: Path) -> TextIO:
    """The log, at the beginning of a line."""
    path = directory / LOG
    cut = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    file = path.open("a", encoding="utf-8")
    file.write("\n" if cut else "")
    return file


def as_line(event: Event) -> str:
    """The line of an event; null stands for a figure that is no number."""
    lost = {name: None for name, value in event.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps(event | lost, allow_nan=False) + "\n"


def read_log(directory: Path) -> list[Event]:
    """The events of a training, without those that a later run went back over and without lines that hold none."""
    events: list[Event] = []
    for line in (directory / LOG).read_bytes().splitlines():
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if not _is_event(event):
                continue
            if event["event"] == "start":
                events = [earlier for earlier in events if earlier["step"] <= event["step"]]
            events.append(event)
    return events


def _is_event(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("event"), str) and isinstance(value.get("step"), int)
