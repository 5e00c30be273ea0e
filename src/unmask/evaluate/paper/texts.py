"""The cells of a place without a task -> sampled texts, which judges read."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.denoiser import Denoiser
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import OnEvent
from unmask.errors import InputError
from unmask.evaluate import batch, bulk, rows
from unmask.evaluate.bulk import Prompt
from unmask.evaluate.crew import Crew, Store, crew_of
from unmask.evaluate.judge import Rules, Sample, figures, judged
from unmask.evaluate.paper.runs import Figures, PaperRun, Planned, Progress, about_of, each, every, headed
from unmask.evaluate.run import spread
from unmask.evaluate.stats import Floats, Places, bootstrap


@dataclass(frozen=True)
class Sampling:
    """The job of a cell: numbers -> texts that begin with the prompt and end before the first EOS."""

    recipe: Recipe
    size: int  # texts that are sampled together

    @property
    def refills(self) -> bool:
        return False

    def check(self) -> None:
        """Texts are decoded anywhere."""

    def prepared(self, model: Denoiser, items: Sequence[Prompt]) -> Sampling:
        return self

    def do(self, model: Denoiser, items: Sequence[Prompt], store: Store, on_event: OnEvent | None = None) -> None:
        seeds = [self.recipe.seed + one.number for one in items]
        found = decode_batch(model, [one.text for one in items], recipe=self.recipe, seeds=seeds, on_event=on_event)
        done = [bulk.Done(one.number, result, len(items)) for one, result in zip(items, found, strict=True)]
        store([_row(model, one.text, result) for one, result in zip(items, done, strict=True)])


def texts(job: PaperRun, crew: Crew) -> list[Figures]:
    """The figures of every cell of texts."""
    n, todo = job.n or 256, []
    items = [Prompt(number, job.place.prompt) for number in range(n)]
    for cell in job.cells:
        recipe = job.recipe(cell)
        how = Sampling(recipe, _together(crew.device, recipe))
        todo.append(Planned(cell, how, items, headed(job, recipe, n, how.size)))
    kept = every(job, crew, "sampled", todo)
    found, seen = [], {}
    for one in todo:
        there = kept[one.cell.name]
        mine = [row for row in there.kept if int(row["number"]) < n]  # another experiment may have wanted more
        seen[one.cell.name] = sorted(mine, key=lambda row: int(row["number"]))
        found.append(_of_texts(mine, n) | about_of(there.header) | {"origins": there.origins})
        found[-1] |= {"rows": Path(job.rows(one.header)).name, "judged": job.rows(one.header, "judged")}
    for load_judge in job.judges:
        _add_opinions(job, crew_of(load_judge()), seen, found)
    return found


def _of_texts(mine: Sequence[rows.Line], n: int) -> Figures:
    made: Figures = {"n": n, **{name: sum(row[name] for row in mine) for name in ("evaluations", "seconds")}}
    made["path_entropy_sd"] = statistics.stdev(row["path_entropy"] for row in mine) if n > 1 else None
    if all(row["ended"] is not None for row in mine):  # by a model that has ends
        made["ended"] = sum(row["ended"] for row in mine) / n
        made["empty"] = sum(not row["text"].strip() for row in mine)
    return made


def _add_opinions(job: PaperRun, judge: Crew, seen: dict[str, list[Figures]], found: list[Figures]) -> None:
    """Judge all cells; the figures of the first judge are those of the cell, and those of all are in `judges`."""
    opinions: dict[str, list[Figures]] = {}
    for cell, one in zip(each(job, "judged"), found, strict=True):
        path = _file_of(judge, one["judged"] if "judges" not in one else one["unjudged"])
        opinions[cell.name] = _judged(judge, seen[cell.name], cell.name, path, job.on_progress)
        base = job.experiment.baseline(cell)
        made: Figures = {"judge": judge.name, **figures(opinions[cell.name], "number")}
        made["against"] = None if base is None else _gain(opinions[base.name], opinions[cell.name])
        if "judges" not in one:
            one |= made | {"judged": path, "unjudged": one["judged"], "judges": {}}
        one["judges"][judge.name] = made


def _file_of(judge: Crew, path: str) -> str:
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


def _judged(judge: Crew, kept: Sequence[Figures], name: str, path: str, on_progress: Progress) -> list[Figures]:
    """The judged rows of samples, by both conventions; empty texts are left out."""
    plain = ("number", "seed", "path_entropy")
    full = [row for row in kept if row["text"].strip()]
    if not full:
        raise InputError(f"all texts of {name} are empty", "there is nothing to judge: --judge none")
    samples = [Sample(row["text"], str(row["number"]), {key: row[key] for key in plain}, row["tokens"]) for row in full]
    return judged(judge, samples, Rules("both"), path, lambda done: on_progress(f"judging {name}", done, len(samples)))


def _together(device: torch.device, recipe: Recipe) -> int:
    """Texts that are sampled together: a power of two, so that compiling meets batches of few sizes."""
    most = batch.size("sample", device, recipe.build_search().particles)
    return 1 << (most.bit_length() - 1)


def _row(model: Denoiser, prompt: str, one: bulk.Done) -> rows.Line:
    found = one.result
    return {
        "number": one.number,
        "seed": found.seed,
        "text": prompt + found.text if found.text else "",
        "tokens": _until(found.tokens, model.vocab.eos),
        "ended": any(token in model.vocab.eos for token in found.tokens) if model.vocab.eos else None,
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
