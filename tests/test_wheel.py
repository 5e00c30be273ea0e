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
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel; packages that it needs are those of this environment."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(place)]
    subprocess.run(build, check=True)
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


def test_demo_report_and_paper(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, tmp_path, "demo", "--puzzles", "1", "--trace", "path.jsonl")
    assert re.search(r"auto +[01]/1", shown)
    run(installed, tmp_path, "report", "path.jsonl", "-o", "path.html")
    assert "</html>" in (tmp_path / "path.html").read_text(encoding="utf-8")
    assert "vote" in run(installed, tmp_path, "paper")
    assert "llada" in run(installed, tmp_path, "recipes")


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
