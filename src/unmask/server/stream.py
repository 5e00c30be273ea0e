"""The canvas of a choice -> its text as it becomes final, token by token; and the format of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.core.denoiser import Denoiser, Tokenizer
from unmask.core.state import Vocab
from unmask.decoding.ends import HALF, final, shown
from unmask.decoding.trace import Canvases, Logprob
from unmask.server.request import Choice


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event, in ASCII: some readers end a line at U+0085, U+2028 and U+2029, too."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    head = "" if event is None else f"event: {event}\n"
    return f"{head}data: {text}\n\n".encode("ascii", "replace")


class Spelling:
    """Tokens in order -> their text, and the place in it where each of them ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.text = ""  # without a partial character at its end

    def add(self, ids: Iterable[int]) -> None:
        """Append tokens."""
        for token in ids:
            self.ids.append(token)
            whole = self.tokenizer.decode(self.ids).rstrip(HALF)
            if whole.startswith(self.text):
                self.text = whole
            self.ends.append(len(self.text))

    def finish(self) -> None:
        """No token follows: partial characters stay in the text."""
        self.text = self.tokenizer.decode(self.ids)
        if self.ends:
            self.ends[-1] = len(self.text)

    def start(self, place: int) -> int:
        """Where the text of one token begins."""
        return self.ends[place - 1] if place else 0

    def tokens(self, end: int) -> int:
        """How many tokens begin before this place of the text."""
        return sum(self.start(place) < end for place in range(len(self.ids)))

    def whole(self, end: int) -> int:
        """How many tokens end before this place of the text; of the last ones those without text may be partial."""
        return max((at + 1 for at, place in enumerate(self.ends) if self.start(at) < place <= end), default=0)

    def piece(self, place: int) -> str:
        """The text of one token."""
        return self.text[self.start(place) : self.ends[place]]


def visible(tokens: Sequence[int], choice: Choice, vocab: Vocab) -> list[int]:
    """The columns of an answer."""
    return [at for at in shown(tokens, choice.canvas, vocab) if choice.end is None or at < choice.end]


@dataclass(frozen=True)
class Tokens:
    """The tokens of an answer: their text, their columns, and the log-probabilities by column."""

    spelling: Spelling
    columns: list[int]
    logprobs: Mapping[int, Logprob]


class SentText:
    """The part of an answer that was sent, and the part that can be sent next."""

    def __init__(self, choice: Choice, canvases: Canvases, model: Denoiser, stops: Sequence[str]) -> None:
        self.choice, self.canvases, self.vocab, self.stops = choice, canvases, model.vocab, stops
        self.spelling = Spelling(model.tokenizer)
        self.columns: list[int] = []
        self.text = 0  # characters sent
        self.tokens = 0  # tokens sent

    @property
    def known(self) -> Tokens:
        return Tokens(self.spelling, self.columns, self.canvases.logprobs[0])

    def more(self) -> tuple[str, range]:
        """Text and tokens of the only row that have become final: all before its first masked position."""
        row = self.canvases.rows[0]
        end = next((at for at in range(self.choice.canvas.given, len(row)) if row[at] == self.vocab.mask), len(row))
        self.columns = visible(row[:end], self.choice, self.vocab)
        self.spelling.add(row[at] for at in self.columns[len(self.spelling.ids) :])
        end = final(self.spelling.text, self.stops)
        return self._send(end, self.spelling.whole(end))

    def rest(self, spelling: Spelling, end: int) -> tuple[str, range]:
        """Text and tokens up to the end of the whole answer."""
        self.spelling = spelling
        return self._send(end, spelling.tokens(end))

    def _send(self, text: int, tokens: int) -> tuple[str, range]:
        before, first = self.text, self.tokens
        self.text, self.tokens = max(text, before), max(tokens, first)
        return self.spelling.text[before : self.text], range(first, self.tokens)
