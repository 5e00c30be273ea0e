"""Where a text ends: tokens of a canvas × stop strings -> the columns that make up the text, and what ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, Tokenizer
from unmask.core.resampling import Search
from unmask.core.sampler import Sampler, front
from unmask.core.state import State, Vocab
from unmask.decoding.prompt import Canvas
from unmask.errors import InputError

END, STOP, LENGTH = "end", "stop", "length"  # an end token, a stop string, or neither before the canvas was full
HALF = "\ufffd"  # written by a tokenizer for a part of a character
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


def final(text: str, stops: Sequence[str]) -> int:
    """How much of an unfinished text stays, uncut: the possible beginning of a stop string is held back."""
    held = max(
        (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])),
        default=0,
    )
    return min(cut(text, stops), len(text) - held)


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


# --- while it is decoded ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextsOver:
    """State -> the rows whose text is over: nothing that is still masked can change the text of the prompt's result.

    Positions before the front of a row are final. All particles of a prompt must have ended with the same text there:
    otherwise the search may return any of them, by what the others write after it.
    """

    tokenizer: Tokenizer
    sampler: Sampler
    stops: Sequence[str]

    def __call__(self, state: State) -> Tensor:  # [B] bool
        last = state.writable & (state.rank < front(self.sampler, state)[:, None])
        texts = [
            self.ending([token for token, is_last in zip(row, some, strict=True) if is_last], state.vocab)
            for row, some in zip(state.tokens.tolist(), last.tolist(), strict=True)
        ]
        k = state.particles
        prompts = [set(texts[first : first + k]) for first in range(0, len(texts), k)]
        over = [len(found) == 1 and None not in found for found in prompts]
        return torch.tensor(over, device=last.device).repeat_interleave(k)

    def ending(self, tokens: Sequence[int], vocab: Vocab) -> tuple[str, str] | None:
        """The text of a row that begins with these tokens, and what ends it; None: it is not known yet."""
        size = next((place for place, token in enumerate(tokens) if token in vocab.eos), None)
        text = self.tokenizer.decode(list(tokens[:size]))
        if size is None:
            text = text.rstrip(HALF)  # the next token may complete it
        end = cut(text, self.stops)
        if size is not None:
            return text[:end], STOP if end < len(text) else END
        return (text[:end], STOP) if end < len(text) and final(text, self.stops) == end else None


def texts_over(
    denoiser: Denoiser, state: State, sampler: Sampler, search: Search, stops: Sequence[str]
) -> TextsOver | None:
    """A question for the walk; None where there is no stop string, no EOS to fill with, or nothing is final early."""
    in_blocks = state.blocks is not None or sampler.block_length is not None
    keeps = not search.reopen and (not sampler.revises or hasattr(sampler, "front"))
    asks = stops and state.vocab.eos and in_blocks and keeps
    return TextsOver(denoiser.tokenizer, sampler, tuple(stops)) if asks else None
