"""Imports in src/unmask point one way; randomness and host reads stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each may import what stands before it; a folder may also import from itself. A new module needs a place here.
ORDER = (
    "interrupt errors sandbox lock stats memory device clock chart interval sudoku countdown philox dice state "
    "faults models entropy kernels layout fused read background corpus samplers choose potential search engine spread "
    "replay prompt trace pack page recipe shipped result decode likelihood tasks rows bench compare judge floor speed "
    "train puzzles paths noised theory calibrate texts study lmargs lmrows unmask lmeval origin show paper flags "
    "modelcli puzzlecli reportcli evalcli judgecli theorycli papercli speedcli server servecli demo commands "
    "parser cli __main__"
).split()


def name_of(path: Path) -> str:
    """`unmask.samplers.turn` of a file; a package has the name of its folder."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


NAMES = {name_of(path) for path in FILES}


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name == "unmask" or (name or "").startswith("unmask.")}


def place(name: str) -> str:
    """`samplers` of unmask.samplers.turn."""
    return name.split(".")[1] if "." in name else name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    mine = place(name_of(path))
    assert mine in ORDER, f"give {mine} a place in ORDER"
    for other in imports(path):
        inside = place(other) == mine and (ROOT / mine).is_dir()
        assert inside or ORDER.index(place(other)) < ORDER.index(mine), f"{mine} imports {other}"


def test_no_circles_inside_a_folder() -> None:
    graph = {name_of(path): imports(path) for path in FILES}
    done: set[str] = set()
    while len(done) < len(graph):
        free = {name for name, needs in graph.items() if name not in done and needs <= done | {name}}
        assert free, f"a circle among {sorted(set(graph) - done)}"
        done |= free


def test_no_utils() -> None:
    assert not [path.name for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_first_docstring_line(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path.name} does not say what goes in and what comes out"


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call `a.b(…)` or `b(…)` as text, with its node."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_dice_are_the_only_randomness(path: Path) -> None:
    drawing = {f"torch.{n}" for n in ("rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal")}
    drawing |= {f"torch.{n}_like" for n in ("rand", "randn", "randint")}
    for name, node in calls(path):
        assert name not in ("torch.manual_seed", "torch.random.manual_seed", "torch.seed"), name
        seeded = name == "np.random.default_rng" and node.args
        assert seeded or not name.startswith(("random.", "np.random.", "numpy.random.")), name
        if name in drawing:
            assert any(keyword.arg == "generator" for keyword in node.keywords), f"{name} without a generator"


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "samplers"], ids=name_of)
def test_samplers_do_not_wait_for_the_device(path: Path) -> None:
    for name, _ in calls(path):
        assert name.rpartition(".")[2] not in ("item", "tolist", "cpu", "numpy", "nonzero"), name
        assert name not in ("int", "float", "bool"), name


def test_the_command_line_loads_nothing_slow() -> None:
    slow = ("torch._dynamo", "torch._inductor", "sympy", "matplotlib", "transformers", "fastapi", "datasets")
    code = f"import sys, unmask.cli; print(*[name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
