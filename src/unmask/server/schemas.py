"""The table of settings -> what a request may hold: OpenAI's fields, and every setting of a Recipe.

The OpenAPI document is made of it. Types are checked here; Recipe checks ranges and combinations, in its own words.
Settings of a user's own are in it if they are registered before this module is imported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from unmask.decoding.settings import ALIASES, Setting, explained, known

LENGTHS = ("max_tokens", "max_completion_tokens")  # what clients call `length`
STOPS = 4  # stop sequences of a request, as at OpenAI
Stop = str | Annotated[list[str], Field(max_length=STOPS)]
FIRST = Field(fail_fast=True)  # one error of a list is enough; to collect thousands takes seconds
Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Patterns = Annotated[list[str | None], Field(min_length=1, fail_fast=True)]
Choices = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Prompts = Annotated[list[Ids], Field(min_length=1, fail_fast=True)]


PUZZLE = "for models of puzzles: a Sudoku of 81 characters, . or 0 for a blank, or a countdown like 15,44,79,50"


class Wire(BaseModel):
    """An object of a request: unknown fields are refused, types are exact."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(Wire):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="a last chunk with the usage of the whole request")
    include_obfuscation: Literal[False] | None = None


class Part(Wire):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Wire):
    """A message of a dialogue, as the model's chat template writes it; `developer` is `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], FIRST]
    # what a client sends back with an assistant's message
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None
    name: None = None


class NamedSchema(Wire):
    """A JSON Schema, as OpenAI wraps it."""

    name: str | None = Field(None, description="has no effect")
    description: str | None = Field(None, description="has no effect")
    strict: bool | None = Field(None, description="has no effect: the text is always valid")
    schema_: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(Wire):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class Ask(Wire):
    """What all requests have."""

    model: str = Field(description="a name of /v1/models")
    max_tokens: int | None = Field(None, description="positions to generate: `length` of a recipe")
    max_completion_tokens: int | None = Field(None, description="the newer name of max_tokens")
    response_format: ResponseFormat | None = Field(
        None, description="the text is a JSON object (json_object), or of a schema (json_schema); text is anything"
    )
    matches: str | Patterns | None = Field(
        None, description="the whole text matches this regular expression; of a list, each hole of a canvas"
    )
    choices: Choices | None = Field(None, description="the text is one of these")


class Answered(Ask):
    """What both kinds of completions have."""

    n: int | None = Field(None, description="choices of each prompt; choice i has the seed `seed` + i")
    stop: Stop | None = Field(None, description="the text ends before the first of these")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # accepted without effect
    user: str | None = Field(None, description="has no effect")
    metadata: dict[str, str] | None = Field(None, description="has no effect")
    store: bool | None = Field(None, description="has no effect: nothing is stored")
    service_tier: str | None = Field(None, description="has no effect")
    safety_identifier: str | None = Field(None, description="has no effect")
    prompt_cache_key: str | None = Field(None, description="has no effect")
    parallel_tool_calls: bool | None = Field(None, description="has no effect: there are no tools")
    # only the values that change nothing are accepted
    frequency_penalty: float | None = Field(None, description="only 0")
    presence_penalty: float | None = Field(None, description="only 0")
    logit_bias: dict[str, float] | None = Field(None, description="only {}; `ban` forbids tokens")


class _Completion(Answered):
    prompt: str | Ids | Texts | Prompts | None = Field(None, description="text, token ids, or a list of either")
    suffix: str | None = Field(None, description="the text that follows what is generated: infilling")
    canvas: str | Ids | None = Field(
        None, description="instead of a prompt: text with [MASK] or [MASK*8] where it is open, or ids with the mask id"
    )
    puzzle: str | None = Field(None, description=f"{PUZZLE}; a text as prompt means the same there")
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = Field(
        None, description="log-probability of every token when it was decided, and of this many most probable ones"
    )
    echo: bool | None = Field(None, description="only false")
    best_of: int | None = Field(None, description="only 1 or n; the search best-of-n chooses by path entropy")


class _Chat(Answered):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool | None = Field(None, description="log-probability of every token when it was decided")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="this many most probable ones, too"
    )
    # only the values that change nothing are accepted
    tools: list[Any] | None = Field(None, description="only []")
    tool_choice: Any = Field(None, description="only none or auto")
    modalities: Annotated[list[str], FIRST] | None = Field(None, description='only ["text"]')


class _Paths(Ask):
    prompt: str | Ids | None = Field(None, description="text or token ids to continue")
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    canvas: str | Ids | None = Field(None, description="as in a completion")
    puzzle: str | None = Field(
        None, description=f"{PUZZLE}; the last event then has `answers` and `faults`, null where an answer is right"
    )


# field: the values that change nothing, and the way out
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "frequency_penalty": ((0,), "leave it out"),
    "presence_penalty": ((0,), "leave it out"),
    "logit_bias": (({},), "use `ban` to forbid tokens"),
    "echo": ((False,), "put the prompt before the text yourself"),
    "tools": (([],), "leave it out"),
    "tool_choice": (("none", "auto"), "leave it out"),
    "modalities": ((["text"],), "leave it out"),
}
# fields of OpenAI's that no endpoint here has, or only a chat with a neutral value
ELSEWHERE = (
    *("tools", "tool_choice", "functions", "function_call", "modalities", "audio", "prediction"),
    *("reasoning_effort", "verbosity", "web_search_options", "prompt_cache_retention", "moderation"),
)


def _field(row: Setting) -> tuple[Any, Any]:
    """Type and description of a setting."""
    kind: Any = Annotated[list[int | str], FIRST] if row.kind is tuple else row.kind
    low, high, closed = row.range
    extra: dict[str, Any] = {} if low == -math.inf else {"minimum" if closed else "exclusiveMinimum": low}
    extra |= {} if high == math.inf else {"maximum": high}
    if row.choices is not None:
        extra = {"enum": row.names()}
    inner = Annotated[kind, Field(json_schema_extra=extra)] if extra else kind
    return inner | None, Field(None, description=explained(row))


SETTINGS: dict[str, Any] = {name: _field(row) for name, row in known().items()}
SETTINGS |= {
    alias: (SETTINGS[name][0], Field(None, description=f"the same as {name}")) for alias, name in ALIASES.items()
}

if TYPE_CHECKING:
    Completion = _Completion
    Chat = _Chat
    Paths = _Paths
else:
    Completion = create_model("CompletionRequest", __base__=_Completion, **SETTINGS)
    Chat = create_model("ChatCompletionRequest", __base__=_Chat, **SETTINGS)
    Paths = create_model("PathsRequest", __base__=_Paths, **SETTINGS)
