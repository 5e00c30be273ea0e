"""experiments/caches.py on a tiny random model: every cache runs, a stopped run is continued, the figures add up."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from unmask import load
from unmask.decoding.prompt import encode
from unmask.models.made.fabricate import fabricate

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
import caches


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    short = dataclasses.replace(caches.SETS["problems"], main=4, blocks=(8,), settings={"length": 8})
    monkeypatch.setitem(caches.SETS, "problems", short)
    fabricate("llada", tmp_path / "tiny")
    return ["--task", "problems", "--n", "2", "--model", str(tmp_path / "tiny")]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_cell_is_a_recipe() -> None:
    for task in ("countdown", "sudoku", "problems"):
        found = caches.cells(task, None)
        assert all(caches.recipe_of(task, *cell) for cell in found.values())
        assert {caches.base(name) for name in found} <= found.keys()


def test_answers_are_continued_packed_printed_and_drawn(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, packed = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.xz"
    assert caches.main(["decode", str(file), *words, "--seconds", "0"]) == 0
    assert len(lines(file)) == 1 and "continues" in capsys.readouterr().err
    assert caches.main(["decode", str(file), *words]) == 0
    header, *rows = lines(file)
    count = len(caches.cells("problems", None))
    assert header["kind"] == caches.KIND and len(rows) == 2 * count
    assert caches.main(["decode", str(file), *words]) == 0 and len(lines(file)) == len(rows) + 1
    assert caches.main(["decode", str(file), *words[:2], "--n", "3", *words[4:]]) == 2
    before = file.read_bytes()
    assert caches.main(["pack", str(file), str(file)]) == 2 and file.read_bytes() == before
    assert caches.main(["pack", str(file), str(packed)]) == 0
    ((_, found),) = caches.read([str(packed)])
    columns = {name: sum(row["columns"] for row in rows.values()) for name, rows in found.items()}
    assert columns["one 4: dual"] < columns["one 4: prefix"] < columns["one 4: exact"]
    model = load(tmp_path / "tiny")
    prompts = [len(encode(model, str(one.fields["question"]))) for one in caches.examples("problems", 2)]
    assert prompts[0] < prompts[1]  # padding is not counted
    assert columns["one 4: exact"] == 8 * sum(8 + prompt for prompt in prompts)
    capsys.readouterr()
    assert caches.main(["table", str(packed)]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) == count + 2 * 5
    assert caches.main(["draw", str(packed), str(tmp_path)]) == 0
    assert (tmp_path / "caches-problems.svg").read_text().startswith("<?xml")


def test_caches_are_compared_at_the_same_states(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "states.jsonl"
    assert caches.main(["states", str(file), *words]) == 0
    rows = lines(file)[1:]
    assert [row["cell"] for row in rows] == 2 * list(caches.CACHES)
    for row in rows:
        exact = row["cell"] == "exact"
        assert (row["state_error"] == 0) == exact and (row["position"], row["token"]) <= (1.0, 1.0)
        assert row["states"] == 64 and (row["rank"] == 1.0 or not exact)
