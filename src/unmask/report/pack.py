"""Events of a trace -> what a report keeps of them, checked: a trace is a file that anybody may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from unmask.decoding.trace import Event
from unmask.errors import InputError

DIGITS = 5  # of an entropy: a picture shows less, and a report is half as large


class Damage(Exception):
    """What is wrong with an event."""


def pack(events: Sequence[Event]) -> list[Event]:
    """The fields that are shown; an error names the line of the file, as each event has its own."""
    found: list[Event] = []
    steps = 0
    for number, event in enumerate(events, 1):
        try:
            _check_order(event, events[number - 2]["event"] if number > 1 else None, steps)
            if event["event"] == "error":
                continue
            found.append({"event": event["event"], **PACKERS[event["event"]](event, events[0]), **_words(event)})
        except Damage as damage:
            raise InputError(f"line {number} of the trace is damaged", str(damage)) from None
        except KeyError as missing:
            raise InputError(f"line {number} of the trace is damaged", f"it has no {missing}") from None
        except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
            said = "a field is not what it should be"
            raise InputError(f"line {number} of the trace is damaged", said) from None
        steps += event["event"] == "step"
    return found


def _check_order(event: Event, before: str | None, steps: int) -> None:
    kind = event["event"]
    if kind not in (*PACKERS, "error"):
        raise Damage(f"there is no event {kind!r}")
    if (kind == "start") != (before is None):
        raise Damage("a trace has one start, on its first line")
    if before in ("end", "error"):
        raise Damage(f"nothing may follow the {before}")
    if kind == "step" and event.get("step", steps) != steps:
        raise Damage(f"it is step {event['step']!r}, but step {steps} comes next")


def _words(event: Event) -> Event:
    found = [[_whole(token), _text(word)] for token, word in event.get("words", [])]
    return {"words": found} if found else {}


def _start(event: Event, _: Event) -> Event:
    canvases = [[_whole(token) for token in canvas] for canvas in event["canvases"]]
    particles, prompts = _whole(event["particles"]), len(event["canvases"])
    if not canvases or not all(canvases) or particles < 1:
        raise Damage("there is nothing to decode")
    return {
        "model": _text(event.get("model", "a model")),
        "recipe": {_text(name): _setting(value) for name, value in event.get("recipe", {}).items()},
        # as text: a browser rounds above 2^53
        "seeds": [str(_whole(seed)) for seed in _sized(event, "seeds", prompts)] if "seeds" in event else [],
        "particles": particles,
        "mask": _whole(event["mask"]),
        "canvases": canvases,
        "given": [_whole(given) for given in _sized(event, "given", prompts)] if "given" in event else [0] * prompts,
    }


def _step(event: Event, start: Event) -> Event:
    widths = [len(canvas) for canvas in start["canvases"]]
    k, rows = start["particles"], len(widths) * start["particles"]
    for row, column, *_ in event["changes"]:
        if not 0 <= row < rows or not 0 <= column < widths[row // k]:
            raise Damage(f"it changes column {column!r} of row {row!r}, which is not there")
    found: Event = {
        "h": [_number(h) for h in _sized(event, "h", rows)],
        "changes": [[row, column, _whole(token), _number(h)] for row, column, token, h in event["changes"]],
        **{
            name: [_whole(one) for one in _sized(event, name, len(widths))]
            for name in ("calls", "evaluations")
            if name in event
        },
    }
    if event.get("ancestors") is not None:
        found["ancestors"] = [_whole(ancestor) for ancestor in _sized(event, "ancestors", rows)]
        for row, ancestor in enumerate(found["ancestors"]):
            if ancestor // k != row // k:
                raise Damage(f"row {row} has the ancestor {ancestor}, which is none of its prompt")
    return found


def _end(event: Event, start: Event) -> Event:
    prompts, rows = len(start["canvases"]), len(start["canvases"]) * start["particles"]
    kinds: dict[str, tuple[int, Callable[[Any], Any]]] = {
        "chosen": (prompts, _whole),
        "path_entropy": (rows, _total),
        "log_prob": (rows, _total),
        "surprise": (rows, _total),
        "texts": (rows, _text),
        "steps": (rows, _whole),
        "calls": (prompts, _whole),
        "evaluations": (prompts, _whole),
        "log_evidence": (prompts, _total),
        "lineages": (prompts, _whole),
        "answers": (rows, _text),  # to puzzles, and what is wrong with them
        "faults": (rows, lambda value: None if value is None else _text(value)),
    }
    found: Event = {
        name: [kind(one) for one in _sized(event, name, size)]
        for name, (size, kind) in kinds.items()
        if name in event or name == "chosen"
    }
    if any(not 0 <= chosen < start["particles"] for chosen in found["chosen"]):
        raise Damage(f"it chooses particle {max(found['chosen'])} of {start['particles']}")
    choose = {"choose": _text(event["choose"])} if "choose" in event else {}
    return {**found, **choose, "seconds": _total(event.get("seconds"))}


PACKERS: dict[str, Callable[[Event, Event], Event]] = {"start": _start, "step": _step, "end": _end}


def _sized(event: Event, name: str, size: int) -> list[Any]:
    values: list[Any] = event[name]
    if not isinstance(values, list) or len(values) != size:
        many = len(values) if isinstance(values, list) else "no list"
        raise Damage(f"{name!r} must have {size} entries, and has {many}")
    return values


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise Damage(f"{value!r} is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damage(f"{value!r} is no text")
    return value


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    """An entropy, in a few digits; null where there is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Damage(f"{value!r} is no number")
    return float(f"{value:.{DIGITS}g}")


def _total(value: Any) -> float | None:
    """A number of the whole walk; one that was never defined, such as a mean over no steps, is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else _number(value)
