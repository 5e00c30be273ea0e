"""The log of a training: its events <-> the lines of log.jsonl."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from unmask.errors import InputError
from unmask.evaluate.rows import locked, to_json

LOG = "log.jsonl"
Event = dict[str, Any]


def open_log(directory: Path) -> TextIO:
    """The log of a new or begun training, at the beginning of a line. Who has it open is alone in the directory."""
    path = directory / LOG
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
        before = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}", error.strerror or "give another DIR") from None
    if not locked(file):
        file.close()
        raise InputError(f"another training is at work in {str(directory)!r}", "wait for it, or give another DIR")
    file.write("\n" if before and not before.endswith(b"\n") else "")
    return file


def as_line(event: Event) -> str:
    """The line of an event; null stands for a figure that is no number."""
    return json.dumps(to_json(event), allow_nan=False) + "\n"


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
