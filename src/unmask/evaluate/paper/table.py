"""Runs of one experiment: models × places × seeds -> one page with averages, and the mean and SD over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluate.paper.output import pyplot, save, short
from unmask.evaluate.paper.plan import Cell, Experiment, Place
from unmask.evaluate.stats import pearson

Figures = Mapping[str, Any]
VERDICTS = ("as_published", "strict")
NAMES = {"as_published": "as published", "strict": "solved"}


@dataclass(frozen=True)
class Share:
    """A share of right answers, or a mean of such shares, over repeated runs."""

    each: tuple[float, ...]  # of every run
    ends: tuple[float, float] | None = None  # the 95 % interval of a single run

    @property
    def mean(self) -> float:
        return statistics.fmean(self.each)

    @property
    def sd(self) -> float | None:
        """Over the runs."""
        return statistics.stdev(self.each) if len(self.each) > 1 else None

    def __str__(self) -> str:
        if self.sd is not None:
            return f"{100 * self.mean:.1f} ± {100 * self.sd:.1f}"
        low, high = self.ends or (math.nan, math.nan)
        return f"{100 * self.mean:.1f}" + ("" if self.ends is None else f" ({100 * low:.1f}–{100 * high:.1f})")


@dataclass(frozen=True)
class ModelRuns:
    """What one model gave: place -> the figures of all cells, for each seed."""

    model: str
    runs: Mapping[str, Sequence[Sequence[Figures]]]

    def of(self, place: str, cell: Cell) -> list[Figures]:
        """The figures of a cell at a place, one for each seed."""
        found = [[one for one in run if one["cell"] == cell.name] for run in self.runs[place]]
        return [some[0] for some in found if some]

    @property
    def seeds(self) -> int:
        return max(len(found) for found in self.runs.values())


def share(found: Sequence[Figures], verdict: str) -> Share:
    """One verdict of a cell at one place; of one run with its interval."""
    each = tuple(float(one[verdict]) for one in found)
    ends = (float(found[0][f"{verdict}_low"]), float(found[0][f"{verdict}_high"]))
    return Share(each, None if len(each) > 1 else ends)


def average(shares: Sequence[Share]) -> Share:
    """The mean over places, run by run. The arms of independent intervals add up as squares."""
    each = tuple(statistics.fmean(some) for some in zip(*(one.each for one in shares), strict=True))
    if len(each) > 1:
        return Share(each)
    arms = [[one.mean - one.ends[0], one.ends[1] - one.mean] for one in shares if one.ends is not None]
    below, above = (math.sqrt(sum(arm * arm for arm in some)) / len(shares) for some in zip(*arms, strict=True))
    return Share(each, (each[0] - below, each[0] + above))


def table(experiment: Experiment, places: Sequence[Place], found: ModelRuns) -> list[dict[str, Any]]:
    """A row for each cell: at every place both shares and the paper's number, and their averages over all places."""
    rows = []
    cells = list(dict.fromkeys((cell.name, cell.labels) for place in places for cell in experiment.at(place)))
    by_name = {cell.name: cell for place in places for cell in experiment.at(place)}
    for name, labels in cells:
        here = {place.name: found.of(place.name, by_name[name]) for place in places}
        row: dict[str, Any] = {"cell": name, "labels": labels, "places": {}}
        for place in places:
            if here[place.name]:
                shares = {verdict: share(here[place.name], verdict) for verdict in VERDICTS}
                row["places"][place.name] = {"paper": _printed(experiment, place, found.model, name), **shares}
                entropies = [float(one["path_entropy_bits"]) for one in here[place.name]]
                row["places"][place.name]["path_entropy"] = statistics.fmean(entropies)
        whole = [row["places"].get(place.name) for place in places]
        if len(places) > 1 and all(whole):
            row["average"] = {verdict: average([one[verdict] for one in whole]) for verdict in VERDICTS}
            papers = [one["paper"] for one in whole]
            row["average"]["paper"] = None if None in papers else statistics.fmean(papers)
        rows.append(row)
    return rows


def _printed(experiment: Experiment, place: Place, model: str, cell: str) -> float | None:
    """The paper's number of a cell; of a model that it does not have, that of its first one."""
    label = _label(experiment, model)
    beside = [one for one in experiment.beside(place, model).values() if one.get("of", label) == label]
    return next((float(one[cell]) for one in beside if cell in one), None)


def _label(experiment: Experiment, model: str) -> str | None:
    """The paper's name of a model, else of its first one."""
    names = {name: label for label, name in experiment.models.items()}
    return names.get(model, next(iter(experiment.models), None))


def page(
    name: str,
    experiment: Experiment,
    places: Sequence[Place],
    found: Sequence[ModelRuns],
    command: str,
    remark: str = "",
) -> str:
    """The page of a table of tasks: one part for each model."""
    lines = [f"# {titled(name)}: {experiment.title}", "", f"The paper: {experiment.where}. {experiment.claim}"]
    for one in found:
        label = _label(experiment, one.model)
        heading = f"## {one.model}" + (f", beside the paper's {label}" if label else "")
        lines += ["", heading, "", *_rows(experiment, places, table(experiment, places, one)), ""]
        lines += [_origin(place, one.runs[place.name]) for place in places]
        lines += [_correlated(places[0], table(experiment, places, one))] if len(places) == 1 else []
    seeds = max(one.seeds for one in found)
    how = f"Mean ± SD over {seeds} runs of other seeds." if seeds > 1 else "One run; intervals are 95 %."
    lines += ["", f"{how} *As published* is the verdict of the public grader, beside which the paper's numbers stand."]
    lines += [remark] if remark else []
    return "\n".join([*lines, "", f"`{command}`"]) + "\n"


def _correlated(place: Place, rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether cells of low path entropy are the better ones, as Figure 5 claims of its own."""
    pairs = [
        (row["places"][place.name]["path_entropy"], row["places"][place.name]["as_published"].mean) for row in rows
    ]
    if len(pairs) < 3 or any(len(set(some)) == 1 for some in zip(*pairs, strict=True)):
        return ""
    found = pearson(*(np.array(some) for some in zip(*pairs, strict=True)))
    return f"\nOver the {len(pairs)} cells, path entropy and the share right as published correlate by {found:.3f}."


def titled(name: str) -> str:
    """table2 -> Table 2, fig4 -> Figure 4."""
    for begin, word in (("table", "Table"), ("fig", "Figure")):
        if name.startswith(begin) and name[len(begin) :].isdigit():
            return f"{word} {name[len(begin) :]}"
    return name


def _rows(experiment: Experiment, places: Sequence[Place], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    groups = [*(place.name for place in places), *(["average"] if len(places) > 1 else [])]
    alone = len(places) == 1
    kinds = ("paper", *NAMES.values(), *(["path entropy, bits"] if alone else []))
    heads = [*experiment.axes, *(f"{group}: {what}" for group in groups for what in kinds)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        words = list(row["labels"])
        for group in groups:
            one = row.get("average") if group == "average" else row["places"].get(group)
            words += _three(one) + ([f"{one['path_entropy']:.3f}"] if alone and one is not None else [])
        lines.append("| " + " | ".join(words) + " |")
    return lines


def _three(one: Mapping[str, Any] | None) -> list[str]:
    if one is None:
        return ["", "", ""]
    paper = "" if one["paper"] is None else f"{one['paper']:.1f}"
    return [paper, *(str(one[verdict]) for verdict in VERDICTS)]


def _origin(place: Place, runs: Sequence[Sequence[Figures]]) -> str:
    """Data, prompt, and the commit and day of the rows of a place."""
    every = [one for run in runs for one in run]
    first = every[0]
    made = list(dict.fromkeys((commit, day) for one in every for commit, day in one.get("origins", ())))
    by = ", ".join(f"{short(commit)} of {day}" if commit else str(day) for commit, day in made)
    prompt = "" if first.get("template") is None else f", prompt {first['template']}"
    return f"- {place.name}: {first['data']}{prompt}, n = {first['n']}; rows of {by}; {first['machine']}"


def as_json(name: str, experiment: Experiment, places: Sequence[Place], found: Sequence[ModelRuns]) -> dict[str, Any]:
    """The same as plain numbers."""

    def plain(one: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: {"mean": v.mean, "sd": v.sd, "each": v.each} if isinstance(v, Share) else v for key, v in one.items()
        }

    models = {}
    for one in found:
        models[one.model] = [
            row
            | {"places": {place: plain(some) for place, some in row["places"].items()}}
            | ({"average": plain(row["average"])} if "average" in row else {})
            for row in table(experiment, places, one)
        ]
    return {"table": name, "experiment": experiment.name, "models": models}


# --- texts -----------------------------------------------------------------------------------------------------------

JUDGED = {"ln PPL": "ln_ppl", "PPL as MDLM's": "mdlm_ppl"}
PLAIN = {"diversity, nats": "diversity", "path entropy, bits": "path_entropy", "seconds": "seconds"}


def repeated(experiment: Experiment, place: Place, found: ModelRuns) -> str:
    """Cells of texts, or runtimes, over several seeds: the mean and SD of each figure."""
    runs = found.runs[place.name]
    columns = _text_columns(runs[0][0])
    heads = [*experiment.axes, *columns]
    lines = ["", f"## Over {len(runs)} runs of other seeds", "", "Mean ± SD over the runs.", ""]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cell in experiment.at(place):
        values = [[read(one) for one in found.of(place.name, cell)] for read in columns.values()]
        words = [f"{statistics.fmean(some):.3f} ± {statistics.stdev(some):.3f}" for some in values]
        lines.append("| " + " | ".join([*cell.labels, *words]) + " |")
    return "\n".join(lines) + "\n"


def _text_columns(one: Figures) -> dict[str, Callable[[Figures], float]]:
    """Heading -> how it is read from a cell: perplexities by each judge, then what does not depend on one."""
    made: dict[str, Callable[[Figures], float]] = {}
    for judge in one.get("judges", {}):
        for head, name in JUDGED.items():
            made[f"{head}, {judge}"] = _reader(name, judge)
    return made | {head: _reader(name) for head, name in PLAIN.items() if name in one}


def _reader(name: str, judge: str | None = None) -> Callable[[Figures], float]:
    def read(one: Figures) -> float:
        found = (one if judge is None else one["judges"][judge])[name]
        return float(found["mean"] if isinstance(found, Mapping) else found)

    return read


# --- a picture -------------------------------------------------------------------------------------------------------


def draw_averages(rows: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Figure 4: the average share of every cell, as published."""
    some = [row for row in rows if "average" in row]
    library = pyplot()
    figure, axes = library.subplots(figsize=(5.2, 0.5 + 0.28 * max(4, len(some))), constrained_layout=True)
    values = [100 * row["average"]["as_published"].mean for row in some]
    spreads = [100 * (row["average"]["as_published"].sd or 0.0) for row in some]
    axes.barh(range(len(some)), values, xerr=spreads, color="steelblue", label="here")
    papers = [row["average"]["paper"] for row in some]
    if any(paper is not None for paper in papers):
        axes.plot(
            [math.nan if paper is None else paper for paper in papers], range(len(some)), "k|", ms=9, label="paper"
        )
        axes.legend(fontsize=6)
    axes.set_yticks(range(len(some)), [row["cell"] for row in some], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="mean share right, as published, %")
    return save(library, figure, path)
