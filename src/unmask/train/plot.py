"""The log of a training -> a picture of its loss and of its validations, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

PLOT = "loss.svg"
WIDE, HIGH, LEFT, TOP = 760, 300, 60, 30  # of one panel, and where its axes are
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")
Curve = list[tuple[float, float]]
KNOWN = {"event", "step", "seconds"}


def draw(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Two panels over the steps: the loss, smoothed and as it was; every figure of the validations."""
    loss: Curve = [
        (event["step"], event["loss"]) for event in events if event["event"] == "step" and _finite(event.get("loss"))
    ]
    checks = [event for event in events if event["event"] == "validation"]
    names = [name for name in (checks[-1] if checks else {}) if name not in KNOWN]
    figures = {name: [(event["step"], event[name]) for event in checks if _finite(event.get(name))] for name in names}
    panels = [_panel("loss, nats a token", {"each logged step": loss, "smoothed": smooth(loss)}, 0)]
    if figures:
        panels.append(_panel("validation", figures, HIGH + 40))
    size = f'width="{WIDE}" height="{(HIGH + 40) * len(panels)}"'
    style = "<style>text{font:12px sans-serif;fill:#6b7280}</style>"
    body = "\n".join(panels)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}\n{body}\n</svg>\n', encoding="utf-8")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def smooth(curve: Curve, share: float = 0.2) -> Curve:
    """A moving average that weighs each new point by `share`, and by more at first."""
    found: Curve = []
    for number, (x, y) in enumerate(curve):
        last = y if not found else found[-1][1]
        found.append((x, last + max(share, 1 / (1 + number / 2)) * (y - last)))
    return found


def _panel(title: str, curves: dict[str, Curve], down: int) -> str:
    points = [point for curve in curves.values() for point in curve]
    right = max((x for x, _ in points), default=1) or 1
    ys = sorted(y for _, y in points) or [0.0, 1.0]
    low, high = ys[0], ys[-1] if title == "validation" else ys[int(0.95 * (len(ys) - 1))]  # the first losses stand out
    if high <= low:
        low, high = low - 0.5, high + 0.5

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / right * (WIDE - LEFT - 40),
            down + TOP + (high - min(y, high)) / (high - low) * (HIGH - TOP - 30),
        )

    parts = [f'<text x="{LEFT}" y="{down + 16}" style="font-weight:bold">{escape(title)}</text>']
    for tick in range(5):
        value = low + (high - low) * tick / 4
        x, y = at(0, value)
        parts.append(f'<line x1="{x}" x2="{WIDE - 40}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        x, y = at(right * tick / 4, low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{right * tick / 4:,.0f}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = "#93c5fd" if name == "each logged step" else COLOURS[number % len(COLOURS)]
        line = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if len(curve) == 1:
            x, y = at(*curve[0])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{WIDE - 20 - 130 * number}" y="{down + 16}" text-anchor="end" style="fill:{colour}">')
        parts.append(f"{escape(name)}</text>")
    return "\n".join(parts)
