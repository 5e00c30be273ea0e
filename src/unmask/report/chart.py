"""Curves -> SVG: panels with axes, one below the other, or a small picture without axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

WIDE, HIGH, GAP, LEFT, TOP = 760, 300, 40, 60, 30  # size of a panel, space between two, offset of the axes
SMALL = 480, 120  # pixels of a picture without axes
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
Curve = list[tuple[float, float]]
Band = list[tuple[float, float, float]]  # x, low, high


def save(path: Path, panels: Sequence[Callable[[int], str]]) -> None:
    """Write the panels; each is a function of its distance from the top, such as a partial `panel`."""
    size = f'width="{WIDE}" height="{(HIGH + GAP) * len(panels)}"'
    style = "<style>text{font:12px sans-serif;fill:#6b7280}</style>"
    body = "\n".join(draw(place * (HIGH + GAP)) for place, draw in enumerate(panels))
    text = _svg(size, f"{style}\n{body}\n") + "\n"
    path.write_text(text, encoding="utf-8", errors="replace")  # a name that was read may hold half of a surrogate pair


def small(caption: str, curves: Sequence[Curve], bold: int) -> str:
    """Curves from 0 up in the colour of the page's text, one of them bold; the caption is given the largest value."""
    wide, high = SMALL
    last = max((x for curve in curves for x, _ in curve), default=0.0) or 1.0
    most = max((y for curve in curves for _, y in curve), default=0.0) or 1.0
    lines = ""
    for place, curve in sorted(enumerate(curves), key=lambda pair: pair[0] == bold):
        points = [(x / last * wide, (1 - y / most) * high) for x, y in curve]
        lines += _line(points, "currentColor", 2.5 if place == bold else 1.0, 1.0 if place == bold else 0.35)
    text = f'<text y="{high + 16}" fill="currentColor" font-size="12">{escape(caption.format(most))}</text>'
    size = f'role="img" width="{wide}" height="{high + 22}" viewBox="-2 -4 {wide + 4} {high + 24}"'
    return _svg(size, lines + text)


def _svg(size: str, body: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{body}</svg>'


def _line(points: Iterable[tuple[float, float]], stroke: str, width: float, opacity: float = 1.0) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    pale = "" if opacity == 1.0 else f' stroke-opacity="{opacity:g}"'
    return f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{pale}/>'


def panel(
    down: int,
    title: str,
    curves: Mapping[str, Curve],
    *,
    most: float | None = None,  # larger values are drawn at this one
    pale: Sequence[str] = (),  # names of curves in the background
    log: bool = False,  # both axes logarithmic, with a mark at every point; otherwise x begins at 0
    bands: Mapping[str, Band] | None = None,  # intervals, by the name of the curve
    ticks: Mapping[float, str] | None = None,  # labels below the axis, by their place
) -> str:
    """One panel: a title, axes, curves and their names."""
    scale: Callable[[float], float] = math.log if log else float
    back: Callable[[float], float] = math.exp if log else float
    bands = bands or {}
    points = [point for curve in curves.values() for point in curve]
    points += [(x, y) for band in bands.values() for x, *ends in band for y in ends]
    xs, ys = sorted({x for x, _ in points}) or [1.0], sorted(y for _, y in points) or [0.5, 1.0]
    left, right = (scale(xs[0]), scale(xs[-1])) if log else (0.0, xs[-1] or 1.0)
    low, high = scale(ys[0]), scale(ys[-1] if most is None else most)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    if right <= left:
        left, right = left - 0.5, right + 0.5

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (scale(x) - left) / (right - left) * (WIDE - LEFT - 40),
            down + TOP + (high - min(scale(y), high)) / (high - low) * (HIGH - TOP - 30),
        )

    parts = [f'<text x="{LEFT}" y="{down + 16}" style="font-weight:bold">{escape(title)}</text>']
    for tick in range(5):
        value = back(low + (high - low) * tick / 4)
        _, y = at(xs[-1], value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDE - 40}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value, high - low, log)}</text>')
    places = xs if log else [right * tick / 4 for tick in range(5)]
    for place, word in (ticks or {place: _number(place, xs[-1]) for place in places}).items():
        x, y = at(place, back(low))
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{escape(word)}</text>')
    end = WIDE - 20
    for number, (name, curve) in enumerate(curves.items()):
        colour = "#93c5fd" if name in pale else COLOURS[number % len(COLOURS)]
        band = bands.get(name, [])
        edge = [at(x, top) for x, _, top in band] + [at(x, bottom) for x, bottom, _ in band[::-1]]
        area = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        parts.append(f'<polygon points="{area}" fill="{colour}" fill-opacity="0.15"/>' if edge else "")
        parts.append(_line((at(x, y) for x, y in curve), colour, 1.5))
        for x, y in curve if log or len(curve) == 1 else []:
            x, y = at(x, y)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{end}" y="{down + 16}" text-anchor="end" style="fill:{colour}">{escape(name)}</text>')
        end -= 7 * len(name) + 20  # about as wide as it is written
    return "\n".join(parts)


def _number(value: float, largest: float) -> str:
    """A number below an axis: an integer, unless the axis is short."""
    return f"{value:.3g}" if largest < 10 else f"{value:,.0f}"


def _short(value: float, span: float, log: bool) -> str:
    """A number beside an axis; 0 where it is negligible against the span."""
    return "0" if not log and abs(value) < span / 50 else f"{value:.3g}"
