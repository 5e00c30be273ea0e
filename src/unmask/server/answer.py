"""An Order and its results -> OpenAI's objects: completions, chats, their chunks; each with an `unmask` field."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask._version import __version__
from unmask.decoding.decode import Result
from unmask.decoding.trace import Canvases
from unmask.server.batcher import Done
from unmask.server.puzzle import Riddle
from unmask.server.request import Choice, Order
from unmask.server.stream import Spelling, Tokens, cut, visible

MARK = f"unmask-{__version__}"  # the system_fingerprint


@dataclass(frozen=True)
class Said:
    """One choice, decoded."""

    text: str
    known: Tokens
    tokens: int  # that begin before the text ends
    decided: int  # those of them that were not given
    finish: str
    done: Done


def said(order: Order, choice: Choice, done: Done, canvases: Canvases) -> Said:
    """What a result says: up to the end of the sequence, or to a stop sequence."""
    result, mask = done.result, order.model.vocab.mask
    columns = visible(result.tokens, choice, order.model.vocab)
    ids = [result.tokens[at] for at in columns]
    whole, spelling, tokens = order.model.tokenizer.decode(ids), Spelling(order.model.tokenizer), len(ids)
    end = cut(whole, order.stop)
    if end < len(whole) or order.stream or order.logprobs is not None:
        spelling.add(ids)
        spelling.finish()
        tokens = spelling.tokens(end) if end < len(whole) else tokens
    holes = choice.canvas.tokens.count(mask)
    full = len(columns) >= holes and end == len(whole) and not order.whole
    logs = {} if order.logprobs is None else canvases.logprobs[result.chosen]
    decided = sum(choice.canvas.tokens[at] == mask for at in columns[:tokens])
    return Said(whole[:end], Tokens(spelling, columns, logs), tokens, decided, "length" if full else "stop", done)


# --- unmask's own field ----------------------------------------------------------------------------------------------


def number(value: float) -> float | None:
    """For JSON; what is not finite is null."""
    return value if math.isfinite(value) else None


def curve(path: Sequence[float | None]) -> list[float | None]:
    """State entropies as far as the path goes: without the steps after its end, which had nothing masked."""
    end = max((step + 1 for step, h in enumerate(path) if h is not None), default=0)
    return list(path[:end])


def path(done: Done, riddle: Riddle | None) -> dict[str, Any]:
    """What is known of the path of a choice, and of its answer to a puzzle. Entropies are bits."""
    result = done.result
    return {
        "path_entropy": number(result.path_entropy),
        "surprise": number(result.best.surprise),
        "state_entropy": curve(result.best.state_entropy),
        "steps": result.steps,
        "calls": result.calls,
        "evaluations": result.evaluations,
        "seed": result.seed,
        "chosen": result.chosen,
        "lineages": result.lineages,
        "log_evidence": number(result.log_evidence),
        "seconds": result.seconds,
        "waited": done.waited,
        "batch": done.batch,
        "particles": [
            {
                "text": one.text,
                "path_entropy": number(one.path_entropy),
                "surprise": number(one.surprise),
                "steps": one.steps,
                "origin": one.origin,
            }
            for one in result.particles
        ],
        **({} if riddle is None else riddle.verdict(result)),
    }


def whole(order: Order, dones: Sequence[Done]) -> dict[str, Any]:
    """What a request cost, and the surest of its choices."""
    entropies = [done.result.path_entropy for done in dones]
    surest = min(range(len(dones)), key=lambda at: (math.isnan(entropies[at]), entropies[at]))
    result: Result = dones[surest].result
    return {
        "recipe": order.recipe.replace(seed=0).to_dict(),
        "choice": surest,
        "path_entropy": number(result.path_entropy),
        "state_entropy": curve(result.best.state_entropy),
        "steps": max(done.result.steps for done in dones),
        "evaluations": sum(done.result.evaluations for done in dones),
        "seconds": max(done.waited + done.result.seconds for done in dones),
    }


# --- log-probabilities -----------------------------------------------------------------------------------------------


def _log(known: Tokens, place: int) -> tuple[float | None, list[tuple[int, float]]]:
    """Of one token, and of the most probable ones; a token that was given has none."""
    found = known.logs.get(known.columns[place])
    return (None, []) if found is None else (found[0], [(token, log) for token, log in found[1]])


def logprobs(order: Order, known: Tokens, places: Sequence[int]) -> dict[str, Any] | None:
    """Of these tokens, in the shape of either endpoint."""
    if order.logprobs is None:
        return None
    decode, top, spelling = order.model.tokenizer.decode, order.logprobs, known.spelling
    if order.chat:
        return {"content": [_content(known, place, decode, top) for place in places], "refusal": None}
    found = [_log(known, place) for place in places]
    return {
        "tokens": [spelling.piece(place) for place in places],
        "token_logprobs": [log for log, _ in found],
        "top_logprobs": [{decode([token]): log for token, log in reversed(most[:top])} for _, most in found],
        "text_offset": [spelling.ends[place - 1] if place else 0 for place in places],
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
    """Writes the answer to one request."""

    order: Order
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _head(self, chunk: bool) -> dict[str, Any]:
        chat = self.order.chat
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        name = f"{'chatcmpl' if chat else 'cmpl'}-{self.id}"
        head = {"id": name, "object": kind, "created": self.created, "model": self.order.name}
        return {**head, "system_fingerprint": MARK}

    def answer(self, found: Sequence[Said]) -> dict[str, Any]:
        """The whole, at once."""
        choices = [self._choice(index, one) for index, one in enumerate(found)]
        dones = [one.done for one in found]
        return {
            **self._head(False),
            "choices": choices,
            "usage": self.usage(found),
            "unmask": whole(self.order, dones),
        }

    def _choice(self, index: int, one: Said) -> dict[str, Any]:
        logs = logprobs(self.order, one.known, range(one.tokens))
        said = {"message": {"role": "assistant", "content": one.text, "refusal": None}}
        text = said if self.order.chat else {"text": one.text}
        unmask = path(one.done, self.order.choices[index].riddle)
        return {"index": index, **text, "logprobs": logs, "finish_reason": one.finish, "unmask": unmask}

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
        body = {"delta": delta} if self.order.chat else {"text": text}
        choice = {"index": index, **body, "logprobs": logs, "finish_reason": finish}
        more = {} if unmask is None else {"unmask": unmask}
        tail = {"usage": None} if self.order.usage else {}
        return {**self._head(True), "choices": [{**choice, **more}], **tail}

    def last(self, found: Sequence[Said]) -> dict[str, Any]:
        """The last chunk of a stream that asked for its usage."""
        return {**self._head(True), "choices": [], "usage": self.usage(found)}

    def usage(self, found: Sequence[Said]) -> dict[str, int]:
        given, shown = self.order.given, sum(one.decided for one in found)
        return {"prompt_tokens": given, "completion_tokens": shown, "total_tokens": given + shown}
