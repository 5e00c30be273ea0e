"""Files of results that were cut at every byte, written by two, on a full disk, by runs that are interrupted twice."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from test_judge import tiny
from test_paper import SMALL
from unmask.cli import main
from unmask.errors import InputError
from unmask.evaluate import rows
from unmask.evaluate.judge.rows import _known
from unmask.evaluate.paper.cells import PaperRun
from unmask.evaluate.paper.cells import run as run_paper
from unmask.evaluate.paper.plan import read as plan
from unmask.train.log import LOG, read_log

CUTS = int(os.environ.get("UNMASK_CUTS", "2"))  # places at which a command is resumed; `make attack` takes more
GRID = "5346789126721953481983425678597614234268537917139248569615372842874196353452861.."
SHAPE = '{"width": 32, "layers": 1, "inner": 32}'
COMMANDS = {  # kind: a command and the file that it resumes
    "eval": ("eval sudoku --data g.txt --temperature 1 --steps 2 --batch 2 --rows eval.jsonl", "eval.jsonl"),
    "generate": ("generate --model random --prompts p.txt --length 6 --batch 2 -o made.jsonl", "made.jsonl"),
    "shard": ("generate --model random --prompts p.txt --length 6 --batch 2 --shard 1/2 -o 1.jsonl", "1.jsonl"),
    "judge": ("judge t.jsonl --judge judge --batch 2 --rows judged.jsonl", "judged.jsonl"),
    "train": (f"train sudoku net --steps 6 --batch 2 --held 2 --log 2 --check 999 --shape '{SHAPE}'", f"net/{LOG}"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    """A whole file of every kind, made by its command; and the folder for the next ones."""
    here = tmp_path_factory.mktemp("made")
    before = os.getcwd()
    os.chdir(here)
    try:
        Path("g.txt").write_text("".join(f"{'.' * hole}{GRID[hole:]}\n" for hole in range(5)))
        Path("p.txt").write_text("a\nbc\ndef\ng\nhijklm\nn\n")
        Path("t.jsonl").write_text("".join(json.dumps({"text": f"a b c {n} " * 3}) + "\n" for n in range(5)))
        Path("judge").mkdir()
        tiny(Path("judge"))
        for line, _ in COMMANDS.values():
            assert main(shlex.split(line)) == 0
        assert main(shlex.split(COMMANDS["shard"][0].replace("1/2", "2/2").replace("1.json", "2.json"))) == 0
        assert main(["join", "1.jsonl", "2.jsonl", "-o", "joined.jsonl"]) == 0
        experiment = plan("small", SMALL)
        run_paper(PaperRun(experiment, experiment.places["sudoku"], here / "paper"))
    finally:
        os.chdir(before)
    files = {kind: here / file for kind, (_, file) in COMMANDS.items()} | {"joined": here / "joined.jsonl"}
    files["paper"] = next((here / "paper" / "rows").iterdir())
    return {kind: (path, path.read_bytes()) for kind, path in files.items()}


KINDS = [*COMMANDS, "joined", "paper"]
ALIKE = ("generate", "shard", "joined", "paper")  # read and written by the functions that eval's are


def cuts(whole: bytes) -> range:
    """Every length of a file that ends within its last two lines, or at their ends."""
    lines = whole.splitlines(keepends=True)
    return range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole) + 1)


def resumed(kind: str, path: Path, whole: list[dict[str, Any]]) -> None:
    """What a run does with its file: read what is there, and add what is not, once."""
    if kind == "judge":
        with rows.JsonLines(path) as file:
            how = {name: whole[0][name] for name in whole[0] if name.startswith("judge_") or name == "judge"}
            how = {name: value for name, value in how.items() if name != "judge_tokens"}
            known = _known(file.lines, str(path), how)
            assert list(known.values()) == whole[: len(known)]
            file.add(whole[len(known) :])
    elif kind == "train":
        with rows.JsonLines(path) as file:
            there = [line for line in file.lines if line is not None]
            assert there == whole[: len(there)] == read_log(path.parent)
            file.add(whole[len(there) :])
    else:
        with rows.opened(str(path), {name: value for name, value in whole[0].items() if name != "kind"}) as found:
            assert found.kept == whole[1 : 1 + len(found.kept)]
            found.add(whole[1 + len(found.kept) :])


def whole_again(kind: str, whole: bytes, path: Path, lengths: Iterable[int], rest: Callable[[int], bytes]) -> None:
    """A file cut at each of these lengths, with something in the place of the rest, is whole after its run resumed."""
    lines = [json.loads(line) for line in whole.splitlines()]
    path = path / (LOG if kind == "train" else "file.jsonl")
    for length in lengths:
        path.write_bytes(whole[:length] + rest(len(whole) - length))
        resumed(kind, path, lines)
        assert path.read_bytes() == whole, length


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_at_every_byte_of_its_last_two_lines(kind, made, tmp_path, monkeypatch):
    """No row is lost that was whole, none is doubled, and the end is the whole file; in CI of some kinds every 7th."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    _, whole = made[kind]
    lengths = cuts(whole)[:: 7 if kind in ALIKE and CUTS < 100 else 1]
    whole_again(kind, whole, tmp_path, lengths, lambda missing: b"")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_end_is_zeros(kind, made, tmp_path, monkeypatch):
    """As a power cut leaves it: blocks that were never written are zeros."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    _, whole = made[kind]
    whole_again(kind, whole, tmp_path, cuts(whole)[::37], bytes)


def same(kind: str, one: bytes, two: bytes) -> bool:
    """Whether two files have the same rows; of a training, the same losses."""
    timely = {"seconds", "date", "examples_per_second", "tokens_per_second"}
    found = []
    for content in (one, two):
        lines = [json.loads(line) for line in content.splitlines()]
        if kind == "train":
            found.append({line["step"]: line["loss"] for line in lines if "loss" in line})
        else:
            some = [line for line in lines if "kind" not in line and "resumed" not in line]
            found.append([{name: value for name, value in line.items() if name not in timely} for line in some])
    return found[0] == found[1]


@pytest.mark.parametrize("kind", ["eval", "generate", "shard", "judge"])
def test_a_command_resumes_a_file_cut_anywhere(kind, made, monkeypatch):
    path, whole = made[kind]
    monkeypatch.chdir(path.parent)
    dice = Random(kind)
    try:
        for length in dice.sample(cuts(whole), min(CUTS, len(cuts(whole)))):
            path.write_bytes(whole[:length])
            assert main(shlex.split(COMMANDS[kind][0])) == 0
            assert same(kind, path.read_bytes(), whole), length
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_second_writer_is_refused(kind, made, monkeypatch, capsys):
    """By the same name, and by a link."""
    path, whole = made[kind]
    monkeypatch.chdir(made["eval"][0].parent)
    short = whole[: len(whole) - 20]
    line = COMMANDS[kind][0]
    try:
        path.write_bytes(short)
        with rows.JsonLines(path):
            assert main(shlex.split(line)) == 2
        assert "another run is writing" in capsys.readouterr().err.splitlines()[-1]
        assert path.read_bytes() == short
    finally:
        path.write_bytes(whole)
    Path(f"{kind}-link").symlink_to(path)
    with rows.JsonLines(path), pytest.raises(InputError, match="another run is writing"):
        rows.JsonLines(f"{kind}-link")


def test_a_second_join_is_refused(made, monkeypatch, capsys):
    path, whole = made["joined"]
    monkeypatch.chdir(path.parent)
    with rows.JsonLines("other.jsonl"):
        assert main(["join", "1.jsonl", "2.jsonl", "-o", "other.jsonl"]) == 2
    assert "another run is writing" in capsys.readouterr().err and path.read_bytes() == whole


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond this many bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["eval", "generate", "shard", "judge"])
def test_a_full_disk_costs_no_row(kind, made, monkeypatch, capsys):
    """Room for all but the last byte: what was whole stays, and with room the same command completes it."""
    path, whole = made[kind]
    monkeypatch.chdir(path.parent)
    lines = whole.splitlines(keepends=True)
    try:
        path.write_bytes(b"".join(lines[:-1]))
        with room_for(len(whole) - 9):
            assert main(shlex.split(COMMANDS[kind][0])) == 2
        assert "cannot write the rows" in capsys.readouterr().err.splitlines()[-1]
        assert path.read_bytes().startswith(b"".join(lines[:-1]))
        assert main(shlex.split(COMMANDS[kind][0])) == 0
        assert same(kind, path.read_bytes(), whole)
    finally:
        path.write_bytes(whole)


def test_a_full_disk_while_shards_are_joined(made, monkeypatch, capsys):
    path, whole = made["joined"]
    monkeypatch.chdir(path.parent)
    with room_for(len(whole) // 2):
        assert main(["join", "1.jsonl", "2.jsonl", "-o", "cut.jsonl"]) == 2
    assert "cannot write the rows" in capsys.readouterr().err
    assert main(["join", "1.jsonl", "2.jsonl", "-o", "cut.jsonl"]) in (0, 2)
    Path("cut.jsonl").unlink()
    assert main(["join", "1.jsonl", "2.jsonl", "-o", "cut.jsonl"]) == 0
    assert same("joined", Path("cut.jsonl").read_bytes(), whole)


def until(holds: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("ignored", [False, True])  # Ctrl-C, as in commands that a script starts with &
def test_sigterm_tells_how_many_rows_are_kept(ignored, tmp_path):
    """Sent twice, as `timeout` does: to the process, and to its group."""
    (tmp_path / "p.txt").write_text("".join(f"number {number}\n" for number in range(3000)))
    words = "generate --model random --prompts p.txt --length 30 --temperature 1 --batch 1 -o made.jsonl".split()
    path = tmp_path / "made.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    begin = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)" if ignored else "import sys"
    command = [sys.executable, "-c", f"{begin}; from unmask.cli import main; sys.exit(main())", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as run:
        until(lambda: path.exists() and path.read_bytes().count(b"\n") > 2)
        run.send_signal(signal.SIGTERM)
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=240)
    numbers = [row["number"] for row in rows.read(path).kept]
    assert numbers == list(range(len(numbers))) and 2 <= len(numbers) < 3000
    last = r"unmask: stopped: (\d+) rows? (?:is|are) in 'made.jsonl', the same command resumes it"
    told = re.fullmatch(last, said.splitlines()[-1])
    assert run.returncode == 143 and told is not None and "Traceback" not in said, said
    assert len(numbers) - int(told[1]) in (0, 1)  # stopped while the disk writes a row, it does not count that one


def test_sigterm_at_any_moment(tmp_path):
    """Before the first row, between rows, after the last one: never a traceback, and no row is lost."""
    (tmp_path / "g.txt").write_text(f"{GRID}\n" * 3)
    words = shlex.split("eval sudoku --data g.txt --temperature 1 --steps 2 --batch 1 --rows rows.jsonl")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    took, dice, seen = 0.0, Random(0), set()
    for number in range(1 + 2 * CUTS):
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "unmask", *words],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as run:
            if number:
                time.sleep(dice.uniform(0.3, 1.1) * took)
                run.send_signal(signal.SIGTERM)
            _, said = run.communicate(timeout=240)
        took = took or time.monotonic() - began
        seen.add(run.returncode)
        assert run.returncode in (0, 143, -signal.SIGTERM) and b"Traceback" not in said, said.decode()
        assert (run.returncode == 143) == (b"unmask: stopped" in said), said.decode()
        path = tmp_path / "rows.jsonl"
        if run.returncode == 0:
            assert len(rows.read(path).kept) == 3
        path.unlink(missing_ok=True)
    assert 0 in seen


def test_ctrl_c_twice_keeps_all_whole_rows(tmp_path):
    """Pressed again while the first one is answered."""
    (tmp_path / "p.txt").write_text("".join(f"number {number}\n" for number in range(60)))
    words = "generate --model random --prompts p.txt --length 60 --temperature 1 --batch 1 -o made.jsonl".split()
    path = tmp_path / "made.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "unmask", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as run:
        until(lambda: path.exists() and path.read_bytes().count(b"\n") > 2)
        for pause in (0.0, 0.01, 0.02):
            time.sleep(pause)
            run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=240)
    assert run.returncode == 130 and "Traceback" not in said, said
    numbers = [row["number"] for row in rows.read(path).kept]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 2
