"""Cells of `unmask paper` in several processes on one device, each once, until all are done or time is up.

    python experiments/paper_cells.py DIR --device cuda --dtype bfloat16 --processes 12 --limit 280
    python experiments/paper_cells.py DIR --list

`unmask paper NAME --on PLACE --out DIR` locks the rows of all cells of an experiment, and experiments share cells: here
every cell is a job of its own, so that no process waits for another. The rows are the same, in the same files:
`unmask paper` finds them afterwards, judges the texts and writes the pages. Pages of texts come first, then puzzles,
then the longest cells of texts, then word problems; within each the longest first. The same command continues where it
was. A copy of the sources without a repository names its commit by UNMASK_COMMIT, see `unmask.evaluate.header.commit`.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import queue
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Pages in the order of their use, in groups: a group is begun once the one before it has no cell left to begin
GROUPS: tuple[tuple[tuple[str, str], ...], ...] = (
    tuple((name, "text") for name in ("quality", "guidance", "greedy", "particles", "steps", "strength", "kernel")),
    tuple(
        (name, place)
        for place, names in (
            ("sudoku", ("samplers", "vote", "decay", "strength", "particles", "steps")),
            ("countdown", ("samplers", "vote", "decay")),
        )
        for name in names
    ),
    (),  # long cells of texts
    tuple((name, "problems") for name in ("samplers", "vote", "decay")),
)
LAST = 2  # the group of long cells
WIDTH = {"sudoku": 81, "countdown": 59, "problems": 185, "text": 256}  # columns of a canvas, for the estimates
WEIGHTS = {"sudoku": 6.3e6, "countdown": 9.9e6, "problems": 17.9e6, "text": 17.9e6}
OPEN = {"sudoku": 56, "countdown": 41, "problems": 128, "text": 252}  # steps without a plan: one a position
ADAPTIVE = {"eb": 0.3, "fast-dllm": 0.3}  # of them
TOGETHER = 512  # rows of word problems at a time on a GPU: the package's 32 are for larger models
LONG = 400_000  # evaluations of a cell of texts from which it waits for the puzzles


@dataclass(frozen=True)
class Job:
    """A cell of an experiment at a place."""

    experiment: str
    place: str
    cell: str
    group: int
    evaluations: int  # about

    @property
    def name(self) -> str:
        return f"{self.experiment} {self.place}, {self.cell}"

    @property
    def work(self) -> float:
        """Multiply-adds."""
        return self.evaluations * WIDTH[self.place] * WEIGHTS[self.place]


def plan(only: Iterable[str] = (), limit: int | None = None) -> list[Job]:
    """Every cell once: where experiments share one, by the experiment with most questions or texts."""
    from unmask.evaluate.paper import EXPERIMENTS

    only, jobs = set(only), dict[str, Job]()
    for group, pages in enumerate(GROUPS):
        for name, at in pages:
            if only and not {name, at, f"{name}-{at}"} & only:
                continue
            experiment = EXPERIMENTS[name]
            place = experiment.places[at]
            for cell in experiment.at(place):
                recipe = experiment.recipe(cell, place)
                steps = recipe.steps or OPEN[at] * ADAPTIVE.get(str(recipe.sampler), 1.0)
                many = round((limit or place.n or 0) * steps * recipe.build_search().particles)
                late = at == "text" and many > LONG
                key = json.dumps([at, dict(place.made), place.prompt, recipe.to_dict()], sort_keys=True, default=str)
                if key not in jobs or many > jobs[key].evaluations:
                    jobs[key] = Job(name, at, cell.name, LAST if late else group, many)
    return sorted(jobs.values(), key=lambda job: (job.group, -job.work))


# --- a worker --------------------------------------------------------------------------------------------------------


def paper_run(args: argparse.Namespace, name: str, at: str, cell: str) -> Any:
    """The experiment with one cell only: its rows are in the file that the whole experiment has for it."""
    from unmask.evaluate.paper import EXPERIMENTS
    from unmask.evaluate.paper.runs import PaperRun

    whole = EXPERIMENTS[name]
    place = whole.places[at]
    alone = replace(whole, cells=tuple(one for one in whole.at(place) if one.name == cell))
    given = {"device": args.device, "dtype": args.dtype, "limit": args.at_most, "scale": args.scale}
    return PaperRun(alone, place, args.out, **given)


def work(args: argparse.Namespace, jobs: Any, ended: Any) -> None:
    """Jobs one after another; each model is loaded once."""
    import torch

    from unmask import load
    from unmask.evaluate import batch
    from unmask.evaluate.crew import Here
    from unmask.evaluate.paper.cells import run

    torch.set_num_threads(1)
    batch.ROWS["prompt"]["cuda"] = TOGETHER
    models: dict[str, Any] = {}

    def crew(name: str) -> Here:
        if name not in models:
            models[name] = load(name, args.device, args.dtype)
        return Here(models[name])

    while True:
        job: Job | None = jobs.get()
        if job is None:
            return
        began = time.monotonic()
        try:
            [found] = run(replace(paper_run(args, job.experiment, job.place, job.cell), crew=crew))
            ended.put((job, time.monotonic() - began, found["evaluations"], found["seconds"], None))
        except Exception as error:
            if "out of memory" in str(error).lower():
                models.clear()
            ended.put((job, time.monotonic() - began, 0, 0.0, traceback.format_exc()))
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()


def make_questions(args: argparse.Namespace, jobs: list[Job]) -> None:
    """Files of puzzles, once, while the texts are decoded."""
    from unmask.evaluate.paper.cells import made

    for experiment, place in dict.fromkeys((job.experiment, job.place) for job in jobs if job.place != "text"):
        made(paper_run(args, experiment, place, ""))


# --- the scheduler ---------------------------------------------------------------------------------------------------


def run_all(args: argparse.Namespace) -> int:
    began, todo = time.monotonic(), plan(args.only, args.at_most)
    args.out.mkdir(parents=True, exist_ok=True)
    _check_commit()
    context = multiprocessing.get_context("spawn")
    jobs, ended = context.Queue(), context.Queue()
    workers: list[BaseProcess] = []
    for number in range(args.processes):
        workers.append(context.Process(target=work, args=(args, jobs, ended), name=f"worker-{number}"))
        workers[-1].start()
    maker = context.Process(target=make_questions, args=(args, list(todo)), name="questions")
    maker.start()
    running = failed = done = 0
    again: set[Job] = set()
    try:
        while (todo or running) and time.monotonic() - began < args.limit:
            while todo and running < args.processes + 1:  # one waits, so that no worker does
                jobs.put(todo.pop(0))
                running += 1
            try:
                job, seconds, evaluations, decoding, error = ended.get(timeout=1.0)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    print("all workers have ended", flush=True)
                    break
                continue
            running -= 1
            done += error is None
            if error is not None and job not in again:  # once more, when less may be on the device
                again.add(job)
                todo.append(job)
            failed += error is not None and job in again and job not in todo
            what = f" FAILED\n{error}" if error else f", {evaluations:,} evaluations in {decoding:.1f} s"
            print(f"{time.monotonic() - began:5.0f} s  {job.name}: {seconds:.1f} s{what}", flush=True)
    finally:
        left = len(todo) + running
        for _ in workers:
            jobs.put(None)
        for worker in [*workers, maker]:
            worker.join(0.0 if left else 5.0)
            if worker.is_alive():
                worker.terminate()
    print(f"{time.monotonic() - began:.0f} s: {done} cells done, {left} left, {failed} failed", flush=True)
    return 75 if left else int(failed > 0)


def _check_commit() -> None:
    from unmask.evaluate.header import commit

    found = commit()
    print(f"commit {found}", flush=True)
    if found is None or found.endswith("+"):
        print("these rows are not of a clean commit: pages will say so", file=sys.stderr, flush=True)


def show(args: argparse.Namespace) -> int:
    total, jobs = 0.0, plan(args.only, args.at_most)
    for job in jobs:
        total += 2 * job.work
        print(f"{job.name}: {job.evaluations:,} evaluations, {2e-15 * job.work:.2f} PFLOP, {total / 1e15:.1f} in all")
    print(f"{len(jobs)} cells, {sum(job.evaluations for job in jobs):,} evaluations at most, {total / 1e15:.0f} PFLOP")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="as the pages say: bfloat16 [the model's own]")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--limit", type=float, default=280, help="seconds")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="experiments, places, or quality-text")
    parser.add_argument("--at-most", type=int, help="questions or texts of a cell, for a trial")
    parser.add_argument("--scale", type=float, default=1.0, help="as in `unmask paper`, for a trial")
    parser.add_argument("--list", action="store_true", help="only print the cells")
    args = parser.parse_args()
    return (show if args.list else run_all)(args)


if __name__ == "__main__":
    raise SystemExit(main())
