"""A denoiser -> verdicts: the laws that decoding relies on, checked on random canvases. For adapters of users too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, traits
from unmask.core.state import State, begin, numbers, padded
from unmask.errors import first_line
from unmask.models.cache import BlockCache, WindowCache
from unmask.models.transformer import Transformer
from unmask.models.wrap import layers

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
        *_, inner = layers(denoiser)
        self.blocks = inner.blocks if isinstance(inner, Transformer) and inner.aligned else None
        self.shift = isinstance(inner, Transformer) and inner.shift
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
        return begin(tokens, writable, attend, keys, self.denoiser.vocab, 1, blocks=traits(self.denoiser).attention)

    def look(self, state: State, rows: list[int] | None = None) -> tuple[Tensor, Any]:
        asked = torch.tensor(rows or range(len(state.tokens)), device=self.denoiser.device)
        hidden, cache = self.denoiser.look(state, asked)
        self.kind = hidden.dtype
        return hidden, cache

    def logs(self, state: State, rows: list[int] | None = None) -> Tensor:  # [R, L, V]
        return self.read(self.look(state, rows)[0])

    def read(self, hidden: Tensor) -> Tensor:  # [R, L, D] -> [R, L, V]
        return torch.stack([self.denoiser.head.logits(row).log_softmax(1) for row in hidden])

    def told(self, state: State) -> Tensor:  # [B, L] bool
        """Where there are predictions: everywhere, with attention in blocks up to the block of the first mask."""
        if self.blocks is None:
            return torch.ones_like(state.attend)
        block = state.columns // self.blocks
        last = block.where(state.masked, block.amax(1, keepdim=True)).amin(1, keepdim=True)
        return state.attend & (block <= last)

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
    together, told = probe.logs(state), probe.told(state)
    turned = probe.logs(state, [2, 0, 1])
    pairs = [(together[[2, 0, 1]][told[[2, 0, 1]]], turned[told[[2, 0, 1]]])]
    for row, here in enumerate(told):
        pairs.append((together[row][here], probe.logs(state, [row])[0][here]))
        pairs.append((together[row][here], probe.logs(probe.state([probe.canvases[row][:size]]))[0][here]))
    return probe.close(pairs)


def padding(probe: _Probe) -> Found:
    """A row with pads on its left has the same numbers as without them."""
    state = probe.state(probe.canvases)
    together = probe.logs(state)
    pairs = []
    for row, canvas in enumerate(probe.canvases):
        single = probe.state([canvas])
        here = probe.told(single)[0]
        pairs.append((together[row, -len(canvas) :][here], probe.logs(single)[0][here]))
    return probe.close(pairs)


def directions(probe: _Probe) -> Found:
    """A token at the end changes the prediction at the beginning, and vice versa; with attention in blocks, in each."""
    limit = probe.denoiser.limit
    if probe.blocks is not None and (limit is None or probe.blocks < limit):
        return _directions_in_blocks(probe, probe.blocks, min(2 * probe.blocks, limit or 2 * probe.blocks))
    canvas = probe.canvases[0]
    for at, other in ((0, len(canvas) - 1), (len(canvas) - 1, 0)):
        if _moved(probe, canvas, at, other) < 1e-7:
            return False, f"the prediction at one end does not see the {'last' if other else 'first'} token"
    return True, "both ends see each other"


def _directions_in_blocks(probe: _Probe, size: int, length: int) -> Found:
    """Both ends of a block see each other and the block before; no position sees a later block."""
    canvas = [probe.words[place % len(probe.words)] for place in range(length)]
    first, last = size, length - 1  # of the second block
    begin = first + probe.shift  # the first prediction of a shifted block comes from the block before
    if begin < last and _moved(probe, canvas, begin, last) < 1e-7:
        return False, "the prediction at the beginning of a block does not see its last token"
    if first < last and _moved(probe, canvas, last, first) < 1e-7:
        return False, "the prediction at the end of a block does not see its first token"
    if _moved(probe, canvas, last, 0) < 1e-7:
        return False, "a prediction does not see the block before its own"
    later = max(_moved(probe, canvas, at, other) for at in (0, first - 1) for other in (first, last))
    if later > CLOSE[probe.kind]:
        return False, f"a prediction sees a later block: it is moved by {later:.1g} of the spread"
    return True, f"blocks of {size} see themselves and those before them"


def _moved(probe: _Probe, canvas: list[int], at: int, other: int) -> float:
    """How far another token at `other` moves the prediction at `at`, as a share of its spread."""
    changed = list(canvas)
    changed[at] = probe.mask
    found = []
    for token in (probe.words[0], probe.words[-1]):
        changed[other] = token
        found.append(probe.logs(probe.state([changed]))[:, at])
    return _gap((found[0], found[1]))


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
    plain, masked = probe.logs(state), state.masked
    if state.blocks is not None:  # later blocks are not computed
        masked = masked & (numbers(state, state.blocks) == (state.front // state.blocks.size)[:, None])
    pairs = [(plain[masked], probe.read(hidden)[masked])]
    return probe.close([*pairs, (plain[order][masked[order]], probe.read(again)[masked[order]])])


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
