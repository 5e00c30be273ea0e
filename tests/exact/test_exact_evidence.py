"""The Feynman–Kac model that `smc` samples at a fixed strength, against its enumeration.

The target: with Q the sampler's law over paths z_0 … z_N and n = every, 2·every, … < N,

    Γ(z_0 … z_N) = Q(z_0 … z_N) ∏_n G(z_n),    Z = Γ(1) = E_Q ∏_n G(z_n),

    G(z) = exp(λ (1 - h(z)/log V)) for the potential `gibbs`,    G(z) = exp(-λ h(z)), h in bits, for `plain`,

h(z) the mean entropy of the exact conditionals at the masked positions of z. For every resampling scheme, at every step
or only where the effective sample size is low (`below`), and any number K ≥ 2 of particles,

    E exp(log_evidence) = Z    and    E [exp(log_evidence) Σ_k W_k f(z_N^k)] = Γ(f)    for every f of the end,

W the normalised weights that the last resampling left. Z and Γ(f) are enumerated. The expectations are means over
n = 8,000 independent runs (seeds) of K particles; f are the indicators of all sequences that have 2% of Γ or more.
|z| < 4.9 each: a right estimate fails with probability 1e-6 (fixed seeds: always or never). Power: the same test
rejects the constants and the estimates that common mistakes would give, at more than 9.8 standard errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import oracle as ideal
import pytest
import torch
from oracle import SIGMAS, Kernel, Oracle, Pick, Tokens, kernel, measures, z_score
from torch import Tensor

from unmask import Recipe
from unmask.core.beliefs import DrawRule
from unmask.core.step import Rules
from unmask.core.walk import walk
from unmask.decoding.decode import decode_batch
from unmask.samplers import SAMPLERS, Sampler
from unmask.search import SCHEMES, smc

THREE = Oracle(ideal.random_joint(3, 3, seed=4, sharpness=1.2))
FOUR = Oracle(ideal.random_joint(2, 4, seed=11, sharpness=1.2))
RUNS, SEED = 8_000, 31_000_000


def potential(oracle: Oracle, name: str, strength: float) -> Callable[[Tokens], float]:
    if name == "gibbs":
        return lambda z: math.exp(strength * (1 - oracle.state_entropy(z) / math.log(oracle.size)))
    return lambda z: math.exp(-strength * oracle.state_entropy(z) / math.log(2))


def ends(oracle: Oracle) -> list[Tokens]:
    return list(itertools.product(range(oracle.size), repeat=oracle.length))


@dataclass(frozen=True)
class Runs:
    evidence: Tensor  # [n] exp(log_evidence)
    ends: Tensor  # [n, K] the number of the final sequence
    weights: Tensor  # [n, K] normalised
    resampled: float  # the share of (run, evaluation) pairs that resampled

    def marginal(self, weights: Tensor, sequences: int) -> Tensor:  # [n, sequences]
        """exp(log_evidence) Σ_k W_k 1[z^k = z] for every final sequence z."""
        zero = torch.zeros(len(weights), sequences, dtype=torch.float64)
        return self.evidence[:, None] * zero.scatter_add(1, self.ends, weights)


@torch.no_grad()
def run(oracle: Oracle, sampler: Sampler, particles: int, **settings: object) -> Runs:
    table = oracle.table
    state = ideal.first_state(table, oracle.blank, RUNS, particles, sampler.steps, SEED)
    log_evidence, moved = torch.zeros(RUNS, dtype=torch.float64), [0.0]
    for moment in walk(table, state, sampler, smc(particles, **settings), Rules(DrawRule(1.0))):  # type: ignore[arg-type]
        state = moment.state
        if moment.resampled is not None:
            log_evidence = log_evidence + moment.resampled.log_evidence
            moved.append(float((moment.resampled.log_weight.view(RUNS, -1) == 0).all(1).double().mean()))
    place = oracle.size ** torch.arange(oracle.length - 1, -1, -1)
    last = (state.tokens * place).sum(1).view(RUNS, particles)
    weights = state.log_weight.view(RUNS, particles).softmax(1)
    return Runs(log_evidence.exp(), last, weights, sum(moved) / max(1, len(moved) - 1))


@dataclass(frozen=True)
class Case:
    oracle: Oracle
    sampler: str
    law: Pick
    steps: int
    every: int
    particles: int
    strength: float
    below: float | None = 0.6

    @property
    def kernel(self) -> Kernel:
        return kernel(self.oracle, self.law)


CASES = {
    "one-by-one": Case(THREE, "uniform", ideal.fixed_count(3), 3, 1, 4, 6.0),
    "one-by-one-long": Case(FOUR, "uniform", ideal.fixed_count(4), 4, 1, 4, 4.0),
    "two-then-one": Case(FOUR, "uniform", ideal.fixed_count(3), 3, 1, 2, 4.0, None),
    "every-other": Case(FOUR, "uniform", ideal.fixed_count(4), 4, 2, 6, 6.0),
    "confidence": Case(FOUR, "confidence", ideal.ranked(ideal.by_probability, 4), 4, 1, 4, 4.0),
}


@pytest.mark.parametrize("below", [None, 0.6])
@pytest.mark.parametrize(("name", "strength"), [("gibbs", 6.0), ("plain", 3.0)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_evidence_and_population_are_unbiased(scheme: str, name: str, strength: float, below: float | None) -> None:
    check(replace(CASES["one-by-one"], strength=strength), scheme, name, below)


@pytest.mark.parametrize("case", list(CASES)[1:])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_also_with_other_steps_and_samplers(scheme: str, case: str) -> None:
    check(CASES[case], scheme, "gibbs", CASES[case].below)


def check(case: Case, scheme: str, name: str, below: float | None) -> None:
    oracle, steps, every, strength = case.oracle, case.steps, case.every, case.strength
    reward = potential(oracle, name, strength)
    law = measures(oracle, oracle.blank, case.kernel, steps, reward, every)[-1]
    gamma = torch.tensor([law.get(z, 0.0) for z in ends(oracle)], dtype=torch.float64)  # Γ of every final sequence
    settings = {"every": every, "strength": strength, "potential": name, "scheme": scheme, "below": below}
    runs = run(oracle, SAMPLERS[case.sampler](steps=steps), case.particles, **settings)
    estimates, often = runs.marginal(runs.weights, len(gamma)), gamma > 0.02 * gamma.sum()  # rare ones are no normal

    assert runs.resampled == 1 if below is None else 0.02 < runs.resampled < 0.9
    assert z_score(runs.evidence, gamma.sum()).abs() < SIGMAS
    assert often.sum() >= 4
    assert z_score(estimates, gamma)[often].abs().max() < SIGMAS

    # Power. The evidence is not the product of the mean potentials, nor the exponential of its mean logarithm;
    laws = measures(oracle, oracle.blank, case.kernel, steps)
    due = range(every, steps, every)
    if len(due) > 1:
        means = [sum(mass * reward(z) for z, mass in laws[n - 1].items()) for n in due]
        assert z_score(runs.evidence, math.prod(means)).abs() > 2 * SIGMAS
    assert z_score(runs.evidence, runs.evidence.log().mean().exp()) > 2 * SIGMAS
    # the population is not the sampler's own; and where weights have accumulated it is wrong without them.
    own = torch.tensor([laws[-1].get(z, 0.0) for z in ends(oracle)], dtype=torch.float64)
    assert z_score(estimates, gamma.sum() * own)[often].abs().max() > 2 * SIGMAS
    if below is not None:
        dropped = runs.marginal(torch.full_like(runs.weights, 1 / case.particles), len(gamma))
        assert z_score(dropped, gamma)[often].abs().max() > 2 * SIGMAS


def test_strength_0_has_evidence_1() -> None:
    """Every potential is 1, so is every estimate, and the population has the sampler's own law: here the table's."""
    runs = run(FOUR, SAMPLERS["uniform"](steps=4), 4, every=1, strength=0.0)
    assert torch.allclose(runs.evidence, torch.ones_like(runs.evidence), rtol=0, atol=1e-12)
    exact = torch.tensor(list(FOUR.exact().values()), dtype=torch.float64)
    assert z_score(runs.marginal(runs.weights, len(exact)), exact)[exact > 0.02].abs().max() < SIGMAS


def test_results_carry_the_evidence() -> None:
    """`decode_batch` sums what the walk yields."""
    recipe = Recipe(sampler="uniform", search="smc", particles=4, every=1, strength=3.0, temperature=1.0, length=4)
    results = decode_batch(FOUR.table, [""] * 50, recipe=recipe, seeds=range(SEED, SEED + 50))
    runs = run(FOUR, SAMPLERS["uniform"](steps=4), 4, every=1, strength=3.0)
    found = torch.tensor([result.log_evidence for result in results], dtype=torch.float64)
    assert torch.allclose(found, runs.evidence[:50].log(), rtol=0, atol=1e-12)


def test_a_single_particle_is_left_alone() -> None:
    """K = 1 is vanilla: nothing is weighed, and the evidence stays 1."""
    runs = run(FOUR, SAMPLERS["uniform"](steps=4), 1, every=1, strength=3.0)
    assert torch.equal(runs.evidence, torch.ones_like(runs.evidence))
