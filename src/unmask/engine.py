"""State × denoiser × sampler × search -> Moments: the one loop. Look, weigh, resample, draw, act.

Weighing comes at the top of the step: the numbers that judge a state are the ones that move it on, so resampling
evaluates nothing that best-of-n does not. Tokens are drawn after resampling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask import dice, read
from unmask.dice import Purpose
from unmask.entropy import state_entropy
from unmask.errors import ModelError, ProgressError, SettingError
from unmask.models.denoiser import Denoiser
from unmask.read import Draw, Drawn, Raw
from unmask.samplers.turn import Sampler, Turn
from unmask.search import Resampled, Search, resample
from unmask.state import State

UNPLANNED = 4  # steps between resamplings of a sampler without a plan: those decide much in few steps


@dataclass(frozen=True)
class Rules:
    """What holds for a walk whatever its sampler and search."""

    draw: Draw = Draw()
    late: tuple[int, ...] = ()  # tokens that may only come last in time
    fill_tail: bool = False  # fill what follows a decided EOS at once
    skip_tail: bool = False  # leave what follows a decided EOS out of the state entropy
    scope: str = "region"  # state entropy over the masks of the whole "region" or of the current "block"
    weight: str = "step"  # path entropy: every state counts the same, or by the "time" its step covers


@dataclass(frozen=True)
class Tally:
    """What a walk has cost so far. Two methods are compared at equal evaluations."""

    steps: Tensor  # [B] int64: turns of the loop that a row took
    calls: Tensor  # [P] int64, on the host: times the network ran with a row of this prompt in it
    evaluations: Tensor  # [B] int64, on the host: rows that went through the network for this slot

    def called(self, rows: Tensor, cost: int) -> Tally:  # rows [R], on the host
        """After a call with these rows."""
        prompts = torch.unique(rows // (len(self.evaluations) // len(self.calls)))
        one, each = torch.ones_like(prompts), torch.full_like(rows, cost)
        return Tally(self.steps, self.calls.index_add(0, prompts, one), self.evaluations.index_add(0, rows, each))


@dataclass(frozen=True)
class Moment:
    """One step, after it was taken."""

    step: int
    state: State  # after the step
    before: Tensor  # [B, L] int64: the tokens that the step changed, after resampling
    active: Tensor  # [B] bool: rows that took the step
    entropy: Tensor  # [B] float64: state entropy of the step's input before resampling, nats; NaN without masks
    resampled: Resampled | None
    raw: Raw  # the beliefs that the step acted on, after resampling
    tally: Tally


@dataclass
class _Sight:
    """What is known of the present canvases: rewritten row by row, carried along by resampling."""

    hidden: Tensor | None  # [B, L, D]
    raw: Raw | None
    stale: Tensor  # [B] bool: the canvas changed since the network saw it
    known: Tensor  # [B, L] bool: `raw` holds for the present canvas

    def resample(self, ancestors: Tensor) -> None:
        assert self.hidden is not None and self.raw is not None
        self.hidden, self.raw = self.hidden[ancestors], read.rows(self.raw, ancestors)
        self.stale, self.known = self.stale[ancestors], self.known[ancestors]

    def forget(self, changed: Tensor) -> None:  # [B] bool
        self.stale = self.stale | changed
        self.known = self.known & ~self.stale[:, None]


def walk(
    denoiser: Denoiser, state: State, sampler: Sampler, search: Search, rules: Rules = Rules()
) -> Iterator[Moment]:
    """Decode, one Moment per step, until every row is done."""
    rows, k = len(state.tokens), state.particles
    plans = state.budget[::k].tolist()
    every = [search.every or (max(1, plan // 4) if sampler.scheduled else UNPLANNED) for plan in plans]
    sight = _Sight(None, None, torch.ones_like(state.slot, dtype=torch.bool), torch.zeros_like(state.writable))
    none = torch.zeros(rows, dtype=torch.int64)
    tally = Tally(torch.zeros_like(state.slot), none[::k], none)

    for step in itertools.count():
        active = ~sampler.done(state, step) & (state.open > 0)
        if not _any(active):
            break
        state = state.replace(time=sampler.time(state, step).where(active, state.time))
        counted = _counted(state, sampler, step, rules) & active[:, None]
        want = (sampler.want(state, step) & active[:, None]) | counted

        state, tally = _look(denoiser, state, sight, want, tally)
        raw = _weigh(denoiser, state, sight, want, step)
        entropy = state_entropy(raw.entropy, counted)
        state = state.replace(entropy=entropy.where(entropy.isfinite(), state.entropy))

        resampled = None
        due = [search.resamples and step > 0 and step % interval == 0 for interval in every]
        if any(due):
            at = torch.tensor(due, device=active.device)
            resampled = resample(search, state, step, counted.any(1), at, denoiser.head.width)
            state = state.resample(resampled.ancestors).replace(log_weight=resampled.log_weight)
            sight.resample(resampled.ancestors)
            counted = counted[resampled.ancestors]

        turn = _turn(denoiser, state, sight, step, rules)
        after = _act(sampler, turn, active, rules)
        sight.forget((after.tokens != state.tokens).any(1) | denoiser.timed)
        after = _remember(state, after, active & counted.any(1), rules)
        tally = replace(tally, steps=tally.steps + active)
        yield Moment(step, after, state.tokens, active, entropy, resampled, turn.raw, tally)
        state = after

    if _any(state.masked):
        raise ProgressError(
            f"row {_first(state.masked.any(1))}: the sampler's schedule ended with positions still masked",
            "its counts must reach every masked position",
        )


# --- the parts of a step ---------------------------------------------------------------------------------------------


def _counted(state: State, sampler: Sampler, step: int, rules: Rules) -> Tensor:  # [B, L] bool
    """The positions whose entropies make up the state entropy."""
    counted = state.masked
    if rules.scope == "block":
        counted = counted & sampler.region(state, step)
    if rules.skip_tail:
        counted = counted & ~tail(state)
    return counted


def _look(denoiser: Denoiser, state: State, sight: _Sight, want: Tensor, tally: Tally) -> tuple[State, Tally]:
    """Run the network on the rows whose canvas it has not seen and that somebody asks about."""
    rows = (sight.stale & (want & ~sight.known).any(1)).nonzero()[:, 0]
    if not len(rows):
        return state, tally
    hidden, cache = denoiser.look(state, rows)
    head, width = denoiser.head, state.tokens.shape[1]
    expected = (len(rows), width, head.width if head.weight is None else head.weight.shape[1])
    if tuple(hidden.shape) != expected:
        raise ModelError(
            f"{denoiser.name} gave hidden states of shape {tuple(hidden.shape)}",
            f"for these rows it must be {expected}",
        )
    if sight.hidden is None and len(rows) < len(state.tokens):
        sight.hidden = hidden.new_zeros(len(state.tokens), *hidden.shape[1:])
    sight.hidden = hidden if sight.hidden is None else sight.hidden.index_copy(0, rows, hidden)
    sight.stale = sight.stale.index_fill(0, rows, False)
    return state.replace(cache=cache), tally.called(rows.cpu(), denoiser.cost)


def _twins(state: State, known: Tensor) -> Tensor:  # known [B, L] bool -> [B] int64
    """For each row, the first row of its prompt with the same canvas, of which the same is known.

    Equal canvases must have equal numbers to the last bit, whatever a kernel does with their places in a batch:
    otherwise rounding would decide between twins, and differently in another batch.
    """
    words = dice.words(2 * known.shape[1], known.device)
    hashes = (torch.cat([state.tokens, known.long()], 1) * words).sum(1)  # 64 bits: no two rows meet by chance
    hashes = hashes.view(-1, state.particles)  # [P, K]
    ranked, order = hashes.sort(dim=1, stable=True)  # equal canvases side by side, the first of them first
    begins = torch.nn.functional.pad(ranked[:, 1:] != ranked[:, :-1], (1, 0), value=True)
    places = torch.arange(hashes.shape[1], device=known.device)
    leader = order.gather(1, torch.where(begins, places, 0).cummax(1).values)
    first = torch.zeros_like(order).scatter(1, order, leader)
    return (first + torch.arange(len(first), device=known.device)[:, None] * state.particles).view(-1)


def _weigh(denoiser: Denoiser, state: State, sight: _Sight, want: Tensor, step: int) -> Raw:
    """Apply the head where it is wanted and not known yet; refuse what is no distribution."""
    need = want & ~sight.known
    if _any(need):
        assert sight.hidden is not None
        fresh = read.weigh(sight.hidden, denoiser.head, need, state.tokens)
        bad = need & ~fresh.normaliser.isfinite()
        if _any(bad):
            row = _first(bad.any(1))
            what = "all -inf" if _any(fresh.normaliser[row][bad[row]].isneginf()) else "NaN or +inf"
            raise ModelError(
                f"step {step}, row {row} (prompt {row // state.particles}, particle {row % state.particles}): "
                f"{denoiser.name} gave logits that are {what}",
                "check its weights, dtype and input",
            )
        sight.known = sight.known | need
        twins = _twins(state, sight.known)
        sight.raw, sight.hidden = read.rows(read.merge(fresh, sight.raw, need), twins), sight.hidden[twins]
    assert sight.raw is not None
    return sight.raw


def _turn(denoiser: Denoiser, state: State, sight: _Sight, step: int, rules: Rules) -> Turn:
    """What the sampler is given. The mask is never drawn."""
    assert sight.hidden is not None and sight.raw is not None
    hidden, raw = sight.hidden, sight.raw
    mask = (state.vocab.mask,) if state.vocab.mask < denoiser.head.width else ()
    outside = set(denoiser.head.absent)
    how = replace(rules.draw, ban=tuple(sorted({*rules.draw.ban, *mask} - outside)))

    def draw(where: Tensor) -> Drawn:
        if how.temperature == 0 and not how.ban and how.top_k is None and how.top_p is None:
            return read.most_probable(raw)
        drawn = read.draw(hidden, denoiser.head, where, state.uniform(step, Purpose.TOKEN), how)
        nothing = where & drawn.log.isnan()
        if _any(nothing):
            raise SettingError(
                f"step {step}, row {_first(nothing.any(1))}: every token that {denoiser.name} allows is banned",
                "ban fewer; the mask is never drawn",
            )
        return drawn

    return Turn(state, step, raw, draw, rules.late)


def _act(sampler: Sampler, turn: Turn, active: Tensor, rules: Rules) -> State:
    """Let the sampler move the active rows on; whatever it answers, given positions stay."""
    state = turn.state
    tokens = sampler.act(turn).where(state.writable & active[:, None], state.tokens)
    after = state.replace(tokens=tokens)
    if rules.fill_tail:
        after = after.replace(tokens=tokens.masked_fill(after.masked & tail(after), state.vocab.eos[0]))
    still = active & (after.tokens == state.tokens).all(1)
    if not sampler.scheduled and _any(still):
        raise ProgressError(
            f"step {turn.step}, row {_first(still)}: the sampler decided nothing",
            "one without a schedule must decide at least one position in every step",
        )
    return after


def _remember(before: State, after: State, counts: Tensor, rules: Rules) -> State:  # counts [B] bool
    """Add the step's state entropy to the path: with weight 1, or with the share of open positions decided."""
    weight = counts.double()
    if rules.weight == "time":
        weight = weight * (before.masked.sum(1) - after.masked.sum(1)).clamp(min=0) / before.open.clamp(min=1)
    return after.replace(
        entropy_sum=before.entropy_sum + torch.where(weight > 0, before.entropy * weight, 0.0),
        entropy_weight=before.entropy_weight + weight,
    )


def tail(state: State) -> Tensor:  # [B, L] bool
    """Positions after a decided EOS, up to the end of its hole."""
    previous = torch.nn.functional.pad(state.writable, (1, 0))[:, :-1]
    hole = (state.writable & ~previous).long().cumsum(1)  # 1, 2, … from the left
    eos = torch.tensor(state.vocab.eos, dtype=torch.int64, device=state.tokens.device)
    ends = torch.where(torch.isin(state.tokens, eos) & state.writable, hole, 0).cummax(1).values
    return state.writable & (torch.nn.functional.pad(ends, (1, 0))[:, :-1] == hole)


def _any(flags: Tensor) -> bool:
    """Read flags back to the host, which waits for the device; so do `nonzero` and the indexing in `read`."""
    return bool(flags.any())


def _first(flags: Tensor) -> int:
    return int(flags.nonzero()[0, 0])
