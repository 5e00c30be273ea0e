"""Particles of a walk -> Result: what came out, as values, as JSON, and as HTML for notebooks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from unmask.decoding import trace as traces
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import Event
from unmask.errors import InputError, many
from unmask.report.page import report

SHOWN = 400  # letters of a text in the table of a notebook


@dataclass(frozen=True)
class Particle:
    """One path that was walked to its end. Entropies are bits."""

    tokens: list[int]  # the whole canvas
    text: str  # what was generated after a prompt, or the filled canvas
    path_entropy: float
    state_entropy: list[float | None]  # along its own ancestry, step by step; None where nothing was masked
    steps: int
    origin: int  # the particle in which its lineage began
    log_prob: float  # nats: of the tokens as they were written, in the model's own distribution
    surprise: float  # nats a position: of what the state entropies foresaw and what was met; see `State.surprise`


@dataclass(frozen=True)
class Result:
    """What came out for one prompt or canvas."""

    particles: list[Particle]
    chosen: int
    recipe: Recipe
    seed: int
    calls: int  # times the network ran for it
    evaluations: int  # rows that went through the network for it
    log_evidence: float  # nats; 0 without resampling
    seconds: float  # of the whole batch that it was decoded in

    @property
    def best(self) -> Particle:
        return self.particles[self.chosen]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def tokens(self) -> list[int]:
        return self.best.tokens

    @property
    def path_entropy(self) -> float:
        return self.best.path_entropy

    @property
    def steps(self) -> int:
        """Steps of the longest path."""
        return max(particle.steps for particle in self.particles)

    @property
    def lineages(self) -> int:
        """How many of the first particles have descendants."""
        return len({particle.origin for particle in self.particles})

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "path_entropy": self.path_entropy,
            "state_entropy": self.best.state_entropy,
            "chosen": self.chosen,
            "steps": self.steps,
            "calls": self.calls,
            "evaluations": self.evaluations,
            "log_evidence": self.log_evidence,
            "lineages": self.lineages,
            "seconds": self.seconds,
            "seed": self.seed,
            "recipe": self.recipe.to_dict(),
            "choose": self.recipe.build_search().choose.name,
            "tokens": self.tokens,
            "particles": [
                {
                    "text": p.text,
                    "path_entropy": p.path_entropy,
                    "log_prob": p.log_prob,
                    "surprise": p.surprise,
                    "steps": p.steps,
                    "origin": p.origin,
                }
                for p in self.particles
            ],
        }

    # --- for notebooks ---

    def show(self, trace: str | Path | None = None) -> None:
        """Show it below the cell of a notebook; elsewhere print it. With the file of its trace, also the replay."""
        replay = "" if trace is None else frame(self._own(trace))
        shown = Shown(f"{self.text}\n{self._cost()}", self._repr_html_() + replay)
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
            from IPython.display import display  # only where it is running already

            display(shown)
        else:
            print(shown)

    def _own(self, trace: str | Path) -> list[Event]:
        """The events of a trace file, if they are of the decode that gave this result."""
        events = traces.load(trace)
        start, end, k = events[0], events[-1], len(self.particles)
        texts, mine = end.get("texts", []), [one.text for one in self.particles]
        places = [place for place, seed in enumerate(start.get("seeds", [])) if seed == self.seed]
        if start["particles"] != k or not any(texts[place * k : (place + 1) * k] == mine for place in places):
            raise InputError(f"{str(trace)!r} is the trace of another decode", "give the file that this one wrote")
        return events

    def _cost(self) -> str:
        """One line: path entropy and the counters."""
        cost = f"{many(self.steps, 'step')} · {many(self.evaluations, 'evaluation')}"
        found = f"path entropy {self.path_entropy:.3f} bits · {cost}"
        return found if len(self.particles) == 1 else f"{found} · {len(self.particles)} particles"

    def _repr_html_(self) -> str:
        """The text, what it cost, the state entropies as curves, all particles; no script, which notebooks drop."""
        rows = "".join(_line(place, one, place == self.chosen) for place, one in enumerate(self.particles))
        head = "".join(f"<th>{name}</th>" for name in ("", "particle", "path entropy", "steps", "began as", "text"))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if len(self.particles) > 1 else ""
        text = f'<pre style="white-space:pre-wrap">{escape(self.text)}</pre>'
        return f"<div>{text}<p>{escape(self._cost())}</p>{_curves(self.particles, self.chosen)}{table}</div>"


@dataclass(frozen=True)
class Shown:
    """What notebooks take as HTML, and terminals as text."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


# --- HTML ------------------------------------------------------------------------------------------------------------


def frame(events: Sequence[Event], high: int = 900) -> str:
    """The report of a trace as a frame inside another page, which its script cannot reach."""
    page = escape(report(events))
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="width:100%;height:{high}px;border:0"></iframe>'


def _line(place: int, one: Particle, chosen: bool) -> str:
    text = one.text if len(one.text) <= SHOWN else one.text[: SHOWN - 1] + "…"
    cells = ("▶" if chosen else "", place, f"{one.path_entropy:.3f}", one.steps, one.origin, text)
    style = ' style="font-weight:bold"' if chosen else ""
    left = ' style="text-align:left;white-space:pre-wrap"'
    parts = [f"<td{left if cell is text else ''}>{escape(str(cell))}</td>" for cell in cells]
    return f"<tr{style}>{''.join(parts)}</tr>"


WIDE, HIGH = 480, 120


def _curves(particles: Iterable[Particle], chosen: int) -> str:
    """State entropy along each path as SVG, the chosen one bold; in the colour of the page's text."""
    paths = [one.state_entropy for one in particles]
    most = max((h for path in paths for h in path if h is not None), default=0.0) or 1.0
    lines = ""
    for place, path in sorted(enumerate(paths), key=lambda pair: pair[0] == chosen):
        step = WIDE / max(1, len(path) - 1)
        points = " ".join(f"{x * step:.1f},{(1 - h / most) * HIGH:.1f}" for x, h in enumerate(path) if h is not None)
        style = 'stroke-width="2.5"' if place == chosen else 'stroke-width="1" stroke-opacity="0.35"'
        lines += f'<polyline points="{points}" fill="none" stroke="currentColor" {style}/>'
    size = f'width="{WIDE}" height="{HIGH + 22}" viewBox="-2 -4 {WIDE + 4} {HIGH + 24}"'
    words = (
        f'<text y="{HIGH + 16}" fill="currentColor" font-size="12">state entropy, 0 to {most:.3g} bits, by step</text>'
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{lines}{words}</svg>'
