"""A denoiser -> verdicts: the laws that decoding relies on, checked on random canvases. For adapters of users too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser
from unmask.core.state import State, begin, padded
from unmask.errors import first_line
from unmask.models.cache import BlockCache, WindowCache
from unmask.models.transformer import Transformer

LENGTHS = (12, 9, 5)  # of the canvases: short, within the limit of small models
# How far two ways to compute the same log-probabilities may be apart, as a share of their spread over the vocabulary,
# by the model's type: the rounding of deep networks. A wrong row or a visible pad gives about 1.
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.3}
Found = tuple[bool | None, str]


@dataclass(frozen=True)
class Verdict:
    """One law, whether it held (None: it does not apply), and what was measured."""

    law: str
    held: bool | None
    detail: str


@torch.no_grad()
def check(denoiser: Denoiser, seed: int = 0) -> list[Verdict]:
    """Every law in order; one that raises has not held."""
    verdicts = []
    for name, law in LAWS.items():
        try:
            held, detail = law(_Probe(denoiser, seed))
        except Exception as error:  # an adapter can fail in any way; the verdict has the error
            held, detail = False, f"{type(error).__name__}: {first_line(error)}"
        verdicts.append(Verdict(name, held, detail))
    return verdicts


class _Probe:
    """Random canvases for a denoiser, and its predictions for them."""

    def __init__(self, denoiser: Denoiser, seed: int) -> None:
        self.denoiser, self.mask, self.kind = denoiser, denoiser.vocab.mask, torch.float32
        generator = torch.Generator().manual_seed(seed % 2**32)
        outside = {*denoiser.head.absent, self.mask}
        self.words = [token for token in range(denoiser.head.width) if token not in outside]
        limit = denoiser.limit or LENGTHS[0]
        self.canvases = []
        for length in (max(2, length * min(limit, LENGTHS[0]) // LENGTHS[0]) for length in LENGTHS):
            picks = torch.randint(len(self.words), (length,), generator=generator).tolist()
            holes = torch.rand(length, generator=generator) < 0.5
            holes[: length // 3], holes[length // 3], holes[-1] = False, True, False
            self.canvases.append([self.mask if hole else self.words[p] for p, hole in zip(picks, holes, strict=True)])

    def alike(self) -> list[list[int]]:
        """Canvases with holes in the same places and other tokens: a cache must follow its row to be right."""
        first, many = self.canvases[0], len(self.words)
        move = {token: place for place, token in enumerate(self.words)}
        return [
            [token if token == self.mask else self.words[(move[token] + 1 + row * many // 3) % many] for token in first]
            for row in range(3)
        ]

    def state(self, canvases: list[list[int]]) -> State:
        """Canvases of any lengths, left-padded."""
        tokens, attend = padded(canvases, self.denoiser.vocab.pad)
        keys = torch.zeros(len(canvases), dtype=torch.int64)
        parts = (tokens, (tokens == self.mask) & attend, attend, keys)
        tokens, writable, attend, keys = (part.to(self.denoiser.device) for part in parts)
        return begin(tokens, writable, attend, keys, self.denoiser.vocab, 1)

    def look(self, state: State, rows: list[int] | None = None) -> tuple[Tensor, Any]:
        asked = torch.tensor(rows or range(len(state.tokens)), device=self.denoiser.device)
        hidden, cache = self.denoiser.look(state, asked)
        self.kind = hidden.dtype
        return hidden, cache

    def logs(self, state: State, rows: list[int] | None = None) -> Tensor:  # [R, L, V]
        return self.read(self.look(state, rows)[0])

    def read(self, hidden: Tensor) -> Tensor:  # [R, L, D] -> [R, L, V]
        return torch.stack([self.denoiser.head.logits(row).log_softmax(1) for row in hidden])

    def close(self, pairs: list[tuple[Tensor, Tensor]]) -> Found:
        """Whether all pairs of log-probabilities agree within rounding."""
        gap = max(map(_gap, pairs))
        limit = CLOSE[self.kind]
        coarse = "; float32 is a sharper check" if limit > 0.01 else ""
        return gap <= limit, f"largest difference {gap:.1g} of the spread, up to {limit:g} is rounding{coarse}"


def _gap(pair: tuple[Tensor, Tensor]) -> float:
    """The largest difference as a share of the spread over the vocabulary; infinite where only one is -inf or NaN."""
    one, other = pair
    out = one.isneginf() & other.isneginf()
    finite = one[one.isfinite()]
    spread = finite.std(correction=0).clamp(min=1e-12) if len(finite) else torch.ones(())
    return float((torch.where(out, 0.0, one - other).abs().nan_to_num(torch.inf, torch.inf) / spread).max())


# --- the laws --------------------------------------------------------------------------------------------------------


def shapes(probe: _Probe) -> Found:
    """Hidden states [R, L, D] that fit the head, and logits that are a distribution wherever a token is real."""
    state, head = probe.state(probe.canvases), probe.denoiser.head
    hidden, _ = probe.look(state)
    depth = head.width if head.weight is None else head.weight.shape[1]
    expected = (*state.tokens.shape, depth)
    if tuple(hidden.shape) != expected:
        return False, f"hidden states of shape {tuple(hidden.shape)}, expected {expected}"
    if head.weight is not None and head.weight.shape[0] != head.width:
        return False, f"the head has {head.weight.shape[0]} rows, its width is {head.width}"
    sums = probe.read(hidden).exp().sum(2)[state.attend]
    off = float((sums - 1).abs().max())
    return off < 1e-3, f"probabilities sum to 1 within {off:.0e}" if off == off else "logits are NaN"


def absent(probe: _Probe) -> Found:
    """At masked positions the absent ids have no probability, all others have some."""
    state, head = probe.state(probe.canvases), probe.denoiser.head
    logs = probe.logs(state)[state.masked]
    columns = torch.zeros(head.width, dtype=torch.bool, device=logs.device)
    columns[list(head.absent)] = True
    if not bool(logs[:, columns].isneginf().all()):
        return False, "an absent id has a probability"
    held = bool(logs[:, ~columns].isfinite().all())
    return held, f"{len(head.absent)} absent of {head.width}" if held else "an id that is not absent has none"


def rows(probe: _Probe) -> Found:
    """A row has the same numbers alone, among others, and in another order."""
    size = min(map(len, probe.canvases))
    state = probe.state([row[:size] for row in probe.canvases])
    together = probe.logs(state)
    turned = probe.logs(state, [2, 0, 1])
    pairs = [(together[[2, 0, 1]], turned)]
    for row in range(len(probe.canvases)):
        pairs.append((together[row : row + 1], probe.logs(state, [row])))
        pairs.append((together[row : row + 1], probe.logs(probe.state([probe.canvases[row][:size]]))))
    return probe.close(pairs)


def padding(probe: _Probe) -> Found:
    """A row with pads on its left has the same numbers as without them."""
    state = probe.state(probe.canvases)
    together = probe.logs(state)
    pairs = []
    for row, canvas in enumerate(probe.canvases):
        alone = probe.logs(probe.state([canvas]))
        pairs.append((together[row : row + 1, -len(canvas) :], alone))
    return probe.close(pairs)


def directions(probe: _Probe) -> Found:
    """A token at the end changes the prediction at the beginning, and vice versa."""
    for at, other in ((0, -1), (-1, 0)):
        canvas = list(probe.canvases[0])
        canvas[at] = probe.mask
        found = []
        for token in (probe.words[0], probe.words[-1]):
            canvas[other] = token
            found.append(probe.logs(probe.state([canvas]))[:, at])
        if _gap((found[0], found[1])) < 1e-7:
            return False, f"the prediction at one end does not see the {'last' if other else 'first'} token"
    return True, "both ends see each other"


def untouched(probe: _Probe) -> Found:
    """A look changes nothing in the state, and a second look has the same result."""
    state = probe.state(probe.canvases)
    names = [field.name for field in dataclasses.fields(state) if isinstance(getattr(state, field.name), Tensor)]
    before = {name: getattr(state, name).clone() for name in names}
    first, second = probe.logs(state), probe.logs(state)
    changed = [name for name in names if not torch.equal(before[name].nan_to_num(), getattr(state, name).nan_to_num())]
    return (False, f"look changed state.{changed[0]}") if changed else probe.close([(first, second)])


def time(probe: _Probe) -> Found:
    """`timed` tells whether the diffusion time matters."""
    state = probe.state(probe.canvases[:1])
    gap = _gap((probe.logs(state), probe.logs(state.replace(time=state.time * 0.3))))
    if probe.denoiser.timed:
        return gap > 1e-7, f"time moves the answer by {gap:.1g} of the spread"
    return gap < 1e-7, "no time input" if gap < 1e-7 else f"time moves the answer by {gap:.1g}, but timed is False"


def refresh(probe: _Probe) -> Found:
    """A fresh cache is exact, and follows its rows: kept numbers of an unchanged canvas give the same answer."""
    inner = probe.denoiser
    if isinstance(inner, Transformer):
        probe.denoiser = WindowCache(inner, 2) if inner.attention is None else BlockCache(inner)
    state = probe.state(probe.alike())
    hidden, cache = probe.look(state)
    if cache is None:
        return None, "keeps no cache"
    order = torch.tensor([2, 0, 1], device=inner.device)
    again, _ = probe.look(state.replace(cache=cache).take(order))
    probe.denoiser = inner
    plain = probe.logs(state)
    pairs = [(plain[state.masked], probe.read(hidden)[state.masked])]
    masked = state.masked[order]
    return probe.close([*pairs, (plain[order][masked], probe.read(again)[masked])])


LAWS: dict[str, Callable[[_Probe], Found]] = {
    "head": shapes,
    "absent ids": absent,
    "row independence": rows,
    "padding": padding,
    "both directions": directions,
    "state untouched": untouched,
    "time": time,
    "cache refresh": refresh,
}
