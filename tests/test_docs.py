"""README and guide: every block of Python and every `unmask` command runs as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from unmask.cli import main
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md"]
CARDS = ["docs/models/sudoku.md", "docs/models/countdown.md", "docs/models/text.md"]


@pytest.mark.parametrize("page", [*PAGES, "docs/models.md", "docs/training.md"])
def test_blocks_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = dict(SAMPLERS)
    names: dict[str, object] = {"__name__": page}  # blocks of a page go on from each other
    ran = 0
    try:
        for language, block in re.findall(r"^```(python|sh)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
            if language == "python":
                exec(compile(block, page, "exec", dont_inherit=True), names)
                ran += 1
            elif block.startswith("unmask"):
                for line in block.splitlines():
                    capsys.readouterr()
                    assert main(shlex.split(line, comments=True)[1:]) == 0, (line, capsys.readouterr().err)
                    assert "warning" not in capsys.readouterr().err, line
                    ran += 1
    finally:
        SAMPLERS.clear()
        SAMPLERS.update(known)
    assert ran >= 3


@pytest.mark.parametrize("page", PAGES)
def test_every_sampler_and_search_is_there(page):
    text = (ROOT / page).read_text()
    assert not [name for name in [*SAMPLERS, *SEARCHES] if f"| `{name}` |" not in text]


@pytest.mark.parametrize(
    "page",
    [*PAGES, *CARDS]
    + [
        f"docs/{name}.md"
        for name in (
            "decisions",
            "lm-eval",
            "models",
            "results",
            "sandbox",
            "search",
            "serve",
            "tasks",
            "theory",
            "training",
        )
    ],
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert ((ROOT / page).parent / target.partition("#")[0]).exists(), target


def test_the_file_tree_names_every_module():
    readme = (ROOT / "README.md").read_text()
    package = ROOT / "src" / "unmask"
    files = [path.name for path in package.glob("*.py")]
    folders = [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert not [name for name in files + folders if name not in readme]
