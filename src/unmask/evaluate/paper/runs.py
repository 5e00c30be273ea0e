"""Experiment × place × folder -> its cells, and the rows of every cell, resumed where they are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, many
from unmask.evaluate import rows
from unmask.evaluate.crew import Crew, Job, resumed
from unmask.evaluate.crew import run as run_works
from unmask.evaluate.header import asked, header, table_sha256
from unmask.evaluate.judge import Judge
from unmask.evaluate.paper.plan import Cell, Experiment, Place
from unmask.models import fingerprint
from unmask.tasks import TASKS, Task, with_prompt

Figures = dict[str, Any]
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
RUNS = 1_000_000  # between the seeds of repeated runs, so that no two questions of them share random numbers


@dataclass(frozen=True)
class PaperRun:
    """An experiment at one place, and how it is run."""

    experiment: Experiment
    place: Place
    folder: Path
    device: str = "cpu"
    dtype: str | None = None  # None: the model's own
    compile: bool = False
    limit: int | None = None  # questions or samples of a cell
    model: str | None = None  # instead of the place's
    data: str | None = None  # the questions; puzzles are made without
    shots: str | None = None  # worked examples, where the task draws them from a file
    prompt: str | None = None  # a file with the prompt of the task, instead of ours
    background: str | None = None  # of PC-Sampler, for models that bring none
    judges: tuple[Callable[[], Judge | Crew], ...] = ()  # none: texts are sampled and not judged
    crew: Callable[[str], Crew] | None = None  # by the name of the model; None: this process
    seed: int = 0  # of the first question; repeated runs are RUNS apart
    scale: float = 1.0  # of length, steps, blocks and intervals: a part of the experiment, for a trial
    any_recipe: bool = False  # a model of another family than the paper's is taken, too
    on_progress: Progress = lambda what, done, total: None
    on_cell: Callable[[str], None] = lambda line: None  # called with one line after each cell

    def recipe(self, cell: Cell) -> Recipe:
        made = self.experiment.recipe(cell, self.place, self.background)
        if self.scale != 1:
            some = {name: getattr(made, name) for name in ("length", "steps", "block_length", "every")}
            made = made.replace(**{name: max(1, round(self.scale * n)) for name, n in some.items() if n is not None})
        return made if self.seed == 0 else made.replace(seed=self.seed)

    @property
    def n(self) -> int | None:
        return self.limit or self.place.n

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.experiment.at(self.place)

    def rows(self, about: Figures, ending: str = "rows") -> str:
        """The file of a run: experiments that share a run share the file."""
        identity = json.dumps(rows.identity(about), sort_keys=True)
        folder = self.folder / "rows"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / f"{about['task']}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.{ending}.jsonl")


def task_of(job: PaperRun) -> Task | None:
    """The task of the place as it is asked; None for texts. Files that it has no use for are refused."""
    task = None if job.place.task is None else TASKS[job.place.task]
    if job.prompt is not None and task is not None and task.puzzle is None:
        task = with_prompt(task, job.prompt)
    elif job.prompt is not None:
        raise InputError(f"--prompt has no effect on {job.place.name}", "leave it out")
    if job.shots is not None and (task is None or task.shown or not task.shots):
        raise InputError(f"--shots has no effect on {job.place.name}", "leave it out")
    return task


@dataclass(frozen=True)
class Planned:
    """A cell, and how its rows are made."""

    cell: Cell
    job: Job
    items: Sequence[Any]
    header: Figures


def each(run: PaperRun, verb: str) -> Iterator[Cell]:
    """The cells, one at a time; each is reported once it is done."""
    for cell in run.cells:
        yield cell
        _report(run, verb, [cell])


def _report(run: PaperRun, verb: str, cells: Sequence[Cell]) -> None:
    for cell in cells:
        run.on_cell(f"{run.place.name}: {verb} cell {run.cells.index(cell) + 1} of {len(run.cells)}, {cell.name}")


def every(run: PaperRun, crew: Crew, verb: str, todo: Sequence[Planned]) -> dict[str, rows.Rows]:
    """The rows of all cells, by name. What they lack stands in one line: workers wait for the last cell only."""
    files: dict[str, rows.Rows] = {}
    cells: dict[str, list[Cell]] = {}  # some share a file
    total = sum(len(one.items) for one in todo)

    def shown() -> None:
        done = sum(len(files[path].kept) * len(some) for path, some in cells.items())
        run.on_progress(f"{run.place.name}: {verb} of {many(len(todo), 'cell')}", done, total)

    try:
        with ExitStack() as opened:
            works = []
            for one in todo:
                path = run.rows(one.header)
                cells.setdefault(path, []).append(one.cell)
                if path in files:
                    continue
                files[path] = opened.enter_context(rows.opened(path, one.header | dict(crew.origin)))
                told = partial(_report, run, verb, cells[path])
                works.append(resumed(one.job, one.items, crew, files[path], shown, told))
            shown()
            run_works(crew, works)
    except KeyboardInterrupt:
        there = sum(len(one.kept) for one in files.values())
        said = f"{many(there, 'row is', 'rows are')} in {str(run.folder / 'rows')!r}, the same command resumes it"
        raise KeyboardInterrupt(*([said] if there else [])) from None
    return {cell.name: files[path] for path, some in cells.items() for cell in some}


def headed(
    job: PaperRun, recipe: Recipe, n: int, size: int, data: str | None = None, task: Task | None = None
) -> dict[str, Any]:
    """The header of a cell's rows, of which `size` are decoded together."""
    name = job.model or job.place.model
    about = header(
        job.place.task or "text",
        name,
        weights=weights(name),
        dtype=job.dtype,
        device=job.device,
        data=data and Path(data).name,
        file=data,
        limit=job.limit,
        batch=size,
    )
    begun = {"data": job.place.prompt, "sha256": _hash(job.place.prompt)} if job.place.prompt else {}
    used = {"background": table_sha256(recipe)} if task is None else asked(task, recipe, job.shots)
    return about | begun | used | {"recipe": recipe.to_dict(), "n": n}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def weights(name: str) -> str | None:
    """Cached: hashing large weights takes a while, and every cell has the same."""
    return fingerprint(name)


def about_of(about: dict[str, Any]) -> Figures:
    """What the figures of a cell say of its run."""
    return {
        name: about.get(name)
        for name in ("model", "weights", "dtype", "recipe", "machine", "date", "commit", "data", "template")
    }
