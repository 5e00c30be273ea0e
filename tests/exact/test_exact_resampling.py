"""Resampling schemes: expected offspring, variances, and the whole law of the ancestors.

A scheme is a function of uniform numbers, so its law can be integrated: on a grid of M midpoints each chance is off by
at most 2/M. Offspring j of `multinomial`, `stratified` and `residual` uses only its own number, so with the same number
for all the grid gives P[j, k], the chance that offspring j comes from particle k; these offspring are independent.
`systematic` has one number, and the grid gives its whole law.

The variance of each particle's offspring count N_k with expectation A w_k, f = A w_k - floor(A w_k):
- systematic: f (1 - f), the least that an integer of this mean can have;
- stratified: Σ_j P[j, k] (1 - P[j, k]) ≤ A w_k (1 - w_k) = multinomial, as Σ_j P² ≥ (Σ_j P)²/A;
- residual: with the fractions f_k and F = Σ f_k, F (f_k/F)(1 - f_k/F) ≤ multinomial.
So systematic ≤ stratified ≤ multinomial and residual ≤ multinomial are theorems for the count of each single particle,
for every weight vector in every order, with equality where a particle's interval begins or ends on a stratum's border
(always for the first and the last one). For sums over several particles no such theorem orders systematic and
stratified, and nothing of the kind is tested.
"""

from __future__ import annotations

import itertools
import math

import oracle as ideal
import pytest
import torch
from oracle import ALARM, SIGMAS, z_score
from torch import Tensor

from unmask.core.resampling import Resampled, Search, resample, standing_of
from unmask.core.state import State, Vocab, begin
from unmask.search import POTENTIALS, SCHEMES

GRID = 4_000
RUNS = 20_000
WEIGHTS = torch.tensor([0.13, 0.34, 0.08, 0.26, 0.19], dtype=torch.float64)


def offspring(scheme: str, weights: Tensor, total: int | None = None) -> Tensor:  # [T, K] -> [T, GRID, A]
    """The ancestor of each offspring at every grid point."""
    rows, k = weights.shape
    total = k if total is None else total
    noise = ((torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID).repeat(rows)[:, None].expand(-1, k)
    totals = torch.full((rows * GRID,), total)
    return SCHEMES[scheme](weights.repeat_interleave(GRID, 0), totals, noise).view(rows, GRID, k)[:, :, :total]


def mean_and_variance(scheme: str, weights: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:  # [T, K] each
    """Of every particle's offspring count, integrated over the grid."""
    drawn = torch.nn.functional.one_hot(offspring(scheme, weights, total), weights.shape[1]).double()
    chance = drawn.mean(1)  # [T, A, K]
    if scheme == "systematic":
        return chance.sum(1), drawn.sum(2).var(1, correction=0)
    return chance.sum(1), (chance * (1 - chance)).sum(1)


def random_weights(rows: int, k: int, seed: int) -> Tensor:  # [T, K]
    """From nearly equal to nearly one-hot."""
    generator = torch.Generator().manual_seed(seed)
    sharp = torch.linspace(0.1, 4, rows, dtype=torch.float64)[:, None]
    return (sharp * torch.randn(rows, k, generator=generator, dtype=torch.float64)).softmax(1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_expected_offspring_are_the_weights(scheme: str, k: int) -> None:
    """Integrated, within 2 A/M, for 25 weight vectors; systematic and residual keep floor(A w) at least."""
    weights = random_weights(25, k, seed=k)
    mean, _ = mean_and_variance(scheme, weights)
    assert (mean - k * weights).abs().max() <= 2 * k / GRID
    counts = torch.nn.functional.one_hot(offspring(scheme, weights), k).sum(2)  # [T, GRID, K]
    exact = k * weights[:, None]
    if scheme in ("systematic", "residual"):
        assert (counts >= exact.floor()).all()
    if scheme == "systematic":
        assert (counts <= exact.ceil()).all()
    if scheme == "stratified":
        assert ((counts - exact).abs() < 2).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_particles_that_take_no_part_have_no_offspring(scheme: str) -> None:
    """Weight 0 at the beginning, inside and at the end; A = 4 of 7, within 2 A/M."""
    weights = torch.tensor([[0, 0.1, 0.4, 0, 0.2, 0.3, 0]], dtype=torch.float64)
    mean, _ = mean_and_variance(scheme, weights, total=4)
    assert (mean - 4 * weights).abs().max() <= 8 / GRID
    assert (mean[weights == 0] == 0).all()


def test_variances_are_ordered() -> None:
    """Each particle of 60 random weight vectors of 2 to 8 particles and of one vector in all 120 orders; grid error."""
    orders = torch.stack([WEIGHTS[list(order)] for order in itertools.permutations(range(5))])
    for weights in [random_weights(20, 2, 1), random_weights(20, 5, 2), random_weights(20, 8, 3), orders]:
        k = weights.shape[1]
        error = 4 * k / GRID
        variance = {scheme: mean_and_variance(scheme, weights)[1] for scheme in SCHEMES}
        fraction = k * weights - (k * weights).floor()
        assert (variance["systematic"] - fraction * (1 - fraction)).abs().max() <= error
        assert (variance["multinomial"] - k * weights * (1 - weights)).abs().max() <= error
        assert (variance["systematic"] <= variance["stratified"] + error).all()
        assert (variance["stratified"] <= variance["multinomial"] + error).all()
        assert (variance["residual"] <= variance["multinomial"] + error).all()
    assert (variance["systematic"] < variance["stratified"] - error).any()
    assert (variance["stratified"] < variance["multinomial"] - error).all()


# --- with the dice, through `resample` -------------------------------------------------------------------------------


def resampled(scheme: str, weights: Tensor, live: Tensor, step: int = 3, seed: int = 77) -> Resampled:
    """One resampling of RUNS prompts that all have these weights [K]; entropies chosen so that exp(-h in bits) is w."""
    k = len(weights)
    tokens = torch.full((RUNS, 1), 2)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    state: State = begin(tokens, everywhere, everywhere, torch.arange(RUNS) + seed, Vocab(2), k, 10)
    state = state.replace(entropy=(-weights.log() * math.log(2)).repeat(RUNS))
    search = Search(k, 1, strength=1.0, potential=POTENTIALS["plain"], scheme=SCHEMES[scheme])
    table = standing_of(search, state, live.repeat(RUNS), 2)
    return resample(search, table, step, torch.ones(RUNS, dtype=torch.bool))


def ancestors(scheme: str, weights: Tensor, live: Tensor) -> Tensor:  # [RUNS, K] particle numbers
    k = len(weights)
    return resampled(scheme, weights, live).ancestors.view(RUNS, k) - torch.arange(RUNS)[:, None] * k


LIVE = {"all": [1, 1, 1, 1, 1], "some": [1, 0, 1, 1, 0], "late": [0, 1, 0, 1, 1]}


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_frequencies_match_the_weights(scheme: str, live: str) -> None:
    """n = 20,000 resamplings, each particle's mean count against A w, |z| < 4.9; others only copy themselves."""
    taking = torch.tensor(LIVE[live], dtype=torch.bool)
    found = ancestors(scheme, WEIGHTS, taking)
    rest = (~taking).nonzero()[:, 0]
    assert (found[:, rest] == rest).all()  # not replaced
    assert (taking[found[:, taking]]).all()  # not copied
    counts = torch.nn.functional.one_hot(found[:, taking], 5).sum(1).double()
    expected = (WEIGHTS * taking / WEIGHTS[taking].sum()) * taking.sum()
    assert z_score(counts, expected).abs().max() < SIGMAS
    assert z_score(counts, taking.double()).abs().max() > 2 * SIGMAS  # power: equal weights


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_whole_law_of_the_ancestors(scheme: str) -> None:
    """All 27 ancestries of three particles, χ² over n = 20,000 at 1e-6; every other scheme's law is rejected."""
    weights = torch.tensor([0.25, 0.45, 0.3], dtype=torch.float64)
    laws: dict[str, ideal.Law] = {}
    for name in SCHEMES:
        drawn = offspring(name, weights[None])[0]  # [GRID, 3]
        chance = torch.nn.functional.one_hot(drawn, 3).double().mean(0)  # [3, 3]
        laws[name] = {
            row: float((drawn == torch.tensor(row)).all(1).double().mean())
            if name == "systematic"
            else math.prod(float(chance[j, k]) for j, k in enumerate(row))
            for row in itertools.product(range(3), repeat=3)
        }
    found = ancestors(scheme, weights, torch.ones(3, dtype=torch.bool))
    for name, law in laws.items():
        assert (ideal.chi_square(found, law, 3) > ALARM) == (name == scheme)


def test_estimated_variances_are_ordered() -> None:
    """n = 20,000 resamplings with the dice: each particle's count has the integrated variance (|z| < 4.9 with the
    variance's own standard error), and the estimates are in order wherever the integrated ones are apart."""
    everyone = torch.ones(5, dtype=torch.bool)
    estimate, error = {}, {}
    for scheme in SCHEMES:
        counts = torch.nn.functional.one_hot(ancestors(scheme, WEIGHTS, everyone), 5).sum(1).double()
        squares = (counts - 5 * WEIGHTS).square()
        exact = mean_and_variance(scheme, WEIGHTS[None])[1][0]
        estimate[scheme], error[scheme] = squares.mean(0), squares.std(0) / math.sqrt(RUNS)
        assert ((estimate[scheme] - exact).abs() < SIGMAS * error[scheme] + 20 / GRID).all()
    for less, more in [("systematic", "stratified"), ("stratified", "multinomial"), ("residual", "multinomial")]:
        assert (estimate[less] <= estimate[more] + SIGMAS * (error[less] + error[more])).all()
    assert (estimate["systematic"] < estimate["stratified"])[1:-1].all()  # equal for the first and the last
    assert (estimate["stratified"] < estimate["multinomial"]).all()
    assert (estimate["residual"] < estimate["multinomial"]).all()


@pytest.mark.parametrize("k", [2, 3, 5, 7, 10, 12])
@pytest.mark.parametrize("scheme", ["systematic", "stratified", "residual"])
def test_equal_weights_keep_everyone(scheme: str, k: int) -> None:
    """Rounding of 1/K costs nobody a life."""
    found = ancestors(scheme, torch.full((k,), 1 / k, dtype=torch.float64), torch.ones(k, dtype=torch.bool))
    assert (found == torch.arange(k)).all()


def test_steps_and_seeds_have_their_own_dice() -> None:
    """Another step or another seed gives other ancestors; the same ones give the same."""
    everyone = torch.ones(5, dtype=torch.bool)
    one, same, step, seed = (
        resampled("multinomial", WEIGHTS, everyone, *where).ancestors for where in [(3, 77), (3, 77), (4, 77), (3, 78)]
    )
    assert torch.equal(one, same)
    for other in (step, seed):
        agree = (one == other).double().mean()
        assert abs(float(agree - WEIGHTS.square().sum())) < SIGMAS * 0.5 / math.sqrt(5 * RUNS)  # as if independent
