"""The figures of docs/research/theory.md are those of the kept rows, which experiments/theory_summary.py reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask import Recipe, load
from unmask.evaluate.stats import Mean
from unmask.evaluate.theory.reference import known
from unmask.evaluate.theory.report import study, summary

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))

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
