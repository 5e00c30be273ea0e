"""Events of a trace -> checked, and packed into one HTML file that replays them: no network, no other file."""

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

from unmask.core.denoiser import Tokenizer
from unmask.core.state import Vocab
from unmask.decoding.trace import PER_PROMPT, Event, ending, spelling
from unmask.errors import InputError, many

WEB = Path(__file__).parent / "web"  # the live page loads the same files as modules
# a module comes after those that it imports
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
LIVE = (  # only on the live page of `unmask serve`
    "live.html",
    "live.css",
    "desk.css",
    "outcome.css",
    "icon.svg",
    "wire.js",
    "examples.js",
    "given.js",
    "form.js",
    "words.js",
    "column.js",
    "versus.js",
    "live.js",
)
IMPORT = re.compile(r'import \{ [\w, ]+ \} from "\./\w+\.js";')
EXPORT = re.compile(r"export (?:async )?(?:function|class|const|let) ")
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
{unfinished}<noscript><p>The replay needs JavaScript, which is switched off here.</p></noscript>
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
    """The report as HTML. `tokenizer` gives the strings of tokens that an old trace lacks; without it ids are shown."""
    why = ending(events)
    events = pack(events)
    start = events[0]
    if tokenizer is not None and not any(event.get("words") for event in events):
        spell = spelling(tokenizer, Vocab(mask=start["mask"]))
        events = [spell(event) for event in events]
    lines = "\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
    script = "\n" + "".join(inlined(name, _web(name)) for name in MODULES)
    return PAGE.format(
        title=escape(f"unmask: {start['model']}"),
        about=escape(_about(start)),
        unfinished=""
        if why is None
        else f'<p class="unfinished" role="note">This trace is unfinished: {escape(why)}.</p>\n',
        style="".join(_web(name) for name in STYLES),
        policy=POLICY.format(_base64(hashlib.sha256(script.encode()).digest())),
        data=_base64(gzip.compress(lines.encode(), mtime=0)),
        script=script,
    )


def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _about(start: Event) -> str:
    """One line: how it was decoded."""
    recipe, k = start["recipe"], start["particles"]
    prompts = f" · {len(start['canvases'])} prompts" if len(start["canvases"]) > 1 else ""
    seed = f" · seed {', '.join(start['seeds'][:4])}" if start["seeds"] else ""
    return f"{recipe.get('search', '')} over {recipe.get('sampler', '')} · {many(k, 'particle')}{prompts}{seed}"


def inlined(name: str, text: str) -> str:
    """A module as a part of one script: its imports are dropped, since MODULES puts the imported modules first."""
    for line in re.findall(r"^[ \t]*(?:import|export)\b.*", text, flags=re.M):
        plain = IMPORT.fullmatch(line) or EXPORT.match(line)
        assert plain, f'{name}: {line!r} cannot be inlined: write `import {{ a, b }} from "./c.js";` on one line'
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M)


# --- the check: a trace is a file that anybody may have written -------------------------------------------------------

DIGITS = 5  # of an entropy: a picture shows less, and a report is half as large


class Damage(Exception):
    """A fault of an event."""


def pack(events: Sequence[Event]) -> list[Event]:
    """The fields that a report shows, checked; an error names the event's line in the file."""
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
            raise InputError(f"line {number} of the trace is damaged", "a field has the wrong type or size") from None
        steps += event["event"] == "step"
    return found


def _check_order(event: Event, before: str | None, steps: int) -> None:
    kind = event["event"]
    if kind not in (*PACKERS, "error"):
        raise Damage(f"unknown event {kind!r}")
    if (kind == "start") != (before is None):
        raise Damage("a trace has one start, on its first line")
    if before in ("end", "error"):
        raise Damage(f"nothing may follow the {before}")
    if kind == "step" and event.get("step", steps) != steps:
        raise Damage(f"its step is {event['step']!r}; expected {steps}")


def _words(event: Event) -> Event:
    found = [[_whole(token), _text(word)] for token, word in event.get("words", [])]
    return {"words": found} if found else {}


def _start(event: Event, start: Event) -> Event:
    canvases = [[_whole(token) for token in canvas] for canvas in event["canvases"]]
    if not canvases or not all(canvases) or _whole(event["particles"]) < 1:
        raise Damage("it has no canvas or no particles")
    return {
        "model": _text(event.get("model", "a model")),
        "recipe": {_text(name): _setting(value) for name, value in event.get("recipe", {}).items()},
        "particles": event["particles"],
        "mask": _whole(event["mask"]),
        "canvases": canvases,
        "seeds": [],
        "given": [0] * len(canvases),
        **_lists(event, start),
    }


def _step(event: Event, start: Event) -> Event:
    widths, k = [len(canvas) for canvas in start["canvases"]], start["particles"]
    for row, column, *_ in event["changes"]:
        if not 0 <= row < len(widths) * k or not 0 <= column < widths[row // k]:
            raise Damage(f"it changes column {column!r} of row {row!r}, which does not exist")
    for row, ancestor in enumerate(event.get("ancestors") or []):
        if _whole(ancestor) // k != row // k:
            raise Damage(f"row {row} has the ancestor {ancestor}, a row of another prompt")
    changes = [[row, column, _whole(token), _number(h)] for row, column, token, h in event["changes"]]
    return {**_lists(event, start), "changes": changes}


def _end(event: Event, start: Event) -> Event:
    found = _lists(event, start)
    if any(not 0 <= chosen < start["particles"] for chosen in found["chosen"]):
        raise Damage(f"it chooses particle {max(found['chosen'])} of {start['particles']}")
    choose = {"choose": _text(event["choose"])} if "choose" in event else {}
    return {**found, **choose, "seconds": _total(event.get("seconds"))}


def _lists(event: Event, start: Event) -> Event:
    """The fields of an event with one entry per prompt or per row, as far as it has them."""
    prompts = len(start["canvases"])
    sizes = {name: prompts if name in PER_PROMPT else prompts * start["particles"] for name in LISTS[event["event"]]}
    present = [name for name in sizes if event.get(name) is not None or name in ("h", "chosen")]
    return {name: [LISTS[event["event"]][name](one) for one in _sized(event, name, sizes[name])] for name in present}


def _sized(event: Event, name: str, size: int) -> list[Any]:
    values: list[Any] = event[name]
    if not isinstance(values, list) or len(values) != size:
        found = f"has {len(values)}" if isinstance(values, list) else "is not a list"
        raise Damage(f"{name!r} must have {size} entries, and {found}")
    return values


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise Damage(f"{value!r} is not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damage(f"{value!r} is not a string")
    return value


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    """An entropy, rounded to DIGITS; or null."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Damage(f"{value!r} is not a finite number")
    return float(f"{value:.{DIGITS}g}")


def _total(value: Any) -> float | None:
    """A number of the whole walk; null for an undefined one, such as a mean over zero steps."""
    return None if isinstance(value, float) and not math.isfinite(value) else _number(value)


PACKERS: dict[str, Callable[[Event, Event], Event]] = {"start": _start, "step": _step, "end": _end}
# the lists of each kind of event, with the check of an entry
LISTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "start": {"seeds": lambda seed: str(_whole(seed)), "given": _whole},  # text: JavaScript rounds above 2^53
    "step": {"h": _number, "calls": _whole, "evaluations": _whole, "rows": _whole, "ancestors": _whole},
    "end": {
        **dict.fromkeys(("chosen", "steps", "calls", "evaluations", "rows", "lineages"), _whole),
        **dict.fromkeys(("path_entropy", "log_prob", "surprise", "look", "log_evidence"), _total),
        **dict.fromkeys(("texts", "finish", "answers"), _text),  # answers of puzzles
        "faults": lambda fault: None if fault is None else _text(fault),  # null for a right answer
    },
}
