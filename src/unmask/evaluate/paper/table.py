"""Figures of the cells -> a table in Markdown, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.evaluate.paper.plan import Experiment, Place

Figures = Mapping[str, Any]
Column = tuple[str, Callable[[Figures], str]]


def markdown(experiment: Experiment, place: Place, found: Sequence[Figures], command: str) -> str:
    """A page: what it is, the table, where its numbers come from."""
    columns: list[Column] = [(name, _label(number)) for number, name in enumerate(experiment.axes)]
    columns += [(f"paper: {what}", _printed(numbers)) for what, numbers in experiment.beside(place).items()]
    columns += _columns(experiment.measures(place), found)
    lines = [
        f"# {experiment.title}",
        "",
        f"The paper: {experiment.where}. {experiment.claim}",
        "",
        "| " + " | ".join(name for name, _ in columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(show(one) for _, show in columns) + " |" for one in found),
        "",
        _origin(place, found),
        "",
        f"`{command}`",
    ]
    return "\n".join(lines) + "\n"


def _origin(place: Place, found: Sequence[Figures]) -> str:
    """Where the numbers come from, in one sentence."""
    machines = sorted({one["machine"] for one in found if one.get("machine")})
    dates = sorted({str(one["date"])[:10] for one in found if one.get("date")})
    commits = sorted({str(one["commit"])[:10] for one in found if one.get("commit")})
    asked = "text from nothing" if place.task is None else place.task
    days = " to ".join(dict.fromkeys(dates[:1] + dates[-1:]))
    dtype = f" in {found[0]['dtype']}" if found[0].get("dtype") else ""
    text = f"Model {found[0]['model']}{dtype}, {asked}; {', '.join(machines)}; {days}"
    text += f"; commit {', '.join(commits)}" if commits else ""
    shorter = f" Steps and Δ are {place.scale:g} of what the labels say, as its canvas is." if place.scale != 1 else ""
    return f"{text}.{shorter} Intervals are 95 %."


def _columns(kind: str, found: Sequence[Figures]) -> list[Column]:
    shown = COLUMNS[kind]
    return [(name, show) for name, show in shown if any(show(one) for one in found)]


def _label(number: int) -> Callable[[Figures], str]:
    return lambda one: str(one["labels"][number])


def _printed(numbers: Mapping[str, Any]) -> Callable[[Figures], str]:
    return lambda one: f"{numbers[one['cell']]:g}" if one["cell"] in numbers else ""


def _share(name: str) -> Callable[[Figures], str]:
    return lambda one: f"{100 * one[name]:.1f} ({100 * one[f'{name}_low']:.1f}–{100 * one[f'{name}_high']:.1f})"


def _change(name: str, times: float, digits: int) -> Callable[[Figures], str]:
    def show(one: Figures) -> str:
        over = (one.get("against") or {}).get(name)
        if over is None:
            return ""
        middle, low, high = (times * over[end] for end in ("difference", "low", "high"))
        return f"{middle:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"

    return show


def _mean(name: str, digits: int) -> Callable[[Figures], str]:
    def show(one: Figures) -> str:
        if name not in one:
            return ""
        middle, low, high = (one[name][end] for end in ("mean", "low", "high"))
        sure = "" if low is None else f" ({low:.{digits}f}–{high:.{digits}f})"
        return "" if middle is None else f"{middle:.{digits}f}{sure}"

    return show


def _number(name: str, digits: int) -> Callable[[Figures], str]:
    return lambda one: "" if one.get(name) is None else f"{one[name]:,.{digits}f}"


COSTS: list[Column] = [
    ("evaluations", _number("evaluations", 0)),
    ("seconds", _number("seconds", 1)),
    ("n", _number("n", 0)),
]
COLUMNS: dict[str, list[Column]] = {
    "task": [
        ("solved, %", _share("strict")),
        ("against the first", _change("strict", 100, 1)),
        ("path entropy, bits", _number("path_entropy_bits", 3)),
        ("its spread", _number("path_entropy_sd", 3)),
        ("AUROC", _number("auroc", 3)),
        *COSTS,
    ],
    "text": [
        ("ln PPL", _mean("ln_ppl", 3)),
        ("against the first", _change("ln_ppl", 1, 3)),
        ("PPL as MDLM's", _mean("mdlm_ppl", 1)),
        ("diversity, nats", _mean("diversity", 3)),
        ("diversity against the first", _change("diversity", 1, 3)),
        ("path entropy, bits", _mean("path_entropy", 3)),
        ("correlation with ln PPL", _mean("pearson", 3)),
        *COSTS,
    ],
    "runtime": [("seconds", _number("seconds", 3)), ("calls", _number("calls", 0)), *COSTS[:1], ("n", _number("n", 0))],
    "paths": [*COSTS[:2]],
}
