"""Limits: what a server takes on -> or a Refusal, which is an answer in OpenAI's shape of errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.decoding.recipe import Recipe
from unmask.errors import ModelError, SettingError, UnmaskError

KINDS = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """An answer that is no result; `param` names the field that it is about."""

    def __init__(
        self, status: int, message: str, hint: str = "", *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """What the official client turns into its own exceptions."""
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The official client tries again after 408, 429 and 5xx, unless it is told not to."""
        if self.status in (429, 503):
            return {"retry-after": "1"}
        return {"x-should-retry": "false"} if self.status in (408, 500) else {}


def refusal(error: BaseException) -> Refusal:
    """What is told about an error: all about what a user can mend, of others only the kind."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ModelError):
        return Refusal(500, error.message, error.hint, code="model_error")
    if isinstance(error, UnmaskError):
        return Refusal(400, error.message, error.hint)
    if isinstance(error, MemoryError) or "allocate" in str(error) or type(error).__name__ == "OutOfMemoryError":
        return Refusal(500, "out of memory", "ask for fewer particles, choices or tokens", code="out_of_memory")
    return Refusal(500, f"decoding failed with {type(error).__name__}", "the server's log says more")


@dataclass(frozen=True)
class Limits:
    """The most that a request, and all of them together, may ask for."""

    body: int = 1 << 20  # bytes of a request
    length: int = 4096  # positions of a canvas: prompt and answer
    cells: int = 1 << 16  # choices × particles × positions of a request, and of a batch
    choices: int = 128  # n × prompts
    queue: int = 256  # choices that wait
    batch: int = 64  # choices that are decoded together
    seconds: float = 120.0  # from the request to its answer
    grace: float = 10.0  # seconds for what is under way when the server is told to stop

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= (0 if name == "grace" else 1e-3 if name == "seconds" else 1):
                raise SettingError(f"the limit of {name} is {value}", "it must be positive")

    def check_steps(self, recipe: Recipe) -> None:
        """Refuse more steps than the longest canvas has positions: they decide nothing and hold up the others."""
        for name in ("steps", "loops"):
            value = recipe.get(name)
            if value is not None and value > self.length:
                raise Refusal(413, f"{name} is {value:,}, more than {self.length:,}", f"lower {name}", param=name)

    def check_size(self, choices: int, particles: int, positions: int) -> None:
        """Refuse a request that is too large, before anything is laid out."""
        if choices > min(self.choices, self.queue):
            most = min(self.choices, self.queue)
            raise Refusal(413, f"{choices} choices are more than {most}", "lower n, or send fewer prompts", param="n")
        if positions > self.length:
            said = f"prompt and answer have {positions:,} positions, more than {self.length:,}"
            raise Refusal(413, said, "shorten the prompt or max_tokens", param="max_tokens")
        cells = choices * particles * positions
        if cells > self.cells:
            said = f"{choices} × {particles:,} particles of {positions:,} positions are {cells:,}, more than"
            raise Refusal(413, f"{said} {self.cells:,}", "lower particles, n or max_tokens", param="particles")
