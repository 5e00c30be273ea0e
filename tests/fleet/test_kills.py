"""A fleet on real Ray: whatever is killed, frozen or lost, its rows are those of one process, field by field."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from fleet_runs import SHORT, Command, kept, made, once, workers

from unmask.errors import UnmaskError
from unmask.evaluate import rows
from unmask.evaluate.fleet import Fleet


def test_rows_are_those_of_one_process_after_a_worker_is_killed(machines, slow, alone):
    killed = once(2, lambda pid: os.kill(pid, signal.SIGKILL))
    fleet = Fleet(machines.address, "random", (2, 2), gpus=0)
    seen = []
    fleet.on_progress = seen.append
    assert made(fleet, slow) == alone(slow)
    killed.join(1)
    assert len(workers()) >= 2 and seen[-1].again >= 1
    assert sum(rows.read("r.jsonl").header["workers"].values()) >= 2


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


def test_sigterm_keeps_rows_as_ctrl_c_does(machines, slow, alone):
    status, _, err = Command("a.jsonl", "--ray", machines.address).until(4).ended(signal.SIGTERM)
    last = err.strip().splitlines()[-1]
    assert status == 143, err
    assert last.startswith("unmask: stopped: ") and last.endswith("rows are in 'a.jsonl', the same command resumes it")
    assert all(row in alone(slow) for row in kept("a.jsonl"))


def test_a_frozen_worker_is_helped_and_ended(machines, slow, alone):
    frozen: list[int] = []

    def freeze(pid: int) -> None:
        frozen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    once(2, freeze)
    assert made(Fleet(machines.address, "random", (2, 2), gpus=0, **SHORT), slow) == alone(slow)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{frozen[0]}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{frozen[0]}").exists()


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


def test_a_machine_that_is_lost(machines, slow, alone):
    """All processes of a node end at once, Ray's own too: its parts go to the worker of the other one."""
    node = next(iter(machines.worker_nodes))
    killed = once(3, lambda pid: machines.remove_node(node, allow_graceful=False))
    assert made(Fleet(machines.address, "random", (3, 3), gpus=0), slow) == alone(slow)
    killed.join(60)
    assert len(machines.list_all_nodes()) == 1
