"""Clients that leave, bodies that are no requests, limits, tokens, and the end of a server."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import openai
import pytest
from serving import ASK, HEAD, Slow, begin, hang_up, post, right, running

from unmask import Recipe, decode, load
from unmask.decoding import trace
from unmask.server import schemas
from unmask.server.active import ActiveRequest
from unmask.server.batcher import Batcher, QueuedChoice
from unmask.server.limits import Limits, Refusal
from unmask.server.metrics import Metrics
from unmask.server.request import parse

# --- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/paths"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_work(wait, path, stream):
    slow = Slow(load("random"), 0.02)
    body = {"model": "random", "prompt": "a", "max_tokens": 400}
    body |= {"stream": stream} if path == "/v1/completions" else {}
    with running({"random": slow}) as here:
        line = begin(here, body, path)
        if stream:
            assert line.recv(10).startswith(b"HTTP/1.1 2")
        wait(lambda: len(slow.asked) > 3)
        hang_up(line)
        wait(lambda: not here.batcher.running)
        assert len(slow.asked) < 100
        assert 'unmask_choices_total{how="cancelled"} 1' in here.batcher.metrics.text()


def test_a_batch_goes_on_for_the_others(wait, monkeypatch):
    slow = Slow(load("random"), 0.005)
    body = {"model": "random", "prompt": "a", "max_tokens": 60, "stream": True}
    with running({"random": slow}) as here, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr("unmask.server.batcher.thread.NESTED", 1)
        first = begin(here, {**body, "max_tokens": 400})  # the two others come while it is decoded
        wait(lambda: len(slow.asked) > 3)
        other = pool.submit(here.client().completions.create, model="random", prompt="b", max_tokens=60, seed=3)
        line = begin(here, body)
        wait(lambda: len(here.batcher.waiting) == 2)
        hang_up(first)
        wait(lambda: max(slow.asked) == 2)
        hang_up(line)
        recipe = Recipe(length=60, seed=3, temperature=1.0)
        assert other.result().choices[0].text == decode(load("random"), "b", recipe=recipe).text
        assert other.result().choices[0].unmask["batch"] == 2


def test_two_hundred_clients_hang_up_in_the_middle(wait):
    before = threading.active_count()
    with running({"table": Slow(load("table"), 0.01), "random": load("random")}, queue=300) as here:
        body = {"model": "random", "prompt": "a", "max_tokens": 64, "stream": True}
        for place in range(200):
            line = begin(here, {**body, "seed": place})
            if place % 2:
                line.recv(1)
            hang_up(line)
        wait(lambda: not here.batcher.running and not here.batcher.waiting)
        right(here)
        wait(lambda: not here.server.server_state.tasks)
    wait(lambda: threading.active_count() <= before + 1)  # workers of the pool end after their loop


def test_a_reader_that_is_too_slow_is_told(usual, monkeypatch):
    monkeypatch.setattr("unmask.server.active.PENDING", 5)
    body = schemas.Paths(model="random", prompt="a", max_tokens=40)

    async def sleepy() -> list[trace.Event]:
        active = ActiveRequest(parse(body, usual.config), usual.batcher, events=True)
        active.submit()
        while not active.queued[0].closed:
            await asyncio.sleep(0.01)
        return [(await active.next())[1] for _ in range(20)]

    with pytest.raises(Refusal, match="the events were not read in time"):
        asyncio.run(sleepy())
    right(usual)


# --- bodies that are no requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "JSON object"),
        (b'{"model": "table"', 400, "the body is not JSON"),
        (b"[]", 400, "the body is not a JSON object"),
        (b"null", 400, "JSON object"),
        (b'{"model": "table", "prompt": "\xff\xfe"}', 400, "pars"),
        (b"\xff\xfe\x00", 400, "pars"),
        (b'{"model": "text", "prompt": "\\ud800"}', 400, "tokenizer cannot read"),
        (b'{"model": "\\ud800", "prompt": "s"}', 404, "unknown model"),
        (b'{"model": "table", "prompt": "s", "stop": "\\ud800"}', 200, ""),
        (b'{"model": "table", "prompt": "s", "temperature": NaN}', 400, "temperature is nan"),
        (b'{"model": "table", "prompt": "s", "temperature": 1e999}', 400, "temperature is inf"),
        (b'{"model": "table", "prompt": "s", "seed": ' + b"9" * 5000 + b"}", 400, "pars"),
        (b"[" * 200_000, 400, "pars"),
        (b'{"model": "table", "prompt": "' + b"s" * 10_000_000 + b'"}', 413, "more than 1,048,576 bytes"),
        (b'{"model": "table", "prompt": "s", "particles": 1000000000, "search": "smc"}', 413, "particles ×"),
        (b'{"model": "table", "prompt": "s", "max_tokens": 2000000000}', 413, "2,000,000,001 positions"),
        (b'{"model": "table", "canvas": "[MASK*99999999999]"}', 413, "99,999,999,999 positions"),
        (b'{"model": "table", "prompt": "s", "steps": 1000000000}', 413, "steps is 1,000,000,000, more than 4,096"),
        (b'{"model": "table", "prompt": "s", "sampler": "draft-refine", "loops": 1000000}', 413, "loops is 1,000,000"),
        (b'{"model": "table", "prompt": "s", "n": 1000}', 413, "1000 choices are more than 128"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, bytes) else "",
)
def test_no_request(usual, body, status, words):
    found, said = post(usual, body)
    assert found == status
    if status != 200:
        assert set(said["error"]) == {"message", "type", "param", "code"}
        assert words in said["error"]["message"] and "\n" not in said["error"]["message"]
    right(usual)


def test_other_kinds_are_refused(usual):
    assert post(usual, b"{}", **{"content-type": "text/plain"})[0] == 415  # what a page of another site can send
    assert post(usual, b"{}", **{"host": "evil.example"})[0] == 421  # a name that another site gave to this machine
    assert post(usual, b"{}", path="/v1/nothing")[0] == 404
    line = http.client.HTTPConnection("127.0.0.1", usual.port)
    line.request("GET", "/v1/completions")
    answer = line.getresponse()
    assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert json.loads(answer.read())["error"]["message"] == "/v1/completions does not take GET: use POST"
    for path, status in (("/", 200), ("/healthz", 200), ("/v1/models", 200), ("/nothing", 404), ("/v1/paths", 405)):
        line.request("HEAD", path)
        answer = line.getresponse()
        assert (answer.status, answer.read()) == (status, b""), path


def test_half_a_request_is_given_up():
    with running({"table": load("table")}, seconds=0.3) as here:
        line = socket.create_connection(("127.0.0.1", here.port))
        line.sendall(HEAD.format("/v1/completions", 99).encode() + b"{")
        assert b" 408 " in line.recv(1000)
        right(here)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_429(wait):
    with running({"table": Slow(load("table"), 0.1)}, queue=2, batch=1) as here:
        client = here.client()
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(client.completions.create, **ASK) for _ in range(8)]
            errors = [job.exception() for job in jobs]
        refused = [error for error in errors if error is not None]
        assert 3 <= len(refused) <= 6
        assert all(isinstance(error, openai.RateLimitError) for error in refused)
        assert "choices are queued, of at most 2: retry later" in str(refused[0])
        assert refused[0].response.headers["retry-after"] == "1"
        patient = client.with_options(max_retries=8)
        with ThreadPoolExecutor(4) as pool:
            assert (
                len([job.result() for job in [pool.submit(patient.completions.create, **ASK) for _ in range(4)]]) == 4
            )


@dataclass(frozen=True, eq=False)
class Held(Slow):
    """Waits in its first step until it may go."""

    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def look(self, state, rows):
        self.reached.set()
        assert self.go.wait(20)
        return super().look(state, rows)


def test_large_requests_leave_room_in_the_queue(wait):
    """Two requests with n = 128 used to fill it; and no request may hold more work than all together."""
    held = Held(load("random"), 0.0)
    limits = {"queue": 64, "choices": 32, "batch": 1, "work": 2000}
    with ThreadPoolExecutor(8) as pool, running({"random": held}, **limits) as here:
        ask = functools.partial(here.client().completions.create, model="random", prompt="a", max_tokens=2)
        jobs = [pool.submit(ask)]
        wait(lambda: held.reached.is_set())
        jobs.append(pool.submit(ask, n=32))
        wait(lambda: len(here.batcher.waiting) == 32)
        with pytest.raises(openai.RateLimitError, match="32 choices are more than half of the 32 that the queue"):
            ask(n=32)
        with pytest.raises(openai.RateLimitError, match="cells × steps are more than half of the"):
            ask(max_tokens=35)  # 36 × 35
        jobs.append(pool.submit(ask, n=14))
        wait(lambda: len(here.batcher.waiting) == 46)
        with pytest.raises(openai.RateLimitError, match="46 choices of this client are queued, and the queue takes 18"):
            ask(n=8)
        jobs.append(pool.submit(ask))  # one still finds a place
        wait(lambda: len(here.batcher.waiting) == 47)
        held.go.set()
        assert [len(job.result().choices) for job in jobs] == [1, 32, 14, 1]


def test_a_client_with_little_work_is_served_before_one_with_much():
    """Fair by work and not by age; a client that comes back has no credit from before."""
    batcher = Batcher({"table": load("table")}, Limits(batch=1), Metrics())
    batcher.close()
    batcher.join(5)
    batcher.closing = batcher.ended = False

    def choice(client: str, seed: int) -> QueuedChoice:
        recipe = Recipe(length=4, steps=2)
        return QueuedChoice("table", [], True, recipe, seed, 4, time.monotonic() + 60, print, client=client)

    batcher.submit([choice("greedy", seed) for seed in range(20)])
    taken = [batcher._taken()[0] for _ in range(3)]
    batcher.submit([choice("other", seed) for seed in range(2)])
    batcher.submit([choice("third", 0)])
    taken += [batcher._taken()[0] for _ in range(6)]
    assert [one.client for one in taken] == ["greedy"] * 4 + ["other", "third", "greedy", "other", "greedy"]
    assert [one.seed for one in taken if one.client == "greedy"] == list(range(6))


def test_health_says_that_a_step_hangs(wait):
    held = Held(load("table"), 0.0)
    with running({"table": held}, seconds=0.2) as here:

        def health() -> tuple[int, dict]:
            line = http.client.HTTPConnection("127.0.0.1", here.port)
            line.request("GET", "/healthz")
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())

        assert health()[1]["status"] == "ok"
        with pytest.raises(openai.APIStatusError, match="not decoded within"):
            here.client().completions.create(**ASK)
        wait(lambda: health()[0] == 503)
        assert health()[1]["status"] == "stuck" and "a step has taken" in health()[1]["message"]
        held.go.set()
        wait(lambda: health()[0] == 200)


def test_what_takes_too_long_is_408(wait):
    slow = Slow(load("random"), 0.02)
    with running({"random": slow, "table": load("table")}, seconds=0.4) as here:
        client, given = here.client(), {"model": "random", "prompt": "a", "max_tokens": 1000}
        with pytest.raises(openai.APIStatusError, match=r"not decoded within 0.4 seconds") as caught:
            client.completions.create(**given)
        assert caught.value.status_code == 408 and caught.value.response.headers["x-should-retry"] == "false"
        wait(lambda: not here.batcher.running)
        with pytest.raises(openai.APIError, match=r"not decoded within 0.4 seconds"):  # its status was sent long ago
            list(client.completions.create(**given, stream=True))
        wait(lambda: not here.batcher.running)
        assert len(slow.asked) < 100
        right(here)


# --- tokens and hosts ------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for():
    with running({"table": load("table")}, token="sesame") as here:
        for wrong in ("none", "sesam", "sesame2"):
            with pytest.raises(openai.AuthenticationError, match="needs its token"):
                here.client(wrong).completions.create(**ASK)
        assert here.client("sesame").completions.create(**ASK).choices
        line = http.client.HTTPConnection("127.0.0.1", here.port)
        for path, status in (("/healthz", 200), ("/", 200), ("/openapi.json", 200), ("/metrics", 401)):
            line.request("GET", path, headers={"host": "other.example"})
            answer = line.getresponse()
            answer.read()
            assert answer.status == status, path


# --- paths, health, metrics ------------------------------------------------------------------------------------------


def test_paths_are_a_trace(usual, tmp_path):
    settings = {"sampler": "uniform", "search": "smc", "particles": 4, "every": 1}
    body = {"model": "table", "prompt": "s", "seed": 5, "length": 5, **settings}
    status, text = post(usual, json.dumps(body).encode(), "/v1/paths")
    assert status == 200
    blocks = text.decode().split("\n\n")[:-1]
    kinds, lines = zip(*[block.split("\n") for block in blocks], strict=True)
    file = tmp_path / "path.jsonl"
    file.write_text("".join(line.removeprefix("data: ") + "\n" for line in lines))
    found = trace.load(file)
    assert [f"event: {event['event']}" for event in found] == list(kinds)
    own: list[trace.Event] = []
    recipe = Recipe(length=5, seed=5, temperature=1.0, **settings)
    decode(load("table"), "s", recipe=recipe, on_event=own.append)
    assert found[0]["recipe"] == recipe.to_dict() and found[0]["seeds"] == [5]
    assert list(trace.replay(found)) == list(trace.replay(own))
    assert trace.ancestry(found) == trace.ancestry(own)
    assert found[-1]["chosen"] == own[-1]["chosen"]


def test_health_and_metrics(usual):
    right(usual)
    line = http.client.HTTPConnection("127.0.0.1", usual.port)
    line.request("GET", "/healthz")
    assert json.loads(line.getresponse().read())["status"] == "ok"
    line.request("GET", "/metrics")
    answer = line.getresponse()
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.read().decode()
    for one in text.splitlines():
        assert one.startswith("# ") or (len(one.rsplit(" ", 1)) == 2 and float(one.rsplit(" ", 1)[1]) >= 0)
    assert 'unmask_requests_total{path="/v1/completions",status="200"}' in text
    assert 'unmask_evaluations_total{model="table"}' in text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    counters = {f"unmask_{name}_total" for name in ("requests", "choices", "tokens", "evaluations", "retried")}
    assert {name for name, kind in kinds.items() if kind == "counter"} >= counters
    histograms = {"unmask_request_seconds", "unmask_wait_seconds", "unmask_batch_choices"}
    assert {name for name, kind in kinds.items() if kind == "histogram"} == histograms
    gauges = {"unmask_waiting", "unmask_running", "process_resident_memory_bytes"}
    assert {name for name, kind in kinds.items() if kind == "gauge"} >= gauges


# --- the end ---------------------------------------------------------------------------------------------------------


def test_what_is_under_way_is_finished(wait):
    slow = Slow(load("random"), 0.01)
    with running({"random": slow}) as here, ThreadPoolExecutor(2) as pool:
        given = {"model": "random", "prompt": "a", "max_tokens": 40, "seed": 2}
        blocking = pool.submit(here.client().completions.create, **given)
        wait(lambda: len(slow.asked) > 2)
        streaming = pool.submit(lambda: list(here.client().completions.create(**given, stream=True)))
        wait(lambda: len(here.batcher.waiting) == 1 or len(here.batcher.running) > 1)
        here.server.should_exit = True
        text = blocking.result().choices[0].text
        assert "".join(chunk.choices[0].text for chunk in streaming.result()) == text
        here.thread.join(10)
        assert not here.thread.is_alive() and not here.batcher.thread.is_alive()
        with pytest.raises(openai.APIConnectionError):
            here.client().completions.create(**given)


def test_what_takes_longer_than_the_grace_is_told(wait):
    slow = Slow(load("random"), 0.02)
    with running({"random": slow}, grace=0.2) as here, ThreadPoolExecutor(2) as pool:
        half = socket.create_connection(("127.0.0.1", here.port))
        half.sendall(HEAD.format("/v1/completions", 99).encode() + b"{")  # never sends the rest
        given = {"model": "random", "prompt": "a", "max_tokens": 2000}
        blocking = pool.submit(here.client().completions.create, **given)
        wait(lambda: len(slow.asked) > 2)
        streaming = pool.submit(lambda: list(here.client().completions.create(**given, stream=True)))
        wait(lambda: len(here.batcher.waiting) == 1)
        began = time.monotonic()
        here.server.should_exit = True
        for job in (blocking, streaming):
            assert isinstance(job.exception(), openai.InternalServerError)
            assert "the server stopped before this was decoded" in str(job.exception())
        here.thread.join(10)
        assert not here.thread.is_alive() and time.monotonic() - began < 4
        half.close()
        assert not here.batcher.thread.is_alive()
