"""The wheel, built and installed where no source tree is: it brings its weights, pages and tables along."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}  # as `make wheel` has it from the last commit


def copied(place: Path) -> Path:
    """The files that a wheel is built from, with new times and the same rights."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, place / name)
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", place / "src", ignore=left_out, copy_function=shutil.copyfile)
    for name in ("guide", "reference"):
        shutil.copytree(ROOT / "docs" / name, place / "docs" / name, copy_function=shutil.copyfile)
    return place


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel; packages that it needs are those of this environment."""
    place = copied(tmp_path_factory.mktemp("wheel"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(place)]
    subprocess.run(build, check=True, env={**os.environ, **EPOCH})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "env")], check=True)
    bin = place / "env" / "bin"
    ask = [str(bin / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    library = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    # A path in a .pth file is searched, but its own .pth files are not read: the editable install stays out.
    (library / "under.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = place.glob("*.whl")
    install = ["--python", str(bin / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    return bin


def run(bin: Path, folder: Path, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run([bin / "unmask", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_the_installed_one(installed: Path, tmp_path: Path) -> None:
    code = "import unmask, pathlib; print(unmask.__version__, pathlib.Path(unmask.__file__).parent)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ask = [str(installed / "python"), "-c", code]
    done = subprocess.run(ask, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    version, place = done.stdout.split()
    assert Path(place).is_relative_to(installed.parent)
    assert run(installed, tmp_path, "--version").split()[-1] == version


def test_the_guide_is_installed(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "help")
    assert "decoding" in listed and "settings" in listed
    assert run(installed, tmp_path, "help", "decoding") == (ROOT / "docs/guide/decoding.md").read_text(encoding="utf-8")


def test_the_same_source_gives_the_same_bytes(installed: Path, tmp_path: Path) -> None:
    """Another folder, other times, another order of names in it: the wheel has the same bytes."""
    build = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('.')"]
    env = {**os.environ, **EPOCH, "PYTHONHASHSEED": "7"}
    subprocess.run(build, check=True, cwd=copied(tmp_path), env=env, capture_output=True)
    (one,), (other,) = installed.parent.parent.glob("*.whl"), tmp_path.glob("*.whl")
    assert one.name == other.name and one.read_bytes() == other.read_bytes()


def test_the_development_set_is_pinned() -> None:
    """Every package that `make` installs has its version in constraints.txt, and it is the one that is tested.

    `make test-ray` asks it of Ray's packages too.
    """
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    known = {canonicalize_name(pin.name): pin for pin in pins if pin.marker is None or pin.marker.evaluate()}
    extras = frozenset({"dev"} | ({"ray", "ray-serve"} if find_spec("ray") else set()))
    waiting, seen = [("unmask", extras)], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = metadata.distribution(name)
        assert name == "unmask" or found.version in known[name].specifier, f"{name} {found.version} is not pinned"
        for need in map(Requirement, found.requires or []):
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
            if wanted:
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    assert len(seen) > 50


def test_every_hash_is_that_of_a_pinned_version() -> None:
    """hashes.txt has the versions of constraints.txt for CPython 3.11, all but torch, each with its hash."""
    given = [line for line in (ROOT / "hashes.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    found = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in given]
    hashed = {canonicalize_name(line[1]): line[2] for line in found if line}
    assert len(hashed) == len(given) > 80 and "torch" not in hashed
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in pins if _for(pin, "3.11")}
    assert all(version in pinned[name] for name, version in hashed.items())


def _for(pin: Requirement, version: str) -> bool:
    return pin.marker is None or pin.marker.evaluate({"python_version": version})


# An easy puzzle, so that decoding takes little time; the process has all commands one after another.
COMMANDS = """
from unmask.cli import demo, main
demo.CLUES, demo.PAUSE = 76, 0.0
for line in ("demo --puzzles 1 --trace path.jsonl", "report path.jsonl -o path.html", "paper", "recipes"):
    print(line, main(line.split()))
"""


def test_demo_report_and_paper(installed: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    words = [str(installed / "python"), "-c", COMMANDS]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert re.findall(r"^(demo|report|paper|recipes)\b.* 0$", done.stdout, re.M) == [
        "demo",
        "report",
        "paper",
        "recipes",
    ]
    assert re.search(r"auto +[01]/1", done.stdout), done.stderr
    assert "</html>" in (tmp_path / "path.html").read_text(encoding="utf-8")
    assert "vote" in done.stdout and "llada" in done.stdout


def test_serve(installed: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(installed / "unmask"), "serve", "--model", "sudoku", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        with urllib.request.urlopen(f"{found[0]}/v1/models") as answer:
            assert [one["id"] for one in json.load(answer)["data"]] == ["sudoku"]
        with urllib.request.urlopen(found[0]) as answer:
            assert b"</html>" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
