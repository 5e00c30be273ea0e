"""A Result -> HTML for a notebook cell, and text elsewhere; with its trace, the replay in a frame."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from unmask.decoding import trace as traces
from unmask.decoding.result import Particle, Result
from unmask.decoding.trace import Event
from unmask.errors import InputError
from unmask.report import chart
from unmask.report.page import report

LETTERS = 400  # of a text in the table


@dataclass(frozen=True)
class Shown:
    """HTML for notebooks and text for terminals."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def show(result: Result, trace: str | Path | None = None) -> None:
    """Display the result in a notebook, or print it; with a trace file, also the replay."""
    replay = "" if trace is None else frame(_events(result, trace))
    shown = Shown(f"{result.text}\n{result.cost()}", html(result) + replay)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display  # only where it is running already

        display(shown)
    else:
        print(shown)


def html(result: Result) -> str:
    """The text, its cost, the state entropies as curves and a table of particles; no script, which notebooks drop."""
    rows = "".join(_row(place, one, place == result.chosen) for place, one in enumerate(result.particles))
    head = "".join(f"<th>{name}</th>" for name in ("", "particle", "path entropy", "steps", "began as", "text"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if len(result.particles) > 1 else ""
    text = f'<pre style="white-space:pre-wrap">{escape(result.text)}</pre>'
    curves = [[(float(x), h) for x, h in enumerate(one.state_entropy) if h is not None] for one in result.particles]
    picture = chart.small("state entropy, 0 to {:.3g} bits, by step", curves, result.chosen)
    return f"<div>{text}<p>{escape(result.cost())}</p>{picture}{table}</div>"


def frame(events: Sequence[Event], high: int = 900) -> str:
    """The report of a trace as a frame of another page, which its script cannot reach."""
    page = escape(report(events))
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="width:100%;height:{high}px;border:0"></iframe>'


def _events(result: Result, trace: str | Path) -> list[Event]:
    """The events of a trace file, after a check that they belong to this result."""
    events = traces.load(trace)
    start, end, k = events[0], events[-1], len(result.particles)
    texts, mine = end.get("texts", []), [one.text for one in result.particles]
    places = [place for place, seed in enumerate(start.get("seeds", [])) if seed == result.seed]
    if start["particles"] != k or not any(texts[place * k : (place + 1) * k] == mine for place in places):
        raise InputError(f"{str(trace)!r} is the trace of another decode", "give the file that this one wrote")
    return events


def _row(place: int, one: Particle, chosen: bool) -> str:
    text = one.text if len(one.text) <= LETTERS else one.text[: LETTERS - 1] + "…"
    cells = ("▶" if chosen else "", place, f"{one.path_entropy:.3f}", one.steps, one.origin, text)
    style = ' style="font-weight:bold"' if chosen else ""
    left = ' style="text-align:left;white-space:pre-wrap"'
    parts = [f"<td{left if cell is text else ''}>{escape(str(cell))}</td>" for cell in cells]
    return f"<tr{style}>{''.join(parts)}</tr>"
