"""Figures of the cells -> a table in Markdown with the paper's numbers beside ours, and pictures as SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.evaluate.paper.plan import Experiment, Place

Figures = Mapping[str, Any]
Column = tuple[str, Callable[[Figures], str]]


def markdown(experiment: Experiment, place: Place, found: Sequence[Figures], command: str) -> str:
    """A page: the experiment, its table, and the origin of the numbers."""
    columns: list[Column] = [(name, _label(number)) for number, name in enumerate(experiment.axes)]
    beside = experiment.beside(place, found[0].get("model"))
    columns += [(f"paper: {what}", _printed(numbers)) for what, numbers in beside.items()]
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
    commits = sorted({short(one["commit"]) for one in found if one.get("commit")})
    asked = place.task or (f"text after “{place.prompt}”" if place.prompt else "text from nothing")
    if found[0].get("template") not in (None, "ours"):
        asked += f" with the prompt {found[0]['template']}"
    days = " to ".join(dict.fromkeys(dates[:1] + dates[-1:]))
    dtype = f" in {found[0]['dtype']}" if found[0].get("dtype") else ""
    text = f"Model {found[0]['model']}{dtype}, {asked}; {', '.join(machines)}; {days}"
    text += f"; commit {', '.join(commits)}" if commits else ""
    text += " (+: with uncommitted changes)" if any(commit.endswith("+") for commit in commits) else ""
    judges = list(dict.fromkeys(name for one in found for name in one.get("judges", ())))
    text += f"; judged by {' and '.join(judges)}" if judges else ""
    shorter = f" Steps and Δ are {place.scale:g} of what the labels say, as its canvas is." if place.scale != 1 else ""
    part = found[0].get("scale", 1)
    shorter += "" if part == 1 else f" A trial: length, steps, blocks and Δ are {part:g} of the planned ones."
    return f"{text}.{shorter} Intervals are 95 %."


def short(commit: str) -> str:
    """The beginning of a commit; the + of uncommitted changes stays."""
    return commit[:10] + ("+" if commit.endswith("+") else "")


def rows_of(one: Figures) -> str:
    """Commit and day of the rows of a cell."""
    return "; ".join(f"{short(commit)} {day}" if commit else str(day) for commit, day in one.get("origins", ()))


def _columns(kind: str, found: Sequence[Figures]) -> list[Column]:
    shown = COLUMNS[kind][:3] + _other_judges(found) + COLUMNS[kind][3:] if kind == "text" else COLUMNS[kind]
    return [(name, show) for name, show in shown if any(show(one) for one in found)]


def _other_judges(found: Sequence[Figures]) -> list[Column]:
    """Columns of every judge but the first, whose figures are those of the cell."""
    names = list(dict.fromkeys(name for one in found for name in one.get("judges", ())))[1:]
    kinds = [("ln PPL", _mean("ln_ppl", 3)), ("against the first", _change("ln_ppl", 1, 3))]
    kinds.append(("PPL as MDLM's", _mean("mdlm_ppl", 1)))
    return [(f"{kind}, {name}", _by(name, show)) for name in names for kind, show in kinds]


def _by(judge: str, show: Callable[[Figures], str]) -> Callable[[Figures], str]:
    return lambda one: show(one.get("judges", {}).get(judge, {}))


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
        ("as published, %", lambda one: _share("as_published")(one) if one.get("template") else ""),
        ("solved, %", _share("strict")),
        ("against the first", _change("strict", 100, 1)),
        ("path entropy, bits", _number("path_entropy_bits", 3)),
        ("SD over paths, bits", _number("spread", 3)),
        ("AUROC", _number("auroc", 3)),
        *COSTS,
        ("rows of", rows_of),
    ],
    "text": [
        ("ln PPL", _mean("ln_ppl", 3)),
        ("against the first", _change("ln_ppl", 1, 3)),
        ("PPL as MDLM's", _mean("mdlm_ppl", 1)),
        ("diversity, nats", _mean("diversity", 3)),
        ("diversity against the first", _change("diversity", 1, 3)),
        ("path entropy, bits", _mean("path_entropy", 3)),
        ("SD over paths, bits", _number("path_entropy_sd", 3)),
        ("correlation with ln PPL", _mean("pearson", 3)),
        ("ended, %", lambda one: f"{100 * one['ended']:.1f}" if "ended" in one else ""),
        ("empty", lambda one: str(one["empty"]) if one.get("empty") else ""),
        *COSTS,
        ("rows of", rows_of),
    ],
    "runtime": [("seconds", _number("seconds", 3)), ("calls", _number("calls", 0)), *COSTS[:1], ("n", _number("n", 0))],
    "paths": [*COSTS[:2]],
}


# --- pictures --------------------------------------------------------------------------------------------------------

MARKS = "osD^v<>PX*"


def draw(
    experiment: Experiment,
    place: Place,
    found: Sequence[Figures],
    folder: Path,
    points: Sequence[tuple[str, Sequence[Figures]]] = (),
) -> list[Path]:
    """Write the picture of an experiment; `points` are judged samples by cell, for a scatter."""
    library = pyplot()
    figure, axes = library.subplots(figsize=(5.2, 3.6), constrained_layout=True)
    PICTURES[experiment.measures(place)](axes, found)
    axes.spines[["top", "right"]].set_visible(False)
    made = save(library, figure, folder / experiment.name)
    if any(rows for _, rows in points):
        figure, axes = library.subplots(figsize=(5.2, 3.6), constrained_layout=True)
        _scatter(axes, points)
        axes.spines[["top", "right"]].set_visible(False)
        made += save(library, figure, folder / f"{experiment.name}-samples")
    return made


def pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise InputError("pictures need matplotlib", "pip install 'unmask[figures]'") from None
    pyplot.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "unmask", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3}
    )
    return pyplot


def save(pyplot: Any, figure: Any, path: Path) -> list[Path]:
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
    """ln PPL and path entropy of the cells; empty where texts were not judged."""
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


def _scatter(axes: Any, points: Sequence[tuple[str, Sequence[Figures]]]) -> None:
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


PICTURES: dict[str, Callable[[Any, Sequence[Figures]], None]] = {
    "task": _tasks,
    "text": _texts,
    "runtime": _runtimes,
    "paths": _paths,
}
