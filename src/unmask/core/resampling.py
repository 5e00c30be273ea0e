"""Search, and a table of numbers × weights -> ancestors: which particles are copied over which.

The law that resampling by weight samples, at fixed strength: with Q the sampler's law over paths z_0 … z_N and the
evaluations at n = every, 2·every, … < N, the Feynman–Kac model is Q(z_0 … z_N) ∏_n G(z_n), its constant
Z = E_Q ∏_n G(z_n), and exp(log_evidence) is an unbiased estimate of Z for every scheme, as long as there are two or
more particles, all of them still have masks at each n, and copies reopen nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.dice import Purpose
from unmask.core.sampler import Sampler, rank
from unmask.core.state import State, Step

SAME = 1e-6  # relative: values that differ by less are equal up to a network's rounding, which a batch can change
# weights [P, K] (0: takes no part), offspring to draw A [P], uniforms [P, K] -> the particle of each offspring [P, K]
Scheme = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Potential:
    """A score of states: log G at strength 1.

    `since`: log G is the growth of the score since it was last computed, so that a path's factors multiply to
    exp(λ score) of its end; otherwise it is the score itself.
    """

    score: Callable[[State, int], Tensor]  # state, size of the vocabulary -> [B] float64
    since: bool = False
    reads: bool = False  # on the host, so that its steps cannot be recorded
    weighs_draws: bool = False  # by `State.token_weight`


@dataclass(frozen=True)
class Chooser:
    """Last state × one answer for each row, where `needs_answers` -> the particle of each prompt that is returned.

    One that goes by a single number has a `cost`, and takes the first particle of least cost. `looks` says whether a
    second look at the finished answers comes before the choice, given the sampler.
    """

    name: str
    pick: Callable[[State, list[Any]], Tensor]  # -> [P] int64
    needs_answers: bool = False
    cost: Callable[[State], Tensor] | None = None  # -> [B] float64
    looks: Callable[[Sampler], bool] | None = None  # None: never

    def __call__(self, state: State, answers: list[Any]) -> Tensor:  # [P] int64
        return self.pick(state, answers)


def least(cost: Tensor, particles: int) -> Tensor:  # [B] -> [P]
    """The first particle whose cost is the least of its prompt, up to rounding; NaN is the highest."""
    cost = cost.nan_to_num(torch.inf).view(-1, particles)
    lowest = cost.amin(1, keepdim=True)
    return (cost <= lowest + SAME * lowest.abs()).long().argmax(1)


def by_cost(name: str, cost: Callable[[State], Tensor], looks: Callable[[Sampler], bool] | None = None) -> Chooser:
    """The chooser of the particle of least cost; the lowest slot on ties."""

    def pick(state: State, answers: list[Any]) -> Tensor:
        return least(cost(state), state.particles)

    pick.__doc__ = cost.__doc__
    return Chooser(name, pick, cost=cost, looks=looks)


BY_ENTROPY = by_cost("entropy", lambda state: state.path_entropy)


@dataclass(frozen=True)
class Resampled:
    """The result of one resampling."""

    ancestors: Tensor  # [B] int64: the row whose contents each row takes
    log_weight: Tensor  # [B] float64: the weights after it
    score: Tensor  # [B] float64: the potential's score of each row after it
    log_evidence: Tensor  # [P] float64: the log of the factor by which the evidence estimate grew
    ess: Tensor  # [P] float64: effective sample size; NaN where nothing was evaluated
    strength: Tensor  # [P] float64: the strength that was used


@dataclass(frozen=True)
class Standing:
    """Numbers of every row of some prompts, `prompt * particles + particle`: all that resampling goes by."""

    live: Tensor  # [B] bool: rows that have something left to decide
    left: Tensor  # [B] int64: masked positions
    open: Tensor  # [B] int64: those that were masked at the start
    entropy: Tensor  # [B] float64: the last state entropy, nats
    score: Tensor  # [B] float64: the potential's score now
    last: Tensor  # [B] float64: what it was when it was last asked
    log_weight: Tensor  # [B] float64: accumulated since the last resampling
    key: Tensor  # [B] int64
    slot: Tensor  # [B] int64
    particles: int


def standing_of(search: Search, state: State, live: Tensor, width: int) -> Standing:
    """The table of a state; its potential may read all of it, for all particles of a prompt are there."""
    score = torch.zeros_like(state.score) if search.potential is None else search.potential.score(state, width)
    numbers = (state.entropy, score, state.score, state.log_weight, state.key, state.slot)
    return Standing(live, state.masked.sum(1), state.open, *numbers, state.particles)


def resample(search: Search, standing: Standing, step: Step, due: Tensor) -> Resampled:
    """Weights from the live rows of the prompts that are `due` [P] -> ancestors.

    A row that is not live is neither replaced nor copied; a prompt with fewer than two live rows is left alone.
    """
    k, score = standing.particles, standing.score
    taking = standing.live.view(-1, k) & due[:, None]
    taking = taking & (taking.sum(1, keepdim=True) > 1)
    gain = score - standing.last if search.potential is not None and search.potential.since else score
    reward = gain.view(-1, k).where(taking, 0.0)
    before = standing.log_weight.view(-1, k)
    strength = torch.full_like(reward[:, 0], search.strength)
    if search.target is not None:
        strength = solve_strength(reward, before, taking, search.target)
    after = (before + strength[:, None] * reward).where(taking, -torch.inf)
    weights = after.softmax(1).nan_to_num(0.0)
    ess = 1 / weights.square().sum(1)
    now = taking.any(1)
    if search.below is not None:
        now = now & (ess < search.below * taking.sum(1).double())

    own = torch.arange(k, device=due.device).expand_as(taking)
    source = torch.where(taking & now[:, None], _ancestors(search, standing, step, taking, weights), own)
    rows = (torch.arange(len(source), device=due.device)[:, None] * k + source).view(-1)
    old = before.where(taking, -torch.inf)
    growth = torch.where(taking.any(1), after.logsumexp(1) - old.logsumexp(1), 0.0)
    weight = torch.where(taking & now[:, None], 0.0, after.where(taking, before))
    known = torch.where(taking.view(-1), score, standing.last)
    nothing = torch.where(taking.any(1) & (search.scheme is not None), 0.0, torch.nan)
    return Resampled(rows, weight.view(-1), known[rows], growth, ess + nothing, strength + nothing)


@dataclass(frozen=True)
class Search:
    """How many particles there are, how they are resampled, which one is returned."""

    particles: int = 1
    every: int | None = None  # the paper's Δi_r; None: a quarter of the planned steps, or 4 without a plan
    strength: float = 0.0  # the paper's λ of the Gibbs potential
    potential: Potential | None = None  # None: all weights are equal
    scheme: Scheme | None = None  # None: nothing is drawn by weight
    target: float | None = None  # solve the strength for this effective sample size, as a share of the particles
    below: float | None = None  # resample only where the effective sample size is under this share
    beams: int | None = None  # without a scheme: copy the `beams` lowest state entropies
    reopen: float = 0.0  # a copy masks this share of its decided positions again, drawn by how unlikely the tokens were
    choose: Chooser = BY_ENTROPY
    until: float = 0.0  # independent paths come in waves until the chooser's cost of the best is under this; 0: all
    most: int | None = None  # paths in all those waves, at most; None: `particles`
    escalate: str | None = None  # further samplers with their settings, for prompts of which no path is under `until`
    resample: Callable[[Search, Standing, Step, Tensor], Resampled] = resample

    def looks(self, sampler: Sampler) -> bool:
        """Whether a second look at the answers comes before the choice; never with one path and no stop."""
        choice = self.particles > 1 or self.until > 0
        return choice and self.choose.looks is not None and self.choose.looks(sampler)

    def chosen_by(self, sampler: Sampler) -> str:
        """What the returned particle is chosen by: auto goes by surprise alone where it does not look."""
        return "surprise" if self.choose.name == "auto" and not self.looks(sampler) else self.choose.name

    @property
    def resamples(self) -> bool:
        """Whether particles are ever copied over others."""
        return self.scheme is not None or self.beams is not None


def copied(ancestors: Tensor, particles: int) -> Tensor:  # [B] -> [B] bool
    """The copies: of the rows that take an ancestor's contents all but the first."""
    whose = ancestors.view(-1, particles)
    return (whose[:, :, None] == whose[:, None]).tril(-1).any(2).view(-1)


def reopen(search: Search, state: State, step: Step, copies: Tensor, more: Tensor) -> State:  # [B] bool, [B] bool
    """Copies in which there are `more` steps to come mask a share of their decided positions again.

    Positions are drawn without replacement, each by the inverse of its token's probability when it was written.
    """
    written = state.writable & ~state.masked & (copies & more)[:, None]
    order = state.gumbel(step, Purpose.REOPEN) - state.token_logp
    many = (search.reopen * written.sum(1).double() + 1e-9).long()  # a share that is whole up to rounding is whole
    again = rank(order, written, exact=True).first(many)
    tokens = state.tokens.masked_fill(again, state.vocab.mask)
    logp, weight = state.token_logp.masked_fill(again, 0.0), state.token_weight.masked_fill(again, 0.0)
    return state.replace(tokens=tokens, token_logp=logp, token_weight=weight)


def _ancestors(search: Search, state: Standing, step: Step, taking: Tensor, weights: Tensor) -> Tensor:  # [P, K]
    """For each particle of a prompt the one whose contents it takes."""
    k, total = taking.shape[1], taking.sum(1)
    if search.scheme is not None:
        slots = state.slot.view(-1, k)
        noise = dice.uniform(state.key.view(-1, k), slots, step, slots * 0, Purpose.RESAMPLE)
        offspring = search.scheme(weights, total, noise)
    else:
        best = state.entropy.view(-1, k).where(taking, torch.inf).argsort(dim=1, stable=True)
        numbers = torch.arange(k, device=taking.device)[None]
        offspring = best.gather(1, numbers % total.clamp(1, search.beams)[:, None])
    places = taking.long().cumsum(1) - 1  # the number of the offspring that goes to each taking slot
    return offspring.gather(1, places.clamp(min=0))


def solve_strength(reward: Tensor, before: Tensor, taking: Tensor, target: float) -> Tensor:  # [P, K] … -> [P]
    """The strength at which the effective sample size falls to `target` of those taking part.

    The size falls as the strength grows from equal weights, so bisection finds it. Where ties for the best keep it up,
    the strength ends at the upper limit; where all are equal, at 0.
    """
    goal = target * taking.sum(1).double()
    gap = reward.where(taking, -torch.inf).amax(1, keepdim=True) - reward  # to the best
    nearest = gap.where(taking & (gap > 0), torch.inf).amin(1)
    low, high = torch.zeros_like(goal), 200 / nearest  # the runner-up has e^-200 of the best: as good as gone
    for _ in range(100):
        middle = (low + high) / 2
        weights = (before + middle[:, None] * reward).where(taking, -torch.inf).softmax(1)
        still = 1 / weights.square().sum(1) > goal
        low, high = torch.where(still, middle, low), torch.where(still, high, middle)
    return (low + high) / 2
