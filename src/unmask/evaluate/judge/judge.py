"""Texts × Judge -> Opinions: nats and tokens by two conventions, and how varied the tokens are.

`sample`: every token of a text counts, the first one after the judge's start token; ln PPL is the mean loss of a text.
Of a text that has ended, the token that ends a document counts too where that is asked for. A text longer than the
context is read in windows of it that move on by `stride`: a token after the first window has at least context - stride
tokens before it. A judge that is `cut` reads the first window of a text only.

`mdlm`: the generative perplexity of MDLM, https://github.com/kuleshov-group/mdlm (diffusion.py,
compute_generative_perplexity). The text is tokenised as the judge's tokenizer does it, cut to `length` tokens and read
in separate windows of the context; the first token of a window has no context and does not count; of the tokens that
end a document, only the first in a window counts. There texts are padded with that token, so that one pad of each
shorter text counts: here it is one for every text shorter than `length`, whatever stands beside it. The figure is one
for all texts: exp(all nats / all tokens). MDLM leaves out the last batch if it is not full; here every text counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InputError, ModelError

BUDGET = {"cpu": 2048, "cuda": 16384}  # tokens at a time, padding included: logits of all of them are in memory
SLICE = 2**26  # logits that are float32 at a time


@dataclass(frozen=True)
class Window:
    """Tokens that the judge reads at once, and which of them count; the first has no context and never counts."""

    tokens: list[int]
    counts: list[bool]


@dataclass(frozen=True, eq=False)
class Judge:
    """A causal model with its tokenizer."""

    model: Any
    words: Any  # a tokenizer of transformers
    name: str
    start: int  # the token that a text is read after
    end: int  # the token that ends a document
    context: int  # tokens that it reads at once, at most
    cut: bool = False  # whether tokens beyond its context do not count

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    def ids(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text; `special` adds those that the tokenizer puts around one."""
        found = self.words(text, add_special_tokens=special, verbose=False)["input_ids"]
        return [int(token) for token in found]

    def losses(self, windows: Sequence[Window], budget: int | None = None) -> list[NDArray[np.float64]]:
        """-log p of the tokens of each window that count, in nats; `budget` bounds the tokens read together."""
        most = BUDGET.get(self.device.type, BUDGET["cpu"]) if budget is None else budget
        return [found for some in batches(windows, most) for found in self._read(some)]

    @torch.no_grad()
    def _read(self, windows: Sequence[Window]) -> list[NDArray[np.float64]]:
        widest = max(len(window.tokens) for window in windows)
        padded = [window.tokens + [self.end] * (widest - len(window.tokens)) for window in windows]
        real = [[1] * len(window.tokens) + [0] * (widest - len(window.tokens)) for window in windows]
        tokens = torch.tensor(padded, device=self.device)  # [B, L]; pads follow, so nothing real sees them
        logits = self.model(tokens, attention_mask=torch.tensor(real, device=self.device), use_cache=False).logits
        losses = _losses(logits[:, :-1], tokens[:, 1:]).double().cpu().numpy()  # [B, L - 1]
        if not np.isfinite(losses[np.array(real, dtype=bool)[:, 1:]]).all():
            raise ModelError(f"{self.name} gives a token no finite loss", "try another dtype: float32 has the range")
        rows = zip(losses, windows, strict=True)
        return [row[: len(window.tokens) - 1][np.array(window.counts[1:], dtype=bool)] for row, window in rows]


def _losses(logits: Tensor, targets: Tensor) -> Tensor:  # [B, L, V], [B, L] -> [B, L]
    """Cross-entropy in float32 or better, a slice of positions at a time."""
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    size = max(1, SLICE // flat.shape[1])
    found = [
        torch.nn.functional.cross_entropy(
            _exact(flat[begin : begin + size]), wanted[begin : begin + size], reduction="none"
        )
        for begin in range(0, len(flat), size)
    ]
    return (torch.cat(found) if found else flat.new_zeros(0)).view(targets.shape)


def _exact(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def batches(windows: Sequence[Window], budget: int) -> Iterator[Sequence[Window]]:
    """Batches of at most `budget` tokens, padding included; a longer window is a batch of its own."""
    begin = widest = 0
    for place, window in enumerate(windows):
        widest = max(widest, len(window.tokens))
        if place > begin and (place + 1 - begin) * widest > budget:
            yield windows[begin:place]
            begin, widest = place, len(window.tokens)
    if begin < len(windows):
        yield windows[begin:]


# --- opinions --------------------------------------------------------------------------------------------------------

LENGTH = 1024  # tokens of a sample, as MDLM was trained and as the paper samples
CONVENTIONS = ("sample", "mdlm", "both")
GRAMS = (1, 2, 3)  # distinct-n is given for these


@dataclass(frozen=True)
class Rules:
    """How texts are judged."""

    convention: str = "sample"
    length: int = LENGTH  # of `mdlm`: tokens of a text that are read
    stride: int | None = None  # of `sample`: by default half the context
    budget: int | None = None  # tokens read together
    ends: bool = False  # of `sample`: whether the end of a text that has ended counts

    def check(self, judge: Judge) -> None:
        if self.convention not in CONVENTIONS:
            raise InputError(f"convention is {self.convention!r}", f"choose from {', '.join(CONVENTIONS)}")
        if self.stride is not None and judge.cut:
            raise InputError(f"stride has no effect on {judge.name}", "it reads one window of a text: leave it out")
        for name, most in (("length", None), ("stride", judge.context - 1), ("budget", None)):
            value = getattr(self, name)
            if value is not None and (value < 1 or (most is not None and value > most)):
                raise InputError(
                    f"{name} is {value}", "it must be at least 1" + (f" and at most {most}" if most else "")
                )


@dataclass(frozen=True)
class Opinion:
    """The judgement of one text; None for a convention that was not asked for."""

    tokens: int  # the judge's tokens of the text that were read
    nats: float | None  # their summed loss
    even: float | None  # the mean loss of every other token, from the first one; None without such tokens
    odd: float | None  # and of the ones between: how well the two agree says how noisy the mean is
    mdlm_tokens: int | None  # those that MDLM's convention counts
    mdlm_nats: float | None
    diversity: float  # nats: entropy of the counts of the tokens, the generating model's where they are given
    distinct: tuple[float, ...]  # the share of different n-grams of these tokens, for each of GRAMS

    @property
    def ln_ppl(self) -> float | None:
        return None if self.nats is None else self.nats / self.tokens


def opinions(
    judge: Judge,
    texts: Sequence[str],
    rules: Rules = Rules(),
    tokens: Sequence[Sequence[int] | None] | None = None,
    ended: Sequence[bool] | None = None,
    first: int = 0,
) -> Iterator[list[Opinion]]:
    """The judgement of each text, in batches; `tokens` are those of the generating model, and some texts have ended.

    `first` is the place of the first text among all, for errors.
    """
    rules.check(judge)
    written = [None] * len(texts) if tokens is None else tokens
    most = rules.budget or BUDGET.get(judge.device.type, BUDGET["cpu"])
    begin = 0
    while begin < len(texts):
        some: list[list[int]] = []
        while begin + len(some) < len(texts) and (not some or max(map(len, some)) * (len(some) + 1) <= most):
            some.append(_ids(judge, texts[begin + len(some)], first + begin + len(some)))
        end = begin + len(some)
        over = [rules.ends and one for one in ended[begin:end]] if ended is not None else [False] * len(some)
        yield _judged(judge, some, texts[begin:end], rules, written[begin:end], over)
        begin = end


def _ids(judge: Judge, text: str, place: int) -> list[int]:
    found = judge.ids(text)
    if not found:
        raise InputError(f"text {place + 1} is empty", "leave it out")
    return found


def _judged(
    judge: Judge,
    ids: list[list[int]],
    texts: Sequence[str],
    rules: Rules,
    written: Sequence[Sequence[int] | None],
    ended: Sequence[bool],
) -> list[Opinion]:
    """The opinions on the texts of a batch."""
    count, nothing = len(ids), [None] * len(ids)
    whole: Sequence[NDArray[np.float64] | None] = nothing
    mdlm: Sequence[NDArray[np.float64] | None] = nothing
    if rules.convention != "mdlm":
        rows = [[judge.start, *row, *[judge.end] * over] for row, over in zip(ids, ended, strict=True)]
        rows = [row[: judge.context] for row in rows] if judge.cut else rows
        stride = rules.stride or max(1, judge.context // 2)
        whole = _joined(judge, [strided(row, judge.context, stride) for row in rows], rules.budget)
    if rules.convention != "sample":
        pieces = [chunks(judge.ids(text, special=True), judge.end, rules.length, judge.context) for text in texts]
        mdlm = _joined(judge, pieces, rules.budget)
    return [_opinion(ids[n], written[n] or ids[n], whole[n], mdlm[n]) for n in range(count)]


def _joined(judge: Judge, pieces: Sequence[Sequence[Window]], budget: int | None) -> list[NDArray[np.float64]]:
    """The losses of each text, whose windows are given."""
    flat = iter(judge.losses([window for windows in pieces for window in windows], budget))
    return [np.concatenate([next(flat) for _ in windows]) for windows in pieces]


def _opinion(
    ids: list[int],
    written: Sequence[int],
    whole: NDArray[np.float64] | None,
    mdlm: NDArray[np.float64] | None,
) -> Opinion:
    nats = even = odd = None
    if whole is not None:
        nats, even = float(whole.sum()), float(whole[::2].mean())
        odd = float(whole[1::2].mean()) if len(whole) > 1 else None
    counted, cost = (None, None) if mdlm is None else (len(mdlm), float(mdlm.sum()))
    kinds = tuple(distinct(written, n) for n in GRAMS)
    size = len(ids) if whole is None else len(whole)
    return Opinion(size, nats, even, odd, counted, cost, diversity(written), kinds)


def strided(ids: Sequence[int], context: int, stride: int) -> list[Window]:
    """Windows in which every token but the first counts once, with as much context as the windows hold."""
    found, begin, known = [], 0, 1
    while known < len(ids):
        tokens = list(ids[begin : begin + context])
        found.append(Window(tokens, [begin + place >= known for place in range(len(tokens))]))
        known = begin + len(tokens)
        begin += stride
    return found


def chunks(ids: Sequence[int], end: int, length: int, context: int) -> list[Window]:
    """MDLM's windows: without overlap, and of the tokens `end` only the first in a window counts."""
    kept = [*ids[:length], *([end] if len(ids) < length else [])]
    found = []
    for begin in range(0, len(kept), context):
        tokens = kept[begin : begin + context]
        first = tokens.index(end) if end in tokens else None
        found.append(Window(tokens, [n > 0 and (token != end or n == first) for n, token in enumerate(tokens)]))
    return found


def distinct(tokens: Sequence[int], n: int) -> float:
    """The share of distinct n-grams; 1 where there are none."""
    runs = [tuple(tokens[begin : begin + n]) for begin in range(len(tokens) - n + 1)]
    return len(set(runs)) / len(runs) if runs else 1.0


def diversity(tokens: Sequence[int]) -> float:
    """The entropy of one sample's token counts, in nats, as remdm and bd3lms compute it.

    Report it beside perplexity: repetition is easy to predict.
    """
    counts = Counter(tokens).values()
    return -sum(count / len(tokens) * math.log(count / len(tokens)) for count in counts) + 0.0
