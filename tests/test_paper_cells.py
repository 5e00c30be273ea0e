"""experiments/paper_cells.py: every cell of the pages once, and rows that `unmask paper` takes for its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from unmask.cli import main
from unmask.evaluate.paper import EXPERIMENTS, Cell, Experiment, Place
from unmask.evaluate.paper.runs import PaperRun

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
import paper_cells


def test_every_cell_of_a_page_is_planned_once() -> None:
    pages = {(name, place) for group in paper_cells.GROUPS for name, place in group}
    bundled = {(one.name, at) for one in EXPERIMENTS.values() for at, place in one.places.items() if not place.theirs}
    assert bundled - pages == {("runtime", "text"), ("paths", "text")}, "a page has no cells here"

    def run(job: paper_cells.Job) -> tuple[str, str]:
        experiment = EXPERIMENTS[job.experiment]
        place = experiment.places[job.place]
        [cell] = [one for one in experiment.at(place) if one.name == job.cell]
        return of(experiment, place, cell)

    def of(experiment: Experiment, place: Place, cell: Cell) -> tuple[str, str]:
        about = [place.model, dict(place.made), place.prompt, experiment.recipe(cell, place).to_dict()]
        return place.name, json.dumps(about, sort_keys=True)

    planned = paper_cells.plan()
    wanted: dict[tuple[str, str], int] = {}
    for name, at in pages:
        experiment = EXPERIMENTS[name]
        for cell in experiment.at(experiment.places[at]):
            key = of(experiment, experiment.places[at], cell)
            wanted[key] = max(wanted.get(key, 0), experiment.places[at].n or 0)
    assert len(planned) == len({run(job) for job in planned}) and {run(job) for job in planned} == set(wanted)
    assert {run(job): EXPERIMENTS[job.experiment].places[job.place].n for job in planned} == wanted


def test_the_paper_takes_the_rows_of_the_cells(tmp_path: Path) -> None:
    """Rows made cell by cell are those of the whole experiment: it decodes nothing more, and changes no file."""
    given = {"device": "cpu", "dtype": None, "at_most": 1, "scale": 0.05, "only": ["steps-sudoku"]}
    args = argparse.Namespace(out=tmp_path, processes=1, limit=120, **given)
    assert paper_cells.run_all(args) == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()}
    assert files and all(len(text.splitlines()) == 2 for text in files.values())  # a header and a row
    words = ["paper", "steps", "--on", "sudoku", "--limit", "1", "--scale", "0.05", "--no-pictures"]
    main([*words, "--out", str(tmp_path)])
    assert {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir() if path.suffix == ".jsonl"} == files
    assert isinstance(paper_cells.paper_run(args, "steps", "sudoku", "14, K=2 / E-BoN"), PaperRun)
