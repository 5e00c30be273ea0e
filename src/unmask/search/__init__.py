"""Search: particles × resample × choose. Vanilla, auto, E-BoN, E-SMC, greedy, beam and vote are values of a dataclass.

The law that `smc` samples, at fixed strength: with Q the sampler's law over paths z_0 … z_N and the evaluations at
n = every, 2·every, … < N, the Feynman–Kac model is Q(z_0 … z_N) ∏_n G(z_n), its constant Z = E_Q ∏_n G(z_n), and
exp(log_evidence) is an unbiased estimate of Z for every scheme, as long as there are two or more particles, all of
them still have masks at each n, and copies reopen nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core import dice
from unmask.core.dice import Purpose
from unmask.core.state import State, Step
from unmask.core.turn import rank
from unmask.errors import SettingError, many, unknown
from unmask.search.choosers import CHOOSERS
from unmask.search.potentials import POTENTIALS


@dataclass(frozen=True)
class Search:
    """How many particles there are, how they are resampled, which one is returned."""

    particles: int = 1
    resamples: bool = False
    every: int | None = None  # the paper's Δi_r; None: a quarter of the planned steps, or 4 without a plan
    strength: float = 0.0  # the paper's λ of the Gibbs potential
    potential: str = "gibbs"
    scheme: str = "multinomial"
    target: float | None = None  # solve the strength for this effective sample size, as a share of the particles
    below: float | None = None  # resample only where the effective sample size is under this share
    beams: int | None = None  # keep the lowest `beams` state entropies instead of resampling by weight
    after: float = 0.0  # resample only once this share of the open positions is decided
    until: float = 1.0  # and no longer than up to this share
    temper: float = 0.0  # the strength grows as this power of the share that is decided
    islands: int = 1  # groups of particles that are resampled each by itself
    reopen: float = 0.0  # a copy masks this share of what it has decided again, drawn by how unlikely the tokens were
    choose: str = "entropy"


@dataclass(frozen=True)
class Resampled:
    """What a resampling did."""

    ancestors: Tensor  # [B] int64: the row whose contents each row takes
    log_weight: Tensor  # [B] float64: the weights after it
    score: Tensor  # [B] float64: the potential's score of each row after it
    log_evidence: Tensor  # [P] float64: the log of the factor by which the evidence estimate grew
    ess: Tensor  # [P] float64: effective sample size; NaN where nothing was evaluated
    strength: Tensor  # [P] float64: the strength that was used


# --- schemes: weights -> ancestors -----------------------------------------------------------------------------------
# Each takes weights [P, K] (0 for particles that take no part), the number A [P] of offspring to draw, and uniforms
# [P, K], and gives for offspring 0 … A-1 the particle that it comes from, [P, K].


def _inverse(weights: Tensor, points: Tensor) -> Tensor:
    reached = weights.cumsum(1)
    return torch.searchsorted(reached, points * reached[:, -1:]).clamp(max=weights.shape[1] - 1)


def multinomial(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """Independent draws."""
    return _inverse(weights, noise)


def stratified(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """One draw in each of A equal strata."""
    return _inverse(weights, ((_numbers(weights) + noise) / total[:, None]).clamp(max=1.0))


def systematic(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """One draw for all strata."""
    return stratified(weights, total, noise[:, :1].expand_as(noise))


def residual(weights: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """floor(A w) copies each, the rest drawn independently from what is left."""
    expected = weights / weights.sum(1, keepdim=True) * total[:, None]
    copies = (expected + 1e-9).floor()  # a share that is whole up to rounding is whole
    certain = copies.cumsum(1)
    fixed = torch.searchsorted(certain, _numbers(weights).expand_as(certain) + 0.5).clamp(max=weights.shape[1] - 1)
    rest = (expected - copies).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, weights)
    return torch.where(_numbers(weights) < certain[:, -1:], fixed, _inverse(rest, noise))


def _numbers(weights: Tensor) -> Tensor:  # [1, K] float64: 0, 1, 2, …
    return torch.arange(weights.shape[1], dtype=weights.dtype, device=weights.device)[None]


SCHEMES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "multinomial": multinomial,
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
}


# --- resampling ------------------------------------------------------------------------------------------------------


def resample(search: Search, state: State, step: Step, live: Tensor, due: Tensor, width: int) -> Resampled:
    """Weights from the `live` [B] rows of the prompts that are `due` [P] -> ancestors.

    A row that is not live is neither replaced nor copied; a group with fewer than two live rows is left alone.
    """
    k = state.particles // search.islands  # particles of a group; there are G = P * islands groups
    share = decided(state)
    due = (due & (share >= search.after) & (share <= search.until)).repeat_interleave(search.islands)
    taking = live.view(-1, k) & due[:, None]
    taking = taking & (taking.sum(1, keepdim=True) > 1)
    potential = POTENTIALS[search.potential]
    score = potential.score(state, width)
    gain = score - state.score if potential.since else score
    reward = gain.view(-1, k).where(taking, 0.0)
    before = state.log_weight.view(-1, k)
    strength = torch.full_like(reward[:, 0], search.strength)
    if search.target is not None:
        strength = solve_strength(reward, before, taking, search.target)
    if search.temper:
        strength = strength * share.repeat_interleave(search.islands) ** search.temper
    after = (before + strength[:, None] * reward).where(taking, -torch.inf)
    weights = after.softmax(1).nan_to_num(0.0)
    ess = 1 / weights.square().sum(1)
    now = taking.any(1)
    if search.below is not None:
        now = now & (ess < search.below * taking.sum(1).double())

    own = torch.arange(k, device=live.device).expand_as(taking)
    source = torch.where(taking & now[:, None], _ancestors(search, state, step, taking, weights), own)
    rows = (torch.arange(len(source), device=live.device)[:, None] * k + source).view(-1)
    old = before.where(taking, -torch.inf)
    growth = torch.where(taking.any(1), after.logsumexp(1) - old.logsumexp(1), 0.0)
    weight = torch.where(taking & now[:, None], 0.0, after.where(taking, before))
    asked = torch.where(taking.view(-1), score, state.score)
    nothing = torch.where(taking.any(1) & (search.beams is None), 0.0, torch.nan)

    def mean(x: Tensor) -> Tensor:  # [G] -> [P]
        return x.view(-1, search.islands).mean(1)

    return Resampled(rows, weight.view(-1), asked[rows], mean(growth), mean(ess + nothing), mean(strength + nothing))


def decided(state: State) -> Tensor:  # [P] float64
    """The share of its open positions that a prompt's particles have decided, on average."""
    left = state.masked.sum(1).double() / state.open.clamp(min=1)
    return 1 - left.view(-1, state.particles).mean(1)


def reopen(search: Search, state: State, step: Step, ancestors: Tensor, more: Tensor) -> State:  # [B], [B] bool
    """Copies in which there are `more` steps to come mask a share of what they have decided again.

    The first row that takes an ancestor's contents keeps them as they are; the others are the copies.
    Positions are drawn without replacement, each by the inverse of its token's probability when it was written.
    """
    whose = ancestors.view(-1, state.particles)
    copies = (whose[:, :, None] == whose[:, None]).tril(-1).any(2).view(-1)
    written = state.writable & ~state.masked & (copies & more)[:, None]
    order = state.gumbel(step, Purpose.REOPEN) - state.said
    many = (search.reopen * written.sum(1).double() + 1e-9).long()  # a share that is whole up to rounding is whole
    again = rank(order, written, exact=True).first(many)
    tokens = state.tokens.masked_fill(again, state.vocab.mask)
    return state.replace(tokens=tokens, said=state.said.masked_fill(again, 0.0))


def _ancestors(search: Search, state: State, step: Step, taking: Tensor, weights: Tensor) -> Tensor:  # [G, K]
    """For each particle of a group the one that it comes from."""
    k, total = taking.shape[1], taking.sum(1)
    if search.beams is None:
        slots = state.slot.view(-1, k)
        noise = dice.uniform(state.key.view(-1, k), slots, step, slots * 0, Purpose.RESAMPLE)
        offspring = SCHEMES[search.scheme](weights, total, noise)
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


# --- the registry ----------------------------------------------------------------------------------------------------


def vanilla() -> Search:
    """One path, no search."""
    return Search()


def best_of_n(particles: int = 5, choose: str = "entropy") -> Search:
    """E-BoN: independent paths, the one of lowest path entropy."""
    return Search(particles, choose=_known("choose", choose, CHOOSERS))


def smc(
    particles: int = 5,
    every: int | None = None,
    strength: float | None = None,
    potential: str = "gibbs",
    scheme: str = "multinomial",
    target: float | None = None,
    below: float | None = None,
    after: float = 0.0,
    until: float = 1.0,
    temper: float = 0.0,
    islands: int = 1,
    reopen: float = 0.0,
    choose: str = "entropy",
) -> Search:
    """E-SMC: paths of low state entropy are copied over the others every few steps (Algorithm 1 as printed)."""
    _known("potential", potential, POTENTIALS)
    _known("scheme", scheme, SCHEMES)
    _known("choose", choose, CHOOSERS)
    if target is not None and (strength is not None or temper):
        other = "strength" if strength is not None else "temper"
        raise SettingError(
            f"{other} and target exclude each other", "target solves the strength by itself", setting=other
        )
    if target is not None and below is not None:
        raise SettingError(
            "target and below exclude each other",
            "target brings the effective sample size to one value",
            setting="target",
        )
    if reopen and potential in ("likelihood", "both"):
        why = "reopening takes unlikely tokens out of the log-probability that it weighs by"
        raise SettingError(f"reopen does not go with potential {potential}", f"{why}; use another", setting="reopen")
    if after > until:
        raise SettingError(f"after is {after} and until {until}", "give after below until", setting="after")
    if particles % islands:
        fewer = particles // islands * islands
        hint = f"give {f'{fewer} or ' if fewer else ''}{fewer + islands}"
        raise SettingError(f"{many(particles, 'particle')} cannot make {islands} islands", hint, setting="particles")
    strength = 5.0 if strength is None else strength
    return Search(
        particles,
        True,
        every,
        strength,
        potential,
        scheme,
        target,
        below,
        after=after,
        until=until,
        temper=temper,
        islands=islands,
        reopen=reopen,
        choose=choose,
    )


def _known(name: str, value: str, registry: Mapping[str, object]) -> str:
    if value not in registry:
        raise unknown(name, value, registry, setting=name)
    return value


def greedy(candidates: int = 5, every: int = 1, reopen: float = 0.0, choose: str = "entropy") -> Search:
    """Greedy search over entropy: one path grows into candidates, the one of lowest state entropy goes on."""
    return beam(1, candidates, every, reopen, choose)


def beam(beams: int = 2, candidates: int = 4, every: int = 1, reopen: float = 0.0, choose: str = "entropy") -> Search:
    """Beam search over entropy: each beam grows into candidates, the best beams by state entropy go on."""
    _known("choose", choose, CHOOSERS)
    return Search(beams * candidates, True, every, beams=beams, reopen=reopen, choose=choose)


def auto(particles: int = 5) -> Search:
    """Independent paths, the one of least surprise: low state entropies all along, and probable tokens."""
    return Search(particles, choose="surprise")


def vote(particles: int = 5) -> Search:
    """Majority vote: independent paths, the most frequent answer."""
    return Search(particles, choose="vote")


SEARCHES: dict[str, Callable[..., Search]] = {
    "vanilla": vanilla,
    "best-of-n": best_of_n,
    "smc": smc,
    "auto": auto,
    "greedy": greedy,
    "beam": beam,
    "vote": vote,
}
