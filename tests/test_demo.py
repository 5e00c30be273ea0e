"""The demo: boards that follow the trace, a table whose numbers come from the answers."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from itertools import pairwise

import pytest
import torch

from unmask import load
from unmask.cli import demo, main, show
from unmask.decoding import trace
from unmask.evaluate.stats import wilson
from unmask.tasks.puzzles import sudoku


class Screen(io.StringIO):
    """Standard output as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module", autouse=True)
def easy():
    """Puzzles with few blanks, and no pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "CLUES", 76)
        patch.setattr(demo, "PAUSE", 0.0)
        yield


@pytest.fixture(scope="module")
def page(easy, tmp_path_factory):
    """What the demo prints about two puzzles, and where its trace is."""
    path = tmp_path_factory.mktemp("demo") / "runs" / "demo.jsonl"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--puzzles", "2", "--trace", str(path)]) == 0
    return out.getvalue(), path


@pytest.fixture(scope="module")
def answers(easy):
    """What each method finds for the two puzzles."""
    model, boards = load("sudoku"), demo.puzzles(2)
    return {
        name: [demo.solve(model, board, recipe, seed) for seed, board in enumerate(boards)]
        for name, recipe in demo.METHODS.items()
    }


def test_puzzles_are_proper_and_stay_the_same(monkeypatch):
    monkeypatch.setattr(demo, "CLUES", 28)
    boards = demo.puzzles(demo.PUZZLES)
    assert [81 - board.count(0) for board in boards] == [28] * demo.PUZZLES
    assert all(len(sudoku.solutions(board)) == 1 for board in boards)
    assert demo.puzzles(2) == boards[:2]


def test_every_method_has_a_line(page, answers):
    text, _ = page
    boards = demo.puzzles(2)
    for name, found in answers.items():
        row = next(line for line in text.splitlines() if re.match(rf" {name} +\d", line))
        answers = [sudoku.answer(one.tokens) for one in found]
        right = sum(sudoku.fault(answer, board) is None for answer, board in zip(answers, boards, strict=True))
        low, high = wilson(right, 2)
        assert f" {right}/2 ({abs(low):.0%}–{high:.0%}) " in row
        assert row.split()[-3:-1] == [
            f"{sum(one.path_entropy for one in found) / 2:.3f}",
            str(sum(one.evaluations for one in found)),
        ]


def test_two_cells_a_step(answers):
    blanks = [board.count(0) for board in demo.puzzles(2)]
    for name, recipe in demo.METHODS.items():
        steps = [one.steps for one in answers[name]]
        assert steps == [(blank + 1) // 2 for blank in blanks]
        assert [one.evaluations for one in answers[name]] == [(recipe.particles or 1) * step for step in steps]


def test_the_first_path_of_best_of_n_is_the_vanilla_one(answers):
    for alone, many in zip(answers["vanilla"], answers["E-BoN"], strict=True):
        assert many.particles[0].tokens == alone.tokens
        assert many.particles[0].path_entropy == pytest.approx(alone.path_entropy, abs=1e-4)
        assert many.path_entropy <= many.particles[0].path_entropy


def test_frames_are_the_chosen_path(page, answers):
    _, path = page
    events, best = trace.load(path), answers[demo.SHOWN][0]
    frames = demo.frames(events, best.chosen)
    assert frames[0].cells == demo.puzzles(1)[0]
    assert frames[-1].cells == sudoku.parse(sudoku.answer(best.tokens)) and frames[-1].entropy is None
    assert [frame.entropy for frame in frames[:-1]] == trace.lineages(events)[best.chosen]
    for before, after in pairwise(frames):
        assert all(old in (0, new) for old, new in zip(before.cells, after.cells, strict=True))
        assert before.cells.count(0) - after.cells.count(0) in (1, 2)


def test_three_boards_without_a_terminal(page):
    text, path = page
    assert "\x1b" not in text
    last = demo.puzzles(1)[0].count(0) // 2 + 1
    assert re.findall(r"step (\d+) of", text) == ["0", str(last // 2), str(last)]
    assert str(path) in text
    command = re.search(r"unmask (solve \S{81})$", text, re.M)
    assert command is not None and main(command[1].split()) == 0


def test_a_board_for_every_step_on_a_terminal(page, monkeypatch):
    _, path = page
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    puzzle = demo.puzzles(1)[0]
    frames = demo.frames(trace.load(path), 0)
    with contextlib.redirect_stdout(Screen()) as out:
        demo.play(puzzle, frames)
    text = out.getvalue()
    assert "\x1b[1A" in text  # a board goes over the one before it
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)
    assert set(re.findall(r"step (\d+) of", plain)) == set(map(str, range(len(frames))))
    for frame in frames[:-1]:
        assert f"{frame.cells.count(0)} masked" in plain and f"h = {frame.entropy:.3f} bits" in plain


def test_colours_of_a_board():
    puzzle = demo.puzzles(1)[0]
    first, second = [cell for cell, digit in enumerate(puzzle) if digit == 0][:2]
    before, now = list(puzzle), list(puzzle)
    before[first] = now[first] = now[second] = 5
    painted = show.painted(now, clues=puzzle, before=before)
    assert painted.plain == show.board(now)
    found = Counter(str(span.style) for span in painted.spans)
    expected = {"clue": 81 - puzzle.count(0), "new": 1, "earlier": 1, "masked": puzzle.count(0) - 2}
    assert found == {show.STYLES[kind]: many for kind, many in expected.items()}


def test_torch_gets_its_threads_back(monkeypatch):
    given: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    with contextlib.suppress(ZeroDivisionError), demo.workers() as pool:
        assert given == [1] and pool._max_workers == 3
        raise ZeroDivisionError
    assert given == [1, 3]
