"""Events of one choice -> the text that is settled, token by token, with what is known of each token; and SSE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.core.denoiser import Denoiser, Tokenizer
from unmask.core.state import Vocab
from unmask.decoding.decode import shown
from unmask.decoding.trace import Canvases, Logprob
from unmask.server.request import Choice

HALF = "\ufffd"  # what a tokenizer writes for a part of a character


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


def settled(tokens: Sequence[int], choice: Choice, vocab: Vocab) -> list[int]:
    """The columns of an answer before its first masked position."""
    end = next((at for at in range(choice.canvas.given, len(tokens)) if tokens[at] == vocab.mask), len(tokens))
    return visible(tokens[:end], choice, vocab)


def visible(tokens: Sequence[int], choice: Choice, vocab: Vocab) -> list[int]:
    """The columns of an answer."""
    return [at for at in shown(tokens, choice.canvas, vocab) if choice.end is None or at < choice.end]


@dataclass(frozen=True)
class Tokens:
    """The tokens of an answer: their text, their columns, and the log-probabilities of columns."""

    spelling: Spelling
    columns: list[int]
    logs: Mapping[int, Logprob]


class Settled:
    """What of an answer was sent, and what can be sent now."""

    def __init__(self, choice: Choice, canvases: Canvases, model: Denoiser, stops: Sequence[str]) -> None:
        self.choice, self.canvases, self.vocab, self.stops = choice, canvases, model.vocab, stops
        self.spelling = Spelling(model.tokenizer)
        self.columns: list[int] = []
        self.text = 0  # characters sent
        self.tokens = 0  # tokens sent

    def more(self) -> tuple[str, range]:
        """Text and tokens that have become sure."""
        row = self.canvases.rows[0]
        columns = self.columns = settled(row, self.choice, self.vocab)
        self.spelling.add(row[at] for at in columns[len(self.spelling.ids) :])
        end = sure(self.spelling.text, self.stops)
        whole = sum(place <= end for place in self.spelling.ends) if end else 0
        return self._sent(end, whole)

    @property
    def known(self) -> Tokens:
        return Tokens(self.spelling, self.columns, self.canvases.logprobs[0])

    def rest(self, spelling: Spelling, end: int) -> tuple[str, range]:
        """What is left of the whole answer, which ends there."""
        self.spelling = spelling
        return self._sent(end, spelling.tokens(end))

    def _sent(self, text: int, tokens: int) -> tuple[str, range]:
        before, first = self.text, self.tokens
        self.text, self.tokens = max(text, before), max(tokens, first)
        return self.spelling.text[before : self.text], range(first, self.tokens)
