"""response_format, matches and choices over HTTP, by OpenAI's own client."""

from __future__ import annotations

import json
import re

import openai
import pytest
from openai import OpenAI

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
