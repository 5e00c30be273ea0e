"""Files of puzzles: what is read, what is measured, and that the company of a puzzle changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from unmask import Recipe, evaluate, load
from unmask.cli import main
from unmask.errors import InputError
from unmask.sudoku import puzzle
from unmask.train.grids import grids

EASY = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
DONE = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def test_puzzles_of_several_layouts(tmp_path):
    path = tmp_path / "p.txt"
    dotted = EASY.replace("0", ".")
    path.write_text(f"# a comment\n{EASY} {DONE}\n17 {dotted} 4.2\n{dotted},{DONE}\n\n{EASY[:-1]}\n")
    assert evaluate.read_puzzles(path) == [[int(c) for c in EASY]] * 3
    assert len(evaluate.read_puzzles(path, 2)) == 2
    path.write_text("nothing here\n")
    with pytest.raises(InputError, match="no Sudoku"):
        evaluate.read_puzzles(path)


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    dice = random.Random(0)
    for _ in range(50):
        entropies = [dice.choice([0.0, 0.5, 1.0, dice.random()]) for _ in range(20)]
        right = [dice.random() < 0.5 for _ in entropies]
        pairs = [
            (g, w)
            for g, a in zip(entropies, right, strict=True)
            for w, b in zip(entropies, right, strict=True)
            if a and not b
        ]
        share = sum((g < w) + (g == w) / 2 for g, w in pairs) / len(pairs)
        assert evaluate.auroc(entropies, right) == pytest.approx(share)
    assert evaluate.auroc([1.0, 2.0], [True, True]) is None and evaluate.auroc([1.0], [False]) is None


def test_wilson():
    low, high = evaluate.wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert evaluate.wilson(0, 5)[0] == pytest.approx(0.0, abs=1e-12) and evaluate.wilson(5, 5)[1] == pytest.approx(1.0)


def test_the_company_of_a_puzzle_changes_nothing(monkeypatch):
    model, dice = load("sudoku"), random.Random(1)
    boards = [puzzle(grid.tolist(), 60, dice) for grid in grids(5, np.random.default_rng(4))]
    recipe = Recipe(sampler="uniform", temperature=1.0, search="smc", particles=3, every=7, seed=9)
    together = evaluate.run(model, boards, recipe)
    told = []
    monkeypatch.setattr(evaluate, "TOGETHER", 6)  # two puzzles of three particles
    apart = evaluate.run(model, boards, recipe, lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert [row.answer for row in together] == [row.answer for row in apart]
    assert [row.seed for row in apart] == [9, 10, 11, 12, 13]
    assert all(row.evaluations == 3 * 21 for row in apart)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text(f"{EASY}\n{EASY[:45]}{DONE[45:]}\n")
    assert main(["eval", "sudoku", "--data", "p.txt", "--json", "--rows", "rows.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"n", "strict", "path_entropy_bits", "auroc", "evaluations", "seconds"} <= set(found)
    assert (found["n"], found["strict"], found["auroc"]) == (2, 1.0, None)
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in rows] == [DONE, DONE]
    assert main(["eval", "sudoku", "--data", "p.txt", "--limit", "1"]) == 0
    assert capsys.readouterr().out.startswith("solved 1.000")
    for given, said in (
        (["chess", "--data", "p.txt"], "unknown task 'chess'"),
        (["sudoku", "--data", "nowhere.txt"], "nowhere.txt"),
        (["sudoku", "--data", "p.txt", "--limit", "0"], "at least 1"),
        (["sudoku"], "--data"),
    ):
        assert main(["eval", *given]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
