"""A fleet on real Ray: whatever is killed, frozen or lost, its rows are those of one process, field by field."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402

from fabricated_source import write  # noqa: E402
from unmask import Recipe, load  # noqa: E402
from unmask.cli import main, show  # noqa: E402
from unmask.decoding.likelihood import Piece, Question  # noqa: E402
from unmask.errors import InputError, ModelError, UnmaskError  # noqa: E402
from unmask.evaluate import rows  # noqa: E402
from unmask.evaluate.crew import Here, Work  # noqa: E402
from unmask.evaluate.crew import run as run_works  # noqa: E402
from unmask.evaluate.fleet import Fleet, Loading  # noqa: E402
from unmask.evaluate.lm_eval.arguments import TextRequest  # noqa: E402
from unmask.evaluate.lm_eval.jobs import About, Answer, Bounds, Greedy, Prompt, Scored, Texts  # noqa: E402
from unmask.evaluate.paper import EXPERIMENTS  # noqa: E402
from unmask.evaluate.paper.plan import read  # noqa: E402
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
        time.sleep(0.08)
    return len(text) % 2 == 0
"""
RECIPE = Recipe(sampler="uniform", temperature=1.0, length=8)
FLAGS = "--model random --sampler uniform --temperature 1 --batch 2 --gpus 0 --workers 2".split()
SHORT = {"patience": 2.0}
MACHINE = {"num_cpus": 2, "object_store_memory": 80 << 20}
COMMANDS = multiprocessing.get_context("forkserver")  # commands begin with torch imported
COMMANDS.set_forkserver_preload(["unmask.cli.evaluate", "unmask.evaluate.fleet.fleet"])


def free_port() -> int:
    with socket.create_server(("", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def machine():
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args=MACHINE | {"metrics_export_port": free_port()})
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def machines(machine):
    """Two, as far as Ray knows; the last of the tests with both loses the second one."""
    machine.add_node(**MACHINE)
    return machine


@pytest.fixture(scope="module")
def cluster(machine):
    return machine.address


# Two processes, each with a cluster: `make test-ray`. The tests of one group are run in their order.
kills, jobs = (pytest.mark.xdist_group(name) for name in ("kills", "jobs"))


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


class Command:
    """`unmask eval` in a process of its own."""

    def __init__(self, path: str, *more: str) -> None:
        self.path = path
        self.process = COMMANDS.Process(target=_command, args=([*FLAGS, "--rows", path, *more], os.getcwd(), path))
        self.process.start()

    def until(self, count: int) -> Command:
        """Wait for this many rows."""
        while lines(self.path) < count:
            assert self.process.exitcode is None, self.ended()
            time.sleep(0.02)
        return self

    def ended(self, number: int | None = None) -> tuple[int, str, str]:
        """Its exit status and what it wrote, perhaps after a signal."""
        if number is not None:
            os.kill(self.process.pid, number)
        self.process.join()
        return self.process.exitcode, *(Path(f"{self.path}.{name}").read_text() for name in ("out", "err"))


def _command(words: list[str], folder: str, path: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{path}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    status = main(["eval", "slow.py", *words])
    sys.stdout.flush()
    os._exit(status)


def lines(path: str) -> int:
    return Path(path).read_bytes().count(b'"number": ') if Path(path).exists() else 0


@contextmanager
def killing():
    """Kill a worker of each model of a command once it has made rows; what was killed, and all that was seen."""
    killed, seen = {}, []

    def follow(fleet, *more):
        def on_progress(found):
            seen.append(found)
            begun = killed.setdefault(fleet.loading.name, [found.rows])
            if found.rows > begun[0] and len(begun) == 1:
                begun.append(next(one.place.pid for one in fleet.members.values() if one.loaded))
                os.kill(begun[1], signal.SIGKILL)

        fleet.on_progress = on_progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "follow", follow)
        yield killed, seen


@kills
def test_rows_are_those_of_one_process_after_a_worker_is_killed(machines, slow, alone):
    killed = once(2, lambda pid: os.kill(pid, signal.SIGKILL))
    fleet = Fleet(machines.address, "random", 2, gpus=0)
    seen = []
    fleet.on_progress = seen.append
    assert made(fleet, slow) == alone(slow)
    killed.join(1)
    assert len(workers()) >= 2 and seen[-1].again >= 1
    assert sum(rows.read("r.jsonl").header["workers"].values()) >= 2


@kills
def test_two_fleets_at_once_ctrl_c_and_a_driver_that_is_killed_twice(machines, slow, alone):
    """One is stopped: its rows are kept, its workers end, the other fleet and the cluster stay.

    Then it is killed, twice: nothing is lost or doubled, and the same command goes on.
    """
    ray = ["--ray", machines.address]
    one, two = (Command(path, *ray) for path in ("a.jsonl", "b.jsonl"))
    status, _, err = one.until(4).ended(signal.SIGINT)
    assert status == 130, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("unmask: stopped: ") and last.endswith("the same command resumes it")
    before = len(kept("a.jsonl"))
    assert 4 <= before < 24 and all(row in alone(slow) for row in kept("a.jsonl"))
    status, out, err = two.ended()
    assert status == 0 and "solved" in out and kept("b.jsonl") == alone(slow), err
    for _ in range(2):
        status, _, err = Command("a.jsonl", *ray, "--workers", "1").until(before + 4).ended(signal.SIGKILL)
        assert status == -signal.SIGKILL and before + 4 <= len(kept("a.jsonl")) < 24, err
        before = len(kept("a.jsonl"))
    status, out, err = Command("a.jsonl", *ray).ended()
    assert status == 0 and "solved" in out and kept("a.jsonl") == alone(slow), err


@kills
def test_a_frozen_worker_is_helped_and_ended(machines, slow, alone):
    frozen: list[int] = []

    def freeze(pid: int) -> None:
        frozen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    once(2, freeze)
    assert made(Fleet(machines.address, "random", 2, gpus=0, **SHORT), slow) == alone(slow)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{frozen[0]}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{frozen[0]}").exists()


@kills
def test_a_part_that_always_dies(machines, slow, alone):
    """Its questions are named, rows so far are kept, and the others can be had without it."""
    Path("poison21").touch()
    with pytest.raises(UnmaskError, match=r"3 workers were lost while they did questions 21, 22: .*--skip-lost"):
        made(Fleet(machines.address, "random", 2, gpus=0), slow)
    tried = [line.split()[1] for line in Path("pids").read_text().splitlines()].count("21")
    assert tried == 3 and kept() and all(row in alone(slow) for row in kept())
    fleet = Fleet(machines.address, "random", 1, gpus=0, skip_lost=True, tries=1)
    assert made(fleet, slow) == [row for row in alone(slow) if row["number"] not in (20, 21)]
    assert [part.numbers for part in fleet.given_up] == [[20, 21]]
    Path("poison21").unlink()
    assert made(Fleet(machines.address, "random", 1, gpus=0), slow) == alone(slow)


@kills
def test_a_machine_that_is_lost(machines, slow, alone):
    """All processes of a node end at once, Ray's own too: its parts go to the worker of the other one."""
    node = next(iter(machines.worker_nodes))
    killed = once(3, lambda pid: machines.remove_node(node, allow_graceful=False))
    assert made(Fleet(machines.address, "random", 3, gpus=0), slow) == alone(slow)
    killed.join(60)
    assert len(machines.list_all_nodes()) == 1


@jobs
def test_other_weights_and_foreign_models_are_refused(cluster, slow):
    with pytest.raises(ModelError, match=r"the weights of sudoku on \S+ are others than here: copy the same files"):
        made(Fleet(cluster, Loading("sudoku", sha256="0" * 64), 1, gpus=0), slow)
    assert not rows.read("r.jsonl").kept
    with pytest.raises(InputError, match="a model is not sent to workers"):
        Fleet(cluster, load("random"))


@jobs
def test_another_version_is_refused(cluster, slow, monkeypatch):
    monkeypatch.setattr("unmask.evaluate.fleet.fleet.__version__", "9.9")
    with pytest.raises(ModelError, match=r"\S+ has unmask \d\S+, this is 9.9: install the same version"):
        made(Fleet(cluster, "random", 1, gpus=0), slow)


@jobs
def test_errors_of_workers(cluster, slow):
    """What a user can mend ends the run at once; a cluster without room is described."""
    Path("wrong3").touch()
    with pytest.raises(InputError, match="the grader of slow returned 3: return True or False"):
        made(Fleet(cluster, "random", 1, gpus=0), slow)
    with pytest.raises(
        InputError, match=r"no worker was ready after 1 s: each needs 64 CPUs, .* with \d CPUs and 0 GPUs"
    ):
        made(Fleet(cluster, "random", 1, gpus=0, cpus=64, wait=1.0), slow)


@jobs
def test_a_cluster_that_is_not_there(slow, monkeypatch):
    for address in ("127.0.0.1:1", "nowhere"):
        with pytest.raises(InputError, match=f"cannot reach a Ray cluster at '{address}'"):
            made(Fleet(address, "random", 1, gpus=0), slow)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # what auto means
    with pytest.raises(InputError, match=r"cannot reach a Ray cluster at '127\.0\.0\.1:1'"):
        made(Fleet("auto", "random", 1, gpus=0), slow)


@jobs
def test_metrics(machine, slow):
    """What Prometheus reads of a run: workers, rows and their rate, lost workers and parts that were begun again."""
    pytest.importorskip("aiohttp_cors", reason="metrics leave a machine by ray[default]")
    fleet, seen = Fleet(machine.address, "random", 2, gpus=0), []
    where = f"http://{machine.head_node.node_ip_address}:{machine.head_node.metrics_export_port}"
    fleet.on_progress = seen.append
    once(2, lambda pid: os.kill(pid, signal.SIGKILL))
    found: dict[str, float] = {}
    with fleet, rows.opened("r.jsonl", {"task": "slow", "n": 24}) as file:
        resume(slow, fleet, asked(slow).fit, RECIPE, file, batch=2)
        deadline = time.monotonic() + 30
        while len(found) < 5 or found["ray_unmask_rows_total"] < 24:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
            with urllib.request.urlopen(where, timeout=10) as reply:
                text = reply.read().decode()
            some = [line for line in text.splitlines() if f'run="{fleet.run}"' in line]
            found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in some}
    last = {"rows_total": 24, "workers": seen[-1].ready, "workers_lost_total": 1, "parts_again_total": seen[-1].again}
    last["rows_per_second"] = seen[-1].rate
    assert found == pytest.approx({f"ray_unmask_{name}": value for name, value in last.items()})
    assert seen[-1].again >= 1 and seen[-1].rate > 0


# --- other commands --------------------------------------------------------------------------------------------------

SMALL = """
title = "Small"
where = "nowhere"
kind = "cells"
claim = "Nothing."

[all]
sampler = "uniform"
temperature = 1.0
steps = 2
particles = 2

[[axis]]
name = "search"
values = [{ label = "alone", search = "vanilla" }, { label = "E-BoN", search = "best-of-n" }]

[places.problems]
model = "text"
task = "problems"
n = 20
made = { form = "plain", seed = 1 }
all = { length = 16 }

[places.text]
model = "text"
n = 20
all = { length = 8, ban = "eos" }
"""
ON_CPUS = ["--gpus", "0", "--workers", "2"]


def of_paper(folder: str) -> dict[str, list[rows.Line]]:
    """Every file of rows by its name; judged rows have no header."""
    made = {}
    for path in sorted(Path(folder, "rows").iterdir()):
        judged = ".judged" in path.name
        some = [json.loads(line) for line in path.read_text().splitlines()] if judged else kept(str(path))
        made[path.name] = sorted(some, key=lambda row: row["number"])
    return made


@jobs
def test_paper(cluster, tmp_path, monkeypatch, capsys):
    """A worker of the model and one of the judge are killed; both places are done by the same workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "small", read("small", SMALL))
    given = ["paper", "small", "--judge", write(Path("llama2.data")), "--no-pictures", "--json"]
    assert main([*given, "--out", "one"]) == 0
    here = capsys.readouterr()
    with killing() as (killed, seen):
        assert main([*given, "--out", "ray", "--ray", cluster, *ON_CPUS]) == 0
    there = capsys.readouterr()
    assert of_paper("ray") == of_paper("one") and len(of_paper("one")) == 2 + 2 + 2
    assert [len(some) for some in of_paper("one").values()] == [20] * 6
    assert {name: len(pids) for name, pids in killed.items()} == {"text": 2, "llama2.data": 2}
    assert max(found.again for found in seen) >= 1 and "decoded cell 2 of 2, E-BoN" in there.err
    one, two = (json.loads(some.out.splitlines()[1])["cells"] for some in (here, there))
    assert [cell["ln_ppl"] for cell in one] == [cell["ln_ppl"] for cell in two]
    workers = [sum(rows.read(path).header["workers"].values()) for path in Path("ray/rows").glob("*.rows.jsonl")]
    assert max(workers) == 3  # two, and one for the one that was killed
    assert main([*given, "--out", "ray", "--ray", "127.0.0.1:1"]) == 2  # judged rows are compared with a judge's
    assert "cannot reach a Ray cluster" in capsys.readouterr().err


@jobs
def test_judge(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = [{"text": "the cat " * (number % 7) + "a cat", "seed": number} for number in range(100)]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    given = ["judge", "t.jsonl", "--judge", write(Path("llama2.data")), "--convention", "both", "--json"]
    assert main([*given, "--rows", "one.jsonl"]) == 0
    here = capsys.readouterr().out
    with killing() as (killed, _):
        assert main([*given, "--rows", "ray.jsonl", "--ray", cluster, *ON_CPUS]) == 0
    assert capsys.readouterr().out == here and [len(pids) for pids in killed.values()] == [2]
    one, two = (list(map(json.loads, Path(path).read_text().splitlines())) for path in ("one.jsonl", "ray.jsonl"))
    assert sorted(two, key=lambda row: row["seed"]) == one and len(one) == 100


@jobs
def test_requests_of_lm_eval(cluster):
    """Texts, likelihoods and whether answers are greedy, as jobs in one line; the harness itself is in test_lmeval."""
    texts = [Prompt(number, [1 + number % 20] * (1 + number), 0, 7 * number) for number in range(14)]
    pieces = [Piece([3] * (number % 4), [1 + number, 2, 5][: 1 + number % 3]) for number in range(14)]
    jobs = {
        Texts(2, TextRequest(Recipe(length=4, sampler="uniform", temperature=1.0), ("e",))): texts,
        Bounds(3, 6, 4, 0.5): [Scored(number, Question([piece], number)) for number, piece in enumerate(pieces)],
        Greedy(2): [Answer(number, piece) for number, piece in enumerate(pieces)],
    }

    def done(crew) -> list[list[rows.Line]]:
        found = [[] for _ in jobs]
        (about,) = crew.prepare([(About(), ())])
        run_works(crew, [Work(job, jobs[job], some.extend) for job, some in zip(jobs, found, strict=True)])
        return [[vars(about) | {"tokenizer": None}], *(sorted(some, key=lambda row: row["number"]) for some in found)]

    with killing() as (killed, _), Fleet(cluster, "random", 2, gpus=0) as fleet:
        show.follow(fleet)
        there = done(fleet)
    assert there == done(Here(load("random"))) and [len(some) for some in there] == [1, 14, 14, 14]
    assert len(killed["random"]) == 2


@jobs
def test_prompts_on_a_cluster_of_this_machine(slow, capsys):
    """The last one: after a cluster at 127.0.0.1, Ray does not connect this process to one at another address."""
    Path("p.txt").write_text("".join(f"prompt {'x' * number}\n" for number in range(9)))
    given = "generate --model random --prompts p.txt --sampler uniform --temperature 1 --batch 2".split()
    assert main([*given, "-o", "one.jsonl"]) == 0
    assert main([*given, "-o", "ray.jsonl", "--ray", "--gpus", "0", "--workers", "2"]) == 0
    assert kept("ray.jsonl") == kept("one.jsonl") and len(kept("one.jsonl")) == 9
    assert not ray.is_initialized()
    capsys.readouterr()
    assert main([*given, "-o", "none.jsonl", "--ray"]) == 2
    assert "there is no GPU on this machine: add --gpus 0" in capsys.readouterr().err
