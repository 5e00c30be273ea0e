"""Every command that a fleet does, on real Ray: its rows are those of one process, and its errors one line."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from fleet_runs import RECIPE, kept, killing, made, once  # noqa: E402

from fabricated_source import write  # noqa: E402
from small_paper import ALONE_AND_BEST  # noqa: E402
from unmask import Recipe, load  # noqa: E402
from unmask.cli import main, show  # noqa: E402
from unmask.decoding.likelihood import Piece, Question  # noqa: E402
from unmask.errors import InputError, ModelError  # noqa: E402
from unmask.evaluate import rows  # noqa: E402
from unmask.evaluate.crew import Here, Work  # noqa: E402
from unmask.evaluate.crew import run as run_works  # noqa: E402
from unmask.evaluate.fleet import Fleet, Loading  # noqa: E402
from unmask.evaluate.lm_eval.arguments import TextRequest  # noqa: E402
from unmask.evaluate.lm_eval.jobs import About, Answer, Bounds, Greedy, Prompt, Scored, Texts  # noqa: E402
from unmask.evaluate.paper import EXPERIMENTS  # noqa: E402
from unmask.evaluate.paper.plan import read  # noqa: E402
from unmask.evaluate.run import asked, resume  # noqa: E402


def test_other_weights_and_foreign_models_are_refused(cluster, slow):
    with pytest.raises(ModelError, match=r"the weights of sudoku on \S+ are others than here: copy the same files"):
        made(Fleet(cluster, Loading("sudoku", sha256="0" * 64), 1, gpus=0), slow)
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
        InputError, match=r"no worker was ready after 1 s: each needs 64 CPUs, .* with \d CPUs and 0 GPUs"
    ):
        made(Fleet(cluster, "random", 1, gpus=0, cpus=64, wait=1.0), slow)


def test_a_cluster_that_is_not_there(slow, monkeypatch):
    for address in ("127.0.0.1:1", "nowhere"):
        with pytest.raises(InputError, match=f"cannot reach a Ray cluster at '{address}'"):
            made(Fleet(address, "random", 1, gpus=0), slow)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # what auto means
    with pytest.raises(InputError, match=r"cannot reach a Ray cluster at '127\.0\.0\.1:1'"):
        made(Fleet("auto", "random", 1, gpus=0), slow)


def test_metrics(machine, slow):
    """What Prometheus reads of a run: workers, rows and their rate, lost workers and parts that were begun again."""
    pytest.importorskip("aiohttp_cors", reason="metrics leave a machine by ray[default]")
    fleet, seen = Fleet(machine.address, "random", (2, 2), gpus=0), []
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

SMALL = f"""{ALONE_AND_BEST}
[places.problems]
model = "text"
task = "problems"
n = 20
made = {{ form = "plain", seed = 1 }}
all = {{ length = 16 }}

[places.text]
model = "text"
n = 20
all = {{ length = 8, ban = "eos" }}
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

    with killing() as (killed, _), Fleet(cluster, "random", (2, 2), gpus=0) as fleet:
        show.follow(fleet)
        there = done(fleet)
    assert there == done(Here(load("random"))) and [len(some) for some in there] == [1, 14, 14, 14]
    assert len(killed["random"]) == 2


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
