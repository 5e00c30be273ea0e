"""Figures of the cells -> pictures as one would print them, each as SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.evaluate.paper.plan import Experiment, Place

Figures = dict[str, Any]
MARKS = "osD^v<>PX*"


def draw(
    experiment: Experiment,
    place: Place,
    found: Sequence[Figures],
    folder: Path,
    points: Sequence[tuple[str, list[Figures]]] = (),
) -> list[Path]:
    """Write the picture of an experiment; `points` are judged samples by cell, for a scatter."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(5.2, 3.6), constrained_layout=True)
    KINDS[experiment.measures(place)](axes, found)
    axes.spines[["top", "right"]].set_visible(False)
    made = _save(pyplot, figure, folder / experiment.name)
    if any(rows for _, rows in points):
        figure, axes = pyplot.subplots(figsize=(5.2, 3.6), constrained_layout=True)
        _scatter(axes, points)
        axes.spines[["top", "right"]].set_visible(False)
        made += _save(pyplot, figure, folder / f"{experiment.name}-samples")
    return made


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise InputError("pictures need matplotlib", "pip install 'unmask[figures]'") from None
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "unmask", "axes.grid": True, "grid.alpha": 0.3})
    return pyplot


def _save(pyplot: Any, figure: Any, path: Path) -> list[Path]:
    made = []
    for ending in ("svg", "png"):
        made.append(path.with_suffix(f".{ending}"))
        figure.savefig(made[-1], dpi=200, metadata={"Date": None} if ending == "svg" else None)
    pyplot.close(figure)
    return made


def _tasks(axes: Any, found: Sequence[Figures]) -> None:
    """Path entropy against accuracy, the cells that differ in the last label joined."""
    groups: dict[tuple[str, ...], list[Figures]] = {}
    for one in found:
        groups.setdefault(tuple(one["labels"][:-1]), []).append(one)
    for labels, some in groups.items():
        xs, ys = [one["path_entropy_bits"] for one in some], [100 * one["strict"] for one in some]
        (line,) = axes.plot(xs, ys, "-", lw=0.8, label=" / ".join(labels) or None)
        for place, (one, x, y) in enumerate(zip(some, xs, ys, strict=True)):
            ends = [[y - 100 * one["strict_low"]], [100 * one["strict_high"] - y]]
            axes.errorbar([x], [y], ends, fmt=MARKS[place % len(MARKS)], ms=4, color=line.get_color(), lw=0.6)
    lasts = list(dict.fromkeys(one["labels"][-1] for one in found))
    marks = [axes.plot([], [], MARKS[n % len(MARKS)], color="gray", label=last)[0] for n, last in enumerate(lasts)]
    if marks:
        axes.legend(fontsize=6, ncols=2)
    axes.set(xlabel="path entropy, bits", ylabel="solved, %")


def _texts(axes: Any, found: Sequence[Figures]) -> None:
    """ln PPL and path entropy of the cells; where texts were not judged, path entropy alone is not known."""
    judged = [one for one in found if "ln_ppl" in one]
    if not judged:
        axes.set(title="not judged")
        return
    if len(judged[0]["labels"]) > 1:
        _beside(axes, judged)
        return
    names = [one["cell"] for one in judged]
    places = range(len(names))
    means = [one["ln_ppl"]["mean"] for one in judged]
    axes.errorbar(places, means, _ends(judged), fmt="o-", ms=3, color="steelblue", lw=0.9)
    axes.set_ylabel("ln PPL", color="steelblue")
    axes.set_xticks(list(places), names, rotation=40, ha="right", fontsize=6)
    other = axes.twinx()
    other.plot(places, [one["path_entropy"]["mean"] for one in judged], "s--", ms=3, color="firebrick", lw=0.9)
    other.set_ylabel("path entropy, bits", color="firebrick")
    other.grid(False)


def _beside(axes: Any, judged: Sequence[Figures]) -> None:
    """ln PPL, the cells that differ in the last label beside each other."""
    groups = list(dict.fromkeys(" / ".join(one["labels"][:-1]) for one in judged))
    lasts = list(dict.fromkeys(one["labels"][-1] for one in judged))
    for number, last in enumerate(lasts):
        some = [one for one in judged if one["labels"][-1] == last]
        shift = 0.5 * ((number + 0.5) / len(lasts) - 0.5)
        places = [groups.index(" / ".join(one["labels"][:-1])) + shift for one in some]
        means = [one["ln_ppl"]["mean"] for one in some]
        axes.errorbar(places, means, _ends(some), fmt=MARKS[number % len(MARKS)], ms=4, lw=0.9, label=last)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right", fontsize=7)
    axes.set_ylabel("ln PPL")
    axes.legend(fontsize=6, ncols=len(lasts), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _ends(judged: Sequence[Figures]) -> list[list[float]]:
    """The arms of the intervals of ln PPL."""
    found = [one["ln_ppl"] for one in judged]
    return [[one["mean"] - one["low"] for one in found], [one["high"] - one["mean"] for one in found]]


def _scatter(axes: Any, points: Sequence[tuple[str, list[Figures]]]) -> None:
    for name, rows in points:
        axes.plot(
            [row["path_entropy"] for row in rows], [row["ln_ppl"] for row in rows], ".", ms=3, alpha=0.6, label=name
        )
    axes.legend(fontsize=6)
    axes.set(xlabel="path entropy, bits", ylabel="ln PPL")


def _runtimes(axes: Any, found: Sequence[Figures]) -> None:
    names = [one["cell"] for one in found]
    axes.barh(range(len(names)), [one["seconds"] for one in found], color="steelblue")
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="seconds")


def _paths(axes: Any, found: Sequence[Figures]) -> None:
    """State entropy of every particle over the steps of the first cell, the chosen one bold."""
    one = found[0]
    for place, curve in enumerate(one["curves"]):
        values = [math.nan if value is None else value for value in curve]
        axes.plot(values, lw=2.2 if place == one["chosen"] else 0.8, label=f"{one['path_entropies'][place]:.3f}")
    axes.legend(fontsize=6, title="path entropy", title_fontsize=6)
    axes.set(xlabel="step", ylabel="state entropy, bits")


KINDS: dict[str, Callable[[Any, Sequence[Figures]], None]] = {
    "task": _tasks,
    "text": _texts,
    "runtime": _runtimes,
    "paths": _paths,
}
