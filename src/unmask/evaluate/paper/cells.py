"""PaperRun -> the figures of every cell of its place: of tasks, texts, runtimes or paths."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from unmask.decoding import background as tables
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.evaluate import compare, rows
from unmask.evaluate.compare import summary
from unmask.evaluate.crew import Crew, Here
from unmask.evaluate.paper.plan import Cell
from unmask.evaluate.paper.runs import RUNS as RUNS
from unmask.evaluate.paper.runs import Figures, Planned, about_of, each, every, headed, task_of
from unmask.evaluate.paper.runs import PaperRun as PaperRun
from unmask.evaluate.paper.texts import texts
from unmask.evaluate.run import answering, canvases, check, prompts, sift
from unmask.models import Denoiser, family_name, load
from unmask.models.transformer import compiled
from unmask.models.wrap import Chunked
from unmask.tasks import shots
from unmask.tasks.puzzles import held_out

REPEATS = 3  # decodes of a runtime, whose median counts; fewer once they took ENOUGH seconds together
ENOUGH = 30.0


def run(job: PaperRun) -> list[Figures]:
    """The figures of every cell, in order."""
    task_of(job)  # before the long work
    _check_family(job)
    what, name = job.experiment.measures(job.place), job.model or job.place.model
    if job.crew is None:
        found = KINDS[what](job, _here(job, name))
    elif what in ALONE:
        raise InputError(f"--ray has no effect on {job.experiment.name}, which is {ALONE[what]}", "leave it out")
    else:
        found = KINDS[what](job, job.crew(name))
    trial = {} if job.scale == 1 else {"scale": job.scale}
    pairs = zip(job.cells, found, strict=True)
    return [{"cell": cell.name, "labels": cell.labels, **one, **trial} for cell, one in pairs]


def _here(job: PaperRun, name: str) -> Here:
    """This process with the model."""
    model = load(name, job.device, job.dtype)
    for table in sorted({job.recipe(cell).background or "" for cell in job.cells} - {""}):
        tables.load(table).check(model)
    return Here(compiled(model) if job.compile else model)


def _check_family(job: PaperRun) -> None:
    """Refuse a model of another family than that of the paper's configurations."""
    if job.model is None or job.any_recipe or not job.place.theirs or job.place.family is None:
        return
    family = family_name(job.model)
    if family not in (None, job.place.family):
        problem = f"{job.experiment.name} on {job.place.name} is for models of the family {job.place.family}"
        raise InputError(f"{problem}, not of {family}", f"give --model {job.place.model}, or add --any-recipe")


# --- tasks -----------------------------------------------------------------------------------------------------------


def _tasks(job: PaperRun, crew: Crew) -> list[Figures]:
    task, data = task_of(job), job.data or made(job)
    assert task is not None
    check(task)
    if task.puzzle is not None:
        questions = sift(task, canvases(task, task.examples(data, job.n))).fit
    else:
        examples = task.examples(data)
        pool = None if job.shots is None else task.examples(job.shots)
        questions = prompts(task, examples[: job.n], shots(task, examples, pool)[: job.n], task.chat)
    todo = []
    for cell in job.cells:
        recipe = job.recipe(cell)
        how = answering(task, recipe, crew.device)
        todo.append(Planned(cell, how, questions, headed(job, recipe, len(questions), how.size, data, task)))
    kept = every(job, crew, "decoded", todo)
    graded = {name: some.graded(name) for name, some in kept.items()}
    found = []
    for one in todo:
        there = kept[one.cell.name]
        found.append(_of_task(job, one.cell, graded) | about_of(there.header))
        found[-1] |= {"rows": Path(job.rows(one.header)).name, "origins": there.origins}
    return found


def _of_task(job: PaperRun, cell: Cell, graded: dict[str, list[rows.Row]]) -> Figures:
    here = graded[cell.name]
    base = job.experiment.baseline(cell)
    made = summary(here)
    spreads = [row.spread for row in here if row.spread is not None]
    made["spread"] = statistics.fmean(spreads) if len(spreads) == len(here) else None
    return made | {"against": None if base is None else compare.against(graded[base.name], here)}


def made(job: PaperRun) -> str:
    """A file of the place's puzzles, made once."""
    how, n = dict(job.place.made), job.place.n or 100
    if not how:
        raise InputError(f"{job.place.name} needs its questions", "give them with --data FILE")
    seed = int(how.pop("seed", 0))
    name = "-".join(f"{name}-{value}" for name, value in {**job.place.made, "n": n}.items())
    path = job.folder / f"{job.place.task}-{name}.txt"
    if not path.exists():
        lines = held_out.MAKERS[str(job.place.task)](n, seed=seed, **how)
        job.folder.mkdir(parents=True, exist_ok=True)
        text = ""
        for done, line in enumerate(lines, 1):
            text += f"{line}\n"
            job.on_progress("making puzzles", done, n)
        begun = path.with_suffix(f".{os.getpid()}")  # another process may be writing it, too
        begun.write_text(text, encoding="utf-8")
        begun.replace(path)
    return str(path)


# --- runtime and paths -----------------------------------------------------------------------------------------------


def _runtimes(job: PaperRun, crew: Here) -> list[Figures]:
    model: Denoiser = crew.model
    found: dict[str, Figures] = {}  # by what is run: some cells are the same
    for cell in each(job, "timed"):
        recipe = job.recipe(cell)
        key = json.dumps([recipe.to_dict(), cell.how])
        if key not in found:
            asked = Chunked(model, 1) if cell.how == "sequential" else model
            decode_batch(asked, [job.place.prompt], recipe=recipe.replace(steps=2))  # warms up
            times = _timed(asked, job.place.prompt, recipe, partial(job.on_progress, cell.name))
            found[key] = times | about_of(headed(job, recipe, REPEATS, 1))
    return [dict(found[json.dumps([job.recipe(cell).to_dict(), cell.how])]) for cell in job.cells]


def _timed(model: Denoiser, prompt: str, recipe: Recipe, on_progress: Callable[[int, int], None]) -> Figures:
    """The median time of a few decodes, and the cost of one."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < ENOUGH):
        on_progress(len(times), REPEATS)
        began = time.perf_counter()
        result = decode_batch(model, [prompt], recipe=recipe)[0]
        times.append(time.perf_counter() - began)
    costs = {name: getattr(result, name) for name in ("steps", "calls", "evaluations")}
    return {"n": len(times), "seconds": statistics.median(times), "times": times, **costs}


def _paths(job: PaperRun, crew: Here) -> list[Figures]:
    found = []
    for cell in each(job, "decoded"):
        recipe = job.recipe(cell)
        result = decode_batch(crew.model, [job.place.prompt], recipe=recipe)[0]
        curves = [particle.state_entropy for particle in result.particles]
        ends = [particle.path_entropy for particle in result.particles]
        found.append({"n": 1, "chosen": result.chosen, "curves": curves, "path_entropies": ends})
        found[-1] |= {name: getattr(result, name) for name in ("evaluations", "seconds")}
        found[-1] |= about_of(headed(job, recipe, 1, 1))
    return found


KINDS: dict[str, Callable[[PaperRun, Any], list[Figures]]] = {
    "task": _tasks,
    "text": texts,
    "runtime": _runtimes,
    "paths": _paths,
}
ALONE = {"runtime": "timed on one device", "paths": "one decode for each cell"}  # nothing for several workers
