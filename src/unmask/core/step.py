"""State × denoiser × sampler × search -> Moments: the one loop. Look, weigh, resample, draw, act.

Weighing comes at the top of the step: the numbers that judge a state are the ones that move it on, so resampling
evaluates nothing that best-of-n does not. Tokens are drawn after resampling.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core import beliefs, dice
from unmask.core.beliefs import Draw, Drawn, Raw
from unmask.core.denoiser import Denoiser
from unmask.core.dice import Purpose
from unmask.core.entropy import state_entropy
from unmask.core.faults import Faults
from unmask.core.resampling import Resampled, Search, reopen
from unmask.core.state import State, Step, remember, tail
from unmask.core.turn import Sampler, Turn
from unmask.errors import ModelError, ProgressError
from unmask.models.cache import is_cached

UNPLANNED = 4  # steps between resamplings of a sampler without a plan: those decide much in few steps


@dataclass(frozen=True)
class Rules:
    """What holds for a walk whatever its sampler and search."""

    draw: Draw = Draw()
    late: tuple[int, ...] = ()  # tokens that may only come last in time
    fill_tail: bool = False  # fill what follows a decided EOS at once
    skip_tail: bool = False  # leave what follows a decided EOS out of the state entropy
    scope: str = "region"  # state entropy over the masks of the whole "region" or of the current "block"


@dataclass(frozen=True)
class Tally:
    """What a walk has cost so far. Two methods are compared at equal evaluations."""

    steps: Tensor  # [B] int64: turns of the loop that a row took
    calls: Tensor  # [P] int64: times the network ran with a row of this prompt in it
    evaluations: Tensor  # [B] int64: rows that went through the network for this slot, equal ones too

    def called(self, rows: Tensor, cost: int) -> Tally:  # rows [B] bool
        """After a call with these rows."""
        calls = self.calls + rows.view(len(self.calls), -1).any(1)
        return Tally(self.steps, calls, self.evaluations + cost * rows)


@dataclass(frozen=True)
class Moment:
    """One step, after it was taken."""

    step: int  # -1 in a step that is being recorded
    state: State  # after the step
    before: Tensor  # [B, L] int64: the tokens that the step changed, after resampling
    active: Tensor  # [B] bool: rows that took the step
    entropy: Tensor  # [B] float64: state entropy of the step's input before resampling, nats; NaN without masks
    resampled: Resampled | None
    raw: Raw  # the beliefs that the step acted on, after resampling
    tally: Tally
    hidden: Tensor | None = None  # [B, L, D]: what they were read from, where the way keeps it


@dataclass(frozen=True)
class Way:
    """Who decodes and how: the same in every step."""

    denoiser: Denoiser
    sampler: Sampler
    search: Search
    rules: Rules = Rules()
    asks: bool = True  # leave out rows that need no call, for which the host waits for the device
    shares: bool = True  # equal canvases of a prompt are computed once, not only given the same numbers
    keeps: bool = False  # moments hold the hidden states
    weigh: Callable[..., Raw] = beliefs.weigh
    draw: Callable[..., Drawn] = beliefs.draw

    def active(self, state: State, step: Step) -> Tensor:  # [B] bool
        """The rows that take this step."""
        return ~self.sampler.done(state, step) & (state.open > 0)

    def intervals(self, state: State) -> list[int]:
        """Steps between resamplings, for each prompt."""
        plans = state.budget[:: state.particles].tolist()
        scheduled, every = self.sampler.scheduled, self.search.every
        return [every or (max(1, plan // 4) if scheduled else UNPLANNED) for plan in plans]


@dataclass
class Sight:
    """What is known of the present canvases: rewritten row by row, carried along by resampling."""

    hidden: Tensor | None  # [B, L, D]
    raw: Raw | None
    stale: Tensor  # [B] bool: the canvas changed since the network saw it
    known: Tensor  # [B, L] bool: `raw` holds for the present canvas

    def take(self, rows: Tensor | None) -> None:  # [B] int64
        """Every row takes what is known of another; None: of itself."""
        if rows is not None:
            assert self.hidden is not None and self.raw is not None
            self.hidden, self.raw = self.hidden[rows], beliefs.rows(self.raw, rows)
            self.stale, self.known = self.stale[rows], self.known[rows]

    def forget(self, changed: Tensor) -> None:  # [B] bool
        self.stale = self.stale | changed
        self.known = self.known & ~self.stale[:, None]


def blind(state: State) -> tuple[Sight, Tally]:
    """Nothing is known, nothing is spent."""
    none = torch.zeros_like(state.slot)
    sight = Sight(None, None, torch.ones_like(none, dtype=torch.bool), torch.zeros_like(state.writable))
    return sight, Tally(none, none[:: state.particles], none)


def walk(
    denoiser: Denoiser,
    state: State,
    sampler: Sampler,
    search: Search,
    rules: Rules = Rules(),
    draw: Callable[..., Drawn] = beliefs.draw,
    keeps: bool = False,
) -> Iterator[Moment]:
    """Decode, one Moment per step, until every row is done; `draw` says what is written, at temperatures above 0."""
    way = Way(denoiser, sampler, search, rules, shares=not is_cached(denoiser), keeps=keeps, draw=draw)
    every = way.intervals(state)
    sight, tally = blind(state)
    for step in itertools.count():
        active = way.active(state, step)
        if not bool(active.any()):
            break
        due = [search.resamples and step > 0 and step % interval == 0 for interval in every]
        at = torch.tensor(due, device=active.device) if any(due) else None
        faults = Faults(denoiser.name, state.particles, step)
        moment = advance(way, state, sight, tally, step, active, at, faults)
        state, tally = moment.state, moment.tally
        yield moment
    finish(state)


def finish(state: State) -> None:
    """Refuse an end with holes."""
    holes = state.masked.any(1)
    if bool(holes.any()):
        raise ProgressError(
            f"row {int(holes.nonzero()[0, 0])}: the sampler's schedule ended with positions still masked",
            "its counts must reach every masked position",
        )


def advance(
    way: Way,
    state: State,
    sight: Sight,
    tally: Tally,
    step: Step,
    active: Tensor,  # [B] bool
    due: Tensor | None,  # [P] bool: prompts whose particles are resampled; None: none
    faults: Faults,
) -> Moment:
    """One step; `sight` is brought up to date."""
    denoiser, sampler, rules = way.denoiser, way.sampler, way.rules
    state = state.replace(time=sampler.time(state, step).where(active, state.time))
    counted = _counted(state, sampler, step, rules) & active[:, None]
    want = (sampler.want(state, step) & active[:, None]) | counted

    first = _first_equal(way, state, sight, want)
    state, tally = _look(way, state, sight, want, first, tally)
    raw = _weigh(way, state, sight, want, first, faults)
    entropy = state_entropy(raw.entropy, counted)
    state = state.replace(entropy=entropy.where(entropy.isfinite(), state.entropy))
    ahead = state.entropy
    if state.vocab.eos and not rules.skip_tail:
        ahead = state_entropy(raw.entropy, counted & ~tail(state))

    resampled = None
    if due is not None:
        resampled = way.search.resample(way.search, state, step, counted.any(1), due, denoiser.head.width)
        state = state.resample(resampled.ancestors).replace(log_weight=resampled.log_weight, score=resampled.score)
        sight.take(resampled.ancestors)
        counted, ahead = counted[resampled.ancestors], ahead[resampled.ancestors]

    turn, drawn = _turn(way, state, sight, step, faults)
    after = _act(way, turn, drawn, active, faults)
    if resampled is not None and way.search.reopen > 0:
        after = reopen(way.search, after, step, resampled.ancestors, ~sampler.done(after, step + 1))
    sight.forget((after.tokens != state.tokens).any(1) | denoiser.timed)
    after = remember(state, after, ahead, active & counted.any(1))
    tally = replace(tally, steps=tally.steps + active)
    number, hidden = step if isinstance(step, int) else -1, sight.hidden if way.keeps else None
    raw = replace(turn.raw, pieces=None)
    return Moment(number, after, state.tokens, active, entropy, resampled, raw, tally, hidden)


# --- the parts of a step ---------------------------------------------------------------------------------------------


def _counted(state: State, sampler: Sampler, step: Step, rules: Rules) -> Tensor:  # [B, L] bool
    """The positions whose entropies make up the state entropy."""
    counted = state.masked
    if rules.scope == "block":
        counted = counted & sampler.region(state, step)
    if rules.skip_tail:
        counted = counted & ~tail(state)
    return counted


def _first_equal(way: Way, state: State, sight: Sight, want: Tensor) -> Tensor | None:  # [B] int64
    """For each row, the row of its prompt with the same canvas of which most is known, the first of them; None: itself.

    Equal canvases must have equal numbers to the last bit, whatever a kernel does with their places in a batch:
    otherwise rounding would decide between twins, and differently in another batch.
    """
    if state.particles == 1:
        return None
    words = dice.words(state.tokens.shape[1], state.tokens.device)
    hashes = (state.tokens * words).sum(1).view(-1, state.particles)  # [P, K], 64 bits: no two meet by chance
    lacking = (want & ~sight.known).any(1).long() + sight.stale.long()
    known_first = lacking.view_as(hashes).argsort(dim=1, stable=True)
    ranked, order = hashes.gather(1, known_first).sort(dim=1, stable=True)  # equal canvases side by side
    begins = torch.nn.functional.pad(ranked[:, 1:] != ranked[:, :-1], (1, 0), value=True)
    if way.asks and bool(begins.all()):
        return None
    order = known_first.gather(1, order)
    places = torch.arange(hashes.shape[1], device=hashes.device)
    leader = order.gather(1, torch.where(begins, places, 0).cummax(1).values)
    first = torch.zeros_like(order).scatter(1, order, leader)
    return (first + torch.arange(len(first), device=hashes.device)[:, None] * state.particles).view(-1)


def _leads(way: Way, first: Tensor | None, rows: Tensor) -> Tensor:  # [B] bool
    """Those of the rows that are computed: of equal ones the first."""
    if first is None or not way.shares:
        return rows
    return rows & (first == torch.arange(len(first), device=first.device))


def _look(
    way: Way, state: State, sight: Sight, want: Tensor, first: Tensor | None, tally: Tally
) -> tuple[State, Tally]:
    """Run the network on the rows whose canvas it has not seen and that somebody asks about."""
    denoiser = way.denoiser
    need = sight.stale & (want & ~sight.known).any(1)
    tally = tally.called(need, denoiser.cost)
    if way.asks:
        rows = _leads(way, first, need).nonzero()[:, 0]
        if not len(rows):
            return state, tally
    else:
        rows = torch.arange(len(need), device=need.device)
    hidden, cache = denoiser.look(state, rows)
    head, width = denoiser.head, state.tokens.shape[1]
    expected = (len(rows), width, head.width if head.weight is None else head.weight.shape[1])
    if tuple(hidden.shape) != expected:
        raise ModelError(
            f"{denoiser.name} gave hidden states of shape {tuple(hidden.shape)}",
            f"for these rows it must be {expected}",
        )
    if len(rows) == len(need):
        sight.hidden = hidden
    else:
        old = hidden.new_zeros(len(need), *hidden.shape[1:]) if sight.hidden is None else sight.hidden
        sight.hidden = old.index_copy(0, rows, hidden)
    sight.stale = sight.stale.index_fill(0, rows, False)
    return state.replace(cache=cache), tally


def _weigh(way: Way, state: State, sight: Sight, want: Tensor, first: Tensor | None, faults: Faults) -> Raw:
    """Apply the head where it is wanted and not known yet; refuse what is no distribution."""
    need = want & ~sight.known
    if not way.asks or bool(need.any()):
        assert sight.hidden is not None
        ask = _leads(way, first, need.any(1))[:, None] & need
        keep = not way.asks and beliefs.plain(_how(way, state))  # a walk that asks may know of positions from before
        fresh = way.weigh(sight.hidden, way.denoiser.head, ask, state.tokens, keep)
        bad = ask & ~fresh.normaliser.isfinite()
        empty = bad & fresh.normaliser.isneginf()
        faults.note("empty", empty.any(1))
        faults.note("broken", (bad & ~empty).any(1))
        sight.known = sight.known | ask
        sight.raw = beliefs.merge(fresh, sight.raw, ask)
        sight.take(first)
    assert sight.raw is not None
    return sight.raw


def _turn(way: Way, state: State, sight: Sight, step: Step, faults: Faults) -> tuple[Turn, list[Drawn]]:
    """What the sampler is given, and a list of all that it draws."""
    assert sight.hidden is not None and sight.raw is not None
    hidden, raw, denoiser, how = sight.hidden, sight.raw, way.denoiser, _how(way, state)
    kept: list[Drawn] = []

    def draw(where: Tensor) -> Drawn:
        if how.temperature == 0 and not how.ban and how.top_k is None and how.top_p is None:
            return beliefs.most_probable(raw)
        drawn = way.draw(hidden, denoiser.head, where, state.uniform(step, Purpose.TOKEN), how, raw)
        faults.note("banned", (where & drawn.log.isnan()).any(1))
        kept.append(drawn)
        return drawn

    return Turn(state, step, raw, draw, way.rules.late), kept


def _said(turn: Turn, after: State, drawn: list[Drawn]) -> Tensor:  # [B, L] float64
    """The log-probability of what the sampler wrote, drawn or most probable, and of what was written before."""
    written = (after.tokens != turn.state.tokens) & ~after.masked
    log = turn.raw.top.where(after.tokens == turn.raw.best, 0.0)
    for one in drawn:
        log = one.raw.where((one.token == after.tokens) & (one.raw < 0), log)
    return log.double().where(written, turn.state.said).masked_fill(after.masked, 0.0)


def _how(way: Way, state: State) -> Draw:
    """How tokens are drawn. The mask never is."""
    head, rule = way.denoiser.head, way.rules.draw
    mask = (state.vocab.mask,) if state.vocab.mask < head.width else ()
    return replace(rule, ban=tuple(sorted({*rule.ban, *mask} - set(head.absent))))


def _act(way: Way, turn: Turn, drawn: list[Drawn], active: Tensor, faults: Faults) -> State:
    """Let the sampler move the active rows on; whatever it answers, given positions stay."""
    state = turn.state
    tokens = way.sampler.act(turn).where(state.writable & active[:, None], state.tokens)
    after = state.replace(tokens=tokens)
    after = after.replace(said=_said(turn, after, drawn))
    if way.rules.fill_tail:
        after = after.replace(tokens=tokens.masked_fill(after.masked & tail(after), state.vocab.eos[0]))
    if not way.sampler.scheduled:
        faults.note("still", active & (after.tokens == state.tokens).all(1))
    return after
