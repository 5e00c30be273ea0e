"""What answers look like, for the OpenAPI document; answer.py writes them, the tests hold one against the other."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    """What went wrong, and the way out."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """An error in OpenAI's shape: the official client raises its own exceptions of it."""

    error: ErrorDetail


class ParticleReply(BaseModel):
    """One path of a search."""

    text: str
    path_entropy: float | None = Field(description="bits")
    surprise: float | None = Field(description="nats a position; the search auto chooses by it")
    steps: int
    origin: int = Field(description="the particle in which its lineage began")


class PathReply(BaseModel):
    """What is known of the path of a choice."""

    path_entropy: float | None = Field(description="bits")
    surprise: float | None = Field(description="nats a position; the search auto chooses by it")
    state_entropy: list[float | None] = Field(description="bits, step by step along its own ancestry")
    steps: int
    calls: int
    evaluations: int
    seed: int
    chosen: int = Field(description="the particle whose text this is")
    lineages: int
    log_evidence: float | None
    seconds: float = Field(description="of the batch that it was decoded in")
    waited: float = Field(description="seconds in the queue")
    batch: int = Field(description="choices that were decoded together")
    particles: list[ParticleReply]
    answer: str | None = Field(None, description="to a puzzle")
    fault: str | None = Field(None, description="why the answer to a puzzle is wrong; null where it is right")
    strange: str | None = Field(None, description="what is unusual about a puzzle, such as several solutions")


class WholeReply(BaseModel):
    """What the request cost, and the path of its surest choice."""

    recipe: dict[str, Any]
    choice: int = Field(description="the one of least path entropy")
    path_entropy: float | None
    state_entropy: list[float | None]
    steps: int
    evaluations: int
    seconds: float


class Usage(BaseModel):
    """Tokens of prompts, counted once, and of answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """Natural logarithms, of each token when it was decided."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TopLogprob(BaseModel):
    """A token that was among the most probable."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Natural logarithms, of each token when it was decided."""

    content: list[TokenLogprob]
    refusal: None


class CompletionChoice(BaseModel):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    unmask: PathReply


class ChatMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    unmask: PathReply


class _Head(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    unmask: WholeReply


class CompletionReply(_Head):
    """The answer to /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatReply(_Head):
    """The answer to /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ModelFacts(BaseModel):
    """What a model is like."""

    limit: int | None = Field(description="the longest canvas")
    vocabulary: int
    mask: int
    chat: bool = Field(description="whether it has a chat template")
    puzzle: Literal["sudoku", "countdown"] | None = Field(description="the puzzles that it is made for")
    device: str


class ModelReply(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    unmask: ModelFacts


class ModelsReply(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[ModelReply]


class SettingReply(BaseModel):
    """A setting of a recipe."""

    name: str
    kind: Literal["int", "float", "bool", "str", "list"]
    default: Any = Field(description="null: as `help` says")
    help: str
    minimum: float | None
    above: float | None = Field(description="it must be more than this")
    maximum: float | None
    choices: list[str] | None


class EntryReply(BaseModel):
    """A sampler or a search, and the settings that it takes."""

    name: str
    summary: str
    more: str
    settings: list[SettingReply]


class CatalogReply(BaseModel):
    """What a recipe may be made of."""

    samplers: list[EntryReply]
    searches: list[EntryReply]
    general: list[SettingReply] = Field(description="settings that go with every sampler and search")
    usual: dict[str, Any] = Field(description="what holds where a request says nothing, as far as it goes with it")


class Health(BaseModel):
    """Whether requests are taken."""

    status: Literal["ok", "stopping"]
    message: str
    version: str
    models: list[str]
