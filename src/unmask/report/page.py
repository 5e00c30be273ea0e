"""Events of a trace -> one HTML file that replays it: no network, no other file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unmask.core.denoiser import Tokenizer
from unmask.core.state import Vocab
from unmask.decoding.trace import Event, ending, spelling
from unmask.errors import many
from unmask.report.pack import pack

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
    """The whole report. `tokenizer` gives the strings of tokens where the trace has none; else ids are shown."""
    why = ending(events)
    events = pack(events)
    start = events[0]
    if tokenizer is not None and not any(event.get("words") for event in events):
        spell = spelling(tokenizer, Vocab(mask=start["mask"]))
        events = [spell(event) for event in events]
    lines = "\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
    script = "\n" + "".join(_inlined(name) for name in MODULES)
    return PAGE.format(
        title=escape(f"unmask: {start['model']}"),
        about=escape(_about(start)),
        unfinished=""
        if why is None
        else f'<p class="unfinished" role="note">This trace is unfinished: {escape(why)}.</p>\n',
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
    prompts = f" · {len(start['canvases'])} prompts" if len(start["canvases"]) > 1 else ""
    seed = f" · seed {', '.join(start['seeds'][:4])}" if start["seeds"] else ""
    return f"{recipe.get('search', '')} over {recipe.get('sampler', '')} · {many(k, 'particle')}{prompts}{seed}"


def _inlined(name: str) -> str:
    """A module as a part of one script: what it imports stands before it."""
    text = (WEB / name).read_text(encoding="utf-8")
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M)
