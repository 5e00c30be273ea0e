"""A Ray cluster of this machine, one for each file of tests: `make test-ray` has a process for each."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from fleet_runs import RECIPE, TASK

from unmask import load
from unmask.evaluate import rows
from unmask.evaluate.run import asked, run
from unmask.tasks.own import read_task

MACHINE = {"num_cpus": 2, "object_store_memory": 80 << 20}


def free_port() -> int:
    with socket.create_server(("", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def machine():
    from ray.cluster_utils import Cluster

    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # The dashboard is ten processes; of several that begin at once one finds no port, and says so after a minute.
    more = {"metrics_export_port": free_port(), "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=MACHINE | more)
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
