"""Imports in src/unmask point one way; randomness and host reads stay where they belong."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Who may import whom, by folder. A new file needs no entry; a new arrow does.
MAY_IMPORT = {
    "errors": "",
    "core": "errors",
    "samplers": "core errors",
    "search": "core errors",
    "models": "core errors",
    "tasks": "errors",
    "decoding": "core samplers search models errors",
    "report": "decoding core errors",
    "evaluate": "report decoding models core samplers search tasks errors",  # report: it draws charts
    "train": "report evaluate decoding models core tasks errors",
    "server": "decoding models core samplers search tasks report errors",
    "cli": "server train evaluate report decoding models core samplers search tasks errors",
}
# Packages of others, and the only places that may import them.
ONLY = {
    "rich": "cli",
    "fastapi starlette pydantic uvicorn prometheus_client": "server",
    "triton": "core/gpu",
    "matplotlib": "evaluate/paper",
    "transformers": "models/remote evaluate/judge",
    "huggingface_hub": "models/files",
    "lm_eval": "evaluate/lm_eval",
    "ray": "evaluate/fleet server/replicas",
    "tokenizers jinja2": "models train",
    "safetensors": "models train evaluate/judge",
}
LAZY = {"decoding": "report", "tasks": "models"}  # only inside a function: loaded when it is called
NEVER = {"tasks": "torch"}
OPEN = 12  # entries of the package besides __init__, __main__, _version and py.typed
CROWDED = 20  # entries of any folder below it, besides __init__


def name_of(path: Path) -> str:
    """`unmask.core.sampler` of a file; a package has the name of its folder."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


NAMES = {name_of(path) for path in FILES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path, lazy: bool = True) -> set[str]:
    """The modules of the package that a file imports, anywhere in it; without `lazy`, not inside functions."""
    found = set()
    tree = parsed(path)
    inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)} if not lazy else set()
    for node in set(ast.walk(tree)) - inside:
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name == "unmask" or (name or "").startswith("unmask.")}


def room(name: str) -> str:
    """`samplers` of unmask.samplers.reveal; nothing of the package itself."""
    return name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_layers(path: Path) -> None:
    mine = room(name_of(path))
    allowed = {mine, *MAY_IMPORT.get(mine, "").split(), "_version"}
    if mine in ("", "__main__"):  # the public names, from wherever they are
        allowed |= set(MAY_IMPORT)
    late = set(LAZY.get(mine, "").split())
    wrong = {other for other in imports(path) if room(other) not in allowed | late}
    wrong |= {other for other in imports(path, lazy=False) if room(other) not in allowed}
    assert not wrong, f"{name_of(path)} may not import {', '.join(sorted(wrong))}"


@functools.cache
def foreign(path: Path) -> set[str]:
    """The packages of others that a file imports, anywhere in it."""
    nodes = list(ast.walk(parsed(path)))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in named}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_packages_of_others(path: Path) -> None:
    place = path.relative_to(ROOT).with_suffix("").as_posix()
    for names, places in ONLY.items():
        if not any(place == one or place.startswith(f"{one}/") for one in places.split()):
            assert not foreign(path) & set(names.split()), f"only {places} may import {names}"
    for folder, names in NEVER.items():
        if place.startswith(f"{folder}/"):
            assert not foreign(path) & set(names.split()), f"{folder} never imports {names}"


def test_entries_of_folders() -> None:
    beside = {"__init__.py", "__main__.py", "_version.py", "py.typed", "__pycache__"}
    for folder in [ROOT, *(path for path in ROOT.rglob("*") if path.is_dir())]:
        if folder.name == "__pycache__" or not list(folder.glob("*.py")):
            continue
        entries = sorted(path.name for path in folder.iterdir() if path.name not in beside and path.suffix != ".toml")
        assert len(entries) <= (OPEN if folder == ROOT else CROWDED), f"{folder.name} has {len(entries)}: {entries}"
    assert {path.stem for path in ROOT.iterdir() if path.name not in beside} == set(MAY_IMPORT)


def test_a_checkout_stays_small() -> None:
    """All tracked files together, weights included: 48 MiB."""
    top = ROOT.parents[1]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=top, capture_output=True, check=False)
    if listed.returncode or not (top / ".git").exists():
        pytest.skip("not a checkout")
    sizes = [path.stat().st_size for name in listed.stdout.split(b"\0") if (path := top / name.decode()).is_file()]
    assert sum(sizes) < 48 << 20


def test_no_circles_inside_a_folder() -> None:
    graph = {name_of(path): imports(path) for path in FILES}
    for name in graph:
        graph[name] = {other for other in graph[name] if room(other) not in LAZY.get(room(name), "").split()}
    done: set[str] = set()
    while len(done) < len(graph):
        free = {name for name, needs in graph.items() if name not in done and needs <= done | {name}}
        assert free, f"a circle among {sorted(set(graph) - done)}"
        done |= free


def test_lazy_imports_are_told_from_others(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("import unmask.core\nif True:\n    import unmask.errors\ndef f():\n    import unmask.report\n")
    assert imports(path, lazy=False) == {"unmask.core", "unmask.errors"}
    assert imports(path) == {"unmask.core", "unmask.errors", "unmask.report"}


def test_no_utils() -> None:
    assert not [path.name for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_first_docstring_line(path: Path) -> None:
    text = ast.get_docstring(parsed(path))
    assert text, f"{path.name} does not say what goes in and what comes out"


@functools.cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call `a.b(…)` or `b(…)` as text, with its node."""
    tree = parsed(path)
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


def loaded(code: str, names: str) -> list[str]:
    """Which of these packages are loaded after the code has run in a new process."""
    code = f"import sys; {code}; print(*[name for name in {names.split()!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_models_read_no_file_until_one_is_loaded() -> None:
    folders = [ROOT / name for name in ("core", "samplers", "search", "models")]
    names = [name_of(path) for folder in folders for path in folder.glob("*.py") if path.stem != "chat"]
    assert loaded(f"import {', '.join(names)}", "tokenizers jinja2 safetensors huggingface_hub") == []


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in ("fleet", "replicas")], ids=name_of)
def test_ray_is_imported_inside_functions(path: Path) -> None:
    tree = parsed(path)
    inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    outside = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and n not in inside]
    assert not [n for n in outside if "ray" in ast.unparse(n).replace(".", " ").split()]


def test_ray_is_loaded_by_a_fleet_that_begins_and_by_nothing_else() -> None:
    pytest.importorskip("ray")
    names = [name_of(path) for path in FILES if path.parent.name in ("evaluate", "fleet", "replicas", "cli")]
    assert loaded(f"import unmask, {', '.join(names)}", "ray") == []
