"""`unmask serve` as a process: what it prints, warns about and refuses, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from unmask.cli import main
from unmask.cli.serve import add_serve
from unmask.server.limits import Limits


def test_a_process_that_is_told_to_stop() -> None:
    """Once: it says so to whoever comes. Twice: it ends at once, and everybody who waits hears why."""
    words = ["serve", "--model", "table", "--model", "random", "--port", "0", "--sampler", "uniform"]
    words += ["--temperature", "0.5", "--grace", "60"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "UNMASK_TOKEN": "sesame"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "unmask", *words], env=env, **pipes) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"table, random at (http://127\.0\.0\.1:\d+) \(Ctrl-C stops\)\n", line)
        assert found
        client = OpenAI(base_url=f"{found[1]}/v1", api_key="sesame")
        answer = client.completions.create(model="table", prompt="s", seed=1)
        assert answer.unmask["recipe"] == {  # type: ignore[attr-defined]
            "sampler": "uniform", "search": "vanilla", "length": 5, "temperature": 0.5
        }  # fmt: skip
        fast = client.completions.create(model="table", prompt="s", extra_body={"sampler": "eb", "bound": 1})
        assert fast.unmask["recipe"]["temperature"] == 0.5  # type: ignore[attr-defined]
        client = client.with_options(max_retries=0)
        long: dict[str, Any] = {"model": "random", "prompt": "a", "max_tokens": 1000}
        with ThreadPoolExecutor(2) as pool:
            stream = client.completions.create(**long, extra_body={"search": "best-of-n", "particles": 2}, stream=True)
            next(iter(stream))
            blocking = pool.submit(client.completions.create, **long)
            streaming = pool.submit(list, stream)
            process.send_signal(signal.SIGINT)
            health = {"status": "ok"}
            while health["status"] == "ok":  # a new connection each time
                status, health = asked(found[1], "/healthz")
            assert status == 503 and health["message"].startswith("the server is stopping: ")
            with pytest.raises(openai.InternalServerError, match="the server is stopping"):
                client.completions.create(model="table", prompt="s")
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert isinstance(blocking.exception(), openai.InternalServerError)
            assert "the server stop" in str(blocking.exception()) or "is stopping" in str(blocking.exception())
            assert "the server stopped before this was decoded" in str(streaming.exception())
        out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 5  # of 60
    assert out == "" and process.returncode == 130
    first, last = err.splitlines()
    assert first == "unmask: finishing requests in progress within 60 s; Ctrl-C again stops at once"
    assert re.fullmatch(r"unmask: stopped( in the middle of a step)?", last)  # the machine may be busy


def asked(url: str, path: str) -> tuple[int, Any]:
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    line.request("GET", path)
    answer = line.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--port 99999999", "the port is 99999999: it must be from 0 to 65535"),
        ("--host nowhere.invalid", "cannot listen at nowhere.invalid port 8000: "),
        ("--max-queue 0", "the limit of queue is 0: it must be positive"),
        ("--bound 3", "bound has no effect on sampler confidence with search vanilla"),
        ("--model tabel", "unknown model 'tabel': did you mean 'table'?"),
        ("--token ''", "the token is empty"),
        ("--token é", "the token cannot stand in a header: use ASCII"),
        ("--seconds nan", "--seconds is nan: it must be more than 0"),
        ("--seconds -1", "--seconds is -1: it must be more than 0"),
        ("--length 9999", "--length is 9,999: the models that are served allow 6 positions"),
        ("--replicas 2", "--replicas has no effect without --ray: add --ray"),
        ("--ray --replicas 0", "replicas is '0': give a number from 1 on"),
        ("--ray --device cuda:1", "--device has no effect with --ray: --gpus says where replicas run"),
        ("--ray --cpus 0", "cpus is 0, gpus is None: give at least 1 CPU"),
        ("--ray --port 99999999", "the port is 99999999: it must be from 0 to 65535"),
    ],
)
def test_failures_are_one_line(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = [] if "--model" in words else ["--model", "table"]
    assert main(["serve", *model, *words.replace("''", "").split(" ")]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"unmask: error: [^\n]+\n", err) and expected in err


def test_replicas_need_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "--model", "table", "--ray", "--port", "0"]) == 2
    expected = "unmask: error: replicas need Ray Serve: pip install 'unmask[ray-serve]'\n"
    assert capsys.readouterr().err == expected


def test_help_says_what_holds_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--prompts" not in said and "most probable one [the model's own, else 1]" in said and "[1,048,576]" in said


def test_the_usual_limits_are_those_of_the_library() -> None:
    parser = ArgumentParser()
    add_serve(parser)
    args = vars(parser.parse_args([]))
    assert {name: args[f"limit_{name}"] for name in vars(Limits())} == vars(Limits())


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--model", "table", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use; give another --host or --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("token", "warning"),
    [([], "anyone who can reach 0.0.0.0"), (["--token", "x"], "texts and token travel unencrypted")],
)
def test_another_place_than_loopback_is_warned_about(
    token: list[str], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--model", "table", "--host", "0.0.0.0", "--port", "0", "--seconds", "0.2", *token]
    assert main(words) == 0
    assert warning in capsys.readouterr().err


def test_without_its_packages_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("unmask.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "unmask: error: serving needs fastapi: pip install 'unmask[serve]'\n"


def test_a_ready_line_that_cannot_be_written_is_the_reason(capfd, monkeypatch) -> None:
    def full(*words: object, **options: object) -> None:
        if options.get("file") in (None, sys.stdout):
            raise OSError(28, "No space left on device")
        sys.stderr.write(" ".join(map(str, words)) + "\n")

    monkeypatch.setattr("builtins.print", full)
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"it left with {status}"))
    assert main(["serve", "--model", "table", "--port", "0"]) == 2
    assert "No space left on device" in capfd.readouterr().err
