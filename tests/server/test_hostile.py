"""Requests that want to hold up the server for everyone else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import ValidationError
from serving import post, right

from unmask.server import schemas

MANY = 330_000
FLOODS = {
    "a prompt of objects": ("/v1/completions", {"prompt": [{}] * MANY}),
    "a canvas of texts": ("/v1/completions", {"canvas": ["a"] * (MANY // 2)}),
    "a ban of objects": ("/v1/completions", {"prompt": "s", "ban": [{}] * MANY}),
    "messages": ("/v1/chat/completions", {"messages": [1] * MANY}),
    "parts of a message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * MANY}]}),
    "a path's prompt": ("/v1/paths", {"prompt": ["a"] * (MANY // 2)}),
    "unknown fields": ("/v1/completions", {f"f{place}": 0 for place in range(90_000)}),
    "metadata": ("/v1/completions", {"prompt": "s", "metadata": {f"f{place}": 0 for place in range(90_000)}}),
}


@pytest.mark.parametrize(("path", "given"), FLOODS.values(), ids=FLOODS)
def test_a_flood_of_values_is_refused_at_once(usual, path: str, given: dict[str, Any]):
    body = json.dumps({"model": "table", **given}, separators=(",", ":")).encode()
    assert len(body) < usual.config.limits.body
    began = time.process_time()
    status, said = post(usual, body, path)
    assert status == 413 and ("values" in said["error"]["message"] or "fields" in said["error"]["message"])
    assert time.process_time() - began < 0.7  # of all threads; 1 to 7 s if every value is validated
    right(usual)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (schemas.Completion, {"prompt": [{}] * 999}),
        (schemas.Completion, {"prompt": [[{}] * 999] * 9}),
        (schemas.Completion, {"canvas": ["a"] * 999}),
        (schemas.Completion, {"ban": [{}] * 999}),
        (schemas.Chat, {"messages": [1] * 999}),
        (schemas.Chat, {"messages": [{"role": "user", "content": [1] * 999}] * 9}),
        (schemas.Chat, {"messages": [{"role": "user", "content": "a"}], "modalities": [1] * 999}),
        (schemas.Paths, {"prompt": ["a"] * 999}),
    ],
)
def test_one_error_of_a_list_is_enough(kind, given):
    with pytest.raises(ValidationError) as caught:
        kind(model="table", **given)
    assert caught.value.error_count() < 10
