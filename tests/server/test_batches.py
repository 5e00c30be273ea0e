"""Requests that meet in the queue: the same tokens as alone, and nobody's failure is another's."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from serving import Poisoned, Slow, running

from unmask import Recipe, decode, load
from unmask.core.state import State
from unmask.models.wrap import Counted, Wrapped

SETTINGS = {"sampler": "uniform", "search": "smc", "particles": 3, "every": 2}


@dataclass(frozen=True, eq=False)
class ByRow(Wrapped):
    """Takes its time for each row."""

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        time.sleep(0.005 * len(rows))
        return self.inner.look(state, rows)


def at_once(jobs: list[Any]) -> list[Any]:
    """What each gives, or the error that it raises; all begin together."""
    gate = threading.Barrier(len(jobs))

    def run(job: Any) -> Any:
        gate.wait()
        try:
            return job()
        except openai.OpenAIError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def test_stop_sequences_end_the_decoding():
    """As in the library, blocking and streaming; requests with others do not share a batch with it."""
    model = load("text")
    prompt, more = "Tom has 5 apples.", {"sampler": "semi-ar", "block_length": 4}
    whole = decode(model, prompt, length=32, seed=1, temperature=1.0, **more).text
    stops = [whole[:2], whole[: len(whole) // 2], None]
    expected = [decode(model, prompt, length=32, seed=1, temperature=1.0, stop=stop, **more) for stop in stops]
    assert expected[0].evaluations < expected[1].evaluations < expected[2].evaluations
    with running({"text": model}) as here:
        given = {"model": "text", "prompt": prompt, "max_tokens": 32, "seed": 1, "extra_body": more}
        create = here.client().completions.create
        found = at_once([lambda stop=stop: create(**given, stop=stop) for stop in stops])
        *_, last = create(**given, stop=stops[0], stream=True)
    for one, result in zip(found, expected, strict=True):
        assert (one.choices[0].text, one.choices[0].unmask["finish"]) == (result.text, result.finish)
        assert one.unmask["evaluations"] == result.evaluations and one.choices[0].unmask["batch"] == 1
    assert last.unmask["evaluations"] == expected[0].evaluations


def test_together_as_alone():
    """Prompts of several lengths, blocking and streaming, two recipes, one server."""
    model = load("text")
    counted = Counted(model)
    prompts = ["Once upon a time", "One day", "", "Tom has 5 apples. Mia has", "She", "Lily was"]
    with running({"text": counted}) as here:
        client = here.client()

        def ask(place: int, **more: Any) -> Any:
            recipe = SETTINGS if place % 3 else {**SETTINGS, "every": 3}
            given = {"model": "text", "prompt": prompts[place], "max_tokens": 6, "seed": place, "extra_body": recipe}
            return client.completions.create(**given, **more)

        def streamed(place: int) -> str:
            return "".join(choice.text for chunk in ask(place, stream=True) for choice in chunk.choices)

        found = at_once([*[lambda p=p: ask(p) for p in range(6)], *[lambda p=p: streamed(p) for p in range(6)]])
    expected = []
    for place, prompt in enumerate(prompts):
        settings = SETTINGS if place % 3 else {**SETTINGS, "every": 3}
        expected.append(decode(model, prompt, length=6, seed=place, temperature=1.0, **settings))
    for one, result in zip(found[:6], expected, strict=True):
        assert one.choices[0].text == result.text
        assert one.choices[0].unmask["path_entropy"] == pytest.approx(result.path_entropy, abs=1e-4)
        assert one.choices[0].unmask["evaluations"] == result.evaluations
    assert found[6:] == [result.text for result in expected]
    assert max(one.choices[0].unmask["batch"] for one in found[:6]) > 3
    assert counted.count.calls < 12 * 6  # fewer than one by one


def test_a_batch_has_its_limits(wait):
    slow = Slow(load("table"))
    with running({"table": slow}, batch=3, cells=40) as here:
        client = here.client()
        ask = lambda: client.completions.create(model="table", prompt="se", max_tokens=4)  # noqa: E731
        found = at_once([ask] * 8)
        assert max(one.choices[0].unmask["batch"] for one in found) == 3
        particles = {"search": "best-of-n", "particles": 3}  # 18 cells each: two fit
        many = lambda: client.completions.create(model="table", prompt="se", max_tokens=4, extra_body=particles)  # noqa: E731
        found = at_once([many] * 5)
        assert max(one.choices[0].unmask["batch"] for one in found) == 2


def test_a_failure_stays_with_its_request(capfd):
    model = load("table")
    letters = "aenrst"
    bad = Slow(Poisoned(model, letters.index("n"), letters.index("r")))
    with running({"table": bad}) as here:
        client = here.client()
        given = {"model": "table", "max_tokens": 3, "extra_body": {"sampler": "uniform"}}

        def ask(prompt: str, seed: int) -> Any:
            return client.completions.create(prompt=prompt, seed=seed, **given).choices[0].text

        def stream(prompt: str, seed: int) -> Any:
            chunks = client.completions.create(prompt=prompt, seed=seed, stream=True, **given)
            return "".join(choice.text for chunk in chunks for choice in chunk.choices)

        asked = [("se", 1), ("na", 2), ("te", 3), ("ra", 4), ("at", 5)]
        jobs = [lambda a=a, how=how: how(*a) for how in (ask, stream) for a in asked]
        found = at_once(jobs)
        for (prompt, seed), text in zip([*asked, *asked], found, strict=True):
            if prompt == "na":
                assert isinstance(text, openai.InternalServerError)
                assert "decoding failed with RuntimeError" in str(text)
            elif prompt == "ra":
                assert isinstance(text, openai.InternalServerError)
                assert "gave logits that are NaN" in str(text)
            else:
                recipe = Recipe(sampler="uniform", length=3, seed=seed, temperature=1.0)
                assert text == decode(model, prompt, recipe=recipe).text
        assert "unmask_retried_total" in here.batcher.metrics.text()
        assert ask("se", 1) == found[0]
    assert "RuntimeError: poison" in capfd.readouterr().err


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_failures_of_every_kind_stay_with_their_request(error, wait):
    gate, model = threading.Event(), load("table")

    class Gated(Slow):
        def look(self, state: Any, rows: Any) -> Any:
            gate.wait(20)
            return super().look(state, rows)

    bad = Gated(Poisoned(model, "aenrst".index("n"), -1, error), 0)
    with running({"table": bad}) as here, ThreadPoolExecutor(5) as pool:
        client = here.client()
        pool.submit(client.completions.create, model="table", prompt="s", max_tokens=2)  # the others wait for it
        wait(lambda: len(here.batcher.running) == 1)
        given = {"model": "table", "max_tokens": 3, "extra_body": {"sampler": "uniform"}}
        asked = [("se", 1), ("na", 2), ("te", 3), ("at", 4)]
        jobs = [pool.submit(client.completions.create, prompt=prompt, seed=seed, **given) for prompt, seed in asked]
        wait(lambda: len(here.batcher.waiting) == 4)
        gate.set()
        found = [job.exception() or job.result() for job in jobs]
        for (prompt, seed), one in zip(asked, found, strict=True):
            if prompt == "na":
                assert isinstance(one, openai.InternalServerError) and error.__name__ in str(one)
            else:
                recipe = Recipe(sampler="uniform", length=3, seed=seed, temperature=1.0)
                assert one.choices[0].text == decode(model, prompt, recipe=recipe).text
        assert "unmask_retried_total 4.0" in here.batcher.metrics.text()  # they were together


def test_a_failure_after_some_steps_repeats_nothing():
    """A batch fails in its third step: whoever has heard two steps hears the rest, once."""

    class Late(Slow):
        def look(self, state: Any, rows: Any) -> Any:
            if len(self.asked) == 2 and len(rows) > 1:
                self.asked.append(0)
                raise RuntimeError("once")
            return super().look(state, rows)

    model = load("table")
    with running({"table": Late(model, 0.05)}) as here:
        client = here.client()
        given = {
            "model": "table",
            "prompt": "",
            "max_tokens": 6,
            "extra_body": {"sampler": "semi-ar", "block_length": 1},
        }
        streams = at_once([lambda s=s: list(client.completions.create(**given, seed=s, stream=True)) for s in (1, 2)])
        recipe = Recipe(sampler="semi-ar", block_length=1, length=6, temperature=1.0)
        for seed, chunks in zip((1, 2), streams, strict=True):
            assert "".join(c.choices[0].text for c in chunks) == decode(model, recipe=recipe.replace(seed=seed)).text
            assert len(chunks) == 7


def test_other_models_and_recipes_wait_their_turn():
    with running({"table": Slow(load("table")), "random": load("random")}) as here:
        client = here.client()
        one = {"prompt": "se", "max_tokens": 3, "seed": 1}
        jobs = [lambda: client.completions.create(model="table", **one).choices[0].text] * 3
        jobs += [lambda: client.completions.create(model="random", **one).choices[0].text] * 3
        jobs += [lambda: client.completions.create(model="table", **one, temperature=0).choices[0].text] * 3
        found = at_once(jobs)
    assert len(set(found[:3])) == len(set(found[3:6])) == len(set(found[6:])) == 1


def test_a_large_request_gives_way_to_small_ones(wait):
    model = load("random")
    slow = Slow(model, 0.01)
    with running({"random": slow, "table": load("table")}) as here, ThreadPoolExecutor(1) as pool:
        client = here.client()
        large = pool.submit(client.completions.create, model="random", prompt="a", max_tokens=120, seed=3)
        wait(lambda: len(slow.asked) > 2)
        for seed, name in ((1, "table"), (2, "random")):
            given = {"model": name, "prompt": "", "max_tokens": 4, "seed": seed}
            recipe = Recipe(length=4, seed=seed, temperature=1.0)
            assert client.completions.create(**given).choices[0].text == decode(load(name), recipe=recipe).text
            streamed = client.completions.create(**given, stream=True)
            assert "".join(chunk.choices[0].text for chunk in streamed) == decode(load(name), recipe=recipe).text
            assert not large.done()
        recipe = Recipe(length=120, seed=3, temperature=1.0)
        assert large.result().choices[0].text == decode(model, "a", recipe=recipe).text


def test_equal_requests_are_served_in_order(wait, monkeypatch):
    """One that came later does not overtake a batch of its like, however small it is beside the whole batch."""
    for name in ("LINGER", "LONGEST"):  # the first four form a batch on a slow machine, too
        monkeypatch.setattr(f"unmask.server.batcher.thread.{name}", 10.0)
    slow = Slow(load("random"), 0.03)
    with running({"random": slow}, batch=4) as here, ThreadPoolExecutor(5) as pool:
        client = here.client()
        ask = lambda: client.completions.create(model="random", prompt="a", max_tokens=20) and time.monotonic()  # noqa: E731
        first = [pool.submit(ask) for _ in range(4)]
        wait(lambda: len(slow.asked) > 2)
        monkeypatch.undo()
        later = pool.submit(ask)
        assert later.result() > max(one.result() for one in first)
        assert max(slow.asked) == 4


def test_a_batch_takes_no_more_than_it_can_answer_in_time():
    """Of more large requests than the time allows, some are answered instead of none."""
    with running({"random": ByRow(load("random"))}, seconds=4) as here:
        client = here.client()
        given = {"model": "random", "prompt": "a", "max_tokens": 32, "extra_body": {"search": "smc", "particles": 8}}
        ask = lambda: client.completions.create(**given).choices[0].text  # noqa: E731
        ask()  # in 1.3 seconds; four together take 5
        late = [one for one in at_once([ask] * 4) if isinstance(one, openai.APIStatusError)]
    assert 1 <= len(late) <= 3
    assert {one.status_code for one in late} == {408}


def test_small_requests_take_at_most_half_of_the_time(wait):
    """A stream of small ones does not starve the large one."""
    slow = Slow(load("random"), 0.01)
    with running({"random": slow}) as here, ThreadPoolExecutor(3) as pool:
        client, stop = here.client(), threading.Event()

        def small() -> int:
            count = 0
            while not stop.is_set():
                client.completions.create(model="random", prompt="a", max_tokens=4)
                count += 1
            return count

        large = pool.submit(client.completions.create, model="random", prompt="a", max_tokens=100, seed=3)
        wait(lambda: len(slow.asked) > 2)
        others = [pool.submit(small) for _ in range(2)]
        try:
            assert large.result().choices[0].unmask["steps"] == 100
            assert len(slow.asked) < 300  # about 200; 500 if each of its steps waited for a small one
        finally:
            stop.set()
        assert all(other.result() > 1 for other in others)


def test_paths_in_waves():
    """A stop over HTTP is that of the library, blocking and streaming; all its possible paths count as its size."""
    model = load("table")
    stop = {"sampler": "uniform", "search": "auto", "particles": 4, "most": 8, "until": 0.4}
    with running({"table": model}) as here:
        client = here.client()

        def ask(seed: int, **more: Any) -> Any:
            given = {"model": "table", "prompt": "s", "max_tokens": 5, "seed": seed, "extra_body": stop | more}
            return client.completions.create(**given)

        found = at_once([lambda s=s: ask(s) for s in range(6)])
        given = {"model": "table", "prompt": "s", "max_tokens": 5, "seed": 2, "extra_body": stop, "stream": True}
        streamed = "".join(choice.text for chunk in client.completions.create(**given) for choice in chunk.choices)
        with pytest.raises(openai.APIStatusError, match="particles × 6 positions"):
            ask(0, most=2**20)
        with pytest.raises(openai.BadRequestError, match="goes by a reward"):
            ask(0, search="best-of-n", choose="reward", until=None, most=None)
    expected = [decode(model, "s", length=5, seed=seed, temperature=1.0, **stop) for seed in range(6)]
    for one, result in zip(found, expected, strict=True):
        about = one.choices[0].unmask
        assert one.choices[0].text == result.text and len(about["particles"]) == len(result.particles)
        assert (about["evaluations"], about["rows"]) == (result.evaluations, result.rows)
    assert streamed == expected[2].text
    assert len({len(result.particles) for result in expected}) > 1
