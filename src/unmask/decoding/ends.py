"""Where a text ends: tokens of a canvas × stop strings -> the columns that make up the text, and what ended it."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.core.state import Vocab
from unmask.decoding.prompt import Canvas
from unmask.errors import InputError

END, STOP, LENGTH = "end", "stop", "length"  # an end token, a stop string, or neither before the canvas was full
Stops = str | Sequence[str]


def shown(tokens: Sequence[int], canvas: Canvas, vocab: Vocab) -> list[int]:
    """The columns that make up the text: what follows the prompt; in each hole, what comes before its first EOS."""
    columns, ended = [], False
    for column in range(canvas.given, len(tokens)):
        hole = canvas.tokens[column] == vocab.mask
        ended = hole and (ended or tokens[column] in vocab.eos)
        if not ended:
            columns.append(column)
    return columns


def cut(text: str, stops: Sequence[str]) -> int:
    """Where the first stop string begins, or the end of the text."""
    return min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=len(text))


def finish(tokens: Sequence[int], canvas: Canvas, vocab: Vocab, stopped: bool = False) -> str:
    """What ended the text: a stop string that cuts it, else an EOS in the last hole, else its length."""
    if stopped:
        return STOP
    open_ = [column for column in range(len(tokens)) if canvas.tokens[column] == vocab.mask]
    last = [column for place, column in enumerate(open_) if open_[-1] - column == len(open_) - 1 - place]
    return END if any(tokens[column] in vocab.eos for column in last) else LENGTH


def stop_strings(given: Stops | None) -> tuple[str, ...]:
    """One stop string or several as a tuple; an empty one is refused, for it is in every text."""
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    for stop in stops:
        if not isinstance(stop, str):
            raise InputError(f"a stop string is a {type(stop).__name__}", "give text")
        if not stop:
            raise InputError("a stop string is empty", "leave it out")
    return stops
