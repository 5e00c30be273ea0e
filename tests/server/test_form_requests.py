"""response_format, matches and choices over HTTP, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import ASK, begin, hang_up, right, running

from unmask import load
from unmask.decoding import form as forms
from unmask.server.limits import Limits, Refusal
from unmask.server.turns import Turns

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Who are you?"}]


def test_json_schema_in_a_chat(client: OpenAI) -> None:
    for more in ({}, {"temperature": 1.0, "extra_body": {"search": "smc", "particles": 3}}):
        found = client.chat.completions.create(
            model="chatty", messages=MESSAGES, response_format=FORMAT, max_tokens=48, seed=1, **more
        )
        about = json.loads(found.choices[0].message.content)
        assert set(about) == {"name", "age"} and 1 <= about["age"] <= 99 and len(about["name"]) <= 8


def test_json_object_whole_and_as_a_stream(client: OpenAI) -> None:
    how = {
        "model": "chatty",
        "messages": MESSAGES,
        "response_format": {"type": "json_object"},
        "max_tokens": 16,
        "seed": 2,
    }
    whole = client.chat.completions.create(**how).choices[0].message.content
    assert isinstance(json.loads(whole), dict)
    chunks = client.chat.completions.create(**how, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == whole


def test_patterns_and_choices(client: OpenAI) -> None:
    found = client.completions.create(
        model="text", prompt=["Tom has", "Mia has"], max_tokens=8, n=2, extra_body={"matches": r" \d\d? [a-z]{3,5}\."}
    )
    assert all(re.fullmatch(r" \d\d? [a-z]{3,5}\.", one.text) for one in found.choices) and len(found.choices) == 4
    body = {"choices": [" red", " blue"]}
    assert (
        client.completions.create(model="text", prompt="It is", max_tokens=4, extra_body=body).choices[0].text
        in body["choices"]
    )
    body = {"canvas": "I see[MASK*3] and[MASK*2].", "matches": [r" \d+", " (a|b)"]}
    text = client.completions.create(model="text", prompt="", extra_body=body).choices[0].text
    assert re.fullmatch(r"I see \d+ and (a|b)\.", text)
    text = (
        client.completions.create(model="text", prompt="A", suffix=" B", max_tokens=5, extra_body={"matches": "x+"})
        .choices[0]
        .text
    )
    assert re.fullmatch("x+", text)


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"matches": "(a"}, "matches", "is not a regular expression"),
        ({"matches": "a{9}"}, "matches", "needs 9 positions|needs . positions, and there are 4|no text"),
        ({"matches": "(a|b)*a(a|b){20}"}, "matches", "too large"),
        ({"choices": []}, "choices", "a list of texts that is not empty"),
        ({"matches": "a", "choices": ["a"]}, "choices", "exclude each other"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "goes with type json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "it must be an object like"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "'not' is not carried",
        ),
        ({"matches": "a", "stop": "b"}, "stop", "would cut"),
        ({"constrained_entropy": True}, "constrained_entropy", "without a constraint"),
    ],
)
def test_refusals_name_the_field(client: OpenAI, body: dict[str, object], param: str, why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as caught:
        client.completions.create(model="text", prompt="Q", max_tokens=4, extra_body=body)
    assert caught.value.param == param and "\n" not in str(caught.value.body["message"])


def test_constraints_that_take_long_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took all threads of the server: nothing was read until all were compiled, and nothing decoded either."""
    compiled, begun = forms.compiled, threading.Event()

    def slow(*given: Any) -> Any:
        begun.set()
        time.sleep(0.5)
        return compiled(*given)

    with running({"table": load("table")}) as here:
        right(here)
        monkeypatch.setattr(forms, "compiled", slow)
        lines = [begin(here, {**ASK, "matches": f"a{{1,{3 + place}}}|b"}) for place in range(60)]
        assert begun.wait(10)
        time.sleep(0.3)
        began = time.monotonic()
        right(here)
        assert time.monotonic() - began < 4
        for line in lines:
            hang_up(line)
        began = time.monotonic()
    assert time.monotonic() - began < 10  # it stops without compiling what is left


def test_clients_with_constraints_take_turns() -> None:
    async def served() -> None:
        turns, done = Turns(Limits(queue=40)), list[str]()

        def work(name: str) -> Callable[[], None]:
            return lambda: (time.sleep(0.02), done.append(name))[1]

        many = [asyncio.ensure_future(turns.run("many", work("many"))) for _ in range(60)]
        await asyncio.sleep(0.05)
        await turns.run("one", work("one"))
        place = done.index("one")
        answers = await asyncio.gather(*many, return_exceptions=True)
        turns.close()
        refused = [one for one in answers if isinstance(one, Refusal) and one.status == 429]
        assert len(refused) >= 20 and done.count("many") == 60 - len(refused)
        assert not turns.waiting and not turns.locks
        assert place < 12

    asyncio.run(served())
