"""A fleet on real Ray: whatever is killed, frozen or lost, its rows are those of one process, field by field."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402

from unmask import Recipe, load  # noqa: E402
from unmask.cli import main  # noqa: E402
from unmask.errors import InputError, ModelError, UnmaskError  # noqa: E402
from unmask.evaluate import rows  # noqa: E402
from unmask.evaluate.fleet import Fleet, Loading  # noqa: E402
from unmask.evaluate.run import asked, resume, run  # noqa: E402
from unmask.tasks.own import read_task  # noqa: E402

# The grader runs in the workers: it notes their process, takes a while, and is lost where a file asks for it.
TASK = """
import os, time
from pathlib import Path
from unmask import task

HERE = Path(__file__).parent

@task([(f"number {number}", str(number)) for number in range(24)], length=8)
def slow(text, answer):
    if text:
        with open(HERE / "pids", "a") as file:
            file.write(f"{os.getpid()} {answer}\\n")
        if (HERE / f"poison{answer}").exists():
            os.kill(os.getpid(), 9)
        if (HERE / f"wrong{answer}").exists():
            return 3
        time.sleep(0.15)
    return len(text) % 2 == 0
"""
RECIPE = Recipe(sampler="uniform", temperature=1.0, length=8)
FLAGS = "--model random --sampler uniform --temperature 1 --batch 2 --gpus 0 --workers 2".split()
SHORT = {"patience": 2.0}


@pytest.fixture(scope="module")
def cluster():
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 80 << 20})
    yield made.address
    made.shutdown()


@pytest.fixture(scope="module")
def alone():
    """The rows of one process."""
    found: dict[str, list[rows.Line]] = {}

    def of(task) -> list[rows.Line]:
        if not found:
            made = run(task, load("random"), asked(task).fit, RECIPE, batch=2)
            found["rows"] = [rows.timeless(vars(row)) for row in made]
        return found["rows"]

    return of


@pytest.fixture
def slow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("slow.py").write_text(TASK)
    return read_task("slow.py")


def kept(path: str = "r.jsonl") -> list[rows.Line]:
    found = rows.read(path)
    numbers = [row["number"] for row in found.kept]
    assert len(numbers) == len(set(numbers)) and Path(path).read_bytes().count(b'"number": ') == len(numbers)
    return sorted((rows.timeless(row) for row in found.kept), key=lambda row: row["number"])


def made(fleet: Fleet, task) -> list[rows.Line]:
    with fleet, rows.opened("r.jsonl", {"task": "slow", "n": 24}) as file:
        fleet.on_workers = lambda kinds: file.note({"workers": kinds})
        resume(task, fleet, asked(task).fit, RECIPE, file, batch=2)
    return kept()


def workers() -> list[int]:
    """The processes that have done something, last ones last."""
    lines = Path("pids").read_text().splitlines() if Path("pids").exists() else []
    return list(dict.fromkeys(int(line.split()[0]) for line in lines))


def once(count: int, act) -> threading.Thread:
    """Do something to a worker as soon as this many are at work."""

    def wait() -> None:
        while len(workers()) < count:
            time.sleep(0.02)
        act(workers()[-1])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def command(*more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "unmask", "eval", "slow.py", *FLAGS, *more]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(path: str) -> int:
    return Path(path).read_bytes().count(b'"number": ') if Path(path).exists() else 0


def until(path: str, count: int, process: subprocess.Popen[str]) -> None:
    while lines(path) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_rows_are_those_of_one_process_after_a_worker_is_killed(cluster, slow, alone):
    killed = once(2, lambda pid: os.kill(pid, signal.SIGKILL))
    fleet = Fleet(cluster, "random", 2, gpus=0)
    seen = []
    fleet.on_progress = seen.append
    assert made(fleet, slow) == alone(slow)
    killed.join(1)
    assert len(workers()) >= 2 and seen[-1].again >= 1
    assert sum(rows.read("r.jsonl").header["workers"].values()) >= 2


def test_a_driver_that_is_killed_twice(cluster, slow, alone):
    """Nothing is lost or doubled, and the same command goes on."""
    before = 0
    for _ in range(2):
        with command("--rows", "r.jsonl", "--ray", cluster) as process:
            until("r.jsonl", before + 4, process)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert before + 4 <= len(kept()) < 24
        before = len(kept())
    with command("--rows", "r.jsonl", "--ray", cluster) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert kept() == alone(slow) and "solved" in out


def test_a_frozen_worker_is_helped_and_ended(cluster, slow, alone):
    frozen: list[int] = []

    def freeze(pid: int) -> None:
        frozen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    once(2, freeze)
    assert made(Fleet(cluster, "random", 2, gpus=0, **SHORT), slow) == alone(slow)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{frozen[0]}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{frozen[0]}").exists()


def test_a_part_that_always_dies(cluster, slow, alone):
    """Its questions are named, rows so far are kept, and the others can be had without it."""
    Path("poison21").touch()
    with pytest.raises(UnmaskError, match=r"3 workers were lost while they did questions 21, 22: .*--skip-lost"):
        made(Fleet(cluster, "random", 2, gpus=0), slow)
    tried = [line.split()[1] for line in Path("pids").read_text().splitlines()].count("21")
    assert tried == 3 and kept() and all(row in alone(slow) for row in kept())
    fleet = Fleet(cluster, "random", 2, gpus=0, skip_lost=True)
    assert made(fleet, slow) == [row for row in alone(slow) if row["number"] not in (20, 21)]
    assert [part.numbers for part in fleet.given_up] == [[20, 21]]
    Path("poison21").unlink()
    assert made(Fleet(cluster, "random", 1, gpus=0), slow) == alone(slow)


def test_other_weights_and_foreign_models_are_refused(cluster, slow):
    with pytest.raises(ModelError, match=r"the weights of sudoku on \S+ are others than here: copy the same files"):
        made(Fleet(cluster, Loading("sudoku", weights="0" * 64), 1, gpus=0), slow)
    assert not rows.read("r.jsonl").kept
    with pytest.raises(InputError, match="a model is not sent to workers"):
        Fleet(cluster, load("random"))


def test_another_version_is_refused(cluster, slow, monkeypatch):
    monkeypatch.setattr("unmask.evaluate.fleet.fleet.__version__", "9.9")
    with pytest.raises(ModelError, match=r"\S+ has unmask \d\S+, this is 9.9: install the same version"):
        made(Fleet(cluster, "random", 1, gpus=0), slow)


def test_errors_of_workers(cluster, slow):
    """What a user can mend ends the run at once; a cluster without room is described."""
    Path("wrong3").touch()
    with pytest.raises(InputError, match="the grader of slow returned 3: return True or False"):
        made(Fleet(cluster, "random", 1, gpus=0), slow)
    with pytest.raises(
        InputError, match=r"no worker was ready after 1 s: each needs 64 CPUs, .* with 4 CPUs and 0 GPUs"
    ):
        made(Fleet(cluster, "random", 1, gpus=0, cpus=64, wait=1.0), slow)


def test_a_cluster_that_is_not_there(slow, monkeypatch):
    for address in ("127.0.0.1:1", "nowhere"):
        with pytest.raises(InputError, match=f"cannot reach a Ray cluster at '{address}'"):
            made(Fleet(address, "random", 1, gpus=0), slow)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # what auto means
    with pytest.raises(InputError, match=r"cannot reach a Ray cluster at '127\.0\.0\.1:1'"):
        made(Fleet("auto", "random", 1, gpus=0), slow)


def test_a_machine_that_is_lost(slow, alone):
    """All processes of a node end at once, Ray's own too: its parts go to the worker of the other one."""
    both = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    try:
        node = both.add_node(num_cpus=1, object_store_memory=80 << 20)
        killed = once(2, lambda pid: both.remove_node(node, allow_graceful=False))
        assert made(Fleet(both.address, "random", 2, gpus=0), slow) == alone(slow)
        killed.join(10)
        assert len(both.list_all_nodes()) == 1
    finally:
        both.shutdown()


def test_two_fleets_at_once_and_ctrl_c(cluster, slow, alone):
    """One is stopped: its rows are kept, its workers end, the other fleet and the cluster stay."""
    with command("--rows", "a.jsonl", "--ray", cluster) as one, command("--rows", "b.jsonl", "--ray", cluster) as two:
        until("a.jsonl", 4, one)
        one.send_signal(signal.SIGINT)
        _, err = one.communicate()
        _, other = two.communicate()
    assert (one.returncode, two.returncode) == (130, 0), (err, other)
    last = err.strip().splitlines()[-1]
    assert last.startswith("unmask: stopped: ") and last.endswith("the same command resumes it")
    assert kept("b.jsonl") == alone(slow) and 4 <= len(kept("a.jsonl")) < 24
    assert all(row in alone(slow) for row in kept("a.jsonl"))
    with command("--rows", "a.jsonl", "--ray", cluster) as again:
        assert again.wait() == 0
    assert kept("a.jsonl") == alone(slow)


def test_prompts_on_a_cluster_of_this_machine(slow, capsys):
    Path("p.txt").write_text("".join(f"prompt {'x' * number}\n" for number in range(9)))
    given = "generate --model random --prompts p.txt --sampler uniform --temperature 1 --batch 2".split()
    assert main([*given, "-o", "one.jsonl"]) == 0
    assert main([*given, "-o", "ray.jsonl", "--ray", "--gpus", "0", "--workers", "2"]) == 0
    assert kept("ray.jsonl") == kept("one.jsonl") and len(kept("one.jsonl")) == 9
    assert not ray.is_initialized()
    capsys.readouterr()
    assert main([*given, "-o", "none.jsonl", "--ray"]) == 2
    assert "there is no GPU on this machine: add --gpus 0" in capsys.readouterr().err
