"""Setup × Carry -> the next Carry and a Moment: one step of decoding. Look, weigh, resample, draw, act.

Weighing comes at the top of the step: the numbers that judge a state also advance it, so resampling needs no extra
network calls. Tokens are drawn after resampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.beliefs import Beliefs, Drawn, DrawRule, draw, draw_float32, most_probable, weigh
from unmask.core.constraint import Allowed, Constraint
from unmask.core.denoiser import Denoiser
from unmask.core.dice import Purpose
from unmask.core.entropy import state_entropy
from unmask.core.faults import Faults
from unmask.core.limits import Apart, Drawing, Limit, at_once, takes_best
from unmask.core.resampling import Resampled, Search, Standing, copied, reopen, standing_of
from unmask.core.sampler import Sampler, StepInput, Written, front
from unmask.core.state import State, Step, change, one_of, remember, tail, take
from unmask.errors import ModelError, ProgressError

UNPLANNED = 4  # steps between resamplings of a sampler without a plan: those decide much in few steps
ASKED = 4  # steps between two questions whether a text is over, for which the host waits
Over = Callable[[State], Tensor]  # the rows [B] whose text is over, whatever comes: all those of a prompt, or none


@dataclass(frozen=True)
class Rules:
    """Settings of a walk that hold for every sampler and search."""

    draw: DrawRule = DrawRule()
    late: tuple[int, ...] = ()  # tokens that may only come last in time
    fill_tail: bool = False  # fill what follows a decided EOS at once
    skip_tail: bool = False  # leave what follows a decided EOS out of the state entropy
    scope: str = "region"  # state entropy over the masks of the whole "region" or of the current "block"
    constraint: Constraint | None = None  # what the text must be in the end
    constrained_entropy: bool = False  # beliefs are those of the tokens that the constraint allows


@dataclass(frozen=True)
class Setup:
    """All that is the same in every step of a walk."""

    denoiser: Denoiser
    sampler: Sampler
    search: Search
    rules: Rules = Rules()
    skips_rows: bool = True  # leave out rows that need no call; the host waits for the device to know them
    most: int | None = None  # otherwise: rows that are computed, of equal ones the first; None: all
    shares_rows: bool = True  # equal canvases of a prompt are computed once, not only given the same numbers
    may_resample: bool = True  # False: a step in which no prompt is due
    keeps_hidden: bool = False  # moments hold the hidden states
    weigh: Callable[..., Beliefs] = weigh
    draw: Callable[..., Drawn] = draw
    apart: Apart = at_once  # how a step does what only the host can do
    first: int = 0  # rows of the prompt before these, where they are a slice of its particles

    @property
    def limit(self) -> Limit | None:
        """The constraint, and what is asked of it; None: there is none."""
        rules, potential = self.rules, self.search.potential
        if rules.constraint is None:
            return None
        weighs = potential is not None and potential.weighs_draws
        full = rules.constrained_entropy or self.sampler.filters or weighs
        return Limit(rules.constraint, rules.constrained_entropy, takes_best(rules.draw), full)

    def asked(self, allowed: Allowed | None) -> dict[str, Any]:
        """What a sweep is given besides: the allowed tokens, if it needs them."""
        return {} if self.limit is None else self.limit.asked(allowed)

    def measured(self, beliefs: Beliefs) -> Beliefs:
        """The beliefs that entropies and samplers go by."""
        return beliefs if self.limit is None else self.limit.measured(beliefs)

    def active(self, state: State, step: Step) -> Tensor:  # [B] bool
        """The rows that take this step. Where particles meet at blocks, those ahead of the others wait."""
        rows = ~self.sampler.done(state, step) & (state.open > 0)
        if not self.meets(state):
            return rows
        first = first_block(state, rows)[:, None].expand(-1, state.particles).reshape(-1)
        return rows & (_block(state) == first)

    def meets(self, state: State) -> bool:
        """Whether particles are resampled where all of them have entered a block of the model's attention."""
        return self.search.resamples and self.search.every is None and state.blocks is not None

    def intervals(self, state: State) -> Tensor:  # [P] int64
        """Steps between resamplings; 1 where blocks determine them."""
        plans = state.budget[:: state.particles]
        if self.meets(state):
            return torch.ones_like(plans)
        if self.search.every is not None:
            return torch.full_like(plans, self.search.every)
        if not self.sampler.scheduled:
            return torch.full_like(plans, UNPLANNED)
        return (plans + 3) // 4  # after a quarter, the half and three quarters of the steps, as in the paper


@dataclass(frozen=True)
class Tally:
    """The cost of a walk so far. Two methods are compared at equal evaluations."""

    steps: Tensor  # [B] int64: steps that a row took
    calls: Tensor  # [P] int64: times the network ran with a row of this prompt in it
    evaluations: Tensor  # [B] int64: rows that this slot asked the network for, equal ones too
    rows: Tensor  # [B] int64: rows that the network computed for it: of equal ones the first

    def called(self, asked: Tensor, computed: Tensor, cost: int) -> Tally:  # [B] bool, [B] bool
        """After a call that these rows asked for, and in which those were computed."""
        calls = self.calls + asked.view(len(self.calls), -1).any(1)
        return Tally(self.steps, calls, self.evaluations + cost * asked, self.rows + cost * computed)


@dataclass(frozen=True)
class Known:
    """The network's answers about the present canvases."""

    stale: Tensor  # [B] bool: the canvas changed since the network saw it
    hidden: Tensor | None = None  # [B, L, D]: of the rows that are not stale
    beliefs: Beliefs | None = None
    where: Tensor | None = None  # [B, L] bool: the positions at which the beliefs hold; None: nowhere

    def lacks(self, want: Tensor) -> Tensor:  # [B, L] bool
        """The wanted positions whose beliefs are not known."""
        return want if self.where is None else want & ~self.where

    def after(self, changed: Tensor) -> Known:  # [B] bool
        """What is still known once these rows have changed."""
        stale = self.stale | changed
        return replace(self, stale=stale, where=None if self.where is None else self.where & ~stale[:, None])


@dataclass(frozen=True)
class Carry:
    """All that passes from one step to the next."""

    state: State
    known: Known
    tally: Tally
    active: Tensor  # [B] bool: the rows that take the next step
    every: Tensor  # [P] int64: steps between resamplings
    step: Step  # the number of the next step
    block: Tensor  # [P] int64: the first block that a particle of the prompt was in
    fault: Tensor | None = None  # [] int64: the first fault, 0 for none; None: a fault is raised at once
    over: Tensor | None = None  # [B] bool: the rows whose text is over; None: nobody asks

    def without(self, over: Tensor) -> Carry:  # [B] bool
        """These rows take no further step: what is masked there is filled with EOS."""
        masked = self.state.masked & over[:, None]
        state = self.state.replace(tokens=self.state.tokens.masked_fill(masked, self.state.vocab.eos[0]))
        before = over if self.over is None else self.over | over
        return replace(self, state=state, active=self.active & ~over, over=before)


@dataclass(frozen=True)
class Moment:
    """One step, after it was taken."""

    step: int  # -1 while a step is being recorded
    state: State  # after the step
    before: Tensor  # [B, L] int64: the tokens that the step changed, after resampling
    active: Tensor  # [B] bool: rows that took the step
    entropy: Tensor  # [B] float64: state entropy of the step's input before resampling, nats; NaN without masks
    resampled: Resampled | None
    beliefs: Beliefs  # by which the step acted, after resampling
    tally: Tally
    hidden: Tensor | None = None  # [B, L, D]: from which they were computed, if the setup keeps it


@dataclass(frozen=True)
class Seen:
    """What the first half of a step found out, row by row."""

    state: State  # with the times and state entropies of the step
    known: Known
    beliefs: Beliefs
    tally: Tally
    live: Tensor  # [B] bool: rows with a state entropy
    entropy: Tensor  # [B] float64: state entropy before resampling, nats; NaN without masks
    ahead: Tensor  # [B] float64: the same, up to an EOS
    allowed: Allowed | None
    faults: Faults

    def resampled(self, found: Resampled) -> Seen:
        """The same after every row has taken the contents of its ancestor."""
        rows = found.ancestors
        state = self.state.resample(rows).replace(log_weight=found.log_weight, score=found.score)
        known = take(self.known, rows)
        beliefs = take(self.beliefs, rows) if known.beliefs is None else known.beliefs
        allowed = None if self.allowed is None else replace(self.allowed, row=self.allowed.row[rows])
        live, ahead = self.live[rows], self.ahead[rows]
        return replace(self, state=state, known=known, beliefs=beliefs, live=live, ahead=ahead, allowed=allowed)


def first_carry(setup: Setup, state: State, ends: bool = False) -> Carry:
    """Before the first step nothing is known and nothing is spent. `ends`: somebody asks which texts are over."""
    none = torch.zeros_like(state.slot)
    known = Known(torch.ones_like(none, dtype=torch.bool))
    tally = Tally(none, none[:: state.particles], none, none)
    active = setup.active(state, 0)
    over = torch.zeros_like(active) if ends else None
    return Carry(state, known, tally, active, setup.intervals(state), 0, first_block(state, active), over=over)


def advance(setup: Setup, carry: Carry, copies: Tensor | None = None) -> tuple[Carry, Moment]:
    """One step: its two halves, and between them a resampling where one is due.

    `copies` [B] bool are the rows that were made copies of others before this step, where that was done elsewhere.
    """
    seen, due, resampled = see(setup, carry), _due(setup, carry), None
    if due is not None:
        resampled = setup.search.resample(setup.search, standing(setup, seen), carry.step, due)
        seen = seen.resampled(resampled)
        if setup.search.reopen > 0:
            copies = copied(resampled.ancestors, carry.state.particles)
    return move(setup, carry, seen, resampled, copies)


def see(setup: Setup, carry: Carry) -> Seen:
    """The first half of a step: look, and weigh the state of every row."""
    sampler, rules, active, step = setup.sampler, setup.rules, carry.active, carry.step
    faults = Faults(setup.denoiser.name, carry.state.particles, step, carry.fault, setup.first)
    state = carry.state.replace(time=sampler.time(carry.state, step).where(active, carry.state.time))
    counted = _counted(state, sampler, step, rules) & active[:, None]
    want = (sampler.want(state, step) & active[:, None]) | counted

    first = first_equal(state, carry.known, want, setup.skips_rows)
    limits = _read(setup, state, want, active)
    state, known, tally = _look(setup, state, carry.known, want, first, carry.tally)
    allowed = limits()  # while the network runs
    known, beliefs = _weigh(setup, state, known, want, first, faults, allowed)
    measured = setup.measured(beliefs)
    entropy = state_entropy(measured.entropy, counted)
    state = state.replace(entropy=entropy.where(entropy.isfinite(), state.entropy))
    ahead = state.entropy
    if state.vocab.eos and not rules.skip_tail:
        ahead = state_entropy(measured.entropy, counted & ~tail(state))
    return Seen(state, known, beliefs, tally, counted.any(1), entropy, ahead, allowed, faults)


def standing(setup: Setup, seen: Seen) -> Standing:
    """The table between the halves: what resampling goes by."""
    return standing_of(setup.search, seen.state, seen.live, setup.denoiser.head.width)


def move(
    setup: Setup, carry: Carry, seen: Seen, resampled: Resampled | None = None, copies: Tensor | None = None
) -> tuple[Carry, Moment]:
    """The second half of a step: draw, act, mask some of what `copies` [B] bool have written, remember."""
    sampler, active, step, state = setup.sampler, carry.active, carry.step, seen.state
    after = _act(setup, state, seen.known, seen.beliefs, active, step, seen.faults, seen.allowed)
    if copies is not None and setup.search.reopen > 0:
        after = reopen(setup.search, after, step, copies, ~sampler.done(after, step + 1))
    changed = (after.tokens != state.tokens).any(1) | setup.denoiser.timed
    if state.blocks is not None:
        after = after.replace(front=front(sampler, after))
        changed = changed | (_block(after) != _block(state))  # another block is computed
    after = remember(state, after, seen.ahead, active & seen.live)
    tally = replace(seen.tally, steps=seen.tally.steps + active)

    number, hidden = step if isinstance(step, int) else -1, seen.known.hidden if setup.keeps_hidden else None
    beliefs = replace(setup.measured(seen.beliefs), pieces=None, limited=None, fitting=None)
    moment = Moment(number, after, state.tokens, active, seen.entropy, resampled, beliefs, tally, hidden)
    known = seen.known.after(changed) if setup.skips_rows else Known(seen.known.stale | changed)
    block = first_block(state, active) if setup.meets(state) else carry.block
    active = setup.active(after, step + 1)
    active = active if carry.over is None else active & ~carry.over
    return Carry(after, known, tally, active, carry.every, step + 1, block, seen.faults.code, carry.over), moment


def finish(state: State) -> None:
    """Refuse an end with holes."""
    holes = state.masked.any(1)
    if bool(holes.any()):
        raise ProgressError(
            f"row {int(holes.nonzero()[0, 0])}: the sampler's schedule ended with positions still masked",
            "its counts must reach every masked position",
        )


# --- the parts of a step ---------------------------------------------------------------------------------------------


def _counted(state: State, sampler: Sampler, step: Step, rules: Rules) -> Tensor:  # [B, L] bool
    """The positions whose entropies make up the state entropy."""
    counted = state.masked
    if state.blocks is not None:  # later blocks are not computed
        counted = counted & (state.rank // state.blocks.size == _block(state)[:, None])
    elif rules.scope == "block":
        counted = counted & sampler.region(state, step)
    if rules.skip_tail:
        counted = counted & ~tail(state)
    return counted


def _due(setup: Setup, carry: Carry) -> Tensor | None:  # [P] bool
    """The prompts whose particles are resampled in this step; None: of none."""
    if not (setup.search.resamples and setup.may_resample):
        return None
    due = (carry.step % carry.every == 0) & (carry.step > 0)
    if setup.meets(carry.state):
        due = due & (first_block(carry.state, carry.active) > carry.block)
    return due if not setup.skips_rows or bool(due.any()) else None


def _block(state: State) -> Tensor:  # [B] int64
    """The block of the model's attention that each row is in; 0 without blocks."""
    return torch.zeros_like(state.front) if state.blocks is None else state.front // state.blocks.size


def first_block(state: State, rows: Tensor) -> Tensor:  # [B] bool -> [P] int64
    """The first block that one of these rows of each prompt is in."""
    last = state.tokens.shape[1]
    return _block(state).where(rows, last).view(-1, state.particles).amin(1)


def distinct(carry: Carry) -> Tensor:  # [] int64
    """How many canvases the rows have that take the next step, those of each prompt by themselves."""
    first = first_equal(carry.state, carry.known, carry.active[:, None])
    rows = torch.arange(len(carry.active), device=carry.active.device)
    return (carry.active & (rows if first is None else first).eq(rows)).sum()


def first_equal(state: State, known: Known, want: Tensor, waits: bool = False) -> Tensor | None:  # [B] int64
    """For each row, the first row of its prompt with the same canvas, of those about which most is known.

    None: every row itself; where all differ, only if the host may wait to know it. Equal canvases must have equal
    numbers to the last bit, whatever a kernel does with their places in a batch: otherwise rounding would decide
    between twins, and differently in another batch.
    """
    if state.particles == 1:
        return None
    canvas = state.tokens
    if state.blocks is not None:  # what is computed of a row depends on the block that it is in
        canvas = torch.cat([canvas, _block(state)[:, None]], 1)
    words = dice.words(canvas.shape[1], canvas.device)
    hashes = (canvas * words).sum(1).view(-1, state.particles)  # [P, K], 64 bits: no two meet by chance
    lacking = known.lacks(want).any(1).long() + known.stale.long()
    known_first = lacking.view_as(hashes).argsort(dim=1, stable=True)
    ranked, order = hashes.gather(1, known_first).sort(dim=1, stable=True)  # equal canvases side by side
    begins = torch.nn.functional.pad(ranked[:, 1:] != ranked[:, :-1], (1, 0), value=True)
    if waits and bool(begins.all()):
        return None
    order = known_first.gather(1, order)
    places = torch.arange(hashes.shape[1], device=hashes.device)
    leader = order.gather(1, torch.where(begins, places, 0).cummax(1).values)
    first = torch.zeros_like(order).scatter(1, order, leader)
    return (first + torch.arange(len(first), device=hashes.device)[:, None] * state.particles).view(-1)


def _leads(setup: Setup, first: Tensor | None, rows: Tensor) -> Tensor:  # [B] bool
    """The rows that are computed: of equal ones the first."""
    if first is None or not setup.shares_rows:
        return rows
    return rows & (first == torch.arange(len(first), device=first.device))


def _read(setup: Setup, state: State, want: Tensor, active: Tensor) -> Callable[[], Allowed | None]:
    """What a constraint allows wherever this step may ask: read from the canvas now, worked out when called."""
    limit = setup.limit
    if limit is None:
        return lambda: None
    where = want if state.blocks is not None else want | (state.masked & active[:, None])
    work: list[Callable[[], tuple[Tensor]]] = []

    def read() -> tuple[Tensor, ...]:
        work[:] = [limit.read(state, where)]
        return ()

    setup.apart(read)
    return lambda: limit.allowed(*setup.apart(lambda: work[0]()))


def _look(
    setup: Setup, state: State, known: Known, want: Tensor, first: Tensor | None, tally: Tally
) -> tuple[State, Known, Tally]:
    """Run the network on the wanted rows whose canvas it has not seen."""
    denoiser = setup.denoiser
    need = known.stale & known.lacks(want).any(1)
    rows, computed = _rows(setup, first, need, known.lacks(want).any(1))
    tally = tally.called(need, computed, denoiser.cost)
    if not len(rows):
        return state, known, tally
    hidden, cache = denoiser.look(state, rows)
    head, width = denoiser.head, state.tokens.shape[1]
    expected = (len(rows), width, head.width if head.weight is None else head.weight.shape[1])
    if tuple(hidden.shape) != expected:
        raise ModelError(
            f"{denoiser.name} gave hidden states of shape {tuple(hidden.shape)}",
            f"for these rows it must be {expected}",
        )
    if len(rows) != len(need):
        old = hidden.new_zeros(len(need), *hidden.shape[1:]) if known.hidden is None else known.hidden
        hidden = old.index_copy(0, rows, hidden)
    known = replace(known, stale=known.stale.index_fill(0, rows, False), hidden=hidden)
    return state.replace(cache=cache), known, tally


def recall(setup: Setup, state: State, rows: Tensor, tally: Tally) -> tuple[State, Known, Tally]:  # rows [B] bool
    """Run the network once more on canvases that were counted when it saw them: evaluations stay as they are."""
    known = Known(torch.ones_like(rows))
    if not bool(rows.any()):
        return state, known, tally
    first = first_equal(state, Known(~rows), torch.zeros_like(rows)[:, None], setup.skips_rows)
    state, known, spent = _look(setup, state, known, rows[:, None], first, tally)
    known = known if first is None else take(known, first)
    return state, replace(known, stale=known.stale | ~rows), replace(spent, evaluations=tally.evaluations)


def _rows(setup: Setup, first: Tensor | None, need: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are computed, as numbers [R] and as flags [B]."""
    if setup.skips_rows:
        computed = _leads(setup, first, need)
        return computed.nonzero()[:, 0], computed
    if setup.most is None:
        return torch.arange(len(need), device=need.device), torch.ones_like(need)
    computed = _leads(setup, first, asked)
    rows = (~computed).long().argsort(stable=True)[: setup.most]  # where there is room, others besides
    return rows, torch.zeros_like(computed).index_fill(0, rows, True)


def _weigh(
    setup: Setup,
    state: State,
    known: Known,
    want: Tensor,
    first: Tensor | None,
    faults: Faults,
    allowed: Allowed | None,
) -> tuple[Known, Beliefs]:
    """Apply the head where it is wanted and not known yet; refuse logits that are no distribution."""
    need = known.lacks(want)
    if setup.skips_rows and known.beliefs is not None and not bool(need.any()):
        return known, known.beliefs
    hidden = _hidden(setup, state, known)
    where = _leads(setup, first, need.any(1))[:, None] & need
    rule = _draw_rule(setup, state)
    keep = None if setup.skips_rows or rule.penalty is not None else rule
    beliefs = setup.weigh(hidden, setup.denoiser.head, where, state.tokens, keep, **setup.asked(allowed))
    bad = where & ~beliefs.normaliser.isfinite()
    empty = bad & beliefs.normaliser.isneginf()
    faults.note("empty", empty.any(1))
    faults.note("broken", (bad & ~empty).any(1))
    if known.beliefs is not None and known.where is not None:  # those from before, elsewhere
        beliefs = change(beliefs, lambda new, old: torch.where(where, new, old), known.beliefs)
        where = known.where | where
    if setup.skips_rows:
        known = replace(known, beliefs=beliefs, where=where)
    if first is not None:
        known, beliefs = take(known, first), take(beliefs, first)
    return known, beliefs


def _hidden(setup: Setup, state: State, known: Known) -> Tensor:  # [B, L, D]
    """The hidden states that are known; zeros in a slice whose rows are all full, which nobody reads."""
    if known.hidden is not None:
        return known.hidden
    weight, width = setup.denoiser.head.weight, setup.denoiser.head.width
    zero = torch.zeros((), device=state.tokens.device, dtype=torch.float32 if weight is None else weight.dtype)
    return zero.expand(*state.tokens.shape, width if weight is None else weight.shape[1])


def _act(
    setup: Setup,
    state: State,
    known: Known,
    beliefs: Beliefs,
    active: Tensor,
    step: Step,
    faults: Faults,
    allowed: Allowed | None,
) -> State:
    """Let the sampler advance the active rows; given positions stay whatever it answers."""
    hidden, denoiser, how = _hidden(setup, state, known), setup.denoiser, _draw_rule(setup, state)
    judged = beliefs  # what the sampler ranks and proposes by
    if how.penalty is not None:
        want, keep = setup.sampler.want(state, step) & active[:, None], None if setup.skips_rows else how
        judged = setup.weigh(hidden, denoiser.head, want, state.tokens, keep, how.penalty, **setup.asked(allowed))
    limited = _limited(setup, state, step, hidden, judged, how, faults, allowed)

    def draw(where: Tensor) -> Drawn:
        if limited is not None:
            return limited.draw(where)
        if how.temperature == 0 and not how.ban and how.top_k is None and how.top_p is None:
            return most_probable(judged)
        drawn = setup.draw(hidden, denoiser.head, where, state.uniform(step, Purpose.TOKEN), how, judged)
        faults.note("banned", (where & drawn.log.isnan()).any(1))
        return drawn

    def draw_or_stay(where: Tensor, stay: Tensor) -> Drawn:
        drawn = draw_float32(hidden, denoiser.head, where, stay, partial(state.uniform_over, step), how)
        faults.note("banned", (where & drawn.log.isnan()).any(1))
        return drawn

    turn = StepInput(state, step, setup.measured(judged), draw, setup.rules.late, draw_or_stay)
    written = setup.sampler.act(turn)
    tokens = written.tokens if isinstance(written, Written) else written
    tokens = tokens.where(state.writable & active[:, None], state.tokens)
    after = state.replace(tokens=tokens)
    new = (tokens != state.tokens) & ~after.masked

    def own(log: Tensor, tokens: Tensor) -> Tensor:
        """Back to the model's own distribution: its logit, under its own normaliser."""
        if how.penalty is None:
            return log
        raised = how.penalty.amount * one_of(tokens, how.penalty.ids)
        return log + raised + (setup.measured(judged).normaliser - setup.measured(beliefs).normaliser)

    if isinstance(written, Written):
        log = own(written.log_prob, tokens)
    else:
        more = setup.asked(limited.within(new)) if limited is not None and setup.rules.constrained_entropy else {}
        log = setup.measured(setup.weigh(hidden, denoiser.head, new, tokens, None, **more)).standing
    after = after.replace(token_logp=log.double().where(new, state.token_logp).masked_fill(after.masked, 0.0))
    after = _ended(setup, after, written, active)
    if limited is not None:
        after = limited.settled(after, own)
    if not setup.sampler.scheduled:
        same = (after.tokens == state.tokens).all(1) & (after.memory == state.memory).all(1)
        faults.note("still", active & same)
    return after


def _limited(
    setup: Setup,
    state: State,
    step: Step,
    hidden: Tensor,
    judged: Beliefs,
    how: DrawRule,
    faults: Faults,
    allowed: Allowed | None,
) -> Drawing | None:
    """What draws tokens under the constraint, where there is one."""
    if setup.limit is None or allowed is None:
        return None
    about = (setup.limit, state, step, hidden, setup.denoiser.head, judged, how, setup.draw, allowed)
    told = (partial(faults.note, "unmet"), partial(faults.refuse, "unmet"))
    return Drawing(*about, *told, setup.apart, setup.skips_rows)


def _ended(setup: Setup, after: State, written: Tensor | Written, active: Tensor) -> State:
    """The active rows with the memory that the sampler wrote, and ends of text in the rows that it ended."""
    if isinstance(written, Written) and written.memory is not None:
        after = after.replace(memory=written.memory.where(active[:, None], after.memory))
    if isinstance(written, Written) and written.ended is not None and after.vocab.eos:
        over = after.masked & (written.ended & active)[:, None]
        after = after.replace(tokens=after.tokens.masked_fill(over, after.vocab.eos[0]))
    if setup.rules.fill_tail:
        after = after.replace(tokens=after.tokens.masked_fill(after.masked & tail(after), after.vocab.eos[0]))
    return after


def _draw_rule(setup: Setup, state: State) -> DrawRule:
    """How tokens are drawn. The mask never is."""
    head, rule = setup.denoiser.head, setup.rules.draw
    mask = (state.vocab.mask,) if state.vocab.mask < head.width else ()
    return replace(rule, ban=tuple(sorted({*rule.ban, *mask} - set(head.absent))))
