"""A ParsedRequest and its results -> OpenAI's objects: completions, chats, their chunks; each with a field `unmask`."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask._version import __version__
from unmask.decoding.ends import LENGTH, STOP, cut
from unmask.decoding.trace import Canvases
from unmask.server.batcher import Decoded
from unmask.server.puzzle import ParsedPuzzle
from unmask.server.replies import ParticleReply, PathReply
from unmask.server.request import Choice, ParsedRequest
from unmask.server.stream import Spelling, Tokens, visible

FINGERPRINT = f"unmask-{__version__}"


@dataclass(frozen=True)
class ChoiceText:
    """The text of a decoded choice."""

    text: str
    known: Tokens
    tokens: int  # that begin before the text ends
    decided: int  # those of them that were not given
    finish: str  # what ended it: end, stop or length
    is_canvas: bool
    decoded: Decoded

    @property
    def reason(self) -> str:
        """OpenAI's finish_reason: an end token and a stop string are both `stop`, and so is a whole canvas."""
        return "length" if self.finish == LENGTH and not self.is_canvas else "stop"


def choice_text(request: ParsedRequest, choice: Choice, decoded: Decoded, canvases: Canvases) -> ChoiceText:
    """The text of a result, up to the end of the sequence or to a stop sequence."""
    result, mask, tokenizer = decoded.result, request.model.vocab.mask, request.model.tokenizer
    columns = visible(result.tokens, choice, request.model.vocab)
    ids = [result.tokens[at] for at in columns]
    whole, spelling, tokens = tokenizer.decode(ids), Spelling(tokenizer), len(ids)
    end = cut(whole, request.stop)
    if end < len(whole) or request.stream or request.logprobs is not None:
        spelling.add(ids)
        spelling.finish()
        tokens = spelling.tokens(end) if end < len(whole) else tokens
    finish = STOP if end < len(whole) else result.finish
    logs = {} if request.logprobs is None else canvases.logprobs[result.chosen]
    decided = sum(choice.canvas.tokens[at] == mask for at in columns[:tokens])
    known = Tokens(spelling, columns, logs)
    return ChoiceText(whole[:end], known, tokens, decided, finish, request.is_canvas, decoded)


# --- unmask's own field ----------------------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """A value for JSON; null for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def curve(path: Sequence[float | None]) -> list[float | None]:
    """The state entropies of a path, without the steps after its end."""
    end = max((step + 1 for step, h in enumerate(path) if h is not None), default=0)
    return list(path[:end])


def path_field(one: ChoiceText, puzzle: ParsedPuzzle | None) -> dict[str, Any]:
    """The path of a choice, and the verdict on its answer to a puzzle: the fields of PathReply. Entropies are bits."""
    decoded, result = one.decoded, one.decoded.result
    whole = {**result.to_dict(), "waited": decoded.waited, "batch": decoded.batch, "surprise": result.best.surprise}
    whole["look"] = result.best.look
    whole["finish"] = one.finish
    found = {name: number(whole[name]) for name in PathReply.model_fields if name in whole}
    found["state_entropy"] = curve(result.best.state_entropy)
    found["particles"] = [
        {name: number(one[name]) for name in ParticleReply.model_fields} for one in whole["particles"]
    ]
    return {**found, **({} if puzzle is None else puzzle.verdict(result))}


def request_field(request: ParsedRequest, decoded: Sequence[Decoded]) -> dict[str, Any]:
    """The cost of a request, and the path of its choice of least path entropy."""
    results = [one.result for one in decoded]
    entropies = [result.path_entropy for result in results]
    surest = min(range(len(results)), key=lambda at: (math.isnan(entropies[at]), entropies[at]))
    return {
        "recipe": request.recipe.replace(seed=0).to_dict(),
        "choice": surest,
        "path_entropy": number(entropies[surest]),
        "state_entropy": curve(results[surest].best.state_entropy),
        "steps": max(result.steps for result in results),
        "evaluations": sum(result.evaluations for result in results),
        "rows": sum(result.rows for result in results),
        "seconds": max(one.waited + one.result.seconds for one in decoded),
    }


# --- log-probabilities -----------------------------------------------------------------------------------------------


def _log(known: Tokens, place: int) -> tuple[float | None, list[tuple[int, float]]]:
    """The log-probabilities of one token and of the most probable ones; a given token has none."""
    found = known.logprobs.get(known.columns[place])
    return (None, []) if found is None else (found[0], [(token, log) for token, log in found[1]])


def logprobs(request: ParsedRequest, known: Tokens, places: Sequence[int]) -> dict[str, Any] | None:
    """The log-probabilities of some tokens, in the shape of the request's endpoint."""
    if request.logprobs is None:
        return None
    decode, top, spelling = request.model.tokenizer.decode, request.logprobs, known.spelling
    if request.chat:
        return {"content": [_content(known, place, decode, top) for place in places], "refusal": None}
    found = [_log(known, place) for place in places]
    return {
        "tokens": [spelling.piece(place) for place in places],
        "token_logprobs": [log for log, _ in found],
        "top_logprobs": [{decode([token]): log for token, log in reversed(most[:top])} for _, most in found],
        "text_offset": [spelling.start(place) for place in places],
    }


def _content(known: Tokens, place: int, decode: Callable[[list[int]], str], top: int) -> dict[str, Any]:
    log, most = _log(known, place)
    named = [{"token": decode([token]), "logprob": log, "bytes": _bytes(decode([token]))} for token, log in most[:top]]
    text = known.spelling.piece(place)
    return {"token": text, "logprob": log, "bytes": _bytes(text), "top_logprobs": named}


def _bytes(text: str) -> list[int]:
    return list(text.encode(errors="replace"))


# --- OpenAI's objects ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """Writes the response to one request."""

    request: ParsedRequest
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _head(self, chunk: bool) -> dict[str, Any]:
        chat = self.request.chat
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        name = f"{'chatcmpl' if chat else 'cmpl'}-{self.id}"
        head = {"id": name, "object": kind, "created": self.created, "model": self.request.name}
        return {**head, "system_fingerprint": FINGERPRINT}

    def answer(self, found: Sequence[ChoiceText]) -> dict[str, Any]:
        """The whole response."""
        return {
            **self._head(False),
            "choices": [self._choice(index, one) for index, one in enumerate(found)],
            "usage": self.usage(found),
            "unmask": request_field(self.request, [one.decoded for one in found]),
        }

    def _choice(self, index: int, one: ChoiceText) -> dict[str, Any]:
        logs = logprobs(self.request, one.known, range(one.tokens))
        message = {"message": {"role": "assistant", "content": one.text, "refusal": None}}
        text = message if self.request.chat else {"text": one.text}
        unmask = path_field(one, self.request.choices[index].puzzle)
        return {"index": index, **text, "logprobs": logs, "finish_reason": one.reason, "unmask": unmask}

    def chunk(
        self,
        index: int,
        text: str = "",
        logs: dict[str, Any] | None = None,
        finish: str | None = None,
        unmask: dict[str, Any] | None = None,
        role: bool = False,
    ) -> dict[str, Any]:
        """A part of one choice."""
        delta: dict[str, Any] = {"role": "assistant"} if role else {}
        delta |= {"content": text} if text or role else {}
        body = {"delta": delta} if self.request.chat else {"text": text}
        choice = {"index": index, **body, "logprobs": logs, "finish_reason": finish}
        more = {} if unmask is None else {"unmask": unmask}
        tail = {"usage": None} if self.request.include_usage else {}
        return {**self._head(True), "choices": [{**choice, **more}], **tail}

    def last(self, found: Sequence[ChoiceText]) -> dict[str, Any]:
        """The last chunk of a stream with usage."""
        return {**self._head(True), "choices": [], "usage": self.usage(found)}

    def usage(self, found: Sequence[ChoiceText]) -> dict[str, int]:
        given, shown = self.request.prompt_tokens, sum(one.decided for one in found)
        return {"prompt_tokens": given, "completion_tokens": shown, "total_tokens": given + shown}
