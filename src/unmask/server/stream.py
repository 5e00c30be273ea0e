"""Events of one choice -> the text that is settled, token by token, with what is known of each token; and SSE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.core.denoiser import Tokenizer
from unmask.core.state import Vocab
from unmask.decoding.decode import shown
from unmask.decoding.trace import Event
from unmask.server.request import Choice

HALF = "\ufffd"  # what a tokenizer writes for a part of a character
Log = list[Any]  # [log-probability, [[token, log-probability], …]]


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = "" if event is None else f"event: {event}\n"
    return f"{head}data: {text}\n\n".encode(errors="replace")


class Spelling:
    """Tokens, one after the other -> their text, and where each of them ends in it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.text = ""  # without a half character at its end

    def add(self, ids: Iterable[int]) -> None:
        """More tokens."""
        for token in ids:
            self.ids.append(token)
            whole = self.tokenizer.decode(self.ids).rstrip(HALF)
            if whole.startswith(self.text):
                self.text = whole
            self.ends.append(len(self.text))

    def finish(self) -> None:
        """Nothing follows: halves stay halves."""
        self.text = self.tokenizer.decode(self.ids)
        if self.ends:
            self.ends[-1] = len(self.text)

    def tokens(self, end: int) -> int:
        """How many tokens begin before this place of the text."""
        begins = [0, *self.ends][: len(self.ids)]
        return sum(begin < end for begin in begins)

    def piece(self, place: int) -> str:
        """The text of one token."""
        return self.text[self.ends[place - 1] if place else 0 : self.ends[place]]


def cut(text: str, stops: Sequence[str]) -> int:
    """Where the first stop sequence begins, or the end of the text."""
    return min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=len(text))


def sure(text: str, stops: Sequence[str]) -> int:
    """How much of a text can be sent that goes on: what may turn out to be a stop sequence is held back."""
    held = max(
        (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])),
        default=0,
    )
    return min(cut(text, stops), len(text) - held)


class Follow:
    """The canvases of a choice and the log-probabilities in them, as its events tell."""

    def __init__(self, choice: Choice, vocab: Vocab) -> None:
        self.choice, self.vocab = choice, vocab
        self.rows: list[list[int]] = []
        self.logs: list[dict[int, Log]] = []

    def hear(self, event: Event) -> None:
        """One more event."""
        if event["event"] == "start":
            self.rows = [list(self.choice.canvas.tokens) for _ in range(event["particles"])]
            self.logs = [{} for _ in self.rows]
        elif event["event"] == "step":
            ancestors = event.get("ancestors", range(len(self.rows)))
            if "ancestors" in event:
                self.rows = [list(self.rows[row]) for row in ancestors]
                self.logs = [dict(self.logs[row]) for row in ancestors]
            logs = event.get("logprobs", [None] * len(event["changes"]))
            for (row, column, token, _), log in zip(event["changes"], logs, strict=True):
                self.rows[row][column] = token
                self.logs[row][column] = log

    def settled(self) -> list[int]:
        """The columns of the answer of the only row, as far as nothing before them is open."""
        canvas, row = self.choice.canvas, self.rows[0]
        end = next((at for at in range(canvas.given, len(row)) if row[at] == self.vocab.mask), len(row))
        return visible(row[:end], self.choice, self.vocab)


def visible(tokens: Sequence[int], choice: Choice, vocab: Vocab) -> list[int]:
    """The columns of an answer."""
    return [at for at in shown(tokens, choice.canvas, vocab) if choice.end is None or at < choice.end]


@dataclass(frozen=True)
class Tokens:
    """The tokens of an answer: their text, their columns, and the log-probabilities of columns."""

    spelling: Spelling
    columns: list[int]
    logs: Mapping[int, Log]


class Settled:
    """What of an answer was sent, and what can be sent now."""

    def __init__(self, follow: Follow, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.follow, self.stops = follow, stops
        self.spelling = Spelling(tokenizer)
        self.columns: list[int] = []
        self.text = 0  # characters sent
        self.tokens = 0  # tokens sent

    def more(self) -> tuple[str, range]:
        """Text and tokens that have become sure."""
        columns = self.columns = self.follow.settled()
        self.spelling.add(self.follow.rows[0][at] for at in columns[len(self.spelling.ids) :])
        end = sure(self.spelling.text, self.stops)
        whole = sum(place <= end for place in self.spelling.ends) if end else 0
        return self._sent(end, whole)

    @property
    def known(self) -> Tokens:
        return Tokens(self.spelling, self.columns, self.follow.logs[0])

    def rest(self, spelling: Spelling, end: int) -> tuple[str, range]:
        """What is left of the whole answer, which ends there."""
        self.spelling = spelling
        return self._sent(end, spelling.tokens(end))

    def _sent(self, text: int, tokens: int) -> tuple[str, range]:
        before, first = self.text, self.tokens
        self.text, self.tokens = max(text, before), max(tokens, first)
        return self.spelling.text[before : self.text], range(first, self.tokens)
