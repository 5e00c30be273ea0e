"""`unmask serve --ray` on real Ray Serve: replicas are killed, clients hang up, and the server is told to stop."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError

from unmask import Recipe, decode, load
from unmask.cli import main
from unmask.server.replicas.deploy import _not_of_lost_replicas

WORDS = "serve --ray --gpus 0 --port 0 --temperature 1 --grace 30 --replicas"
ASK: dict[str, Any] = {"model": "table", "prompt": "se", "max_tokens": 4, "seed": 1}
LONG: dict[str, Any] = {"model": "random", "prompt": "a", "stream": True}  # and every step is sent
LONG["extra_body"] = {"search": "best-of-n", "particles": 2, "sampler": "uniform"}


class Command:
    """The command in a process of its own, once it serves."""

    def __init__(self, *more: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "unmask", *WORDS.split(), *more, "--model", "table", "--model", "random"]
        self.process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"table, random at (http://127\.0\.0\.1:\d+) \(Ctrl-C stops\)\n", line)
        assert found, self.process.communicate()
        self.url = found[1]

    def client(self, **more: Any) -> OpenAI:
        return OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 90} | more)

    def get(self, path: str) -> tuple[int, str]:
        line = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()

    def metrics(self, name: str, label: str = "") -> dict[str, float]:
        """The samples of a metric with this label, added up by replica."""
        found: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and label in line:
                replica = re.search(r'replica="(\w+)"', line)[1]
                found[replica] = found.get(replica, 0) + float(line.split()[-1])
        found.pop("front", None)
        return found

    def replicas(self) -> list[int]:
        """Their processes."""
        names = {path.parent: path for path in Path("/proc").glob("[0-9]*/cmdline")}
        found = []
        for folder, path in names.items():
            try:
                if path.read_bytes().startswith(b"ray::ServeReplica:unmask-") and self._mine(int(folder.name)):
                    found.append(int(folder.name))
            except OSError:  # it has ended
                pass
        return found

    def family(self, pid: int) -> bool:
        """Whether a process is the command's, or was started by one of its."""
        with suppress(OSError):
            return self._mine(pid)
        return False

    def _mine(self, pid: int) -> bool:
        while pid > 1 and pid != self.process.pid:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid > 1

    def stop(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        err = self.process.communicate(timeout=60)[1]
        return self.process.returncode, err


@pytest.fixture(scope="module")
def serving() -> Iterator[Command]:
    command = Command("2")
    yield command
    if command.process.poll() is None:
        command.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def right() -> str:
    return decode(load("table"), "se", recipe=Recipe(length=4, seed=1, temperature=1.0)).text


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.1)


@contextmanager
def threads(work: Callable[[int], None], count: int) -> Iterator[None]:
    made = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for one in made:
        one.start()
    yield
    for one in made:
        one.join(90)
        assert not one.is_alive()


def test_two_replicas_answer_as_one_process(serving: Command, right: str) -> None:
    client, found = serving.client(), []
    with threads(lambda number: found.append(client.completions.create(**ASK).choices[0].text), 12):
        pass
    assert found == [right] * 12
    parts = list(client.completions.create(**ASK, stream=True))
    assert "".join(part.choices[0].text for part in parts) == right and len(parts) > 2
    until(lambda: len(serving.metrics("unmask_waiting")) == 2)
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.completions.create(model="nothing", prompt="a")
    line = http.client.HTTPConnection(serving.url.removeprefix("http://"), timeout=30)
    line.request("GET", "/v1/models", headers={"host": "elsewhere.example"})
    assert line.getresponse().status == 421


def listening(processes: set[int]) -> list[str]:
    """The addresses at which these processes listen, as the kernel writes them."""
    inodes = set()
    for number in processes:
        for link in Path(f"/proc/{number}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(os.readlink(link))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def test_no_port_of_ray_is_open_to_other_machines(serving: Command) -> None:
    """Whoever reaches one can run programs."""
    mine = {int(path.name) for path in Path("/proc").glob("[0-9]*") if serving.family(int(path.name))}
    here = {"0100007F", "0" * 16 + "FFFF0000" + "0100007F", "0" * 24 + "01000000"}
    assert len(mine) > 4 and len(listening(mine)) > 3
    assert set(listening(mine)) <= here


def test_a_client_that_hangs_up_frees_its_replica(serving: Command) -> None:
    stream = serving.client().completions.create(**LONG, max_tokens=2000)
    next(iter(stream))
    assert sorted(serving.metrics("unmask_running").values()) == [0, 1]
    stream.close()
    until(lambda: sum(serving.metrics("unmask_running").values()) == 0)
    assert sum(serving.metrics("unmask_choices_total", "cancelled").values()) == 1


def test_a_replica_that_is_killed_loses_no_request_but_its_streams(serving: Command, right: str) -> None:
    """Requests in its queue and in its batch are answered by the other one, as are those after them."""
    client, texts, ends = serving.client(), [], []
    begun, killed = threading.Barrier(5), threading.Event()

    def stream(number: int) -> None:
        events = iter(client.completions.create(**LONG, max_tokens=200, seed=number))
        next(events)
        begun.wait(180)
        try:
            for _ in events:
                pass
            ends.append("whole")
        except openai.APIError as error:
            ends.append(str(error))

    def ask(number: int) -> None:
        for turn in range(2):
            texts.append(
                client.completions.create(model="random", prompt="a", max_tokens=60, seed=turn).choices[0].text
            )
            killed.wait(180)

    before = serving.replicas()
    assert len(before) == 2
    with threads(stream, 4), threads(ask, 8):
        begun.wait(180)
        os.kill(before[0], signal.SIGKILL)
        killed.set()
    assert len(ends) == 4 and set(ends) <= {
        "whole",
        "the process that decoded this was lost: ask again: others are there",
    }
    assert len(texts) == 16 and len(set(texts)) == 2
    assert client.completions.create(**ASK).choices[0].text == right
    until(lambda: len(serving.metrics("unmask_waiting")) == 2)  # another one is there
    assert before[0] not in serving.replicas()


def test_told_to_stop_it_finishes_and_leaves_nothing(serving: Command) -> None:
    client = serving.client()
    stream = iter(client.completions.create(**LONG, max_tokens=200))
    next(stream)
    pids = serving.replicas()
    serving.process.send_signal(signal.SIGTERM)
    until(lambda: json.loads(serving.get("/healthz")[1])["status"] == "stopping")
    with pytest.raises(openai.InternalServerError, match="the server is stopping"):
        client.completions.create(**ASK)
    assert sum(1 for _ in stream) > 100
    out, err = serving.process.communicate(timeout=60)
    assert serving.process.returncode == 143 and out == ""
    assert err == "unmask: finishing requests in progress within 30 s; Ctrl-C again stops at once\n"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize(("error", "told"), [(ActorDiedError(), False), (ValueError("ours"), True)])
def test_asyncio_tells_of_no_replica_that_is_lost(
    error: Exception, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Serve asks replicas how long their queues are, and forgets those that die meanwhile."""

    async def forgotten() -> None:
        raise error

    async def main() -> None:
        task = asyncio.create_task(forgotten())
        await asyncio.sleep(0)
        del task

    logger = logging.getLogger("asyncio")
    logger.addFilter(_not_of_lost_replicas)
    try:
        asyncio.run(main())
    finally:
        logger.removeFilter(_not_of_lost_replicas)
    assert ("never retrieved" in caplog.text) == told


def test_a_model_that_no_replica_can_load(capsys: pytest.CaptureFixture[str]) -> None:
    """The last one here: it has a cluster in this process."""
    assert main([*WORDS.split(), "1", "--model", "nowhere"]) == 2
    assert "unknown model 'nowhere'" in capsys.readouterr().err
    assert main(["serve", "--ray", "--port", "0"]) == 2
    assert "there is no GPU on this machine: add --gpus 0" in capsys.readouterr().err
