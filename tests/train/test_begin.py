"""Where a training begins: in a new directory, from given weights, or from the state that is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest
import torch

from unmask import load
from unmask.cli import main
from unmask.train.log import read_log
from unmask.train.loop import STATE
from unmask.train.sudoku import Grids

SHAPE = {"width": 32, "layers": 1, "heads": 2, "inner": 32}
SMALL = ["--batch", "4", "--held", "1", "--log", "1"]


def sudoku(directory, *more, steps=1):
    return main(["train", "sudoku", directory, "--steps", str(steps), *SMALL, *more])


def text(directory, *more, steps=1):
    given = ["--corpus", "a.txt", "--heldout", "a.txt"]
    return main(["train", "prose", directory, "--steps", str(steps), *SMALL, *given, *more])


def shape(**other):
    return ["--shape", json.dumps({**SHAPE, **other})]


def listed(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A training of one step, and a text."""
    home = tmp_path_factory.mktemp("home")
    assert sudoku(str(home / "grids"), *shape()) == 0
    dice = Random(0)
    words = ["".join(dice.choices("etaoinshr", k=dice.randint(1, 6))) for _ in range(300)]
    (home / "a.txt").write_text("\n\n".join(" ".join(dice.choices(words, k=40)) for _ in range(60)))
    return home


@pytest.fixture
def home(kept, tmp_path, monkeypatch):
    """A copy of them to work in."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_refused_task_leaves_nothing(home, capsys):
    before = listed("grids")
    assert text("grids", *shape()) == 2
    assert "the model in 'grids' is of another task: give another directory" in capsys.readouterr().err
    assert listed("grids") == before
    (home / "grids/config.json").unlink()  # as if it had been stopped before the model was written
    del before["config.json"]
    assert text("grids", *shape()) == 2
    assert "is of another network" in capsys.readouterr().err
    assert listed("grids") == before


def test_refused_weights_leave_nothing(home, capsys):
    assert text("words", *shape()) == 0
    assert text("new", "--weights", "words", *shape(width=64)) == 2
    assert "embed.weight is" in capsys.readouterr().err
    assert not Path("new").exists()


def test_a_resumed_run_has_the_sizes_it_was_begun_with(home):
    assert sudoku("grids", steps=2) == 0
    assert load("grids").network.shape.width == 32


def test_a_run_from_weights_has_their_sizes(home):
    assert sudoku("new", "--weights", "grids", "--rate", "0") == 0
    one, two = load("grids").network, load("new").network
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["grids", *shape(width=64)], f"'grids/{STATE}' is of another network: embed.weight is 10 × 32, here 10 × 64"),
        (["grids", *shape(layers=2)], f"'grids/{STATE}' is of another network: blocks.1"),
        (["new", "--weights", "grids", *shape(width=64)], "another network: embed.weight is 10 × 32, here 10 × 64"),
        (["new", "--weights", "grids", *shape(layers=2)], "is missing, here"),
    ],
)
def test_other_sizes_are_refused(home, given, said, capsys):
    assert sudoku(*given, steps=2) == 2
    err = capsys.readouterr().err
    assert said in err and "give its --shape, or another" in err and err.count("\n") == 1
    assert not Path("new").exists()


def test_ctrl_c_says_where_it_stopped(home, monkeypatch, capsys):
    batch = Grids.batch

    def stopped(self, number, size):
        if number == 3:
            raise KeyboardInterrupt
        return batch(self, number, size)

    monkeypatch.setattr(Grids, "batch", stopped)
    assert sudoku("new", *shape(), steps=5) == 130
    assert capsys.readouterr().out == "stopped at step 3: the same command resumes it\n"
    assert load("new").network.shape.width == 32  # it is a model already
    monkeypatch.undo()
    monkeypatch.chdir(home)
    assert sudoku("new", *shape(), steps=5) == 0
    assert [event["step"] for event in read_log(Path("new")) if event["event"] == "start"] == [0, 3]


def test_ctrl_c_before_the_first_step_says_nothing(home, monkeypatch, capsys):
    monkeypatch.setattr("unmask.train.prose._pack_into", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert text("new", *shape()) == 130
    assert capsys.readouterr().out == ""


def test_a_state_that_is_cut_off_says_what_to_do(home, capsys):
    whole = (home / "grids" / STATE).read_bytes()
    (home / "grids" / STATE).write_bytes(whole[: len(whole) // 2])
    assert sudoku("grids", steps=2) == 2
    err = capsys.readouterr().err
    assert f"'grids/{STATE}' cannot be read (" in err and err.count("\n") == 1
    assert "begin in another DIR; --weights grids takes what was learned" in err
    assert sudoku("new", "--weights", "grids") == 0
