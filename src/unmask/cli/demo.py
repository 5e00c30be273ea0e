"""Held-out Sudokus × four searches -> a board that fills in, and a table of what each search solved."""

from __future__ import annotations

import math
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from rich.console import Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from unmask.cli import show
from unmask.cli.parser import flag
from unmask.decoding import trace as traces
from unmask.decoding.decode import Result, decode
from unmask.decoding.recipe import Recipe
from unmask.decoding.trace import Event, OnEvent
from unmask.errors import InputError
from unmask.evaluate.stats import wilson
from unmask.models import Denoiser, load
from unmask.tasks.puzzles import sudoku
from unmask.tasks.puzzles.grids import grids
from unmask.tasks.puzzles.sudoku import Board

PUZZLES = 6  # solved by each method: 4,200 evaluations, 40 seconds on two cores
CLUES = 24
SEED = 2026  # puzzle i has the dice [SEED + i, 3]; training draws from [step, 1], its validation from [clues, 2]
TRACE = "runs/demo.jsonl"
PAUSE = 0.15  # seconds between two boards: 28 boards in 4

BASE = Recipe(sampler="uniform", temperature=1.0)
METHODS: dict[str, Recipe] = {
    "vanilla": BASE,
    "E-BoN": BASE.replace(search="best-of-n", particles=8),
    "E-SMC as printed": BASE.replace(search="smc", particles=8),
    "auto": BASE.replace(search="auto", particles=8),
}
SHOWN = "auto"  # whose path over the first puzzle is shown

INTRO = (
    "A small bundled model solves Sudokus that it has never seen. It fills two cells a step, in random "
    "order, each drawn from what it predicts there; the two cells of a step cannot see each other. The state entropy h "
    "says how unsure the model is of the cells that are still masked; the path entropy is the mean of h along the way."
)
LEGEND = (
    "vanilla walks one path. E-BoN walks 8 and keeps the one of lowest path entropy; the first of the 8 is vanilla's. "
    "E-SMC, as printed in the paper, also copies paths of low h over the others a few times on the way. auto walks the "
    "8 paths of E-BoN and keeps the one of least surprise, where the logarithm of h counts, and how probable the cells "
    "were that it wrote. Evaluations are rows through the network. Brackets hold 95 % intervals; more puzzles "
    "(--puzzles) make them narrower."
)


def run_demo(args: Namespace) -> None:
    """Solve Sudokus in front of the user, and compare searches."""
    run(args.puzzles, args.trace)


def add_demo(parser: ArgumentParser) -> None:
    flag(parser, "--puzzles N", f"how many to solve [{PUZZLES}]", PUZZLES)
    flag(parser, "--trace FILE", f"where one path is written [{TRACE}]", TRACE)


def run(count: int = PUZZLES, trace: str | Path = TRACE) -> None:
    """Show how the first puzzle is solved, while all are solved by every method with the same seeds; then compare."""
    boards, model, console = puzzles(count), load("sudoku"), show.console()
    try:
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {str(trace)!r} ({error.strerror})", "give --trace another place") from None
    console.print(INTRO, end="\n\n")
    with workers() as pool:
        with show.following() as on_event:
            first = pool.submit(solve, model, boards[0], METHODS[SHOWN], 0, trace, on_event)
            jobs = start(pool, model, boards, first)
            shown = first.result()
        play(boards[0], frames(traces.load(trace), shown.chosen))
        found = finish(jobs)
    console.print(comparison(found, boards), LEGEND, end="\n\n")
    print(f"The board above, step by step, with all {len(shown.particles)} paths: {trace}")
    print("Next, the same puzzle on one path, surest cells first:")
    print(f"  unmask solve {''.join(map(str, boards[0])).replace('0', '.')}")


# --- decoding --------------------------------------------------------------------------------------------------------


def puzzles(count: int) -> list[Board]:
    """Puzzles with one solution, of grids that training never draws; puzzle i is the same whatever the count."""
    if count < 1:
        raise InputError(f"{count} puzzles show nothing", "give at least 1")
    full = [grids(1, np.random.default_rng([SEED + place, 3]))[0].tolist() for place in range(count)]
    return [sudoku.puzzle(grid, CLUES, Random(place)) for place, grid in enumerate(full)]


def solve(
    model: Denoiser,
    board: Board,
    recipe: Recipe,
    seed: int,
    trace: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Decode one puzzle, two cells a step."""
    recipe = recipe.replace(seed=seed, steps=math.ceil(board.count(0) / 2))
    return decode(model, canvas=sudoku.canvas(board), recipe=recipe, trace=trace, on_event=on_event)


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch has for one product of matrices, each with products of its own.

    Parts of one product wait for each other, which takes very long where another program holds a core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


Jobs = dict[str, list[Future[Result]]]  # for each method, one for each puzzle


def start(pool: ThreadPoolExecutor, model: Denoiser, boards: Sequence[Board], first: Future[Result]) -> Jobs:
    """Every puzzle by every method, puzzle i with seed i; `first` is SHOWN at the first puzzle."""
    jobs: Jobs = {name: [] for name in METHODS}
    jobs[SHOWN].append(first)
    for seed, board in enumerate(boards):
        for name, recipe in METHODS.items():
            if len(jobs[name]) == seed:
                jobs[name].append(pool.submit(solve, model, board, recipe, seed))
    return jobs


def finish(jobs: Jobs) -> dict[str, list[Result]]:
    """Wait for all, with a bar."""
    cost = {job: METHODS[name].particles or 1 for name, some in jobs.items() for job in some}
    with show.progress() as bar:
        task = bar.add_task("all puzzles, all methods", total=sum(cost.values()))
        for job in as_completed(cost):
            bar.advance(task, cost[job])
    return {name: [job.result() for job in some] for name, some in jobs.items()}


# --- one path --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A board on its way."""

    cells: Board
    entropy: float | None  # its state entropy in bits; None where nothing is masked


def frames(events: Sequence[Event], row: int) -> list[Frame]:
    """The boards along the ancestry of a final row: what every step began with, then the answer."""
    mask, canvases = events[0]["mask"], list(traces.replay(events))
    steps = [event for event in events if event["event"] == "step"]
    found = [Frame(_cells(canvases[-1][row], mask), None)]
    for step, before in zip(steps[::-1], canvases[-2::-1], strict=True):
        source = step["ancestors"][row] if "ancestors" in step else row
        found.append(Frame(_cells(before[source], mask), step["h"][source]))
        row = source
    return found[::-1]


def _cells(canvas: Sequence[int], mask: int) -> Board:
    return [0 if token == mask else token + 1 for token in canvas]


def play(puzzle: Board, path: Sequence[Frame]) -> None:
    """Fill the board in, step by step; without a terminal, print three boards of the path."""
    console, last = show.console(), len(path) - 1
    pictures = [_picture(puzzle, path, number) for number in range(len(path))]
    console.print(f"Puzzle 1 by {SHOWN}: the path it chose")
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        console.print(show.colours())
        with Live(console=console, auto_refresh=False) as live:
            for picture in pictures:
                live.update(picture, refresh=True)
                time.sleep(PAUSE)
    else:
        side_by_side = Grid.grid(padding=(0, 4, 0, 0))
        side_by_side.add_row(*(pictures[number] for number in (0, last // 2, last)))
        console.print(side_by_side)
    console.print()


def _picture(puzzle: Board, path: Sequence[Frame], number: int) -> Group:
    """The board after `number` steps, with its state entropy or verdict."""
    frame, before = path[number], path[max(0, number - 1)]
    board = show.painted(frame.cells, clues=puzzle, before=before.cells)
    if frame.entropy is None:
        wrong = sudoku.clash(frame.cells)
        about = "solved" if wrong is None else f"wrong: {wrong}"
    else:
        about = f"h = {frame.entropy:.3f} bits"
    return Group(board, Text(f"step {number} of {len(path) - 1}, {frame.cells.count(0)} masked\n{about}"))


# --- the comparison --------------------------------------------------------------------------------------------------


def comparison(found: Mapping[str, Sequence[Result]], boards: Sequence[Board]) -> Grid:
    """One line for each method."""
    numbers = "solved", "path entropy", "evaluations", "seconds"
    made = show.grid("method", *numbers, right=numbers)
    made.title, made.title_justify = (
        f"Puzzles with {CLUES} or a few more clues; path entropy in bits, seconds of one core",
        "left",
    )
    for name, results in found.items():
        answers = [sudoku.answer(result.tokens) for result in results]
        right = sum(sudoku.fault(answer, board) is None for answer, board in zip(answers, boards, strict=True))
        low, high = wilson(right, len(boards))
        made.add_row(
            name,
            f"{right}/{len(boards)} ({max(0.0, low):.0%}–{high:.0%})",
            f"{statistics.fmean(result.path_entropy for result in results):.3f}",
            str(sum(result.evaluations for result in results)),
            f"{sum(result.seconds for result in results):.1f}",
        )
    return made
