"""The study of searches: its choices are the decoder's, fewer paths are the first of more, and every method builds."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

from unmask import Recipe, load
from unmask.decoding.decode import decode_batch

sys.path.append(str(Path(__file__).parents[1] / "experiments" / "search"))
from choices import CHOICES, first
from methods import CELLS, METHODS, goes, settings
from study import line, main

LENGTH = 6
RECIPE = Recipe("uniform", "best-of-n", length=LENGTH, temperature=1.0, particles=8)


def rows(**changes):
    found = decode_batch(load("table"), [""] * 12, recipe=RECIPE.replace(**changes))
    return found, [
        line(one, n, LENGTH, 12, [particle.text for particle in one.particles]) for n, one in enumerate(found)
    ]


@pytest.mark.parametrize("choose", ["entropy", "likelihood", "surprise", "vote"])
def test_a_choice_is_the_decoders(choose: str) -> None:
    found, kept = rows(choose=choose)
    assert [CHOICES[choose](row) for row in kept] == [one.chosen for one in found]


def test_fewer_paths_are_the_first_of_more() -> None:
    (_, many), (found, few) = rows(), rows(particles=3)
    for more, less, one in zip(many, few, found, strict=True):
        cut = first(more, 3)
        names = ("entropy", "log_prob", "surprise", "evaluations", "open")
        assert [cut[name] for name in names] == [less[name] for name in names]
        assert CHOICES["entropy"](cut) == one.chosen


@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds(method: str) -> None:
    cells = [cell for cell in CELLS.values() if goes(method, cell)]
    assert {cell.task for cell in cells} == {"sudoku", "countdown", "text"}
    for cell in cells:
        for k in (2, 4, 8):
            search = settings(method, cell, k).build_search()
            assert search.particles == (1 if method == "steps" else k)


def test_a_study_from_puzzles_to_a_packed_file(tmp_path, monkeypatch, capsys) -> None:
    def study(what: str, *more: str) -> str:
        cell = ["--cells", "countdown4-uniform", "--methods", "best-of-n", "auto"]
        monkeypatch.setattr(sys, "argv", ["study.py", what, str(tmp_path), *cell, *more])
        main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit, match="no best-of-n of these cells to compare with: run it first"):
        study("report")
    study("run", "-n", "2", "--particles", "4")
    said = study("report", "--particles", "4")
    assert "K=4: E-BoN" in said and said.count("surprise      ") == 2 and "evaluations x1.00" in said
    assert "K=2: E-BoN" in study("report", "--particles", "2")  # the first two of the four
    with pytest.raises(SystemExit, match="has 2 puzzles: give that -n, or another folder"):
        study("run", "-n", "3", "--particles", "4")
    into = tmp_path / "rows"
    assert "2 runs" in study("pack", "--particles", "4", "--into", str(into))
    assert "3 runs" in study("pack", "--particles", "2", "--into", str(into))  # beside those of before
    lines = lzma.decompress((into / "search-study.jsonl.xz").read_bytes()).decode().splitlines()
    runs = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(run["method"], run["k"], run["paths"], run["n"]) for run in runs] == [
        ("best-of-n", 2, 4, 2),
        ("auto", 4, 4, 2),
        ("best-of-n", 4, 4, 2),
    ]
    assert len(lines) == 9 and all(len(run["columns"][-1].split()) == 8 for run in runs)
