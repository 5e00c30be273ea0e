"""Hidden rows × head -> the model's beliefs (weigh) and tokens drawn from them (draw), only where asked.

Neither pass keeps the logits. On CUDA the kernels of `gpu.head` do both where they can; the torch reference, everywhere
else, puts rows through the head in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.core.constraint import Allowed
from unmask.core.denoiser import Denoiser, Head
from unmask.core.gpu import head as fused
from unmask.core.state import State
from unmask.errors import ModelError

CHUNK = (
    1 << 22
)  # logits held at a time: 16 MiB of float32, which a processor's cache holds; top-p on CUDA takes 224 MiB
BLOCK = 64  # tokens whose shares are summed up before one of them is looked for
STAYS = -1  # the token of a draw that leaves its mask
FAINT = -1000.0  # e^FAINT is 0, and 0 · FAINT is too
Numbers = TypeVar("Numbers", "Beliefs", "Drawn")


@dataclass(frozen=True)
class Beliefs:
    """The model's own distribution at each position: before temperature, filters and bans. Logs are natural."""

    entropy: Tensor  # [B, L]
    normaliser: Tensor  # [B, L] logsumexp of the logits; not finite where the model gave no distribution
    top: Tensor  # [B, L] log-probability of the most probable token
    second: Tensor  # [B, L] and of the runner-up
    best: Tensor  # [B, L] int64: the most probable token, lowest id on ties
    standing: Tensor  # [B, L] log-probability of the token that stands there; -inf under a mask
    pieces: fused.Pieces | None = field(default=None, kw_only=True)  # from which a draw needs no sweep
    limited: Beliefs | None = field(default=None, kw_only=True)  # the same of the tokens that a constraint allows
    fitting: Fitting | None = field(default=None, kw_only=True)  # or the most probable of them alone


@dataclass(frozen=True)
class Fitting:
    """The most probable token that a constraint allows at each position."""

    best: Tensor  # [B, L] int64: the lowest id on ties
    top: Tensor  # [B, L] its log-probability in the model's own distribution


@dataclass(frozen=True)
class Drawn:
    """A token for each position, and the tempered, filtered distribution that it was drawn from."""

    token: Tensor  # [B, L] int64
    model_logp: Tensor  # [B, L] the token's log-probability in the model's own distribution
    log: Tensor  # [B, L] the token's log-probability in the distribution drawn from
    entropy: Tensor  # [B, L] of the distribution drawn from
    top: Tensor  # [B, L] log-probability of its most probable token
    second: Tensor  # [B, L] and of the runner-up

    @property
    def raw(self) -> Tensor:
        """The name that `model_logp` had in 0.1."""
        return self.model_logp


@dataclass(frozen=True)
class Penalty:
    """Ids whose logits are lowered before anything is proposed or ranked."""

    ids: tuple[int, ...]
    amount: float  # nats

    def on(self, head: Head, hidden: Tensor) -> Head:
        """The head with these logits lowered."""
        return head.lower(self.ids, self.amount, hidden)


@dataclass(frozen=True)
class DrawRule:
    """How a token is drawn. Temperature 0 takes the most probable token that the filters leave."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    ban: tuple[int, ...] = ()  # never drawn; has no effect on entropies
    penalty: Penalty | None = None  # `model_logp` of a draw is then that under the lowered logits


def weigh(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    tokens: Tensor,
    keep: DrawRule | None = None,
    penalty: Penalty | None = None,
    allowed: Allowed | None = None,
) -> Beliefs:
    """One sweep over the vocabulary at the positions `where` [B, L]; zeros elsewhere.

    `keep`: the draw to come. If it is at temperature 1 and bans few ids, the mass of each piece of the vocabulary is
    stored, so that it needs no second sweep.
    `penalty`: the beliefs of the model with these logits lowered. `allowed`: also those of the allowed tokens alone.
    """
    head = head if penalty is None else penalty.on(head, hidden)
    if fused.usable(hidden, head):
        ban = keep.ban if keep is not None and is_plain(keep) else None
        fields, pieces = fused.weigh(hidden, head, where, tokens, keep=ban)
        found = Beliefs(*fields, pieces=pieces)
        return found if allowed is None else _limited(found, hidden, head, where, tokens, allowed)
    return weigh_reference(hidden, head, where, tokens, allowed)


def ask(denoiser: Denoiser, state: State, rows: Tensor, where: Tensor, tokens: Tensor) -> Beliefs:  # rows [R]
    """The beliefs of a few rows at the positions `where` [R, L], `tokens` [R, L] standing there; or an error."""
    return ask_cached(denoiser, state, rows, where, tokens)[0]


def ask_cached(
    denoiser: Denoiser, state: State, rows: Tensor, where: Tensor, tokens: Tensor, allowed: Allowed | None = None
) -> tuple[Beliefs, Any]:
    """`ask`, and the cache of the whole state after it."""
    hidden, cache = denoiser.look(state, rows)
    found = weigh(hidden, denoiser.head, where, tokens, allowed=allowed)
    if not bool((found.normaliser.isfinite() | ~where).all()):
        raise ModelError(f"{denoiser.name} gave logits that are no distribution", "check its weights, dtype and input")
    return found, cache


def is_plain(how: DrawRule) -> bool:
    """Whether tokens are drawn from the model's own distribution, but for bans."""
    return how.temperature == 1 and how.top_k is None and (how.top_p is None or how.top_p >= 1)


def draw(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    dice: Tensor,
    how: DrawRule,
    beliefs: Beliefs | None = None,
    allowed: Allowed | None = None,
) -> Drawn:
    """A token at the positions `where` [B, L] by inverse CDF with the uniforms `dice` [B, L]; zeros elsewhere.

    `beliefs`: the result of `weigh` there, under the same penalty. Where it kept its pieces for such a draw, this needs
    no sweep. `allowed`: the only tokens that are drawn.
    """
    head = head if how.penalty is None else how.penalty.on(head, hidden)
    if allowed is not None:
        if fused.usable(hidden, head, how.top_k, how.top_p):
            return Drawn(*fused.draw(hidden, head, where, dice, how.temperature, how.ban, allowed=allowed))
        return draw_reference(hidden, head, where, dice, how, allowed, beliefs)
    pieces = None if beliefs is None else beliefs.pieces
    if beliefs is not None and pieces is not None and is_plain(how) and pieces.ban == how.ban:
        drawn = fused.draw_from(pieces, hidden, head, where, dice)
        own = (beliefs.entropy, beliefs.top, beliefs.second) if pieces.numbers is None else pieces.numbers.unbind()
        return Drawn(*drawn, *own)
    if fused.usable(hidden, head, how.top_k, how.top_p):
        return Drawn(*fused.draw(hidden, head, where, dice, how.temperature, how.ban))
    return draw_reference(hidden, head, where, dice, how)


def weigh_reference(
    hidden: Tensor, head: Head, where: Tensor, tokens: Tensor, allowed: Allowed | None = None
) -> Beliefs:
    """`weigh` in tensor operations, on any device and in any precision."""
    tokens, place = tokens[where], where.nonzero(as_tuple=True)

    def numbers(logits: Tensor, standing: Tensor) -> tuple[Tensor, ...]:
        sums = _sums(logits)
        stands = (logits.gather(1, standing.clamp(max=head.width - 1)[:, None])[:, 0] - sums.base) - sums.log
        stands = stands.where(standing < head.width, -torch.inf)
        return sums.entropy(), sums.normaliser, sums.top, sums.second, sums.best, stands

    def one(logits: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        found = numbers(logits, tokens[at])
        if allowed is None:
            return found
        here = place[0][at], place[1][at]
        if allowed.full:
            return *found, *numbers(allowed.only(logits, here), tokens[at])
        _, normaliser, top, _, best, _ = found
        out = ~allowed.has(here, best)
        high, other = allowed.only(logits[out], (here[0][out], here[1][out])).max(1)
        high = (high - normaliser[out]).where(high.isfinite(), torch.nan)
        return *found, best.masked_scatter(out, other), top.masked_scatter(out, high.to(top.dtype))

    def laid(*numbers: Tensor) -> Beliefs:
        own, rest = numbers[:6], numbers[6:]
        return Beliefs(*own, limited=Beliefs(*rest)) if len(rest) == 6 else Beliefs(*own, fitting=Fitting(*rest))

    return _sweep(Beliefs if allowed is None else laid, hidden, head, where, one)


def _limited(found: Beliefs, hidden: Tensor, head: Head, where: Tensor, tokens: Tensor, allowed: Allowed) -> Beliefs:
    """Beliefs of the kernels, with those of the allowed tokens: one sweep more where these are not known yet."""
    if allowed.full:
        fields, _ = fused.weigh(hidden, head, where, tokens, allowed=allowed)
        mine = Beliefs(*fields)
        stands = allowed.stands(where, tokens)
        return replace(found, limited=replace(mine, standing=mine.standing.masked_fill(~stands & where, -torch.inf)))
    fits = ~where | allowed.stands(where, found.best)
    best, top, *_ = fused.draw(hidden, head, where & ~fits, found.top, 0.0, allowed=allowed)
    top = top.masked_fill(top == -torch.inf, torch.nan)  # nothing is allowed there
    return replace(found, fitting=Fitting(found.best.where(fits, best), found.top.where(fits, top)))


def draw_reference(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    dice: Tensor,
    how: DrawRule,
    allowed: Allowed | None = None,
    beliefs: Beliefs | None = None,
) -> Drawn:
    """`draw` in tensor operations, on any device and in any precision."""
    dice, place = dice[where], where.nonzero(as_tuple=True)
    known = None if allowed is None or beliefs is None else beliefs.normaliser[where]

    def one(logits: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        changed = filtered(logits if allowed is None else allowed.only(logits, (place[0][at], place[1][at])), how)
        sums = _sums(changed)
        token = sums.best if how.temperature == 0 else _inverse(sums.shares, dice[at])
        log = (changed.gather(1, token[:, None])[:, 0] - sums.base) - sums.log
        raw = log
        if changed is not logits:
            raw = logits.gather(1, token[:, None])[:, 0] - (logits.logsumexp(1) if known is None else known[at])
        return token, raw, log, sums.entropy(), sums.top, sums.second

    return _sweep(Drawn, hidden, head, where, one)


def draw_float32(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    stay: Tensor,
    noise: Callable[[Tensor, Tensor, int], Tensor],
    how: DrawRule,
) -> Drawn:
    """MDLM's public draw, with its defect: Gumbel noise of 24 bits never reaches far enough for rare tokens.

    A position keeps its mask with probability `stay` [B], and its token is then STAYS. `noise` has a uniform
    number for each of some rows and columns [R] and each outcome: (rows, columns, outcomes) -> [R, outcomes].
    """
    head = head if how.penalty is None else how.penalty.on(head, hidden)
    row, column = where.nonzero(as_tuple=True)

    def one(logits: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        changed = filtered(logits, how)
        sums = _sums(changed)
        keep = stay[row[at]].float()[:, None]
        weights = torch.cat([changed.float().softmax(1) * (1 - keep), keep], 1)
        uniform = (noise(row[at], column[at], head.width + 1) * 2**24).floor().float() * 2.0**-24
        token = (weights / (1e-10 - (uniform + 1e-10).log())).argmax(1)  # as written there, in float32
        inside = token.clamp(max=head.width - 1)[:, None]
        log = (changed.gather(1, inside)[:, 0] - sums.base) - sums.log
        raw = log if changed is logits else logits.gather(1, inside)[:, 0] - logits.logsumexp(1)
        token = token.where(token < head.width, STAYS)
        return token, raw, log, sums.entropy(), sums.top, sums.second

    return _sweep(Drawn, hidden, head, where, one)


def most_probable(beliefs: Beliefs) -> Drawn:
    """The draw at temperature 0 without filters, without another sweep."""
    if beliefs.limited is not None:
        of = beliefs.limited
        own = of.top + (of.normaliser - beliefs.normaliser)
        return Drawn(of.best, own, of.top, of.entropy, of.top, of.second)
    if beliefs.fitting is not None:
        best, top = beliefs.fitting.best, beliefs.fitting.top
        return Drawn(best, top, top, beliefs.entropy, beliefs.top, beliefs.second)
    return Drawn(beliefs.best, beliefs.top, beliefs.top, beliefs.entropy, beliefs.top, beliefs.second)


def filtered(logits: Tensor, how: DrawRule) -> Tensor:  # [R, V] -> [R, V]
    """Bans, then temperature, then top-p, then top-k, as the Dream family orders them; -inf is out."""
    if how.ban:
        logits = logits.index_fill(1, torch.tensor(how.ban, device=logits.device), -torch.inf)
    if how.temperature not in (0, 1):
        logits = _tempered(logits, how.temperature)
    if how.top_p is not None and how.top_p < 1:
        ranked, order = logits.sort(dim=1, descending=True, stable=True)
        probability = ranked.softmax(1)
        out = probability.cumsum(1) - probability > how.top_p
        logits = logits.masked_fill(torch.zeros_like(out).scatter(1, order, out), -torch.inf)
    if how.top_k is not None and how.top_k < logits.shape[1]:
        logits = logits.masked_fill(logits < logits.topk(how.top_k, 1).values[:, -1:], -torch.inf)
    return logits


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    below = logits - logits.amax(1, keepdim=True)  # so that no temperature, however small, overflows
    return (below / temperature).where(below != 0, 0.0)


def _sweep(
    kind: Callable[..., Numbers],
    hidden: Tensor,
    head: Head,
    where: Tensor,
    one: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> Numbers:
    """Apply the head at `where`, chunk by chunk; lay each number of `one` out as [B, L]."""
    row, column = where.nonzero(as_tuple=True)
    parts = [one(head.logits(hidden[row[at], column[at]]), at) for at in _chunks(row, head.width)]

    def lay(numbers: tuple[Tensor, ...]) -> Tensor:
        flat = torch.cat(numbers)
        return torch.zeros(where.shape, dtype=flat.dtype, device=flat.device).masked_scatter(where, flat)

    return kind(*(lay(numbers) for numbers in zip(*parts, strict=True)))


def _chunks(asked: Tensor, width: int) -> Iterator[Tensor]:
    """Numbers of the positions asked, in chunks; one empty chunk where nothing is asked."""
    size = max(1, CHUNK // width)
    for begin in range(0, max(1, len(asked)), size):
        yield torch.arange(begin, min(begin + size, len(asked)), device=asked.device)


@dataclass(frozen=True)
class _Sums:
    """Sums over a chunk of logits, in few passes: the passes take the time."""

    best: Tensor  # [R] int64: the lowest on ties
    base: Tensor  # [R]: the largest logit, 0 where that is not finite
    second: Tensor  # [R] log-probability of the runner-up
    normaliser: Tensor  # [R]: logsumexp
    log: Tensor  # [R]: the same above the base; NaN where there is no distribution
    top: Tensor  # [R] log-probability of the best
    below: Tensor  # [R, V]: the logits under the base
    shares: Tensor  # [R, V]: their exponentials

    def entropy(self) -> Tensor:  # [R] nats
        """Overwrites `shares`."""
        return (self.log - self.shares.mul_(self.below).sum(1) / self.log.exp()).clamp(min=0)


def _sums(logits: Tensor) -> _Sums:  # [R, V]
    high, best = logits.max(1)
    base = high.where(high.isfinite(), 0.0)
    below, at = logits - base[:, None], best[:, None]
    mine = below.gather(1, at)
    second = below.scatter_(1, at, -torch.inf).amax(1)
    below = below.scatter_(1, at, mine).clamp_(min=FAINT)
    shares = below.exp()
    log = shares.sum(1).log()
    normaliser, log = base + log, log.where(~high.isneginf(), torch.nan)
    return _Sums(best, base, second - log, normaliser, log, mine[:, 0] - log, below, shares)


def _inverse(shares: Tensor, dice: Tensor) -> Tensor:  # [R, V], [R] -> [R]
    """The first token at which the cumulated shares reach the uniform number: first its block, then its place there."""
    pad = -shares.shape[1] % BLOCK
    many = (shares.shape[1] + pad) // BLOCK
    blocks = (torch.nn.functional.pad(shares, (0, pad)) if pad else shares).view(len(shares), many, BLOCK)
    sums = blocks.sum(2, dtype=torch.float64)
    reached = sums.cumsum(1)
    goal = dice[:, None] * reached[:, -1:]
    block = torch.searchsorted(reached, goal).clamp(max=sums.shape[1] - 1)
    inside = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]].double().cumsum(1)
    left = goal - (reached.gather(1, block) - sums.gather(1, block))
    place = torch.searchsorted(inside, left.clamp(min=torch.finfo(torch.float64).tiny).minimum(inside[:, -1:]))
    return (block * BLOCK + place)[:, 0].clamp(max=shares.shape[1] - 1)  # past the end only without a distribution
