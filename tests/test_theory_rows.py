"""The figures of docs/research/theory.md are those of the kept rows, which experiments/theory_summary.py reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask import Recipe, load
from unmask.evaluate.stats import Mean, mean
from unmask.evaluate.theory.reference import known
from unmask.evaluate.theory.report import study, summary

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))

import interval  # noqa: E402
import pack_theory  # noqa: E402
import theory_summary  # noqa: E402

PAGE = (ROOT / "docs/research/theory.md").read_text(encoding="utf-8")
KINDS = {
    "text": "text",
    "sudoku": "puzzles",
    "grids": "grids",
    "countdown": "countdown",
}  # and what the page calls them


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    rows = theory_summary.read(ROOT / "results" / "rows" / f"theory-{request.param}.jsonl.xz")
    head = rows.pop(0)
    model = load(head["model"])
    width = model.head.width - len(model.head.absent)
    found = theory_summary.study(rows, head["recipe"]["steps"])
    return KINDS[request.param], summary(found, width, None, head["data_entropy"])


def shown(found: dict[str, Any], *names: str) -> str:
    """Means as the page has them."""
    return " | ".join(str(Mean(**found[name])) for name in names).replace("-0.000", "0.000")


def test_the_page_has_the_figures_of_the_rows(kept: tuple[str, dict[str, Any]]) -> None:
    name, found = kept
    whole, paths = found["integrals"], found["divergence"]
    assert f"| {name} | {shown(whole, 'nelbo', 'entropy', 'gap')} | {whole['correlation']:.2f} |" in PAGE
    three = shown(paths, "reference", "generated", "drift")
    assert any(line.startswith(f"| {name} | ") and three in line for line in PAGE.splitlines())


def test_rows_give_the_summary_of_the_run_that_wrote_them(tmp_path: Path) -> None:
    table = load("table")
    texts = [known(table, word) for word in ("senate", "street", "tester", "rattan")]
    run, lines = Recipe("ancestral", steps=3), []
    found = study(table, texts, run, draws=4, paths=2, best_of=2, on_rows=lines.extend)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(pack_theory.short(line)) + "\n" for line in lines))
    again = summary(theory_summary.study(theory_summary.read(tmp_path / "rows.jsonl"), 3), 6, None, 6.0)
    exact = summary(found, 6, None, 6.0)
    assert again["divergence"]["kl"]["value"] == pytest.approx(exact["divergence"]["kl"]["value"], rel=1e-3)
    assert again["divergence"]["best_drift"]["value"] == pytest.approx(
        exact["divergence"]["best_drift"]["value"], abs=1e-3
    )
    assert again["context"]["fall"]["value"] == pytest.approx(exact["context"]["fall"]["value"], rel=1e-3)


@pytest.mark.parametrize("name", ["text", "sudoku"])
def test_the_page_has_the_tables_of_the_interval(name: str) -> None:
    rows = interval.kept(ROOT / "results" / "rows" / f"interval-{name}.jsonl.xz")
    assert {row["model"] for row in rows} == {name} and not any("+" in row["commit"] for row in rows)
    lines = PAGE.splitlines()
    assert [line for line in interval.tables(rows) if line not in lines] == []
    picture = ROOT / "results" / "figures" / f"theory-calibrate-{name}.svg"
    assert picture.name in PAGE


@pytest.mark.parametrize("name", ["text", "sudoku", "sudoku-every3", "countdown"])
def test_the_page_has_the_table_of_the_calibration(name: str) -> None:
    head, reference, *runs = theory_summary.read(ROOT / "results" / "rows" / f"calibrate-{name}.jsonl.xz")
    true = reference["path_entropy"]
    gaps = {run["strength"]: mean([a - b for a, b in zip(run["population"], true, strict=True)]) for run in runs}
    cells = [str(len(true)), *(str(one).replace("-0.000 ", "0.000 ") for one in (mean(true), gaps[0.0], gaps[1000.0]))]
    found = "none: refused"
    if head["strength"] is not None:
        high = "beyond" if head["high"] is None else f"{head['high']:.3g}"
        found = f"{head['flags'].rpartition(' ')[2]} ({head['low']:.3g} to {high})"
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {name}, {head['recipe']['steps']} steps"))
    assert line.split(" | ")[1:] == [*cells, f"{found} |"] and f"Δ = {head['recipe']['every']} " in line
    assert "+" not in head["commit"]


def test_a_run_of_intervals_goes_on_where_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out, whole = tmp_path / "words.txt", tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    words.write_text("senate\nstreet\ntester\n")

    def run(target: Path, *more: str) -> list[dict[str, Any]]:
        given = [str(words), "--model", "table", "--steps", "4", "--paths", "2", "-o", str(target), *more]
        monkeypatch.setattr(sys, "argv", ["interval.py", *given])
        interval.main()
        drop = {"date", "commit"}
        return [{name: value for name, value in row.items() if name not in drop} for row in interval.kept(target)]

    run(out, "--every", "2", "--strength", "10")
    again = run(out, "--every", "1", "2", "--strength", "10", "0")
    straight = run(whole, "--every", "1", "2", "--strength", "10", "0")
    assert len(again) == len(straight) == 5 and all(row in straight for row in again)
    printed = capsys.readouterr().out
    assert printed.endswith("\n".join(interval.tables(interval.kept(whole))) + "\n")
    found = interval.changes(again, "population")
    assert found[10.0, 1][1].value == 0 and found[10.0, 2][1].value != 0
