"""Requests that join a running batch between its waves: they get the rows that others freed, and nothing else changes.

On `table`, after no prompt all 32 paths are decoded, in six waves of five steps; after "s" most seeds need one path.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from serving import Poisoned, Running, Slow, begin, hang_up, post, running

from unmask import Recipe, Result, decode, load
from unmask.core.state import State
from unmask.decoding import trace
from unmask.models.wrap import Wrapped
from unmask.server.batcher import Batcher, QueuedChoice
from unmask.server.batcher.batch import Batch
from unmask.server.limits import Limits
from unmask.server.metrics import Metrics

STOP = {"sampler": "uniform", "search": "auto", "particles": 4, "most": 32, "until": 0.4}
QUICK = [0, 2, 4, 6, 7]  # seeds that need one path after "s"
SECONDS = 0.01  # of a step


@dataclass(frozen=True, eq=False)
class Held(Slow):
    """Waits in its first step until it may go, and again where it is told to."""

    go: threading.Event = field(default_factory=threading.Event)
    again: set[int] = field(default_factory=set)  # calls before which it waits

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if len(self.asked) in self.again:
            self.again.clear()
            self.go.clear()
        assert self.go.wait(20)
        return super().look(state, rows)


def alone(prompt: str, seed: int, **more: Any) -> Result:
    return decode(load("table"), prompt, length=5, seed=seed, temperature=1.0, **{**STOP, **more})


def body(prompt: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"model": "table", "prompt": prompt, "max_tokens": 5, "seed": seed, **STOP, **more}


@dataclass(frozen=True)
class Crowd:
    """Clients of a server whose first step waits, and when each of them has its answer."""

    here: Running
    held: Held
    pool: ThreadPoolExecutor
    wait: Callable[[Callable[[], bool]], None]

    def ask(self, prompt: str, seed: int, path: str = "/v1/completions", **more: Any) -> Future[tuple[float, Any]]:
        """A request that is queued when this returns, the first one begun; its answer, and when it came."""
        inside = self.inside()

        def timed() -> tuple[float, Any]:
            found = self.answer(prompt, seed, path, **more)
            return time.monotonic(), found

        job = self.pool.submit(timed)
        self.wait(lambda: self.inside() > inside)
        self.wait(lambda: len(self.here.batcher.running) > 0)
        return job

    def answer(self, prompt: str, seed: int, path: str = "/v1/completions", **more: Any) -> Any:
        """The answer to a request; its status and its error, if it has one."""
        status, found = post(self.here, json.dumps(body(prompt, seed, **more)).encode(), path)
        return found if status == 200 else (status, found)

    def go_to(self, call: int) -> None:
        """All steps before this call of the network, and none after it."""
        self.held.again.add(call)
        self.held.go.set()
        self.wait(lambda: not self.held.again)

    def inside(self) -> int:
        return len(self.here.batcher.waiting) + len(self.here.batcher.running)

    def metric(self, name: str) -> float:
        line = next(line for line in self.here.batcher.metrics.text().splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])


@pytest.fixture
def crowd(request: pytest.FixtureRequest, wait: Any) -> Iterator[Crowd]:
    """A server of `table`; the parameter has what it wraps and its limits."""
    wraps, limits = getattr(request, "param", (lambda model: model, {}))
    held = Held(wraps(load("table")), SECONDS)
    try:
        with running({"table": held, "random": load("random")}, **limits) as here, ThreadPoolExecutor(16) as pool:
            yield Crowd(here, held, pool, wait)
            held.go.set()
    finally:
        held.go.set()


def same(found: Any, expected: Result) -> None:
    about = found["choices"][0]["unmask"]
    assert found["choices"][0]["text"] == expected.text
    assert [one["text"] for one in about["particles"]] == [one.text for one in expected.particles]
    assert (about["evaluations"], about["rows"]) == (expected.evaluations, expected.rows)


def test_a_request_joins_and_is_answered_before_the_slowest(crowd):
    slow = crowd.ask("", 1)
    quick = [crowd.ask("s", seed) for seed in QUICK]
    events = crowd.ask("s", QUICK[0], "/v1/paths")
    crowd.held.go.set()
    end, found = slow.result()
    assert crowd.metric("unmask_joined_total") == 6
    for job, seed in zip(quick, QUICK, strict=True):
        then, one = job.result()
        assert then < end
        same(one, alone("s", seed))
        assert one["choices"][0]["unmask"]["batch"] == 7 and one["choices"][0]["unmask"]["waited"] > 0
    assert events.result()[0] < end and b"event: end" in events.result()[1]
    same(found, alone("", 1))
    assert max(crowd.held.asked) <= 7 * 4


def test_a_stopped_run_is_a_prefix_in_company(crowd):
    """Seeds that need 1 to 16 paths, all but the first joined: each is the beginning of the run of all paths."""
    jobs = [(prompt, seed, crowd.ask(prompt, seed)) for prompt, seed in [("", 1), *(("s", seed) for seed in range(9))]]
    crowd.held.go.set()
    lengths = set()
    for prompt, seed, job in jobs:
        found = job.result()[1]
        same(found, alone(prompt, seed))
        whole = alone(prompt, seed, until=None, most=None, particles=32)
        texts = [one["text"] for one in found["choices"][0]["unmask"]["particles"]]
        assert texts == [one.text for one in whole.particles][: len(texts)]
        lengths.add(len(texts))
    assert {1, 2, 4, 16, 32} <= lengths


def events_of(text: bytes) -> list[trace.Event]:
    return [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]


def rounded(value: Any) -> Any:
    """JSON whose floats may differ by the company."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def test_events_and_logprobs_are_those_alone(crowd):
    """Each first in company, then alone; more log-probabilities than the first choice of the batch asks for."""
    some = {"sampler": "eb", "escalate": "confidence steps=3; uniform", "particles": 2, "most": None, "until": 0.05}
    asked = [("", 1, {"logprobs": 1}), ("s", 2, {"logprobs": 4}), ("te", 3, {"logprobs": 2})]
    paths = [("s", 4), ("re", 5)]
    jobs = [crowd.ask(prompt, seed, **some, max_tokens=4, **more) for prompt, seed, more in asked]
    jobs += [crowd.ask(prompt, seed, "/v1/paths", **some, max_tokens=4) for prompt, seed in paths]
    crowd.held.go.set()
    together = [job.result()[1] for job in jobs]
    assert crowd.metric("unmask_joined_total") >= 2
    for (prompt, seed, more), found in zip(asked, together, strict=False):
        again = crowd.answer(prompt, seed, **some, max_tokens=4, **more)
        assert rounded(found["choices"][0]["logprobs"]) == rounded(again["choices"][0]["logprobs"])
        assert found["choices"][0]["text"] == again["choices"][0]["text"]
    for (prompt, seed), found in zip(paths, together[3:], strict=True):
        events, own = events_of(found), list[trace.Event]()
        again = events_of(crowd.answer(prompt, seed, "/v1/paths", **some, max_tokens=4))
        recipe = Recipe(**{**STOP, **some}, temperature=1.0, length=4, seed=seed)
        decode(load("table"), prompt, recipe=recipe, on_event=own.append)
        for one in (events[-1], again[-1], own[-1]):
            one.pop("seconds")
        assert rounded(events) == rounded(again) == rounded(own)


@pytest.mark.parametrize("crowd", [(lambda model: model, {"batch": 3, "cells": 5 * 32 * 6})], indirect=True)
def test_a_batch_that_is_refilled_has_its_limits(crowd):
    jobs = [crowd.ask("", 1), *(crowd.ask("s", seed) for seed in range(12))]
    crowd.held.go.set()
    found = [job.result()[1]["choices"][0]["unmask"]["batch"] for job in jobs]
    assert max(found) == 3 and crowd.metric("unmask_joined_total") == 12
    assert max(crowd.held.asked) <= 16  # the widest wave of one prompt; three prompts have 12 rows


@pytest.mark.parametrize("crowd", [(lambda model: model, {"cells": 2 * 32 * 6})], indirect=True)
def test_cells_bound_who_joins(crowd):
    jobs = [crowd.ask("", 1), *(crowd.ask("s", seed) for seed in range(6))]
    crowd.held.go.set()
    assert max(job.result()[1]["choices"][0]["unmask"]["batch"] for job in jobs) == 2


def test_another_kind_is_not_starved(crowd):
    """A stream of requests that could keep the batch alive for ever ends when another kind is the next in turn."""
    stop = threading.Event()
    crowd.held.go.set()

    def stream(number: int) -> int:
        count = 0
        while not stop.is_set():
            crowd.answer("", number * 1000 + count)
            count += 1
        return count

    others = [crowd.pool.submit(stream, number) for number in range(4)]
    try:
        crowd.wait(lambda: crowd.metric("unmask_joined_total") > 3)
        plain = {"until": None, "most": None, "particles": 32}  # as large as one of the others: none gives way to it
        same(crowd.answer("s", 3, **plain), alone("s", 3, **plain))
    finally:
        stop.set()
    assert all(job.result() > 1 for job in others)


def choice(client: str, seed: int, until: float = 0.4, prompt: str = "s") -> QueuedChoice:
    recipe = Recipe(**{**STOP, "until": until}, length=5)
    ids = load("table").tokenizer.encode(prompt)
    return QueuedChoice("table", ids, True, recipe, seed, 6, time.monotonic() + 60, print, client=client)


@pytest.fixture
def idle() -> Batcher:
    """A batcher without its thread."""
    batcher = Batcher({"table": load("table")}, Limits(batch=8), Metrics())
    batcher.close()
    batcher.join(5)
    batcher.closing = batcher.ended = False
    return batcher


def test_choices_join_in_the_fair_order(idle):
    """The client served least first, then by age; the first of another kind ends it, though more would fit."""
    idle.submit([choice("greedy", seed) for seed in range(6)])
    batch = Batch(idle._taken()[:1], refills=True)  # as if five had been answered
    idle.submit([choice("greedy", seed) for seed in range(6, 9)])
    idle.submit([choice("modest", 10), choice("modest", 11)])
    idle.served |= {"modest": 0.0}
    one = batch.first.work
    idle.served["greedy"] = 1.5 * one
    assert [choice.seed for choice in idle._joining(batch)] == [10, 11, 6, 7, 8]
    assert idle.served == {"greedy": 4.5 * one, "modest": 2.0 * one}
    batch.choices = batch.choices[:1]
    idle.submit([choice("greedy", 12), choice("other", 13, until=0.3), choice("modest", 14)])
    idle.served = {"greedy": 0.0, "other": 0.5 * one, "modest": 0.7 * one}
    assert [choice.seed for choice in idle._joining(batch)] == [12]
    assert idle._joining(batch) == [] and [choice.seed for choice in idle.waiting] == [13, 14]


def test_who_would_make_others_late_does_not_join(idle):
    batch = Batch([choice("a", 1)], refills=True)
    idle.pace["table"] = batch.first.work / 10  # twenty seconds for each, at half of the time
    idle.submit([choice("b", seed) for seed in range(4)])
    assert len(idle._joining(batch)) == 1  # two have forty seconds of sixty, three would have sixty
    assert len(idle.waiting) == 3


def test_a_batch_inside_another_is_not_refilled(wait):
    """A large request gives way to those that came in time; the next ones wait until it had its share."""
    models = {"random": Slow(load("random"), SECONDS), "table": Slow(load("table"), SECONDS)}
    with running(models) as here, ThreadPoolExecutor(8) as pool:
        large = begin(here, {"model": "random", "prompt": "a", "max_tokens": 2000, "stream": True})
        wait(lambda: len(models["random"].asked) > 2)
        jobs = [pool.submit(post, here, json.dumps(body("", 0)).encode())]
        wait(lambda: here.batcher.nested == 2)
        jobs += [pool.submit(post, here, json.dumps(body("", seed)).encode()) for seed in (1, 2)]
        for seed, job in enumerate(jobs):
            same(job.result()[1], alone("", seed))
        assert len(here.batcher.running) == 1 and "unmask_joined_total 0.0" in here.batcher.metrics.text()
        hang_up(large)


@pytest.mark.parametrize("crowd", [(lambda model: model, {"batch": 2})], indirect=True)
def test_a_hang_up_inside_makes_room(crowd):
    """Two places, both with prompts that need all paths; the joined one leaves, and the next takes its place."""
    slow = crowd.ask("", 1)
    line = begin(crowd.here, body("", 2, stream=True))
    crowd.wait(lambda: crowd.inside() == 2)
    quick = crowd.ask("s", QUICK[0])
    crowd.go_to(7)  # in the second wave
    assert crowd.metric("unmask_joined_total") == 1
    hang_up(line)
    crowd.wait(lambda: 'how="cancelled"} 1' in crowd.here.batcher.metrics.text())
    crowd.held.go.set()
    then, found = quick.result()
    same(found, alone("s", QUICK[0]))
    end, found = slow.result()
    assert then < end and crowd.metric("unmask_joined_total") == 2
    same(found, alone("", 1))


def test_a_hang_up_before_joining(crowd):
    slow = crowd.ask("", 1)
    line = begin(crowd.here, body("s", QUICK[0], stream=True))
    crowd.wait(lambda: crowd.inside() == 2)
    hang_up(line)
    crowd.wait(lambda: 'how="cancelled"} 1' in crowd.here.batcher.metrics.text())
    crowd.held.go.set()
    same(slow.result()[1], alone("", 1))
    assert crowd.metric("unmask_joined_total") == 0


@dataclass(frozen=True, eq=False)
class Lasting(Wrapped):
    """Takes long for rows that begin with a certain token."""

    token: int
    seconds: float

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        first = state.tokens[rows].gather(1, state.attend[rows].long().argmax(1)[:, None])[:, 0]
        if bool((first == self.token).any()):
            time.sleep(self.seconds)
        return self.inner.look(state, rows)


@pytest.mark.parametrize("place", [0, 1])
def test_a_deadline_inside_is_that_of_one_request(crowd, place):
    """The request with which the batch began, or one that joined it, is late: the other is answered."""
    jobs = [crowd.ask("", 1), crowd.ask("", 2)]
    crowd.go_to(12)
    assert crowd.metric("unmask_joined_total") == 1
    crowd.here.batcher.running[place].deadline = time.monotonic()
    crowd.held.go.set()
    status, found = jobs[place].result()[1]
    assert status == 408 and "not decoded within 120 seconds" in found["error"]["message"]
    same(jobs[1 - place].result()[1], alone("", 2 - place))
    assert 'how="late"} 1' in crowd.here.batcher.metrics.text()


@pytest.mark.parametrize(
    "crowd", [(lambda model: Poisoned(model, "aenrst".index("n"), -1), {"batch": 4})], indirect=True
)
def test_a_failure_of_one_that_joined_stays_with_it(crowd, capfd):
    """All others are answered, with each event once; nobody joins those that are decoded one by one after it."""
    slow = crowd.ask("r", 9, "/v1/paths")
    bad = crowd.ask("n", 2)
    quick = [crowd.ask("s", seed) for seed in QUICK]
    crowd.held.go.set()
    status, error = bad.result()[1]
    assert status == 500 and "decoding failed with RuntimeError" in error["error"]["message"]
    for job, seed in zip(quick, QUICK, strict=True):
        same(job.result()[1], alone("s", seed))
    events, own = events_of(slow.result()[1]), list[trace.Event]()
    decode(load("table"), "r", length=5, seed=9, temperature=1.0, **STOP, on_event=own.append)
    assert [one["event"] for one in events] == [one["event"] for one in own]
    assert list(trace.replay(events)) == list(trace.replay(own))
    assert crowd.metric("unmask_retried_total") == 4 and crowd.metric("unmask_joined_total") == 3
    assert "RuntimeError: poison" in capfd.readouterr().err


def test_a_server_that_stops_answers_those_that_wait_for_rows(crowd):
    jobs = [crowd.ask("", 1), *(crowd.ask("s", seed) for seed in QUICK)]
    crowd.here.server.should_exit = True
    crowd.held.go.set()
    for job, (prompt, seed) in zip(jobs, [("", 1), *(("s", seed) for seed in QUICK)], strict=True):
        same(job.result()[1], alone(prompt, seed))
    crowd.here.thread.join(10)
    assert not crowd.here.thread.is_alive() and not crowd.here.batcher.thread.is_alive()


@pytest.mark.parametrize(
    "crowd", [(lambda model: Lasting(model, "aenrst".index("s"), 0.2), {"grace": 0.3})], indirect=True
)
def test_those_that_joined_are_told_when_the_server_stops(crowd):
    jobs = [crowd.ask("", 1), crowd.ask("s", 5), crowd.ask("s", 22)]
    crowd.go_to(8)  # in the second wave, whose steps take long from here on
    assert crowd.metric("unmask_joined_total") == 2
    crowd.here.server.should_exit = True
    crowd.held.go.set()
    for job in jobs[1:]:
        status, error = job.result()[1]
        assert status == 503 and "the server stopped before this was decoded" in error["error"]["message"]
    crowd.here.thread.join(10)
    assert not crowd.here.batcher.thread.is_alive()
