"""Vocab and State: everything that follows a particle, in one frozen value; rows of any such value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from unmask.core import dice

NOTHING = 1e-6  # nats: a lower bound of entropies and surprises whose logarithm is taken
Step = int | Tensor  # steps taken before this one; a 0-d int64 tensor in a recorded step
Value = TypeVar("Value")  # a frozen dataclass that holds tensors


def exact(step: Step) -> int | Tensor:
    """A step for arithmetic with fractions: a tensor of integers would round them to float32."""
    return step if isinstance(step, int) else step.double()


@dataclass(frozen=True)
class Vocab:
    """The ids that mean something to the decoder; all of them come from the model's adapter."""

    mask: int
    eos: tuple[int, ...] = ()
    pad: int = 0


@dataclass(frozen=True)
class Blocks:
    """Attention in blocks: a position sees its own block and those before it, so that earlier blocks are final.

    Aligned blocks are counted in columns from the first real token. Otherwise open positions are counted, and all that
    is given is one block before them.
    """

    size: int
    aligned: bool = False


class Cache(Protocol):
    """What a model keeps per row; it follows its row through `State.resample` and `State.take`."""

    def __getitem__(self, rows: Tensor) -> Any: ...


# --- rows of values ---------------------------------------------------------------------------------------------------


def change(value: Value, function: Callable[..., Any], *others: Value) -> Value:
    """A value with `function` of each of its tensors and caches, given those of `others` too.

    Fields that are dataclasses are entered; numbers, texts and tuples stay. So a new field cannot be forgotten.
    """
    changed = {}
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        mine, theirs = getattr(value, field.name), (getattr(other, field.name) for other in others)
        if isinstance(mine, Tensor) or (hasattr(mine, "__getitem__") and not isinstance(mine, str | tuple)):
            changed[field.name] = function(mine, *theirs)
        elif dataclasses.is_dataclass(mine):
            changed[field.name] = change(mine, function, *theirs)
    return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a value, in an order that is always the same."""
    found: list[Tensor] = []
    change(value, lambda mine: found.append(mine) or mine)  # type: ignore[func-returns-value]
    return [one for one in found if isinstance(one, Tensor)]


def take(value: Value, rows: Tensor) -> Value:  # rows [R]
    """These rows of a value. Its tensors have a first axis of rows [B], of prompts [P], or none."""
    batch = _batch(value)
    return change(value, lambda mine: mine[_index(mine, rows, batch)] if getattr(mine, "ndim", 1) else mine)


def put(value: Value, rows: Tensor, part: Value) -> Value:  # rows [R]
    """A value whose rows are those of `part`; the others stay as they are."""
    batch = _batch(value)
    return change(value, lambda mine, new: mine.index_copy(0, _index(mine, rows, batch), new), part)


def _batch(value: Any) -> int:
    return max(len(one) for one in tensors(value) if one.ndim)


def _index(mine: Any, rows: Tensor, batch: int) -> Tensor:
    """The rows, or their prompts for a tensor of one entry a prompt."""
    particles = batch // max(1, len(mine)) if isinstance(mine, Tensor) else 1
    return rows if particles <= 1 else rows[::particles] // particles


# --- the state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Rows of a walk, `prompt * particles + particle`; B rows, L columns, left-padded."""

    tokens: Tensor  # [B, L] int64
    writable: Tensor  # [B, L] bool: open at the start; False on prompt, padding and given cells
    attend: Tensor  # [B, L] bool: False on padding
    key: Tensor  # [B] int64: the request's own seed
    slot: Tensor  # [B] int64: which particle of its prompt this row is
    budget: Tensor  # [B] int64: steps that a scheduled sampler takes
    origin: Tensor  # [B] int64: the slot in which this lineage began
    time: Tensor  # [B] float64: 1 = all masked, 0 = clean; for networks that want it
    entropy_sum: Tensor  # [B] float64: state entropies so far, nats
    entropy_weight: Tensor  # [B] float64: how many they are
    entropy: Tensor  # [B] float64: the last state entropy, nats; NaN before the first
    log_entropy_sum: Tensor  # [B] float64: logarithms of the state entropies so far, each up to an EOS
    log_entropy_weight: Tensor  # [B] float64: how many they are
    log_weight: Tensor  # [B] float64: accumulated since the last resampling
    token_logp: Tensor  # [B, L] float64: log-probability of each token when it was written, of the model's own, nats
    score: Tensor  # [B] float64: what the potential's score was when it was last asked
    token_weight: Tensor  # [B, L] float64: log of its probability over that in the draw; 0 without a constraint
    look: Tensor  # [B] float64: mean -log p at a second look, nats a position; NaN before it, and where there was none
    front: Tensor  # [B] int64: positions of a lower rank are final; the length of the canvas where all are
    memory: Tensor  # [B, M] int64: numbers that the sampler keeps; 0 at the start
    vocab: Vocab
    particles: int
    padded: bool  # whether any row has padding
    blocks: Blocks | None = None  # of the model's attention; None: everything sees everything
    cache: Cache | None = None

    @property
    def masked(self) -> Tensor:  # [B, L] bool
        """The masked set M_t."""
        return (self.tokens == self.vocab.mask) & self.writable

    @property
    def columns(self) -> Tensor:  # [B, L] int64
        """Columns counted from the first real token; padding has -1."""
        return self.attend.long().cumsum(1) - 1

    @property
    def rank(self) -> Tensor:  # [B, L] int64
        """Writable positions counted from the left: 0, 1, 2, … (meaningless elsewhere).

        With aligned blocks, columns counted from the first column of the first open block; negative before it.
        """
        if self.blocks is None or not self.blocks.aligned:
            return self.writable.long().cumsum(1) - 1
        columns, size = self.columns, self.blocks.size
        first = columns.where(self.writable, columns.shape[1]).amin(1, keepdim=True)
        return columns - first // size * size

    @property
    def open(self) -> Tensor:  # [B] int64
        """How many positions were open at the start."""
        return self.writable.sum(1)

    @property
    def path_entropy(self) -> Tensor:  # [B] float64, nats
        """H_DE so far: the mean state entropy over the states that were inputs of a step and had masks."""
        return self.entropy_sum / self.entropy_weight

    @property
    def surprise(self) -> Tensor:  # [B] float64, nats a position
        """sqrt(A · B). A: the geometric mean of the state entropies so far. B: the mean -log p of the written tokens.

        Positions after an EOS count in neither: they cost nothing, and short texts would win.
        """
        foreseen = self.log_entropy_sum / self.log_entropy_weight
        counted = self.writable & ~tail(self)
        met = -self.token_logp.where(counted, 0.0).sum(1) / counted.sum(1).clamp(min=1)
        return ((foreseen + met.clamp(min=NOTHING).log()) / 2).exp()

    @property
    def log_prob(self) -> Tensor:  # [B] float64, nats
        """Of the tokens written so far that stand."""
        return self.token_logp.sum(1)

    def replace(self, **changes: Any) -> State:
        """A new State with these fields."""
        return dataclasses.replace(self, **changes)

    def take(self, rows: Tensor) -> State:  # rows [R]
        """These rows, contents and slot together."""
        return change(self, lambda mine: mine[rows])

    def resample(self, ancestors: Tensor) -> State:  # ancestors [B]
        """Every row takes its ancestor's contents and keeps its own slot, so that twins part at once."""
        return self.take(ancestors).replace(slot=self.slot)

    def uniform(self, step: Step, purpose: dice.Purpose) -> Tensor:  # [B, L] float64
        """One uniform per position."""
        return dice.uniform(self.key[:, None], self.slot[:, None], step, self.columns, purpose)

    def uniform_over(self, step: Step, rows: Tensor, columns: Tensor, outcomes: int) -> Tensor:  # [R], [R] -> [R, n]
        """One uniform for each outcome of some positions."""
        places = self.columns.expand(len(self.key), -1)[rows, columns][:, None] * outcomes
        places = places + torch.arange(outcomes, device=places.device)
        return dice.uniform(self.key[rows, None], self.slot[rows, None], step, places, dice.Purpose.TOKEN)

    def gumbel(self, step: Step, purpose: dice.Purpose) -> Tensor:  # [B, L] float64
        """One standard Gumbel number per position."""
        return dice.gumbel(self.key[:, None], self.slot[:, None], step, self.columns, purpose)


def one_of(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:  # bool
    """Which tokens are among a few ids, without a copy to the device."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for number in ids:
        found = found | (tokens == number)
    return found


def tail(state: State) -> Tensor:  # [B, L] bool
    """Positions after a decided EOS, up to the end of its hole."""
    previous = torch.nn.functional.pad(state.writable, (1, 0))[:, :-1]
    hole = (state.writable & ~previous).long().cumsum(1)  # 1, 2, … from the left
    ends = torch.where(one_of(state.tokens, state.vocab.eos) & state.writable, hole, 0).cummax(1).values
    return state.writable & (torch.nn.functional.pad(ends, (1, 0))[:, :-1] == hole)


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor]:  # [B, L] int64, [B, L] bool
    """Rows of any lengths, left-padded with `fill`, and where they are not padding."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[fill] * (longest - len(row)) + list(row) for row in rows])
    return tokens, torch.arange(longest) >= longest - torch.tensor([[len(row)] for row in rows])


def begin(
    tokens: Tensor,  # [P, L] int64
    writable: Tensor,  # [P, L] bool
    attend: Tensor,  # [P, L] bool
    keys: Tensor,  # [P] int64
    vocab: Vocab,
    particles: int,
    steps: int | None = None,
    blocks: Blocks | None = None,
    memory: int = 0,
) -> State:
    """The first State of a walk: every prompt `particles` times; `steps` None means one position a step.

    `memory` is how many numbers the sampler keeps for a row.
    """
    rows = len(tokens) * particles

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(particles, 0)

    slot = torch.arange(particles, device=tokens.device).repeat(len(tokens))
    zero = torch.zeros(rows, dtype=torch.float64, device=tokens.device)
    budget = writable.sum(1) if steps is None else torch.full_like(keys, steps)
    state = State(
        tokens=spread(tokens),
        writable=spread(writable),
        attend=spread(attend),
        key=spread(keys),
        slot=slot,
        budget=spread(budget),
        origin=slot,
        time=zero + 1,
        entropy_sum=zero,
        entropy_weight=zero,
        entropy=zero + torch.nan,
        log_entropy_sum=zero,
        log_entropy_weight=zero,
        log_weight=zero,
        token_logp=torch.zeros(rows, tokens.shape[1], dtype=torch.float64, device=tokens.device),
        score=zero,
        token_weight=torch.zeros(rows, tokens.shape[1], dtype=torch.float64, device=tokens.device),
        look=zero + torch.nan,
        front=torch.zeros_like(slot),
        memory=torch.zeros(rows, memory, dtype=torch.int64, device=tokens.device),
        vocab=vocab,
        particles=particles,
        padded=not bool(attend.all()),
        blocks=blocks,
    )
    return state.replace(front=first_masked(state))


def numbers(state: State, blocks: Blocks) -> Tensor:  # [B, L] int64
    """The number of each column's block of attention; negative before the first open block."""
    rank = state.replace(blocks=blocks).rank // blocks.size
    return rank if blocks.aligned else rank.where(state.writable, -1)


def first_masked(state: State) -> Tensor:  # [B] int64
    """The rank of the first masked position; the length of the canvas where nothing is masked."""
    return state.rank.where(state.masked, state.tokens.shape[1]).amin(1)


def remember(before: State, after: State, ahead: Tensor, counts: Tensor) -> State:
    """Add a step's state entropy, and that `ahead` [B] of an EOS, to the paths that it `counts` [B] in."""
    weight = counts.double()
    entropy = before.entropy.where(counts, 1.0)  # has weight 0 elsewhere
    some = weight.where(ahead.isfinite(), 0.0)
    return after.replace(
        entropy_sum=before.entropy_sum + entropy * weight,
        entropy_weight=before.entropy_weight + weight,
        log_entropy_sum=before.log_entropy_sum + ahead.where(some > 0, 1.0).clamp(min=NOTHING).log() * some,
        log_entropy_weight=before.log_entropy_weight + some,
    )
