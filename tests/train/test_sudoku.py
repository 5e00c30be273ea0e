"""Sudoku: boards, the exact solver, puzzles, and grids by the thousand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from unmask import Recipe, load
from unmask.cli import main
from unmask.errors import InputError
from unmask.evaluate.run import canvases, run
from unmask.tasks import TASKS
from unmask.tasks.puzzles.grids import grids
from unmask.tasks.puzzles.sudoku import (
    BOX,
    CELLS,
    COLUMN,
    MASK,
    ROW,
    SEVERAL,
    UNKNOWN,
    TooManySteps,
    answer,
    canvas,
    check,
    clash,
    fault,
    forced,
    parse,
    puzzle,
    solutions,
    write,
)
from unmask.tasks.sudoku import SUDOKU, example
from unmask.train.log import LOG
from unmask.train.sudoku import Grids, read_pool

EASY = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
DONE = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def test_a_known_puzzle():
    assert solutions(parse(EASY)) == [parse(DONE)]
    assert fault(DONE, parse(EASY)) is None
    check(parse(EASY))


def test_text_of_a_board():
    drawn = "\n".join(f"{r[:3]}|{r[3:6]}|{r[6:]}" for r in (EASY[i : i + 9].replace("0", ".") for i in range(0, 81, 9)))
    assert parse(drawn) == parse(EASY) == [int(c) for c in EASY]
    for bad, said in ((EASY[:-1], "has 80"), (EASY + "1", "has 82"), ("x" + EASY[1:], "'x' in row 1, column 1")):
        with pytest.raises(InputError, match=said):
            parse(bad)


def test_what_the_model_reads():
    tokens = canvas(parse(EASY))
    assert tokens[:5] == [4, 2, MASK, MASK, 6] and len(tokens) == CELLS
    assert answer(canvas(parse(DONE))) == write(parse(DONE)) == DONE
    assert write(parse(EASY.replace("0", "."))) == EASY
    with pytest.raises(InputError, match=r"is text: make a board of it with sudoku.parse"):
        canvas(EASY)


def test_wrong_answers():
    done, given = parse(DONE), parse(EASY)
    swapped = list(done)
    swapped[2], swapped[3] = swapped[3], swapped[2]
    other = [digit % 9 + 1 for digit in done]
    assert clash(other) is None
    for board, why in (
        (swapped, "6 twice in column 3"),
        (other, "the clue 5 in row 1, column 1 is gone"),  # a right grid of another puzzle
        ([*done[:2], 0, *done[3:]], "there are blanks left"),
        ([*done[:-1], 8], "the clue 9 in row 9, column 9 is gone"),
    ):
        assert fault(write(board), given) == why


def test_clashes():
    assert clash(parse("11" + "0" * 79)) == "1 twice in row 1"
    assert clash(parse("1" + "0" * 8 + "01" + "0" * 70)) == "1 twice in box 1"
    assert clash([0] * CELLS) is None
    assert solutions(parse("11" + "0" * 79)) == []
    for bad, said in (("11" + "0" * 79, "the clues clash: 1 twice"), ("012345678" + "9" + "0" * 71, "no board keeps")):
        with pytest.raises(InputError, match=said):
            check(parse(bad))


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


IMPOSSIBLE = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."


def test_the_solver_needs_few_steps():
    """By cells alone, the first of these takes many minutes."""
    assert solutions(parse(IMPOSSIBLE), steps=10_000) == []
    many = ".....6....59.....82....8....45........3........6..3.54...325..6.................."
    assert len(solutions(parse(many), steps=1000)) == 2
    hard = "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9"  # made against searches
    assert len(solutions(parse(hard), steps=1000)) == 1


def test_the_solver_gives_up(monkeypatch, capsys):
    with pytest.raises(TooManySteps):
        solutions(parse(IMPOSSIBLE), steps=100)
    monkeypatch.setattr("unmask.tasks.puzzles.sudoku.STEPS", 20)
    assert check(parse(EASY)) == UNKNOWN
    assert main(["solve", EASY]) == 0  # decoding goes on
    out, err = capsys.readouterr()
    assert "solved" not in out and UNKNOWN in err.splitlines()[0] and err.splitlines()[1] == "solved"


def test_what_is_strange_about_a_puzzle():
    assert check(parse(EASY)) is None and check([0] * CELLS) == SEVERAL
    for bad, said in ((DONE, "full and right"), (DONE[:-1] + "8", "full and wrong: 8 twice in row 9")):
        with pytest.raises(InputError, match=f"nothing to fill, the board is {said}"):
            check(parse(bad))


def test_puzzles_have_one_solution_and_as_many_clues_as_asked():
    made = grids(6, np.random.default_rng(1))
    for clues, grid in zip((40, 30, 30, 28, 28, 17), made, strict=True):
        found = puzzle(grid.tolist(), clues, Random(clues))
        assert solutions(found) == [grid.tolist()]
        given = sum(map(bool, found))
        assert given == clues if clues > 17 else 20 < given < 30  # it stops where no more can go


def test_hard_puzzles_are_what_single_candidates_leave(capsys):
    """Every cell left blank has two or more candidates, every digit two or more places in its row, column and box."""
    asked = "puzzles sudoku --count 24 --clues 24 --answers"
    assert main(asked.split()) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main([*asked.split(), "--hard"]) == 0
    said = capsys.readouterr()
    hard = said.out.splitlines()
    assert 0 < len(hard) < len(plain) and said.err == f"{len(hard)} of 24 are hard\n"
    easy = [line for line in plain if forced(parse(line.split()[0])) == parse(line.split()[1])]
    assert len(easy) + len(hard) == len(plain)
    for line in hard:
        board, solved = map(parse, line.split())
        assert solutions(board) == [solved]
        units = [{cell for cell in range(CELLS) if unit[cell] == u} for unit in (ROW, COLUMN, BOX) for u in range(9)]
        may = [set() if board[c] else set(range(1, 10)) for c in range(CELLS)]
        for unit in units:
            for cell in unit:
                may[cell] -= {board[other] for other in unit}
        assert all(len(may[cell]) > 1 for cell in range(CELLS) if not board[cell])
        for unit in units:
            lacking = set(range(1, 10)) - {board[cell] for cell in unit}
            assert all(sum(digit in may[cell] for cell in unit) > 1 for digit in lacking)


def test_hard_is_for_sudokus_to_solve(capsys):
    for asked in ("puzzles countdown --hard", "puzzles sudoku --solved --hard"):
        assert main(asked.split()) == 2
        assert "--hard is for Sudokus to solve" in capsys.readouterr().err
    assert main("puzzles sudoku --hard --count 2 --clues 70 -o none.txt".split()) == 2
    assert "single candidates solve all 2 of them" in capsys.readouterr().err and not Path("none.txt").exists()


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


def test_batches_of_puzzles(tmp_path, monkeypatch, capsys):
    """Only the blanks of puzzles are open, of new ones or of those of a file, each turned into another as hard."""
    monkeypatch.chdir(tmp_path)
    assert main(["puzzles", "sudoku", "--count", "3", "--clues", "30", "--answers", "-o", "with.txt"]) == 0
    assert main(["puzzles", "sudoku", "--count", "3", "--clues", "30", "-o", "without.txt"]) == 0
    pool = read_pool("with.txt")
    assert pool.shape == (3, 2, CELLS) and np.array_equal(pool, read_pool("without.txt"))
    for source in (Grids(pool=pool), Grids()):
        kinds = [source.batch(number, 40) for number in range(12)]
        dug = [(whole, open) for whole, open in kinds if open.ndim == 2]
        assert 3 < len(dug) < 12
        for whole, open in dug[:2]:
            for board, blank in zip((whole + 1).tolist()[::13], open.tolist()[::13], strict=True):
                assert clash(board) is None
                assert solutions([0 if hole else digit for digit, hole in zip(board, blank, strict=True)]) == [board]
            assert len(np.unique(whole, axis=0)) == 40


@pytest.mark.parametrize("bad", [DONE[:40] + "." * 41, EASY + " " + DONE[::-1], "." * 80])
def test_what_cannot_be_trained_on(bad, tmp_path):
    (tmp_path / "p.txt").write_text(f"{EASY}\n{bad}\n" if len(bad) != 80 else bad)
    with pytest.raises(InputError, match="not a puzzle to train on" if len(bad) != 80 else "there is no Sudoku"):
        read_pool(str(tmp_path / "p.txt"))


# --- the command -----------------------------------------------------------------------------------------------------


def test_solve(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["solve", EASY]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("5 3 4 | 6 7 8 | 9 1 2\n") and out.count("\n") == 11 and err.startswith("solved\n")
    Path("p.txt").write_text(EASY.replace("0", ".") + "\n")
    assert main(["solve", "p.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["strict"], found["evaluations"]) == (DONE, True, 51)


def test_solve_says_that_there_are_several_solutions(capsys):
    several = "0" * 18 + DONE[18:]  # the two rows may change places
    assert main(["solve", several]) == 0
    assert capsys.readouterr().err.startswith("solved, as one of several solutions\n")
    assert main(["solve", several, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["strict"], found["strange"]) == (True, SEVERAL)


def test_solve_says_why_an_answer_is_wrong(capsys, monkeypatch):
    late = replace(SUDOKU.puzzle, fault=lambda answer, board: "it came late")
    monkeypatch.setitem(TASKS, "sudoku", replace(SUDOKU, puzzle=late))
    assert main(["solve", EASY]) == 1
    assert "not solved: it came late" in capsys.readouterr().err
    assert main(["solve", EASY, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["strict"], found["fault"]) == (False, "it came late")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (EASY[:-1], "has 80"),
        (EASY + "1", "has 82"),
        ("x" + EASY[1:], "'x' in row 1, column 1 is not a digit"),
        ("55" + EASY[2:], "the clues clash: 5 twice in row 1"),
        ("0" + "12345678" + "9" + "0" * 71, "no board keeps these clues"),
        (
            "nowhere.txt",
            "'nowhere.txt' is neither a file nor a puzzle: give a Sudoku of 81 characters, a countdown like",
        ),
        (".", "81 cells"),
        ("/", "'/' is neither a file nor a puzzle"),
        ("many.txt", "'many.txt' holds 2 puzzles: `unmask eval sudoku --data many.txt` decodes them all"),
        (DONE, "there is nothing to fill, the board is full and right"),
        (DONE[:-1] + "8", "the board is full and wrong: 8 twice in row 9"),
    ],
)
def test_bad_puzzles_are_one_line(given, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("many.txt").write_text(f"{EASY}\n\n{EASY}\n")
    assert main(["solve", given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["countdown", "text", "table"])
def test_models_of_other_tokens_are_refused(name, capsys):
    assert main(["solve", EASY, "--model", name]) == 2
    assert f"{name} is not a model of sudoku" in capsys.readouterr().err


def test_train(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shape = '{"width": 16, "layers": 1, "heads": 2, "inner": 16}'
    given = ["--steps", "2", "--batch", "8", "--held", "1", "--log", "1", "--bits", "8", "--shape", shape]
    assert main(["train", "sudoku", "made", *given]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("made: load it as a model") and err.count("\n") == 1 and "solved_28 0.0000" in err
    events = [json.loads(line) for line in Path("made", LOG).read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "step", "step", "validation"]
    assert {"solved_28", "solved_25"} <= set(events[-1])
    assert main(["solve", EASY, "--model", "made"]) == 1
    assert "not solved: " in capsys.readouterr().err


def test_the_embedded_model_solves_held_out_puzzles():
    """28 clues, the surest three cells of a step: it solves nearly all (docs/research/models/sudoku.md)."""
    dice = Random(7)
    boards = [puzzle(grid.tolist(), 28, dice) for grid in grids(10, np.random.default_rng([7, 3]))]
    examples = [example("", board) for board in boards]
    rows = run(SUDOKU, load("sudoku"), canvases(SUDOKU, examples), Recipe("confidence", steps=18))
    assert sum(row.strict for row in rows) >= 8
    assert all(
        row.strict == (row.answer == write(solutions(board)[0])) for row, board in zip(rows, boards, strict=True)
    )
