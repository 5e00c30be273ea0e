"""README and docs: blocks of Python and `unmask` commands run as printed, links lead somewhere, nothing is left out."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import unmask
from unmask.cli import main
from unmask.cli.parser import pages
from unmask.decoding.settings import SETTINGS
from unmask.samplers import SAMPLERS
from unmask.search import CHOOSERS, POTENTIALS, SEARCHES

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "guide"
ELSEWHERE = {
    "lm-eval",
    "lm-eval-details",
    "live-page",
    "operating",
    "requests",
    "serving",
}  # run by test_lmeval and test_serve_page
# a block, and the block of text right after it, if there is one: what it prints
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.M | re.S)
PAGES = sorted(
    path
    for place in (".", "docs", "results", "experiments")
    for path in (ROOT.glob("*.md") if place == "." else (ROOT / place).rglob("*.md"))
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """The blocks of Python, and those that begin with an `unmask` command."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [one for one in found if one[0] == "python" or one[1].startswith("unmask")]


RUN = [
    path for path in [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))] if path.stem not in ELSEWHERE and blocks(path)
]


@pytest.fixture
def registries(monkeypatch):
    """A page may register entries of its own, and `unmask eval FILE.py` adds the file's folder to sys.path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    tables: list[dict[str, object]] = [SAMPLERS, SEARCHES, POTENTIALS, CHOOSERS, SETTINGS]
    known = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, known, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_blocks_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}  # the blocks of a page share their names
    for language, block, printed in blocks(page):
        if language == "python":
            if file := re.match(r"# (\w+\.py)\n", block):  # a file of the reader's
                Path(file[1]).write_text(block, encoding="utf-8")
            capsys.readouterr()
            exec(compile(block, name_of(page), "exec", dont_inherit=True), names)
            assert not printed or capsys.readouterr().out == printed
            continue
        for line in block.splitlines():
            capsys.readouterr()
            assert main(shlex.split(line, comments=True)[1:]) == 0, (line, capsys.readouterr().err)
            assert "warning" not in capsys.readouterr().err, line


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_show_what_they_print(path):
    tool = runpy.run_path(str(path.parent / "run.py"))
    made = tool["run"](path)
    assert tool["written"](made) == path.read_text(encoding="utf-8"), "run docs/notebooks/run.py and commit them"
    prose = "".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        assert (path.parent / target).exists(), target


def test_pages_that_help_and_errors_name_exist():
    named = {name for path in SOURCES if path.suffix == ".py"
             for name in re.findall(r"`?unmask help ([a-z][\w-]+)", path.read_text(encoding="utf-8"))}  # fmt: skip
    assert {"own-task", "sandbox", "tasks"} <= named <= pages().keys(), named - pages().keys()


@pytest.mark.parametrize(
    ("page", "names"), [("samplers", SAMPLERS), ("searches", SEARCHES)], ids=["samplers", "searches"]
)
def test_every_sampler_and_search_is_there(page, names):
    text = (GUIDE / f"{page}.md").read_text(encoding="utf-8")
    assert not [name for name in names if f"| `{name}` |" not in text]


def anchors(path: Path) -> set[str]:
    """The headings of a page, as a browser addresses them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def links(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("http")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in links(page):
        place, _, anchor = target.partition("#")
        there = (page.parent / place) if place else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("folder", ["docs/guide", "docs/research", "docs/development/decisions"])
def test_lists_of_contents_are_complete(folder):
    index = ROOT / folder / "README.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert not [path.name for path in index.parent.glob("*.md") if path.resolve() not in listed | {index.resolve()}]


def test_every_experiment_is_listed():
    text = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    scripts = [path for path in (ROOT / "experiments").iterdir() if path.suffix in (".py", ".sh")]
    assert not [path.name for path in scripts if f"`{path.name}`" not in text]


SOURCES = [path for folder in ("src", "tests", "experiments") for path in (ROOT / folder).rglob("*.*")]


def test_paths_that_the_code_names_exist():
    for path in [ROOT / "Makefile", *(path for path in SOURCES if path.suffix in (".py", ".sh", ".toml", ".js"))]:
        for named in re.findall(r"(?<![\w/.])((?:docs|results)/[\w./-]*\w)", path.read_text(encoding="utf-8")):
            assert (ROOT / named).exists(), f"{name_of(path)} names {named}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    for named in re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|sh|toml))?)`", page.read_text(encoding="utf-8")):
        places = [ROOT / named, ROOT / "src" / "unmask" / named, page.parent / named]
        assert named.startswith("runs/") or "NAME" in named or any(place.exists() for place in places), named


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        path for path in (ROOT / "src" / "unmask").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert not [path.name for path in rooms if not re.search(rf"^  {path.name}\b", text, re.M)]


def test_the_changelog_lists_every_moved_module():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for old, new in unmask._MOVED.items():
        places = ", ".join(f"`unmask.{place}`" for place in new.split())
        assert f"| `unmask.{old}` | {places} |" in text, f"| `unmask.{old}` | {places} |"
