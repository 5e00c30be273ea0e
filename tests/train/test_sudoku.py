"""Sudoku: boards, the exact solver, puzzles, and grids by the thousand."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from unmask import decode_batch, load
from unmask.cli import main
from unmask.errors import InputError
from unmask.sudoku import BOX, CELLS, COLUMN, ROW, clash, parse, puzzle, solutions, solved
from unmask.train.grids import grids

EASY = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
DONE = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def test_a_known_puzzle():
    assert solutions(parse(EASY)) == [parse(DONE)]
    assert solved(parse(DONE), parse(EASY))


def test_text_of_a_board():
    drawn = "\n".join(f"{r[:3]}|{r[3:6]}|{r[6:]}" for r in (EASY[i : i + 9].replace("0", ".") for i in range(0, 81, 9)))
    assert parse(drawn) == parse(EASY) == [int(c) for c in EASY]
    for bad, said in ((EASY[:-1], "has 80"), (EASY + "1", "has 82"), ("x" + EASY[1:], "'x' in row 1, column 1")):
        with pytest.raises(InputError, match=said):
            parse(bad)


def test_wrong_boards():
    done, given = parse(DONE), parse(EASY)
    swapped = list(done)
    swapped[2], swapped[3] = swapped[3], swapped[2]
    assert not solved(swapped, given) and "twice in column 3" in str(clash(swapped))
    other = [d % 9 + 1 for d in done]
    assert clash(other) is None and not solved(other, given)  # a right grid of another puzzle
    assert not solved([0, *done[1:]], given)
    assert clash(parse("11" + "0" * 79)) == "1 twice in row 1"
    assert clash(parse("1" + "0" * 8 + "01" + "0" * 70)) == "1 twice in box 1"
    assert solutions(parse("11" + "0" * 79)) == []


def test_the_solver_counts():
    assert len(solutions([0] * CELLS, most=5)) == 5
    two = parse(DONE)
    # 5 3 / 3 5 in two rows and two columns of the same boxes may be turned round
    for board in grids(40, np.random.default_rng(3)):
        cells = board.tolist()
        for a in range(CELLS):
            b = next((o for o in range(a + 1, CELLS) if ROW[o] == ROW[a] and BOX[o] != BOX[a]), None)
            if b is None:
                continue
            for row in range(ROW[a] + 1, 9):
                c, d = row * 9 + COLUMN[a], row * 9 + COLUMN[b]
                if BOX[c] == BOX[a] and cells[c] == cells[b] and cells[d] == cells[a]:
                    open = [0 if cell in (a, b, c, d) else digit for cell, digit in enumerate(cells)]
                    assert len(solutions(open, most=3)) == 2
                    return
    pytest.fail(f"no such rectangle in 40 grids, nor in {two[:9]}…")


def test_no_solution_without_a_clash():
    board = [0] * CELLS
    board[1:9] = [1, 2, 3, 4, 5, 6, 7, 8]  # the first cell can only be 9
    board[9] = 9
    assert clash(board) is None and solutions(board) == []


def test_puzzles_have_one_solution_and_as_many_clues_as_asked():
    made = grids(6, np.random.default_rng(1))
    for clues, grid in zip((40, 30, 30, 28, 28, 17), made, strict=True):
        found = puzzle(grid.tolist(), clues, Random(clues))
        assert solutions(found) == [grid.tolist()]
        given = sum(map(bool, found))
        assert given == clues if clues > 17 else 20 < given < 30  # it stops where no more can go


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_grids_are_grids_and_differ(count):
    made = grids(count, np.random.default_rng(count))
    assert made.shape == (count, CELLS)
    for unit in (ROW, COLUMN, BOX):
        order = np.argsort(unit, kind="stable")
        assert (np.sort(made[:, order].reshape(count, 9, 9), axis=2) == np.arange(1, 10)).all()
    assert len(np.unique(made, axis=0)) == count
    assert np.array_equal(made, grids(count, np.random.default_rng(count)))


def test_every_digit_is_as_likely_everywhere():
    made = grids(9000, np.random.default_rng(0))
    counts = np.stack([(made == digit).sum(0) for digit in range(1, 10)])  # [9, 81], 1000 expected
    assert np.abs(counts - 1000).max() < 5.5 * (9000 * 8 / 81) ** 0.5


# --- the command -----------------------------------------------------------------------------------------------------


def test_solve(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["solve", EASY]) == 0
    out = capsys.readouterr().out
    assert "5 3 4 | 6 7 8 | 9 1 2" in out and "\nsolved\n" in out
    Path("p.txt").write_text(EASY.replace("0", ".") + "\n")
    assert main(["solve", "p.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["valid"], found["evaluations"]) == (DONE, True, 51)


def test_solve_says_when_the_answer_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr("unmask.sudoku.solved", lambda board, puzzle: False)
    assert main(["solve", EASY]) == 1
    assert "not solved" in capsys.readouterr().out
    assert main(["solve", EASY, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["valid"] is False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (EASY[:-1], "has 80"),
        (EASY + "1", "has 82"),
        ("x" + EASY[1:], "'x' in row 1, column 1 is no digit"),
        ("55" + EASY[2:], "the clues clash: 5 twice in row 1"),
        ("0" + "12345678" + "9" + "0" * 71, "no board keeps these clues"),
        ("nowhere.txt", "81 cells"),
    ],
)
def test_bad_puzzles_are_one_line(given, said, capsys):
    assert main(["solve", given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_the_embedded_model_solves_held_out_puzzles():
    """28 clues, confidence order: 0.958 of 1,200 (docs/models/sudoku.md); 24 of 30 is far below it."""
    model, dice = load("sudoku"), Random(7)
    boards = [puzzle(grid.tolist(), 28, dice) for grid in grids(30, np.random.default_rng([7, 3]))]
    canvases = [[9 if cell == 0 else cell - 1 for cell in board] for board in boards]
    answers = decode_batch(model, canvases=canvases)
    right = [solved([token + 1 for token in a.tokens], b) for a, b in zip(answers, boards, strict=True)]
    assert sum(right) >= 24
