"""Events of a trace -> one HTML file that replays it: no network, no other file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.models.denoiser import Tokenizer
from unmask.state import Vocab
from unmask.trace import Event, spelling

WEB = Path(__file__).parent / "web"  # the views; a live page loads the same files as modules
# in the order in which they need each other
MODULES = (
    "palette.js",
    "draw.js",
    "trace.js",
    "replay.js",
    "curves.js",
    "table.js",
    "parts.js",
    "views.js",
    "report.js",
)
STYLES = ("base.css", "views.css", "media.css")
LIVE = (  # what only the live page of `unmask serve` loads
    "live.html",
    "live.css",
    "outcome.css",
    "icon.svg",
    "wire.js",
    "given.js",
    "form.js",
    "words.js",
    "column.js",
    "live.js",
)
DIGITS = 5  # of an entropy: a picture shows less, and a report is half as large

POLICY = "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'"  # nothing is fetched, no other script
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body class="report">
<header>
<h1>{title}</h1>
<p>{about}</p>
<noscript><p>The replay needs JavaScript, which is switched off here.</p></noscript>
</header>
<main id="views"></main>
<footer>
<kbd>space</kbd> plays and pauses · <kbd>←</kbd> <kbd>→</kbd> one step, with <kbd>shift</kbd> a tenth of all ·
<kbd>home</kbd> <kbd>end</kbd> · <kbd>c</kbd> another colouring · with the focus on all particles, <kbd>↑</kbd>
<kbd>↓</kbd> another one
</footer>
<script type="text/plain" id="trace">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def report(events: Sequence[Event], tokenizer: Tokenizer | None = None) -> str:
    """The whole report. `tokenizer` gives the strings of tokens where the trace has none; else ids are shown."""
    events = [_packed(number, event, events[0]) for number, event in enumerate(events)]
    start = events[0]
    if tokenizer is not None and not any(event.get("words") for event in events):
        spell = spelling(tokenizer, Vocab(mask=start["mask"]))
        events = [spell(event) for event in events]
    lines = "\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
    script = "\n" + "".join(_inlined(name) for name in MODULES)
    return PAGE.format(
        title=escape(f"unmask: {start['model']}"),
        about=escape(_about(start)),
        style="".join((WEB / name).read_text(encoding="utf-8") for name in STYLES),
        policy=POLICY.format(_base64(hashlib.sha256(script.encode()).digest())),
        data=_base64(gzip.compress(lines.encode(), mtime=0)),
        script=script,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _about(start: Event) -> str:
    """One line: how it was decoded."""
    recipe, k = start["recipe"], start["particles"]
    who = f"{k} particle{'' if k == 1 else 's'}"
    many = f" · {len(start['canvases'])} prompts" if len(start["canvases"]) > 1 else ""
    seed = f" · seed {', '.join(start['seeds'][:4])}" if start["seeds"] else ""
    return f"{recipe.get('search', '')} over {recipe.get('sampler', '')} · {who}{many}{seed}"


def _inlined(name: str) -> str:
    """A module as a part of one script: what it imports stands before it."""
    text = (WEB / name).read_text(encoding="utf-8")
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M)


# --- what is kept of an event ----------------------------------------------------------------------------------------


def _packed(number: int, event: Event, start: Event) -> Event:
    """The fields that are shown, checked; a trace is a file that anybody may have written."""
    try:
        kind = event["event"]
        if (kind == "start") != (number == 0):
            raise ValueError
        return {"event": kind, **PACKERS[kind](event, start), **_words(event)}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        raise InputError(f"event {number + 1} of the trace is damaged", "decode it again with --trace") from None


def _words(event: Event) -> Event:
    found = [[_whole(token), _text(word)] for token, word in event.get("words", [])]
    return {"words": found} if found else {}


def _start(event: Event, _: Event) -> Event:
    canvases = [[_whole(token) for token in canvas] for canvas in event["canvases"]]
    particles = _whole(event["particles"])
    if not canvases or not all(canvases) or particles < 1:
        raise ValueError
    return {
        "model": _text(event.get("model", "a model")),
        "recipe": {_text(name): _setting(value) for name, value in event.get("recipe", {}).items()},
        "seeds": [str(_whole(seed)) for seed in event.get("seeds", [])],  # a browser rounds above 2^53
        "particles": particles,
        "mask": _whole(event["mask"]),
        "canvases": canvases,
        "given": [_whole(given) for given in event.get("given", [0] * len(canvases))],
    }


def _step(event: Event, start: Event) -> Event:
    widths = [len(canvas) for canvas in start["canvases"]]
    k, rows = start["particles"], len(widths) * start["particles"]
    if any(not 0 <= row < rows or not 0 <= column < widths[row // k] for row, column, *_ in event["changes"]):
        raise ValueError
    found: Event = {
        "h": [_number(h) for h in _sized(event["h"], rows)],
        "changes": [[row, column, _whole(token), _number(h)] for row, column, token, h in event["changes"]],
        **{name: [_whole(one) for one in event[name]] for name in ("calls", "evaluations") if name in event},
    }
    if event.get("ancestors") is not None:
        found["ancestors"] = [_whole(ancestor) for ancestor in _sized(event["ancestors"], rows)]
        if any(
            ancestor not in range(row // k * k, row // k * k + k) for row, ancestor in enumerate(found["ancestors"])
        ):
            raise ValueError
    return found


def _end(event: Event, start: Event) -> Event:
    prompts, rows = len(start["canvases"]), len(start["canvases"]) * start["particles"]
    kinds: dict[str, tuple[int, Callable[[Any], Any]]] = {
        "chosen": (prompts, _whole),
        "path_entropy": (rows, _number),
        "texts": (rows, _text),
        "steps": (rows, _whole),
        "calls": (prompts, _whole),
        "evaluations": (prompts, _whole),
        "log_evidence": (prompts, _number),
        "lineages": (prompts, _whole),
    }
    found: Event = {
        name: [kind(one) for one in _sized(event[name], size)] for name, (size, kind) in kinds.items() if name in event
    }
    if any(not 0 <= chosen < start["particles"] for chosen in found["chosen"]):
        raise ValueError
    return {**found, "seconds": _number(event.get("seconds"))}


PACKERS: dict[str, Callable[[Event, Event], Event]] = {"start": _start, "step": _step, "end": _end}


def _sized(values: list[Any], size: int) -> list[Any]:
    if len(values) != size:
        raise ValueError
    return values


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    """A float of a few digits; what is no number is null."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
