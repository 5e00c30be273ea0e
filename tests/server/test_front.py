"""The front of replicas, without Ray: replicas of this process that are lost, late and slow when a test wants it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest
from openai import InternalServerError
from serving import ASK, Running, Slow, begin, hang_up, post

from unmask import Recipe, decode, load
from unmask.errors import InputError
from unmask.server.app import make_app
from unmask.server.limits import Limits
from unmask.server.metrics import Metrics
from unmask.server.middleware import Middleware
from unmask.server.replicas import Plan, to_replicas
from unmask.server.replicas.front import Front, together
from unmask.server.replicas.replica import answered
from unmask.server.request import ServeConfig
from unmask.server.run import serve_app


class Lost(Exception):
    """A replica was lost."""


class Call:
    """The messages of one response; a replica that dies sends no more of them."""

    def __init__(self, messages: Any, dies: int | None, never: bool) -> None:
        self.found: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._run(messages, dies, never))

    async def _run(self, messages: Any, dies: int | None, never: bool) -> None:
        if never:
            await asyncio.Event().wait()
        async with aclosing(messages):
            async for some in messages:
                if dies == 0:
                    self.found.put_nowait(Lost())
                    return
                self.found.put_nowait(some)
                dies = None if dies is None else dies - 1
        self.found.put_nowait(StopAsyncIteration())

    async def __anext__(self) -> Any:
        found = await self.found.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self) -> None:
        self.task.cancel()
        self.found.put_nowait(Lost())


class Here:
    """Replicas in this process. The next calls are lost after so many messages, and `gone` answers nothing."""

    lost = (Lost,)

    def __init__(self, config: ServeConfig) -> None:
        made = [make_app(config) for _ in range(2)]
        self.apps, self.batchers = [app.app for app, _ in made], [batcher for _, batcher in made]
        self.asked, self.dies, self.gone = 0, [], False

    def ask(self, scope: Any, body: bytes) -> Call:
        self.asked += 1
        dies = self.dies.pop(0) if self.dies else None
        return Call(answered(self.apps[self.asked % 2], scope, body), dies, self.gone)

    async def collected(self) -> list[Any]:
        return [(f"r{n}", list(one.metrics.registry.collect())) for n, one in enumerate(self.batchers)]

    def close(self) -> None:
        for one in self.batchers:
            one.close()


@contextmanager
def fronted(token: str | None = None, **limits: Any) -> Iterator[tuple[Running, Here]]:
    """A front in a thread."""
    models = {"table": load("table"), "slow": Slow(load("random"), 0.02)}
    config = ServeConfig(models, {"temperature": 1.0}, Limits(**limits))
    there, found, here = threading.Event(), {}, Here(config)

    def make(local: bool) -> Any:
        metrics = Metrics()
        front = Front(here, config.limits, metrics)
        return Middleware(front, config.limits, metrics, token, local), front

    def ready(url: str, server: Any) -> None:
        found.update(url=url, server=server)
        there.set()

    how: dict[str, Any] = {"token": token, "seconds": None, "on_ready": ready}
    thread = threading.Thread(target=lambda: serve_app(make, config.limits, "127.0.0.1", 0, **how))
    thread.start()
    assert there.wait(20)
    running = Running(found["url"], found["server"], config, thread)
    try:
        yield running, here
    finally:
        running.stop()
        here.close()


LONG: dict[str, Any] = {"model": "slow", "prompt": "a", "stream": True}  # and every step is sent
LONG["extra_body"] = {"search": "best-of-n", "particles": 2}
RIGHT = decode(load("table"), "se", recipe=Recipe(length=4, seed=1, temperature=1.0)).text


def get(here: Running, path: str, **headers: str) -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    line.request("GET", path, headers=headers)
    answer = line.getresponse()
    return answer.status, answer.read().decode()


def value(text: str, name: str, **labels: str) -> float:
    """The sum of a metric over all samples with these labels."""
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(one.split()[-1]) for one in lines if all(f'{k}="{v}"' in one for k, v in labels.items()))


@pytest.fixture(scope="module")
def usual() -> Iterator[tuple[Running, Here]]:
    with fronted(seconds=30.0) as both:
        yield both


def test_answers_are_those_of_one_process(usual: tuple[Running, Here]) -> None:
    here, _ = usual
    client = here.client()
    assert client.completions.create(**ASK).choices[0].text == RIGHT
    parts = list(client.completions.create(**ASK, stream=True))
    assert "".join(part.choices[0].text for part in parts) == RIGHT and len(parts) > 2
    assert get(here, "/healthz")[0] == get(here, "/")[0] == get(here, "/openapi.json")[0] == 200
    assert post(here, b"{}")[0] == 400 and get(here, "/nothing")[0] == 404
    assert [one.id for one in client.models.list()] == ["table", "slow"]


def test_checks_are_those_of_one_process(usual: tuple[Running, Here]) -> None:
    here, replicas = usual
    asked = replicas.asked
    assert get(here, "/", host="elsewhere.example")[0] == 421
    assert post(here, b"x" * (here.config.limits.body + 1))[0] == 413
    with fronted("sesame") as (guarded, behind):
        assert post(guarded, json.dumps(ASK).encode())[0] == 401 and behind.asked == 0
        assert guarded.client("sesame").completions.create(**ASK).choices[0].text == RIGHT
    assert replicas.asked == asked


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_to_another_replica_if_its_own_was_lost_before_the_answer(
    usual: tuple[Running, Here], stream: bool
) -> None:
    here, replicas = usual
    asked, replicas.dies = replicas.asked, [0, 0]
    found = here.client().completions.create(**ASK, stream=stream)
    text = "".join(part.choices[0].text for part in found) if stream else found.choices[0].text
    assert text == RIGHT and replicas.asked == asked + 3
    replicas.dies = [0, 0, 0]
    with pytest.raises(InternalServerError, match="3 replicas were lost with this request"):
        here.client().completions.create(**ASK)


def test_a_stream_that_has_begun_ends_with_an_error(usual: tuple[Running, Here]) -> None:
    here, replicas = usual
    asked, replicas.dies = replicas.asked, [1]
    with pytest.raises(Exception, match="the process that decoded this was lost"):
        list(here.client().completions.create(**ASK, stream=True))
    assert replicas.asked == asked + 1
    replicas.dies = [1]
    status, text = post(here, json.dumps(ASK).encode(), "/v1/paths")
    assert status == 200 and text.decode().rpartition("event: ")[2].startswith("error\ndata: ")


def test_a_client_that_hangs_up_is_cancelled_at_its_replica(
    usual: tuple[Running, Here], wait: Callable[[Callable[[], bool]], None]
) -> None:
    here, replicas = usual

    def running() -> int:
        return sum(len(one.running) for one in replicas.batchers)

    for stream in (False, True):
        wait(lambda: running() == 0)  # the last one of another test
        before = value(get(here, "/metrics")[1], "unmask_choices_total", how="cancelled")
        line = begin(here, {"model": "slow", "prompt": "a", "max_tokens": 500, "stream": stream})
        wait(lambda: running() == 1)
        hang_up(line)
        wait(lambda: running() == 0)

        assert value(get(here, "/metrics")[1], "unmask_choices_total", how="cancelled") == before + 1


def test_metrics_have_the_replica_as_a_label(usual: tuple[Running, Here]) -> None:
    here, _ = usual
    for _ in range(4):
        here.client().completions.create(**ASK)
    text = get(here, "/metrics")[1]
    families = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples and all('replica="' in line for line in samples)
    done = [value(text, "unmask_choices_total", how="done", replica=name) for name in ("r0", "r1")]
    assert min(done) >= 1 and value(text, "unmask_requests_total", replica="front") > sum(done) / 2
    assert value(text, "unmask_requests_total") == value(text, "unmask_requests_total", replica="front")


def test_the_metrics_of_no_replica_are_those_of_the_front() -> None:
    metrics = Metrics()
    metrics.retried.inc(3)
    text = together([("front", list(metrics.registry.collect()))])
    assert value(text, "unmask_retried_total", replica="front") == 3


def test_without_a_replica_health_is_an_error_soon(usual: tuple[Running, Here], monkeypatch: Any) -> None:
    here, replicas = usual
    monkeypatch.setattr("unmask.server.replicas.front.PATIENCE", 0.1)
    replicas.gone = True
    try:
        status, text = get(here, "/healthz")
    finally:
        replicas.gone = False
    assert status == 503 and "no replica answers" in text


def test_a_plan_of_replicas() -> None:
    assert to_replicas("4") == to_replicas("4-4") == 4 and to_replicas("2-8") == (2, 8)
    for wrong in ("0", "8-2", "many", "", "2-"):
        with pytest.raises(InputError, match="give a number from 1 on, or a range like 2-8"):
            to_replicas(wrong)
    limits = Limits(queue=10, batch=32, seconds=60.0)
    some = Plan((2, 8), 0.5, 3).options(limits)
    assert some["autoscaling_config"] == {"min_replicas": 2, "max_replicas": 8, "target_ongoing_requests": 8}
    assert some["max_ongoing_requests"] > limits.queue  # so that 429 is the replica's word
    assert some["graceful_shutdown_timeout_s"] > limits.seconds and "num_replicas" not in some
    fixed = Plan(4, 1, 1).options(limits)
    assert fixed["num_replicas"] == 4 and fixed["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 1}


def test_stopping_finishes_what_has_begun_and_refuses_what_is_new(wait: Callable[[Callable[[], bool]], None]) -> None:
    with fronted(grace=30.0) as (here, replicas):
        body = {"model": "slow", "prompt": "a", "max_tokens": 60}
        client, found = here.client(), []
        threads = [threading.Thread(target=lambda: found.append(client.completions.create(**body))) for _ in range(2)]
        stream = iter(client.completions.create(**LONG, max_tokens=60))
        next(stream)
        for thread in threads:
            thread.start()
        wait(lambda: sum(len([*one.running, *one.waiting]) for one in replicas.batchers) == 3)
        here.server.should_exit = True
        wait(lambda: get(here, "/healthz")[0] == 503)
        assert "the server is stopping" in get(here, "/healthz")[1]
        with pytest.raises(InternalServerError, match="the server is stopping"):
            client.completions.create(**ASK)
        assert sum(1 for _ in stream) >= 60
        for thread in threads:
            thread.join(30)
        assert len(found) == 2 and all(one.choices[0].text for one in found)


def test_after_the_grace_open_requests_get_an_error() -> None:
    with fronted(grace=0.1) as (here, _):
        stream = here.client().completions.create(**LONG, max_tokens=1000)
        next(iter(stream))
        here.server.should_exit = True
        with pytest.raises(Exception, match="the server stopped before this was decoded"):
            list(stream)
