"""Cells of `paths.py` in several processes on one device, the most valuable first, until they are done or time is up.

    python experiments/search/many.py runs/paths --device cuda --data FOLDER --puzzles FOLDER --pack ROWS.jsonl.xz
    python experiments/search/many.py runs/paths --list

Each pass takes more prompts of the same cells: first 300 of every one, then all 1,000 (word problems: 300), so that a
run that is cut has as many prompts of one cell as of another. 1,000 are needed for an interval that ends above -0.5
points where nothing is lost. Rows are written after each batch, and packed every minute and at the end. The same
command goes on where it was. The plan below was committed before the run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

FEW, ALL, ROWS = 300, 1000, 4800  # prompts of the first pass and of the second; rows through the network together
TEXT_ROWS = 2400
MORE_PATHS = {"eb": 32}  # of puzzles; 16 elsewhere
SEARCHES = ("printed", "self-rewarding", "self-rewarding-surprise", "one-path")
SAMPLED = ("uniform", "confidence", "entropy", "eb", "selected")  # orders in which the searches are run
SURE = ("eb", "selected", "confidence", "entropy", "uniform", "fast-dllm", "pc")
FIRST = ("sudoku24", "cd4", "countdown4")  # then
THEN = ("cd5", "cd3", "sudoku28", "countdown5")
PROBLEMS = ("confidence", "selected", "semi-ar", "pc", "uniform", "eb", "fast-dllm", "block")

# For the estimates: width of a canvas, multiply-adds of a position, steps of a planned order, and the share of the rows
# that is left when equal canvases are computed once (measured, or by analogy where nothing was)
WIDTH = {"sudoku24": 81, "sudoku28": 81, "cd3": 45, "cd4": 59, "cd5": 73, "problems": 185}
WEIGHTS = {"sudoku": 6.3e6, "countdown": 9.9e6, "text": 17.9e6}
LEFT = {"uniform": 0.97, "confidence": 0.22, "selected": 0.75, "entropy": 0.3, "pc": 0.75, "p2": 0.95, "semi-ar": 0.5}
ASKED = {"eb": 11, "fast-dllm": 11}  # evaluations of a path without a plan, and the share of them
SPEED = 30e12  # float32 operations a second that are expected of these networks


@dataclass(frozen=True)
class Job:
    """A cell, or a search in it, up to so many prompts."""

    what: str
    cell: str
    n: int
    method: str | None = None

    @property
    def task(self) -> str:
        return self.cell.split("-")[0]

    @property
    def order(self) -> str:
        return self.cell.split("-", 1)[1]

    @property
    def paths(self) -> int:
        if self.what == "search":
            return 1 if self.method == "one-path" else 8
        return MORE_PATHS.get(self.order, 16) if self.task != "problems" else 16

    @property
    def most(self) -> int:
        return FEW if self.task == "problems" else ALL

    @property
    def together(self) -> int:
        return max(1, (TEXT_ROWS if self.task == "problems" else ROWS) // self.paths)

    @property
    def name(self) -> str:
        return f"{self.cell}{'' if self.method is None else f' {self.method}'}"

    def seconds(self, before: int = 0) -> float:
        """An estimate of the device's time, from `before` prompts on."""
        from paths import CELLS, MODELS

        name = self.task.replace("countdown", "cd")
        steps = CELLS[self.cell][1].get("steps", ASKED.get(self.order, 6))
        scale = WIDTH.get(name, 59) / WIDTH["cd4"] if self.order in ASKED and name.startswith("cd") else 1.0
        if self.method == "one-path":
            steps, left = 42, 1.0
        else:
            left = LEFT.get(self.order, 0.07 if name.startswith("sudoku") else 0.3)
        rows = self.paths * steps * scale * left + 10
        work = 2 * WEIGHTS[MODELS.get(self.task, "countdown")] * WIDTH[name]
        return (self.n - before) * rows * work / SPEED + 0.5


def plan(texts: bool) -> list[Job]:
    """All jobs in their order."""
    jobs = []
    for n in (FEW, ALL):
        for tasks in (FIRST, THEN):
            for order in (*SURE, "p2"):
                jobs += [Job("record", f"{task}-{order}", n) for task in tasks if goes(task, order)]
        cells = [f"{task}-{order}" for order in SAMPLED for task in FIRST]
        jobs += [Job("search", cell, n, method) for method in SEARCHES for cell in cells if fits(cell, method)]
        if texts and n == FEW:
            jobs += [Job("record", f"problems-{order}", FEW) for order in PROBLEMS]
    return jobs


def goes(task: str, order: str) -> bool:
    """P2 is run on the Sudokus; of those with 28 clues only the orders of the first study and EB."""
    if task == "sudoku28":
        return order in ("uniform", "confidence", "entropy", "eb")
    return order != "p2" or task == "sudoku24"


def fits(cell: str, method: str) -> bool:
    """One path with a step for every position needs a plan of steps."""
    return not (method == "one-path" and cell.endswith("-eb"))


# --- a worker --------------------------------------------------------------------------------------------------------


def work(args: argparse.Namespace, jobs: Any, ended: Any) -> None:
    """Jobs one after another: a model and the prompts of a task are loaded once."""
    import paths
    import torch

    import unmask
    from unmask.errors import UnmaskError

    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    models: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    while True:
        job: Job | None = jobs.get()
        if job is None:
            return
        began, many = time.monotonic(), min(job.together, args.together or job.together)
        while many >= 1:
            try:
                name = paths.MODELS.get(job.task, "countdown")
                if name not in models:
                    models[name] = unmask.load(name, args.device)
                if job.task not in asked:
                    asked[job.task] = paths.Asked(job.task, min(job.most, args.at_most), args.data, args.puzzles)
                about = {"n": min(job.most, args.at_most), "first": min(job.n, args.at_most), "paths": job.paths}
                about |= {"together": many, "dtype": None, "tokens": False, "out": args.out}
                given = argparse.Namespace(**about)
                if job.method is None:
                    paths.record_cell(given, job.cell, models[name], asked[job.task])
                else:
                    paths.search_cell(given, job.cell, job.method, models[name], asked[job.task])
                ended.put((job, time.monotonic() - began, None))
                break
            except torch.OutOfMemoryError:
                many //= 2
                torch.cuda.empty_cache()
            except UnmaskError as error:  # also where another process still writes the first pass of this cell
                busy = "another run" in str(error)
                ended.put((job, time.monotonic() - began, "busy" if busy else str(error)))
                break
            except Exception:
                ended.put((job, time.monotonic() - began, traceback.format_exc()))
                break
        else:
            ended.put((job, time.monotonic() - began, "not even one prompt fits the memory"))


# --- the scheduler ---------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    began, todo = time.monotonic(), [job for job in plan(args.texts) if not args.only or job.task in args.only]
    if args.passes == 1:
        todo = [job for job in todo if job.n == FEW]
    context = multiprocessing.get_context("spawn")
    jobs, ended = context.Queue(), context.Queue()
    workers: list[BaseProcess] = []
    for number in range(args.processes):
        workers.append(context.Process(target=work, args=(args, jobs, ended), name=f"worker-{number}"))
        workers[-1].start()
    running, packed, failed = 0, began, 0
    try:
        while (todo or running) and time.monotonic() - began < args.limit:
            while todo and running < args.processes + 1:  # one waits, so that no worker does
                jobs.put(todo.pop(0))
                running += 1
            try:
                job, seconds, error = ended.get(timeout=1.0)
                running -= 1
                now = f"{time.monotonic() - began:5.0f} s"
                if error == "busy":
                    todo.append(job)
                else:
                    failed += error is not None
                    what = f" FAILED {error}" if error else ""
                    print(f"{now}  {job.name}, {job.n}: {seconds:.1f} s{what}", flush=True)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    print("all workers have ended", flush=True)
                    break
            if args.pack is not None and time.monotonic() - packed > 60:
                pack(args.out, args.pack)
                packed = time.monotonic()
    finally:
        left = len(todo) + running
        if not left:
            for _ in workers:
                jobs.put(None)
        for worker in workers:
            worker.join(5.0 if not left else 0.0)
            if worker.is_alive():
                worker.terminate()
        if args.pack is not None:
            pack(args.out, args.pack)
        print(f"{time.monotonic() - began:.0f} s; {left} jobs left, {failed} failed", flush=True)
    return 75 if left else int(failed > 0)


def pack(folder: Path, into: Path) -> None:
    """All whole lines so far in one file, quickly; `stops.py FOLDER --pack` makes a smaller one later."""
    import lzma

    if not folder.is_dir():
        return
    parts = [path.read_bytes() for path in sorted(folder.glob("*.jsonl"))]
    whole = b"".join(part[: part.rfind(b"\n") + 1] for part in parts)
    other = into.with_suffix(".part")
    other.write_bytes(lzma.compress(whole, preset=1))
    os.replace(other, into)


def show(args: argparse.Namespace) -> int:
    total, before = 0.0, dict[str, int]()
    for job in plan(args.texts):
        if (args.only and job.task not in args.only) or (args.passes == 1 and job.n != FEW):
            continue
        seconds = job.seconds(before.get(job.name, 0))
        before[job.name] = job.n
        total += seconds
        print(f"{total:6.0f} s  {seconds:5.1f} s  {job.name}, {job.paths} paths, to {job.n}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--limit", type=float, default=540, help="seconds")
    parser.add_argument("--passes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--texts", action="store_true", help="word problems, too, at the end of the first pass")
    parser.add_argument("--only", nargs="*", default=[], metavar="TASK")
    parser.add_argument("--data", type=Path, help="the folder of the public cd3, cd4 and cd5 files")
    parser.add_argument("--puzzles", type=Path, help="the folder of the puzzles (`paths.py puzzles`)")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="where all rows are packed, each minute")
    parser.add_argument("--list", action="store_true", help="only print the plan and the seconds that it may take")
    parser.add_argument("--at-most", type=int, default=ALL, help="prompts, for a trial")
    parser.add_argument("--together", type=int, help="prompts decoded at a time, for a trial")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    return (show if args.list else run)(args)


if __name__ == "__main__":
    raise SystemExit(main())
