"""The command line's half for the paper: list its experiments, run one, write its table and figures."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from unmask.cli import show
from unmask.cli.parser import flag, refuse
from unmask.errors import InputError, unknown
from unmask.evaluate.judge import DEFAULT, load_judge
from unmask.evaluate.paper import EXPERIMENTS, Experiment, Place
from unmask.evaluate.paper.cells import PaperRun, run
from unmask.evaluate.paper.output import draw, markdown
from unmask.models.files.checkpoint import DTYPES, dtype_name

OUT = "runs/paper"
FLAGS = "on limit model data shots prompt judge_device no_pictures dtype compile".split()  # that need an experiment
FILES = ("data", "shots", "prompt", "background")


def run_paper(args: Namespace) -> None:
    """List the experiments, or run one."""
    if args.name is None:
        refuse(args, FLAGS, "a list", "give the name of an experiment")
        _list(args)
        return
    if args.name not in EXPERIMENTS:
        raise unknown("experiment", args.name, EXPERIMENTS)
    experiment = EXPERIMENTS[args.name]
    if args.limit is not None and args.limit < 1:
        raise InputError(f"limit is {args.limit}", "it must be at least 1")
    if Path(args.out).exists() and not Path(args.out).is_dir():
        raise InputError(f"{args.out!r} is a file", "give a directory for the rows and tables")
    for place in experiment.place(args.on):
        with show.progress() as bar:
            job = _job(args, experiment, place, bar)
            found = run(job)
        _keep(args, job, found)


def _job(args: Namespace, experiment: Experiment, place: Place, bar: Progress) -> PaperRun:
    task = bar.add_task(place.name, total=None)
    judge = None
    if experiment.measures(place) == "text" and args.judge != "none":
        judge = lambda: load_judge(args.judge, args.judge_device or args.device)  # noqa: E731 - loaded when it is needed
    return PaperRun(
        experiment,
        place,
        Path(args.out),
        device=args.device,
        dtype=args.dtype,
        compile=args.compile,
        limit=args.limit,
        model=args.model,
        data=args.data,
        shots=args.shots,
        prompt=args.prompt,
        background=args.background,
        judge=judge,
        on_progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        on_cell=show.milestone,
    )


def _keep(args: Namespace, job: PaperRun, found: Sequence[dict[str, Any]]) -> None:
    """Table, figures and JSON in the folder of the experiment; the table on the terminal."""
    place = job.folder / job.experiment.name / job.place.name
    place.mkdir(parents=True, exist_ok=True)
    page = markdown(job.experiment, job.place, found, _command(args, job.place))
    (place / "table.md").write_text(page, encoding="utf-8")
    (place / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not args.no_pictures:
        draw(job.experiment, job.place, found, place, _points(found))
    if args.json:
        print(json.dumps({"experiment": job.experiment.name, "place": job.place.name, "cells": found}))
    else:
        print(page)
        pictures = "" if args.no_pictures else ", its pictures"
        print(f"in {place}: the table, its figures as JSON{pictures}; the rows are in {job.folder / 'rows'}")


def _points(found: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The judged samples of each cell."""
    points = []
    for one in found:
        if "ln_ppl" in one:
            read = map(json.loads, Path(one["judged"]).read_text(encoding="utf-8").splitlines())
            points.append((one["cell"], [row for row in read if row["number"] < one["n"]]))
    return points


def _command(args: Namespace, place: Place) -> str:
    words = ["unmask", "paper", args.name, "--on", place.name]
    for name in ("out", "model", "device", "dtype", "limit", *FILES):
        value = getattr(args, name)
        if value not in (None, "cpu", OUT):
            words += [f"--{name}", Path(value).name if name in FILES else str(value)]
    flags = [f"--{name.replace('_', '-')}" for name in ("compile", "no_pictures") if getattr(args, name)]
    return shlex.join([*words, *flags])


def _list(args: Namespace) -> None:
    if args.json:
        listed = {
            one.name: {
                "title": one.title,
                "where": one.where,
                "kind": one.kind,
                "cells": len({cell.name for cell in one.cells}),
                "places": list(one.places),
            }
            for one in EXPERIMENTS.values()
        }
        print(json.dumps(listed))
        return
    made = show.grid("experiment", "what", "the paper", "cells", "on", right=("cells",))
    for one in EXPERIMENTS.values():
        made.add_row(one.name, one.title, one.where, str(len({cell.name for cell in one.cells})), ", ".join(one.places))
    show.console().print(made)


def add_paper(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an experiment; without one they are listed")
    flag(parser, "--on PLACE", "model and task, as listed [all of the bundled models]")
    flag(parser, "--out DIR", f"for rows, tables and pictures [{OUT}]", OUT)
    flag(parser, "--limit N", "questions or samples of a cell [as planned]")
    flag(parser, "--model NAME", "a directory or hub id instead of the place's model")
    flag(parser, "--device NAME", "cpu, a GPU like cuda, or auto [cpu]", "cpu")
    flag(parser, "--dtype NAME", f"{', '.join(DTYPES)} [the model's own]", kind=dtype_name)
    flag(parser, "--compile", "compile the network: pays for many cells on a GPU")
    flag(parser, "--data FILE", "the questions; puzzles of the bundled models are made")
    flag(parser, "--shots FILE", "questions to draw worked examples from")
    flag(parser, "--prompt FILE", "ask with this prompt instead of ours, as in `unmask help prompts`")
    about = "counts of the model's tokens, which PC-Sampler needs; `unmask frequencies` makes them"
    flag(parser, "--background FILE", about)
    about = f"the judge of texts: a name, directory or hub id; none: only sample [{DEFAULT}]"
    flag(parser, "--judge NAME", about, DEFAULT)
    flag(parser, "--judge-device NAME", "where the judge runs [the same device]")
    flag(parser, "--no-pictures", "do without matplotlib")
    flag(parser, "--json", "print one JSON object for each place")
