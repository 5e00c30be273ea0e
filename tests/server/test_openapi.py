"""The OpenAPI document against the server: whatever it allows is answered, and as it says."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from serving import Running, running

from unmask import SAMPLERS, SEARCHES, load
from unmask.decoding.settings import ALIASES, SETTINGS
from unmask.server import refusals

FIELDS = [*SETTINGS, *ALIASES, *["prompt", "canvas", "stop", "stream", "n", "logprobs", "max_tokens", "suffix"] * 3]


@pytest.fixture(scope="module")
def here(tiny_llada: Any) -> Iterator[Running]:
    usual = {"temperature": 1.0, "length": 4}
    with running({"table": load("table"), "chatty": tiny_llada}, seconds=0.25, usual=usual) as here:
        yield here


def document(here: Running) -> dict[str, Any]:
    line = http.client.HTTPConnection("127.0.0.1", here.port)
    line.request("GET", "/openapi.json")
    return json.loads(line.getresponse().read())


def test_every_setting_is_in_the_document(here):
    found = document(here)["components"]["schemas"]
    for name in ("CompletionRequest", "ChatCompletionRequest", "PathsRequest"):
        fields = found[name]["properties"]
        assert {*SETTINGS, *ALIASES} <= set(fields) and found[name]["additionalProperties"] is False
        assert fields["sampler"]["anyOf"][0]["enum"] == list(SAMPLERS)
        assert fields["search"]["anyOf"][0]["enum"] == list(SEARCHES)
    for body in refusals.BODIES.values():  # each has words for what it must be
        assert {ALIASES.get(field, field) for field in body.model_fields} <= set(refusals.WANTED)
    assert "422" not in json.dumps(document(here)["paths"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/paths", "GET"])
def test_nothing_that_the_document_allows_breaks_the_server(here, path):
    schema = schemathesis.openapi.from_dict(document(here))
    schema.config.update(base_url=here.url)
    schema = schema.include(method="GET") if path == "GET" else schema.include(path=path)
    answered: dict[int, int] = {}

    @hypothesis.settings(
        max_examples=int(os.environ.get("UNMASK_EXAMPLES", "40")),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=strategy(schema), few=hypothesis.strategies.sets(hypothesis.strategies.sampled_from(FIELDS)))
    def holds(case: Any, few: set[str]) -> None:
        if isinstance(case.body, dict):  # few fields, so that more than the first check is reached; models that exist
            case.body = {name: value for name, value in case.body.items() if name in {*few, "messages"}}
            case.body["model"] = "chatty" if "messages" in case.body else "table"
        response = case.call()
        answered[response.status_code] = answered.get(response.status_code, 0) + 1
        case.validate_response(response, checks=CHECKS)

    holds()
    assert answered[200] > 5, answered


def strategy(schema: Any) -> Any:
    found = [operation.ok().as_strategy() for operation in schema.get_all_operations()]
    assert found
    return hypothesis.strategies.one_of(found)


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
