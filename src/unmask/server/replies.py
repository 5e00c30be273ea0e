"""The shapes of responses, for the OpenAPI document; answer.py writes them, and tests compare the two."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Finish = Literal["end", "stop", "length"]


class ErrorDetail(BaseModel):
    """The error and its remedy."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """An error in OpenAI's shape, from which the official client makes its exceptions."""

    error: ErrorDetail


class ParticleReply(BaseModel):
    """One path of a search."""

    text: str
    finish: Finish = Field(description="what ended the text: an end token, a stop sequence, or neither in its length")
    path_entropy: float | None = Field(description="bits")
    surprise: float | None = Field(description="nats per position; the search auto chooses by it")
    look: float | None = Field(None, description="nats per position, at a second look; null where there was none")
    steps: int
    origin: int = Field(description="the particle in which its lineage began")


class PathReply(BaseModel):
    """The path of a choice."""

    finish: Finish = Field(description="what ended the text: an end token, a stop sequence, or neither in its length")
    path_entropy: float | None = Field(description="bits")
    surprise: float | None = Field(description="nats per position; the search auto chooses by it")
    look: float | None = Field(None, description="nats per position, at a second look; null where there was none")
    state_entropy: list[float | None] = Field(description="bits, step by step along its own ancestry")
    steps: int
    calls: int
    evaluations: int
    rows: int = Field(description="rows that the network computed: of equal canvases one")
    seed: int
    chosen: int = Field(description="the particle that was chosen")
    lineages: int
    log_evidence: float | None
    seconds: float = Field(description="of its batch")
    waited: float = Field(description="seconds in the queue")
    batch: int = Field(description="choices that were decoded together")
    particles: list[ParticleReply]
    answer: str | None = Field(None, description="to a puzzle")
    fault: str | None = Field(None, description="the fault of the answer to a puzzle; null for a right answer")
    strange: str | None = Field(None, description="a peculiarity of a puzzle, such as several solutions")


class WholeReply(BaseModel):
    """The cost of the request, and the path of its choice of least path entropy."""

    recipe: dict[str, Any]
    choice: int = Field(description="the one of least path entropy")
    path_entropy: float | None
    state_entropy: list[float | None]
    steps: int
    evaluations: int
    rows: int
    seconds: float


class Usage(BaseModel):
    """Tokens of prompts, counted once, and of answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """Natural logarithms, for each token at the step that decided it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TopLogprob(BaseModel):
    """One of the most probable tokens."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Natural logarithms, for each token at the step that decided it."""

    content: list[TokenLogprob]
    refusal: None


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length"]
    unmask: PathReply


class CompletionChoice(_Choice):
    """One choice."""

    text: str
    logprobs: CompletionLogprobs | None


class ChatMessage(BaseModel):
    """The message of the model."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Choice):
    """One choice."""

    message: ChatMessage
    logprobs: ChatLogprobs | None


class _Head(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    unmask: WholeReply


class CompletionReply(_Head):
    """The response of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatReply(_Head):
    """The response of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ModelFacts(BaseModel):
    """Facts about a model."""

    limit: int | None = Field(description="the longest canvas")
    vocabulary: int
    mask: int
    chat: bool = Field(description="whether it has a chat template")
    puzzle: Literal["sudoku", "countdown"] | None = Field(description="the kind of puzzle that it solves")
    device: str
    recipe: dict[str, Any] = Field(description="the settings that hold where a request gives none")


class ModelReply(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    unmask: ModelFacts


class ModelsReply(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelReply]


class SettingReply(BaseModel):
    """A setting of a recipe."""

    name: str
    kind: Literal["int", "float", "bool", "str", "list"]
    default: Any = Field(description="null: see `help`")
    help: str
    minimum: float | None
    above: float | None = Field(description="exclusive minimum")
    maximum: float | None
    choices: list[str] | None


class EntryReply(BaseModel):
    """A sampler or a search, with its settings."""

    name: str
    summary: str
    more: str
    settings: list[SettingReply]


class CatalogReply(BaseModel):
    """Samplers, searches and settings."""

    samplers: list[EntryReply]
    searches: list[EntryReply]
    general: list[SettingReply] = Field(description="settings of every sampler and search")
    usual: dict[str, Any] = Field(
        description="the server's own defaults, used as far as the request's sampler and search take them; over those "
        "of the model, see /v1/models"
    )


class Health(BaseModel):
    """Whether requests are accepted and decoded."""

    status: Literal["ok", "stopping", "stuck"]
    message: str
    version: str
    models: list[str]
