"""experiments/ends.py on a tiny random model: every way runs, a stopped run is continued, the table is whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from unmask.decoding.recipe import Recipe
from unmask.models.made.fabricate import fabricate

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
import ends

QUESTION = "Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("ends")
    fabricate("llada", folder / "tiny")
    (folder / "problems.jsonl").write_text(f"{json.dumps({'question': QUESTION, 'answer': 8})}\n" * 3)
    return ["--model", str(folder / "tiny"), "--problems", str(folder / "problems.jsonl")]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_way_is_a_recipe() -> None:
    for name, (kind, how) in ends.WAYS.items():
        assert kind in ("problems", "stories") and Recipe(**{"length": 4, **how}), name
        assert ends.base(name) in ends.WAYS


def test_a_run_is_stopped_continued_and_printed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    run = ["run", str(file), *words, "--n", "3", "--stories", "2", "--length", "5", "--story-length", "6"]
    assert ends.main([*run, "--seconds", "0", "--rows", "8"]) == 75
    assert len(lines(file)) == 1 and "continues" in capsys.readouterr().err
    assert ends.main([*run, "--rows", "8"]) == 0
    header, *rows = lines(file)
    problems = [name for name, (kind, _) in ends.WAYS.items() if kind == "problems"]
    assert header["kind"] == ends.KIND and header["lengths"] == {"problems": 5, "stories": 6}
    assert len(rows) == 3 * len(problems) + 2 * (len(ends.WAYS) - len(problems))
    assert len({(row["way"], row["number"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["finish"] == "end") == (row["tokens"] < header["lengths"][ends.WAYS[row["way"]][0]])
        assert ("paths" in row) == row["way"].startswith("8 paths") and ("right" in row) == (row["way"] in problems)
    assert ends.main(run) == 0 and len(lines(file)) == len(rows) + 1  # nothing is decoded twice
    capsys.readouterr()
    assert ends.main(["table", str(file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len([line for line in printed if line.startswith("| ")]) == len(ends.WAYS) + 6
    assert ends.main([*run, "--length", "4"]) == 2 and "give another file" in capsys.readouterr().err


def test_ends_are_counted(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    only = ["--only", "stories: confidence", "stories: ends banned", "stories: penalty"]
    assert ends.main(["run", str(file), *words, "--stories", "4", "--n", "1", "--story-length", "6", *only]) == 0
    rows = lines(file)[1:]
    banned = [row for row in rows if row["way"] == "stories: ends banned"]
    assert [row["finish"] for row in banned] == ["length"] * 4
