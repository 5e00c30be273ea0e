"""The limits of a server -> a Refusal of what exceeds them, in OpenAI's shape of errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unmask.decoding.recipe import Recipe
from unmask.errors import ModelError, SettingError, UnmaskError

VALUES = 1 << 17  # in the lists and objects of a body, or --max-cells where that is more
FIELDS = 512  # of one object of a body
SHARE = 3  # parts of the queue for the clients that wait, for each part that stays free
TWO_LENGTHS = "two_lengths"
LINE, NAME = 1000, 100  # characters of an error, and of the field that it names
KINDS = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}


def short(text: str, most: int) -> str:
    """The text; of a longer one both ends: an error may repeat what a request holds, but not all of it."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) + 1 - (most - most // 2) :]}"


class Refusal(Exception):
    """An error response; `param` names the field at fault."""

    def __init__(
        self, status: int, message: str, hint: str = "", *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON from which the official client makes its exceptions."""
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        param = None if self.param is None else short(self.param, NAME)
        return {"error": {"message": short(str(self), LINE), "type": kind, "param": param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The official client retries after 408, 429 and 5xx, unless a header forbids it."""
        if self.code == TWO_LENGTHS:
            return {"connection": "close"}  # what follows may be the rest of this request
        if self.status in (429, 503):
            return {"retry-after": "1"}
        return {"x-should-retry": "false"} if self.status in (408, 500) else {}


def refusal(error: BaseException) -> Refusal:
    """An error as a response: in full where a user can act on it, else only its kind."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ModelError):
        return Refusal(500, error.message, error.hint, code="model_error")
    if isinstance(error, UnmaskError):
        return Refusal(400, error.message, error.hint)
    if isinstance(error, MemoryError) or "allocate" in str(error) or type(error).__name__ == "OutOfMemoryError":
        return Refusal(500, "out of memory", "lower particles, n or max_tokens", code="out_of_memory")
    return Refusal(500, f"decoding failed with {type(error).__name__}", "see the server's log")


def _limit(flag: str, default: float, about: str) -> Any:
    """A field with its flag of `unmask serve` and the help of that flag."""
    return field(default=default, metadata={"flag": flag, "help": about})


@dataclass(frozen=True)
class Limits:
    """The most that one request, a batch and the queue may hold."""

    body: int = _limit("--max-body", 1 << 20, "bytes of a request")
    length: int = _limit("--max-length", 4096, "positions of prompt and answer together")
    cells: int = _limit("--max-cells", 1 << 16, "choices × particles × positions, of a request and of a batch")
    choices: int = _limit("--max-choices", 128, "n × prompts of a request")
    queue: int = _limit("--max-queue", 256, "choices in the queue; more are answered with 429")
    work: int = _limit("--max-work", 1 << 28, "choices × particles × positions × steps in the queue; else 429 too")
    batch: int = _limit("--max-batch", 64, "choices that are decoded together")
    seconds: float = _limit("--timeout", 120.0, "seconds from a request to its answer; then 408")
    grace: float = _limit("--grace", 10.0, "seconds for requests in progress after Ctrl-C")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= (0 if name == "grace" else 1e-3 if name == "seconds" else 1):
                raise SettingError(f"the limit of {name} is {value}", "it must be positive")

    def check_values(self, body: object) -> None:
        """Refuse a body of more values than any request needs, before one by one they are validated."""
        fields = body.items() if isinstance(body, dict) and len(body) <= FIELDS else [(None, body)]
        left = max(self.cells, VALUES)
        for name, value in fields:
            waiting = [value]
            while waiting:
                one = waiting.pop()
                if isinstance(one, dict) and len(one) > FIELDS:
                    message = f"an object of the request has {len(one):,} fields, more than {FIELDS:,}"
                    raise Refusal(413, message, "send fewer", param=name)
                inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
                left -= len(inner)
                if left < 0:
                    message = f"the request has more than {max(self.cells, VALUES):,} values"
                    raise Refusal(413, message, "send fewer", param=name)
                waiting += [part for part in inner if isinstance(part, dict | list)]

    def check_room(self, unit: str, new: int, mine: int, waiting: int, most: int) -> None:
        """Refuse what the queue has no room for. Room is left for others, whatever one request or client asks.

        `waiting` is in the queue, `mine` of it from this client. Where something waits, a request takes at most half of
        what is free; of the last part of the queue, a client has at most SHARE times as much as it leaves free.
        """
        free = most - waiting
        if new > free and (waiting or unit == "choices"):
            raise Refusal(429, f"{waiting:,} {unit} are queued, of at most {most:,}", "retry later", code="queue_full")
        if waiting and new > max(1, free // 2):
            message = f"{new:,} {unit} are more than half of the {free:,} that the queue still takes"
            raise Refusal(429, message, "retry later, or ask for less at once", code="queue_full")
        left = free - new
        if mine and left < most // (SHARE + 1) and mine + new > SHARE * left:
            message = f"{mine:,} {unit} of this client are queued, and the queue takes {free:,} more"
            raise Refusal(429, message, "retry when they are done", code="queue_full")

    def check_steps(self, recipe: Recipe) -> None:
        """Refuse more steps than the longest canvas has positions: they would delay other requests for nothing."""
        for name in ("steps", "loops"):
            value = recipe.get(name)
            if value is not None and value > self.length:
                raise Refusal(413, f"{name} is {value:,}, more than {self.length:,}", f"lower {name}", param=name)

    def check_size(self, choices: int, particles: int, positions: int) -> None:
        """Refuse a request that is too large, before its canvases are built."""
        if choices > min(self.choices, self.queue):
            most = min(self.choices, self.queue)
            raise Refusal(413, f"{choices} choices are more than {most}", "lower n, or send fewer prompts", param="n")
        if positions > self.length:
            message = f"prompt and answer have {positions:,} positions, more than {self.length:,}"
            raise Refusal(413, message, "shorten the prompt or max_tokens", param="max_tokens")
        cells = choices * particles * positions
        if cells > self.cells:
            product = f"{choices} × {particles:,} particles × {positions:,} positions = {cells:,}"
            raise Refusal(
                413, f"{product}, more than {self.cells:,}", "lower particles, n or max_tokens", param="particles"
            )


def late(limits: Limits) -> Refusal:
    """The answer after the deadline."""
    message = f"not decoded within {limits.seconds:g} seconds"
    return Refusal(408, message, "ask for fewer steps, particles or tokens, or retry later", code="timeout")
