"""docs/reference: generating it again gives the committed pages."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return runpy.run_path(str(REFERENCE / "generate.py"))["pages"]()


@pytest.mark.parametrize("name", ["python", "settings", "cli", "http", "trace-format", "rows-format"])
def test_the_reference_is_what_the_code_says(made: dict[str, str], name: str) -> None:
    committed = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert committed == made[f"{name}.md"], "run `make reference` and commit docs/reference"
