"""`unmask eval` and `unmask puzzles` on puzzles: what is read, what is measured, what is made."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unmask import MODELS, Recipe, __version__, load
from unmask.cli import main, show
from unmask.decoding.decode import decode_batch
from unmask.errors import InputError, ModelError
from unmask.evaluate import batch, header, rows, run
from unmask.tasks import TASKS, Example, puzzle_of
from unmask.tasks.puzzles import countdown, sudoku
from unmask.tasks.puzzles.grids import grids
from unmask.tasks.puzzles.sudoku import puzzle
from unmask.tasks.sudoku import example

PUZZLES = [name for name, task in TASKS.items() if task.puzzle]
EASY = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
DONE = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def inputs(name, path, limit=None):
    return [one.fields["input"] for one in TASKS[name].examples(path, limit)]


def test_puzzles_of_several_layouts(tmp_path):
    path = tmp_path / "p.txt"
    dotted = EASY.replace("0", ".")
    path.write_text(f"# a comment\n{EASY} {DONE}\n17 {dotted} 4.2\n{dotted},{DONE}\n\n{EASY[:-1]}\n")
    with pytest.warns(UserWarning, match="2 lines of .* hold no Sudoku"):
        assert inputs("sudoku", path) == [EASY] * 3
    assert [one.gold for one in TASKS["sudoku"].examples(path, 2)] == [DONE, ""]
    path.write_text("nothing here\n")
    with pytest.raises(InputError, match="no Sudoku"):
        inputs("sudoku", path)


def test_problems_of_several_layouts(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text('15,44,79,50\n\n {"input": "1, 2,3,6", "output": "1+2=3,3+3=6"}\n7,7,7,7,7,49\n')
    assert inputs("countdown", path) == ["15,44,79,50", "1,2,3,6", "7,7,7,7,7,49"]
    assert len(inputs("countdown", path, 2)) == 2
    path.write_text("15,44,79,50\nfifty\n")
    assert len(inputs("countdown", path, 1)) == 1  # what is not read is not judged
    with pytest.raises(InputError, match=r"line 2 of .*: 'fifty' is not a number"):
        inputs("countdown", path)


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [("sudoku", EASY, DONE), ("countdown", "2,3,4,24", "4*3=12,12*2=24")],
    ids=["sudoku", "countdown"],
)
def test_kinds_of_puzzles(name, given, right, tmp_path):
    (tmp_path / "p.txt").write_text(f"{given}\n")
    task = TASKS[name]
    kind = puzzle_of(task)
    [question] = run.sift(task, run.canvases(task, task.examples(tmp_path / "p.txt"))).fit
    assert task.grades(right, question.example) == (True, True)
    assert task.grades(right[:-1] + "0", question.example) == (False, False)
    model = load(name)
    canvas = list(question.ask)
    assert model.vocab.mask == kind.mask in canvas and max(canvas) < model.head.width and len(canvas) <= model.limit
    [row] = run.run(task, model, [question], Recipe("confidence"))
    assert row.strict and row.as_published and row.puzzle == given and row.task == name
    assert row.evaluations == row.calls == row.steps == row.tokens == canvas.count(kind.mask)


def test_models_of_other_tokens_are_refused():
    assert set(PUZZLES) <= set(MODELS)
    for name in PUZZLES:
        for other in MODELS:
            if other != name:
                with pytest.raises(ModelError, match=f"{other} is not a model of {name}"):
                    run.run(TASKS[name], load(other), [], Recipe())


def test_the_company_of_a_puzzle_changes_nothing(monkeypatch):
    model, dice = load("sudoku"), random.Random(1)
    boards = [puzzle(grid.tolist(), 76, dice) for grid in grids(5, np.random.default_rng(4))]
    recipe = Recipe(sampler="uniform", temperature=1.0, search="smc", particles=3, every=2, seed=9)
    task = TASKS["sudoku"]
    questions = run.canvases(task, [example(str(n), board) for n, board in enumerate(boards)])
    together = run.run(task, model, questions, recipe)
    told = []
    monkeypatch.setitem(batch.ROWS["puzzle"], "cpu", 6)  # two puzzles of three particles
    apart = run.run(task, model, questions, recipe, on_rows=told.append)
    assert [len(rows) for rows in told] == [2, 2, 1] and [row for rows in told for row in rows] == apart
    assert [row.answer for row in together] == [row.answer for row in apart]
    assert [row.seed for row in apart] == [9, 10, 11, 12, 13]
    assert all(row.evaluations == 3 * 5 for row in apart)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text(f"{EASY}\n{EASY[:45]}{DONE[45:]}\n")
    assert main(["eval", "sudoku", "--data", "p.txt", "--json", "--rows", "rows.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"n", "strict", "path_entropy_bits", "auroc", "evaluations", "seconds"} <= set(found)
    assert (found["n"], found["strict"], found["auroc"]) == (2, 1.0, None)
    assert [row["answer"] for row in rows.read("rows.jsonl").kept] == [DONE, DONE]
    assert main(["eval", "sudoku", "--data", "p.txt", "--limit", "1"]) == 0
    assert capsys.readouterr().out.startswith("solved 1.000")
    for given, said in (
        (["chess", "--data", "p.txt"], "unknown task 'chess'"),
        (["sudok", "--data", "p.txt"], "did you mean 'sudoku'?"),
        (["sudoku", "--data", "nowhere.txt"], "nowhere.txt"),
        (["sudoku", "--data", "p.txt", "--limit", "0"], "at least 1"),
        (["sudoku"], "--data"),
    ):
        assert main(["eval", *given]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1


CLASHING, MANY = "55" + EASY[2:], "0" * 18 + DONE[18:]  # the two rows may change places


def test_strange_puzzles_stop_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("\n".join([DONE, EASY, CLASHING, MANY, EASY[:45] + DONE[45:]]) + "\n")
    assert main(["eval", "sudoku", "--data", "p.txt", "--json", "--rows", "rows.jsonl"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["n"], found["skipped"], found["strict"]) == (3, 2, 1.0)
    assert [row["number"] for row in rows.read("rows.jsonl").kept] == [1, 3, 4]
    assert err == (
        "unmask: warning: 'p.txt': 2 puzzles are skipped: number 1 (there is nothing to fill, the board is full and "
        "right), number 3 (the clues clash: 5 twice in row 1); 1 puzzle is judged by the rules alone: number 4 (has "
        "several solutions)\n"
    )
    assert main(["eval", "sudoku", "--data", "p.txt", "--rows", "rows.jsonl"]) == 0
    assert "of 3, 2 skipped" in capsys.readouterr().out
    Path("p.txt").write_text(f"{DONE}\n" * 6)
    assert main(["eval", "sudoku", "--data", "p.txt"]) == 2
    err = capsys.readouterr().err
    assert "no puzzle can be solved: number 1 (there is" in err and "and 2 more" in err and err.count("\n") == 1


def test_rows_say_where_they_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("15,44,79,50\n")
    given = ["--data", "p.txt", "--sampler", "entropy", "--steps", "9", "--seed", "4", "--rows", "rows.jsonl", "--json"]
    assert main(["eval", "countdown", *given]) == 0
    found, header = json.loads(capsys.readouterr().out), rows.read("rows.jsonl").header
    about = {
        "task": "countdown",
        "model": "countdown",
        "data": "p.txt",
        "sha256": hashlib.sha256(b"15,44,79,50\n").hexdigest(),
        "version": __version__,
        "recipe": {"sampler": "entropy", "search": "vanilla", "steps": 9, "seed": 4},
        "weights": hashlib.sha256(
            (Path(run.__file__).parents[1] / "models/weights/countdown/model.safetensors").read_bytes()
        ).hexdigest(),
        "n": 1,
    }
    assert about.items() <= found.items() and about.items() <= header.items()
    assert {"torch", "device", "machine", "date", "commit", "limit"} <= set(header)


@pytest.mark.parametrize("batches", [0, 2])
def test_an_interrupt_keeps_the_rows(batches, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("15,44,79,50\n" * 8)
    calls = iter(range(9))

    def decoded(*given, **settings):
        if next(calls) == batches:
            raise KeyboardInterrupt
        return decode_batch(*given, **settings)

    monkeypatch.setattr(run, "decode_batch", decoded)
    given = ["eval", "countdown", "--data", "p.txt", "--rows", "rows.jsonl", "--steps", "4", "--batch", "3"]
    assert main(given) == 130
    assert [row["seed"] for row in rows.read("rows.jsonl").kept] == list(range(3 * batches))
    said = ": 6 rows are in 'rows.jsonl', the same command resumes it" if batches else ""
    assert capsys.readouterr() == ("", f"unmask: stopped{said}\n")


def test_progress_moves_within_a_batch(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Screen())
    seen: list[float] = []
    update = show.Progress.update
    monkeypatch.setattr(
        show.Progress, "update", lambda *given, **to: (seen.append(to["completed"]), update(*given, **to))
    )
    task = TASKS["countdown"]
    questions = run.canvases(task, [Example("", {"input": "15,44,79,50"}, "")] * 3)
    with show.evaluating(3) as watch:
        run.run(task, load("countdown"), questions, Recipe(steps=9), batch=2, on_event=watch)
    assert seen == pytest.approx([2 * n / 9 for n in range(10)] + [2 + n / 9 for n in range(10)])


# --- puzzles ---------------------------------------------------------------------------------------------------------


def test_sudokus_are_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["puzzles", "sudoku", "--count", "3", "--clues", "40", "-o", "p.txt"]) == 0
    boards = [sudoku.parse(one) for one in inputs("sudoku", "p.txt")]
    assert [81 - board.count(0) for board in boards] == [40] * 3
    assert all(len(sudoku.solutions(board)) == 1 for board in boards)
    assert main(["puzzles", "sudoku", "--count", "3", "--clues", "40"]) == 0
    assert capsys.readouterr().out == Path("p.txt").read_text()
    assert main(["puzzles", "sudoku", "--count", "3", "--clues", "40", "--seed", "1"]) == 0
    before = Path("p.txt").read_text()
    assert capsys.readouterr().out != before
    assert main(["puzzles", "sudoku", "--count", "1", "-o", "p.txt"]) == 2
    assert "'p.txt' is there already" in capsys.readouterr().err and Path("p.txt").read_text() == before
    assert main(["puzzles", "sudoku", "--count", "2", "--solved"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert sudoku.fault(line, [0] * 81) is None


@pytest.mark.parametrize("numbers", [3, 4, 5])
def test_problems_are_made(numbers, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["puzzles", "countdown", "--count", "30", "--numbers", str(numbers)]
    assert main([*given, "-o", "p.jsonl"]) == 0
    made = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    found = [countdown.parse(one) for one in inputs("countdown", "p.jsonl")]
    assert {len(problem.numbers) for problem in found} == {numbers} and len(found) == 30
    assert not [row for row, one in zip(made, found, strict=True) if countdown.fault(row["output"], one)]
    assert main([*given, "--solved"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tokens = [[countdown.ALPHABET.index(sign) for sign in line] for line in lines]
    assert not [row for row in tokens if countdown.fault(countdown.answer(row), countdown.problem(row))]
    assert [row[: countdown.HEAD] for row in tokens] == [
        countdown.canvas(countdown.problem(row))[:18] for row in tokens
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["chess"], "unknown task 'chess'"),
        (["sudoku", "--count", "0"], "count is 0"),
        (["sudoku", "--clues", "16"], "clues is 16: it must be from 17 to 81"),
        (["countdown", "--numbers", "6"], "numbers is 6: it must be from 3 to 5"),
        (["sudoku", "--seed", "-1"], "seed is -1"),
        (["countdown", "-o", "none/p"], "there is no folder for 'none/p'"),
    ],
)
def test_bad_puzzles_are_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["puzzles", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_copy_without_a_repository_can_name_its_commit(tmp_path, monkeypatch):
    """The tree that git hashes is the one that the copy's files are compared with."""
    there, copy = tmp_path / "repository" / "package", tmp_path / "copy" / "package"
    for name, text in {"__init__.py": "", "a.b": "1", "a/x.py": "2", "a0": "3", "a/deep/é.txt": "4"}.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(text)
    shutil.copytree(there, copy)
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *words], cwd=there.parent, check=True)
    names = [header._git(there.parent, "rev-parse", word) for word in ("HEAD", "HEAD:package")]
    monkeypatch.setenv("UNMASK_COMMIT", ":".join(map(str, names)))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert header.commit(there) == header.commit(copy) == names[0]
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.pyc").write_text("left by Python")
    (copy / "empty").mkdir()
    header._tree.cache_clear()
    assert header.commit(copy) == names[0]
    (copy / "a" / "x.py").write_text("changed")
    header._tree.cache_clear()
    assert header.commit(copy) == f"{names[0]}+"
    monkeypatch.setenv("UNMASK_COMMIT", "main")
    with pytest.raises(InputError, match="UNMASK_COMMIT is 'main', which is not COMMIT:TREE"):
        header.commit(copy)
    monkeypatch.delenv("UNMASK_COMMIT")
    assert header.commit(copy) is None
