"""A command starts quickly: it imports only its own rooms, and `unmask --help` imports no torch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from unmask.cli import COMMANDS
from unmask.cli.parser import HEADINGS

DECODE = "core decoding models samplers search"
MEASURE = f"{DECODE} evaluate tasks"
# The rooms that a command's flags and function may import, besides cli and errors.
ROOMS = {
    "generate": MEASURE,
    "solve": MEASURE,
    "demo": MEASURE,
    "serve": f"{DECODE} server",
    "report": f"{DECODE} report",
    "samplers": "core decoding samplers search",
    "searches": "core decoding samplers search",
    "models": "core decoding models",
    "recipes": "core decoding samplers search",
    "help": "",
    "eval": f"{MEASURE} train",
    "compare": "evaluate",
    "join": "evaluate",
    "judge": "core models evaluate tasks",
    "paper": MEASURE,
    "score": f"{MEASURE} report",
    "theory": f"{MEASURE} report",
    "calibrate": f"{MEASURE} report",
    "bench": f"{MEASURE} report",
    "lm-eval": "",
    "train": f"{MEASURE} report train",
    "merge": f"{MEASURE} report train",
    "convert": "core decoding models",
    "check": "core decoding models",
    "fabricate": "core decoding models",
    "puzzles": "tasks",
    "prompts": "tasks",
    "frequencies": MEASURE,
}
NO_TORCH = {
    "--version": [],
    "--help": [],
    "help": [],
    "lm-eval --help": [],
    "puzzles sudoku --count 1": ["tasks"],
    "prompts --help": ["tasks"],
}

SLOW = {
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "matplotlib",
    "transformers",
    "fastapi",
    "datasets",
}  # seconds each

# Each command line in a process of its own, forked from one that has imported some packages: exit status and modules.
FORKS = """
import io, json, os, sys
for name in sys.argv[1].split():
    __import__(name)
for words in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        from unmask.cli import main
        out, sys.stdout = sys.stdout, io.StringIO()
        status = main(words.split())
        print(json.dumps([words, status, sorted(sys.modules)]), file=out, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def imported(lines: list[str], first: str = "") -> dict[str, set[str]]:
    """The modules that each command line has imported at its end."""
    words = [sys.executable, "-c", FORKS, first, json.dumps(lines)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = {line: (status, set(modules)) for line, status, modules in map(json.loads, done.stdout.splitlines())}
    assert list(found) == lines, done.stderr
    assert not [line for line, (status, _) in found.items() if status], done.stderr
    return {line: modules for line, (_, modules) in found.items()}


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("unmask.")} - {"cli", "errors", "_version"}


def test_every_command_imports_only_its_own_rooms() -> None:
    lines = {f"{name} --help": ROOMS[name] for name in COMMANDS} | {"generate a --model random --length 2": MEASURE}
    for line, modules in imported(list(lines), "torch rich.progress tokenizers huggingface_hub jinja2").items():
        assert rooms(modules) <= set(lines[line].split()), line
        assert not modules & SLOW, line


def test_what_needs_no_torch_does_not_import_it() -> None:
    for line, modules in imported(list(NO_TORCH)).items():
        assert rooms(modules) == set(NO_TORCH[line]), line
        assert not modules & {"torch", "fastapi", "transformers", "matplotlib", "tokenizers", "safetensors"}, line


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_start_takes_little_time(flag: str) -> None:
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "unmask", flag], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) <= 0.4  # seconds of CPU; 0.06 on a quiet machine


def test_importing_the_package_leaves_signals_alone() -> None:
    """So does a command that Python calls."""
    code = (
        "import signal, unmask, unmask.cli\n"
        "def check():\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "check()\n"
        "unmask.cli.parser._top = lambda: type('', (), {'parse_known_args': lambda *_: (Args, [])})\n"
        "class Args: run = lambda args: check()\n"
        "assert unmask.cli.main(['--version']) == 0 and unmask.cli.main([]) == 0\n"
        "check()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_lists_every_command_under_a_heading() -> None:
    assert next(iter(COMMANDS)) in HEADINGS and set(HEADINGS) <= set(COMMANDS)
    done = subprocess.run(
        [sys.executable, "-m", "unmask"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
    )
    assert [line.split()[0] for line in done.stdout.splitlines() if line[2:3].isalpha() and line[:2] == "  "][
        : len(COMMANDS)
    ] == list(COMMANDS)
    assert max(map(len, done.stdout.split("start with:")[0].splitlines())) <= 100


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "4000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_wait_for_a_short_time_unless_told_otherwise(given, expected):
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, unmask; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", code], env=env | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
