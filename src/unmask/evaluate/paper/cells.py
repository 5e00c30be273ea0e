"""Experiment × place × folder -> the rows of every cell, resumed where they are there, and their figures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.decoding import background as tables
from unmask.decoding.decode import OnResults, Result, decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.evaluate import batch, bulk, compare, rows
from unmask.evaluate.compare import summary
from unmask.evaluate.header import asked, header, table_sha256
from unmask.evaluate.judge import Judge, Rules, Sample, figures, judged
from unmask.evaluate.paper.plan import Cell, Experiment, Place
from unmask.evaluate.run import canvases, check, prompts, resume, sift, spread, together
from unmask.evaluate.stats import Floats, Places, bootstrap
from unmask.models import Denoiser, family_name, fingerprint, load, on_device
from unmask.models.transformer import compiled
from unmask.models.wrap import Chunked
from unmask.tasks import TASKS, Task, shots, with_prompt
from unmask.tasks.puzzles import held_out

Figures = dict[str, Any]
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
REPEATS = 3  # decodes of a runtime, whose median counts; fewer once they took ENOUGH seconds together
ENOUGH = 30.0
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
    judges: tuple[Callable[[], Judge], ...] = ()  # none: texts are sampled and not judged
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


def run(job: PaperRun) -> list[Figures]:
    """The figures of every cell, in order."""
    _asked(job)  # before the long work
    _check_family(job)
    model = load(job.model or job.place.model, job.device, job.dtype)
    for table in sorted({job.recipe(cell).background or "" for cell in job.cells} - {""}):
        tables.load(table).check(model)
    model = compiled(model) if job.compile else model
    found = KINDS[job.experiment.measures(job.place)](job, model)
    trial = {} if job.scale == 1 else {"scale": job.scale}
    pairs = zip(job.cells, found, strict=True)
    return [{"cell": cell.name, "labels": cell.labels, **one, **trial} for cell, one in pairs]


def _asked(job: PaperRun) -> Task | None:
    """The task of the place as it is asked; None for texts. Files that it has no use for are refused."""
    task = None if job.place.task is None else TASKS[job.place.task]
    if job.prompt is not None and task is not None and task.puzzle is None:
        task = with_prompt(task, job.prompt)
    elif job.prompt is not None:
        raise InputError(f"--prompt has no effect on {job.place.name}", "leave it out")
    if job.shots is not None and (task is None or task.shown or not task.shots):
        raise InputError(f"--shots has no effect on {job.place.name}", "leave it out")
    return task


def _check_family(job: PaperRun) -> None:
    """Refuse a model of another family than that of the paper's configurations."""
    if job.model is None or job.any_recipe or not job.place.theirs or job.place.family is None:
        return
    family = family_name(job.model)
    if family not in (None, job.place.family):
        problem = f"{job.experiment.name} on {job.place.name} is for models of the family {job.place.family}"
        raise InputError(f"{problem}, not of {family}", f"give --model {job.place.model}, or add --any-recipe")


def _each(job: PaperRun, verb: str) -> Iterator[Cell]:
    """The cells, one at a time; each is reported once it is done."""
    for place, cell in enumerate(job.cells, 1):
        yield cell
        job.on_cell(f"{job.place.name}: {verb} cell {place} of {len(job.cells)}, {cell.name}")


def _header(job: PaperRun, recipe: Recipe, n: int, data: str | None = None, task: Task | None = None) -> dict[str, Any]:
    """The header of a cell's rows."""
    name = job.model or job.place.model
    device = on_device(name, job.device)
    about = header(
        job.place.task or "text",
        name,
        weights=_weights(name),
        dtype=job.dtype,
        device=job.device,
        data=data and Path(data).name,
        file=data,
        limit=job.limit,
        batch=_together(device, recipe) if task is None else together(task, recipe, device),
    )
    begun = {"data": job.place.prompt, "sha256": _hash(job.place.prompt)} if job.place.prompt else {}
    used = {"background": table_sha256(recipe)} if task is None else asked(task, recipe, job.shots)
    return about | begun | used | {"recipe": recipe.to_dict(), "n": n}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def _weights(name: str) -> str | None:
    """Cached: hashing large weights takes a while, and every cell has the same."""
    return fingerprint(name)


# --- tasks -----------------------------------------------------------------------------------------------------------


def _tasks(job: PaperRun, model: Denoiser) -> list[Figures]:
    task, data = _asked(job), job.data or made(job)
    assert task is not None
    check(task)
    if task.puzzle is not None:
        questions = sift(task, canvases(task, task.examples(data, job.n))).fit
    else:
        examples = task.examples(data)
        pool = None if job.shots is None else task.examples(job.shots)
        questions = prompts(task, examples[: job.n], shots(task, examples, pool)[: job.n], task.chat)
    graded: dict[str, list[rows.Row]] = {}
    found = []
    for cell in _each(job, "decoded"):
        recipe = job.recipe(cell)
        about = _header(job, recipe, len(questions), data, task)
        with rows.opened(job.rows(about), about) as kept:
            if kept.missing:
                resume(task, model, questions, recipe, kept, on_rows=partial(job.on_progress, cell.name))
            graded[cell.name] = kept.graded(cell.name)
        found.append(_of_task(job, cell, graded) | _about(kept.header) | {"rows": Path(job.rows(about)).name})
        found[-1]["origins"] = kept.origins
    return found


def _of_task(job: PaperRun, cell: Cell, graded: dict[str, list[rows.Row]]) -> Figures:
    here = graded[cell.name]
    base = job.experiment.baseline(cell)
    made = summary(here)
    spreads = [row.spread for row in here if row.spread is not None]
    made["spread"] = statistics.fmean(spreads) if len(spreads) == len(here) else None
    return made | {"against": None if base is None else compare.against(graded[base.name], here)}


def _about(about: dict[str, Any]) -> Figures:
    return {
        name: about.get(name)
        for name in ("model", "weights", "dtype", "recipe", "machine", "date", "commit", "data", "template")
    }


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


# --- text ------------------------------------------------------------------------------------------------------------


def _texts(job: PaperRun, model: Denoiser) -> list[Figures]:
    n, found, seen = job.n or 256, [], {}
    for cell in _each(job, "sampled"):
        recipe = job.recipe(cell)
        about = _header(job, recipe, n)
        with rows.opened(job.rows(about), about) as kept:
            _sample(model, job.place.prompt, recipe, n, kept, partial(job.on_progress, cell.name))
        mine = [row for row in kept.kept if int(row["number"]) < n]  # another experiment may have wanted more
        seen[cell.name] = sorted(mine, key=lambda row: int(row["number"]))
        found.append({"n": n, **{name: sum(row[name] for row in mine) for name in ("evaluations", "seconds")}})
        found[-1]["path_entropy_sd"] = statistics.stdev(row["path_entropy"] for row in mine) if n > 1 else None
        if model.vocab.eos:
            found[-1]["ended"] = sum(row["ended"] for row in mine) / n
            found[-1]["empty"] = sum(not row["text"].strip() for row in mine)
        found[-1] |= _about(kept.header) | {"rows": Path(job.rows(about)).name, "judged": job.rows(about, "judged")}
        found[-1]["origins"] = kept.origins
    for load_judge in job.judges:
        _add_opinions(job, load_judge(), seen, found)
    return found


def _add_opinions(job: PaperRun, judge: Judge, seen: dict[str, list[Figures]], found: list[Figures]) -> None:
    """Judge all cells; the figures of the first judge are those of the cell, and those of all are in `judges`."""
    opinions: dict[str, list[Figures]] = {}
    for cell, one in zip(_each(job, "judged"), found, strict=True):
        path = _file_of(judge, one["judged"] if "judges" not in one else one["unjudged"])
        opinions[cell.name] = _judged(judge, seen[cell.name], cell.name, path, job.on_progress)
        base = job.experiment.baseline(cell)
        made: Figures = {"judge": judge.name, **figures(opinions[cell.name], "number")}
        made["against"] = None if base is None else _gain(opinions[base.name], opinions[cell.name])
        if "judges" not in one:
            one |= made | {"judged": path, "unjudged": one["judged"], "judges": {}}
        one["judges"][judge.name] = made


def _file_of(judge: Judge, path: str) -> str:
    """The file of a judge's rows: each has its own; version 0.1 had one for all."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        first = {}
    if first.get("judge") == judge.name:
        return path
    name = re.sub(r"[^\w.]+", "-", judge.name)[-60:].strip("-")
    return path.replace(".judged.", f".judged-{name}.")


def _judged(judge: Judge, kept: Sequence[Figures], name: str, path: str, on_progress: Progress) -> list[Figures]:
    """The judged rows of samples, by both conventions; empty texts are left out."""
    plain = ("number", "seed", "path_entropy")
    full = [row for row in kept if row["text"].strip()]
    if not full:
        raise InputError(f"all texts of {name} are empty", "there is nothing to judge: --judge none")
    samples = [Sample(row["text"], str(row["number"]), {key: row[key] for key in plain}, row["tokens"]) for row in full]
    return judged(judge, samples, Rules("both"), path, lambda done: on_progress(f"judging {name}", done, len(samples)))


def _sample(
    model: Denoiser, prompt: str, recipe: Recipe, n: int, kept: rows.Rows, on_progress: Callable[[int, int], None]
) -> None:
    """Sample the texts that are missing; they begin with the prompt, and end before the first EOS."""
    done = {int(row["number"]) for row in kept.kept}

    def decode(numbers: Sequence[int], size: int | None, on_results: OnResults | None) -> list[Result]:
        on_progress(len(kept.kept), n)
        seeds = [recipe.seed + number for number in numbers]
        return decode_batch(model, [prompt] * len(numbers), recipe=recipe, seeds=seeds)

    def store(part: list[bulk.Done]) -> None:
        kept.add(_text_row(model, prompt, one) for one in part)

    bulk.run(n, _together(model.device, recipe), decode, store, done)


def _together(device: torch.device, recipe: Recipe) -> int:
    """Texts that are sampled together: a power of two, so that compiling meets batches of few sizes."""
    most = batch.size("sample", device, recipe.build_search().particles)
    return 1 << (most.bit_length() - 1)


def _text_row(model: Denoiser, prompt: str, one: bulk.Done) -> rows.Line:
    found = one.result
    return {
        "number": one.number,
        "seed": found.seed,
        "text": prompt + found.text if found.text else "",
        "tokens": _until(found.tokens, model.vocab.eos),
        "ended": any(token in model.vocab.eos for token in found.tokens),
        "path_entropy": found.path_entropy,
        "spread": spread(found),
        "steps": found.steps,
        "calls": found.calls,
        "evaluations": found.evaluations,
        "seconds": found.seconds / one.share,
    }


def _until(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """The tokens before the first end."""
    return tokens[: next((place for place, token in enumerate(tokens) if token in ends), len(tokens))]


def _gain(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Figures:
    """ln PPL and diversity less those of the baseline, over samples of equal seeds that both have."""
    dice, found = np.random.default_rng(0), {}
    other = {one["number"]: one for one in second}
    pairs = [(one, other[one["number"]]) for one in first if one["number"] in other]
    for name in ("ln_ppl", "diversity") if pairs else ():
        lower = np.array([one[name] - two[name] for one, two in pairs])
        value, low, high = bootstrap(_mean_of(lower), range(len(lower)), dice=dice)["mean"]
        found[name] = {"difference": _negative(value), "low": _negative(high), "high": _negative(low)}
    return found


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _mean_of(values: Floats) -> Callable[[Places], dict[str, float]]:
    return lambda places: {"mean": float(values[places].mean())}


# --- runtime and paths -----------------------------------------------------------------------------------------------


def _runtimes(job: PaperRun, model: Denoiser) -> list[Figures]:
    found: dict[str, Figures] = {}  # by what is run: some cells are the same
    for cell in _each(job, "timed"):
        recipe = job.recipe(cell)
        key = json.dumps([recipe.to_dict(), cell.how])
        if key not in found:
            asked = Chunked(model, 1) if cell.how == "sequential" else model
            decode_batch(asked, [job.place.prompt], recipe=recipe.replace(steps=2))  # warms up
            times = _timed(asked, job.place.prompt, recipe, partial(job.on_progress, cell.name))
            found[key] = times | _about(_header(job, recipe, REPEATS))
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


def _paths(job: PaperRun, model: Denoiser) -> list[Figures]:
    found = []
    for cell in _each(job, "decoded"):
        recipe = job.recipe(cell)
        result = decode_batch(model, [job.place.prompt], recipe=recipe)[0]
        curves = [particle.state_entropy for particle in result.particles]
        ends = [particle.path_entropy for particle in result.particles]
        found.append({"n": 1, "chosen": result.chosen, "curves": curves, "path_entropies": ends})
        found[-1] |= {name: getattr(result, name) for name in ("evaluations", "seconds")} | _about(
            _header(job, recipe, 1)
        )
    return found


KINDS: dict[str, Callable[[PaperRun, Denoiser], list[Figures]]] = {
    "task": _tasks,
    "text": _texts,
    "runtime": _runtimes,
    "paths": _paths,
}
