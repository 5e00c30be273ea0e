"""The command line's half for the paper: list its experiments, run one or a whole table, write tables and figures."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from unmask.cli import models, show
from unmask.cli.parser import flag, refuse
from unmask.errors import InputError, unknown
from unmask.evaluate.crew import Crew
from unmask.evaluate.fleet import Fleet
from unmask.evaluate.inputs import Inputs, gathered
from unmask.evaluate.judge import DEFAULT, Judge, Reader, load_judge
from unmask.evaluate.loading import Source
from unmask.evaluate.paper import EXPERIMENTS, TABLES, Experiment, Place
from unmask.evaluate.paper.cells import run
from unmask.evaluate.paper.output import draw, markdown
from unmask.evaluate.paper.runs import RUNS, PaperRun, weights
from unmask.evaluate.paper.table import ModelRuns, as_json, draw_averages, page, repeated, table
from unmask.models import on_device
from unmask.models.files.checkpoint import DTYPES, dtype_name
from unmask.tasks import TASKS, Task, with_prompt

OUT = "runs/paper"
FLAGS = (
    "on limit model data data_dir shots prompt judge judge_device seeds scale any_recipe no_pictures dtype compile"
    " ray workers gpus cpus"
).split()  # that need an experiment
FILES = ("data", "shots", "prompt", "background")
ASKED = ("math500", "countdown-chat", "sudoku4")  # tasks that the paper asked with prompts of PC-Sampler


def run_paper(args: Namespace) -> None:
    """List the experiments, or run one, or a table of the paper on all its tasks and models."""
    if args.name is None:
        refuse(args, FLAGS, "a list", "give the name of an experiment")
        _list(args)
        return
    if args.name not in EXPERIMENTS and args.name not in TABLES:
        raise unknown("experiment", args.name, {**EXPERIMENTS, **TABLES})
    experiment = TABLES.get(args.name) or EXPERIMENTS[args.name]
    _check(args)
    places = _places(args, experiment)
    names = args.model or list(experiment.models.values() if args.name in TABLES else ()) or [None]
    inputs = _inputs(args, experiment, places)
    found = []
    fleet = models.fleet(args, names[0] or places[0].model)
    with fleet or nullcontext():
        for model in names:
            runs: dict[str, list[list[dict[str, Any]]]] = {}
            for place in places:
                for number in range(args.seeds or 1):
                    job = _job(args, experiment, place, inputs[place.name], fleet)
                    job = replace(job, model=model, seed=number * RUNS)
                    runs.setdefault(place.name, []).append(_run(args, job, number, len(names), fleet))
            found.append(ModelRuns(model or places[0].model, runs))
    _keep_all(args, experiment, places, found)


def _check(args: Namespace) -> None:
    for name in ("limit", "seeds"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise InputError(f"{name} is {getattr(args, name)}", "it must be at least 1")
    if args.scale is not None and not 0 < args.scale <= 1:
        raise InputError(f"scale is {args.scale:g}", "it must be above 0 and at most 1")
    if Path(args.out).exists() and not Path(args.out).is_dir():
        raise InputError(f"{args.out!r} is a file", "give a directory for the rows and tables")
    if args.ray is not None and args.judge_device is not None:
        raise InputError("--judge-device has no effect with --ray", "--gpus says where workers run")
    if args.judge_device is not None:
        on_device("the judge", args.judge_device)  # before the texts are written
    if args.judge is not None and "none" in args.judge and len(args.judge) > 1:
        raise InputError("--judge none goes alone", "leave the other judges out")


def _places(args: Namespace, experiment: Experiment) -> list[Place]:
    """Those of --on; of a table all with models of the paper; else all with bundled models."""
    if args.on:
        return [place for name in dict.fromkeys(args.on) for place in experiment.place(name)]
    if args.name in TABLES:
        return [place for place in experiment.places.values() if place.theirs]
    return experiment.place(None)


# --- the files -------------------------------------------------------------------------------------------------------


def _inputs(args: Namespace, experiment: Experiment, places: Sequence[Place]) -> dict[str, Inputs]:
    """The files of every place; all that is missing is asked for at once, before a model is loaded."""
    asked = [place for place in places if place.task is not None and place.theirs]
    for name in ("data", "shots"):
        if getattr(args, name) is not None and len(asked) > 1:
            raise InputError(
                f"--{name} is the file of one task", "give all of them with --data-dir, or choose with --on"
            )
    given = Inputs(args.data, args.shots, args.background)
    wants = [(_task(args, place), _family(experiment, place)) for place in asked]
    found = gathered(wants, given, args.data_dir) if wants else []
    made = {place.name: given for place in places}
    return made | {place.name: one for place, one in zip(asked, found, strict=True)}


def _family(experiment: Experiment, place: Place) -> str | None:
    """The family whose background table a place needs, if one."""
    needs = any(experiment.needs_table(cell, place) for cell in experiment.at(place))
    return (place.family or "llada") if needs else None


def _task(args: Namespace, place: Place) -> Task:
    prompt, task = _prompt(args, place), TASKS[str(place.task)]
    return task if prompt is None else with_prompt(task, prompt)


def _prompt(args: Namespace, place: Place) -> str | None:
    """The file of a place's prompt; of a folder that of its task, where the paper asked with PC-Sampler's."""
    if args.prompt is None or not Path(args.prompt).is_dir():
        return None if args.prompt is None else str(args.prompt)
    path = Path(args.prompt) / f"{place.task}.txt"
    return str(path) if place.task in ASKED and path.is_file() else None


# --- the runs --------------------------------------------------------------------------------------------------------


def _run(args: Namespace, job: PaperRun, number: int, models: int, fleet: Fleet | None) -> list[dict[str, Any]]:
    """Decode all cells of one place, for one seed; its own page is kept."""
    with show.progress() as bar:
        task = bar.add_task(job.place.name, total=None)
        found = run(replace(job, on_progress=_shown(bar, task, fleet)))
    several = (args.seeds or 1) > 1 or models > 1
    folder = job.folder / job.experiment.name / job.place.name
    if several:
        folder /= "-".join(filter(None, (Path(job.model or "").name, f"run{number}" if (args.seeds or 1) > 1 else "")))
    _keep(args, job, found, folder, quiet=several or args.name in TABLES)
    return found


def _shown(bar: Progress, task: TaskID, fleet: Fleet | None) -> Callable[[str, int, int], None]:
    now = (0, "rows")

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal now
        now = done, f"{total} rows, {what}"
        bar.update(task, description=what, completed=done, total=total)

    if fleet is not None:
        show.follow(fleet, bar, task, lambda: now)
    return on_progress


def _job(args: Namespace, experiment: Experiment, place: Place, inputs: Inputs, fleet: Fleet | None) -> PaperRun:
    texts = experiment.measures(place) == "text"
    return PaperRun(
        experiment,
        place,
        Path(args.out),
        device=args.device,
        dtype=args.dtype,
        compile=args.compile,
        limit=args.limit,
        data=inputs.data,
        shots=inputs.shots,
        prompt=_prompt(args, place) if place.task is not None else args.prompt,
        background=inputs.background,
        judges=tuple(_judge(args, name, fleet) for name in _judges(args, place)) if texts else (),
        crew=None if fleet is None else lambda name: fleet.load(_loading(args, name)),
        scale=args.scale or 1.0,
        any_recipe=args.any_recipe,
        on_cell=show.milestone,
    )


def _judges(args: Namespace, place: Place) -> list[str]:
    """Those that were asked for, else the paper's, else the small default."""
    if args.judge is None:
        return list(place.judges) or [DEFAULT]
    return [name for name in args.judge if name != "none"]


def _judge(args: Namespace, name: str, fleet: Fleet | None) -> Callable[[], Judge | Crew]:
    """How a judge is loaded, once it is needed."""
    if fleet is not None:
        return lambda: fleet.load(Reader(name))
    return lambda: load_judge(name, args.judge_device or args.device)


def _loading(args: Namespace, name: str) -> Source:
    """What workers load; the hash is known from the header of the rows."""
    return replace(models.loading(args, name), sha256=weights(name))


# --- what is kept ----------------------------------------------------------------------------------------------------


def _keep(args: Namespace, job: PaperRun, found: Sequence[dict[str, Any]], place: Path, quiet: bool) -> None:
    """Table, figures and JSON of one place and seed; the table on the terminal."""
    place.mkdir(parents=True, exist_ok=True)
    made = markdown(job.experiment, job.place, found, _command(args, [job.place], job.model))
    (place / "table.md").write_text(made, encoding="utf-8")
    (place / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not args.no_pictures:
        draw(job.experiment, job.place, found, place, _points(found))
    if quiet:
        return
    if args.json:
        print(json.dumps({"experiment": job.experiment.name, "place": job.place.name, "cells": found}))
    else:
        print(made)
        pictures = "" if args.no_pictures else ", its pictures"
        print(f"in {place}: the table, its figures as JSON{pictures}; the rows are in {job.folder / 'rows'}")


def _keep_all(args: Namespace, experiment: Experiment, places: Sequence[Place], found: Sequence[ModelRuns]) -> None:
    """The page of a whole table, or of several runs."""
    if args.name not in TABLES and (args.seeds or 1) == 1 and len(found) == 1:
        return
    folder = Path(args.out) / args.name
    folder.mkdir(parents=True, exist_ok=True)
    tasks = all(place.task is not None for place in places)
    if tasks:
        trial = f"A trial: length, steps, blocks and Δ are {args.scale:g} of the paper's." if args.scale else ""
        text = page(args.name, experiment, places, found, _command(args, places), trial)
        if not args.no_pictures and len(places) > 1:
            for one in found:
                draw_averages(table(experiment, places, one), folder / f"averages-{Path(one.model).name}")
    else:
        text = "\n".join(_of_texts(args, experiment, place, one) for one in found for place in places)
    (folder / "table.md").write_text(text, encoding="utf-8")
    if args.json and tasks:
        print(json.dumps(as_json(args.name, experiment, places, found)))
    elif args.json:
        runs = {one.model: one.runs for one in found}
        print(json.dumps({"table": args.name, "experiment": experiment.name, "models": runs}))
    else:
        print(text)
        print(f"in {folder}: the table; the rows are in {Path(args.out) / 'rows'}")


def _of_texts(args: Namespace, experiment: Experiment, place: Place, found: ModelRuns) -> str:
    made = markdown(experiment, place, found.runs[place.name][0], _command(args, [place]))
    return made if found.seeds == 1 else made + repeated(experiment, place, found)


def _points(found: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The judged samples of each cell."""
    points = []
    for one in found:
        if "ln_ppl" in one:
            read = map(json.loads, Path(one["judged"]).read_text(encoding="utf-8").splitlines())
            points.append((one["cell"], [row for row in read if row["number"] < one["n"]]))
    return points


def _command(args: Namespace, places: Sequence[Place], model: str | None = None) -> str:
    words = ["unmask", "paper", args.name]
    whole = args.name in TABLES and not args.on
    words += [] if whole else [word for place in places for word in ("--on", place.name)]
    for name in [model] if model else args.model or ():
        words += ["--model", name]
    for name in args.judge or ():
        words += ["--judge", name]
    for name in ("out", "device", "dtype", "limit", "seeds", "scale", "data_dir", *FILES, "ray", *models.WORKERS):
        value = getattr(args, name)
        if value not in (None, "cpu", OUT):
            shown = Path(value).name if name in (*FILES, "data_dir") else str(value)
            words += [f"--{name.replace('_', '-')}", shown]
    flags = [f"--{name.replace('_', '-')}" for name in ("any_recipe", "compile", "no_pictures") if getattr(args, name)]
    return shlex.join([*words, *flags])


# --- the list, and the flags -----------------------------------------------------------------------------------------


def _list(args: Namespace) -> None:
    if args.json:
        listed = {
            one.name: {
                "title": one.title,
                "where": one.where,
                "kind": one.kind,
                "cells": len({cell.name for cell in one.cells}),
                "places": list(one.places),
                "tables": list(one.tables),
            }
            for one in EXPERIMENTS.values()
        }
        print(json.dumps(listed))
        return
    made = show.grid("experiment", "what", "the paper", "cells", "on", right=("cells",))
    for one in EXPERIMENTS.values():
        name = " ".join([one.name, *(f"({table})" for table in one.tables)])
        made.add_row(name, one.title, one.where, str(len({cell.name for cell in one.cells})), ", ".join(one.places))
    show.console().print(made)


def add_paper(parser: ArgumentParser) -> None:
    about = "an experiment, or a table or figure of the paper (table2, fig5): on all its tasks and models"
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{about}; without one they are listed")
    about = "model and task, as listed; several times for several [all of the bundled models, of a table all]"
    parser.add_argument("--on", action="append", metavar="PLACE", help=about)
    flag(parser, "--out DIR", f"for rows, tables and pictures [{OUT}]", OUT)
    flag(parser, "--limit N", "questions or samples of a cell [as planned]")
    flag(parser, "--seeds N", "runs of other seeds: the table has their mean and SD [1]")
    about = "a directory or hub id instead of the place's model; several times for several"
    parser.add_argument("--model", action="append", metavar="NAME", help=about)
    flag(parser, "--any-recipe", "take a model of another family than the paper's")
    flag(parser, "--scale X", "length, steps, blocks and Δ times this, at most 1: a trial of the whole way [1]")
    flag(parser, "--device NAME", "cpu, a GPU like cuda, or auto [cpu]", "cpu")
    flag(parser, "--dtype NAME", f"{', '.join(DTYPES)} [the model's own]", kind=dtype_name)
    flag(parser, "--compile", "compile the network: pays for many cells on a GPU")
    flag(parser, "--data-dir DIR", "a folder with the files of the tasks and the background table, as in `unmask eval`")
    flag(parser, "--data FILE", "the questions; puzzles of the bundled models are made")
    flag(parser, "--shots FILE", "questions to draw worked examples from")
    about = "ask with this prompt instead of ours, as in `unmask help prompts`; a folder has one for each task"
    flag(parser, "--prompt FILE", about)
    about = "counts of the model's tokens, which PC-Sampler needs; `unmask frequencies` makes them"
    flag(parser, "--background FILE", about)
    about = "a judge of texts: a name, directory or hub id, several times for several; none: only sample"
    parser.add_argument("--judge", action="append", metavar="NAME", help=f"{about} [the table's own, else {DEFAULT}]")
    flag(parser, "--judge-device NAME", "where the judge runs [the same device]")
    models.add_fleet(parser)
    flag(parser, "--no-pictures", "do without matplotlib")
    flag(parser, "--json", "print one JSON object for each place, or for the whole table")
