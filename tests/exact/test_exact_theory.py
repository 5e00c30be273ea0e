"""The paper's theory on tables small enough to enumerate: what is exact, what bounds what, and what does not hold.

Data follow one table, the model knows another (or the same). Paths are those of N ancestral steps: every subset is
freed with the chance of the time grid, its tokens jointly from the data or one by one from the model.
"""

from __future__ import annotations

import itertools
import math

import oracle as ideal
import pytest
import torch
from oracle import SIGMAS, Oracle, Tokens, joint_entropy, marginal_entropies
from torch import Tensor

from unmask.cli import main
from unmask.core.entropy import BIT
from unmask.decoding.recipe import Recipe
from unmask.evaluate.stats import Mean, mean
from unmask.evaluate.theory import quantities
from unmask.evaluate.theory.noised_states import measure, oracle
from unmask.evaluate.theory.reference import Known, generated, reference
from unmask.evaluate.theory.report import study, summary
from unmask.models.made.table import Table
from unmask.train.process import SCHEDULES

SIZE, LENGTH, STEPS = 2, 3, 3
RECIPE = Recipe("ancestral", steps=STEPS, temperature=1.0)


def everything(table: Table) -> list[Known]:
    """All sequences of a table, in the order of its probabilities."""
    return [Known(row, [True] * len(row)) for row in table.sequences.tolist()]


def draws(table: Table, count: int, seed: int) -> list[Known]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.multinomial(table.probability, count, replacement=True, generator=generator)
    return [Known(row, [True] * len(row)) for row in table.sequences[rows].tolist()]


# --- enumerated path distributions -----------------------------------------------------------------------------------


def moves(data: Oracle, model: Oracle, z: Tokens, step: int, steps: int) -> list[tuple[Tokens, float, float]]:
    """(next state, chance under the data, chance under the model)."""
    found: list[tuple[Tokens, float, float]] = []
    masked = data.masked(z)
    law = ideal.mdlm(steps)(data, z, dict.fromkeys(masked, 0), step)
    for subset, free in law.items():
        places = sorted(subset)
        part = data.slice(z).sum(axis=tuple(a for a, place in enumerate(masked) if place not in subset))
        for tokens in itertools.product(range(data.size), repeat=len(places)):
            after, guess = list(z), 1.0
            for place, token in zip(places, tokens, strict=True):
                after[place] = token
                guess *= model.conditionals(z)[place][token]
            truth = float(part[tokens]) if places else 1.0
            if free > 0:
                found.append((tuple(after), free * truth, free * guess))
    return found


def all_paths(data: Oracle, model: Oracle, steps: int) -> list[tuple[list[Tokens], float, float]]:
    """Every path with its chance under the data and under the model."""
    paths = [([data.blank], 1.0, 1.0)]
    for step in range(steps):
        paths = [
            ([*path, after], true * p, own * q)
            for path, true, own in paths
            for after, p, q in (
                moves(data, model, path[-1], step, steps) if data.masked(path[-1]) else [(path[-1], 1.0, 1.0)]
            )
        ]
    return paths


def entropy_of(model: Oracle, path: list[Tokens]) -> float:
    """H_DE in nats: over the inputs of steps that have masks."""
    values = [model.state_entropy(z) for z in path[:-1] if model.masked(z)]
    return sum(values) / len(values)


def divergence(data: Oracle, model: Oracle, steps: int) -> tuple[float, float, float]:
    """D_KL(Pr || P̂r), and the expected path entropies under both; nats."""
    paths = all_paths(data, model, steps)
    kl = sum(p * math.log(p / q) for _, p, q in paths if p > 0)
    return kl, *(sum(path[which] * entropy_of(model, path[0]) for path in paths) for which in (1, 2))


def step_divergences(data: Oracle, model: Oracle, steps: int) -> list[float]:
    """E KL of each step's kernels, under the data's states: the ε of each step."""
    now: dict[Tokens, float] = {data.blank: 1.0}
    found = []
    for step in range(steps):
        after: dict[Tokens, float] = {}
        kl = 0.0
        for z, mass in now.items():
            for next_state, p, q in moves(data, model, z, step, steps) if data.masked(z) else [(z, 1.0, 1.0)]:
                kl += mass * p * math.log(p / q) if p > 0 else 0.0
                after[next_state] = after.get(next_state, 0.0) + mass * p
        now = after
        found.append(kl)
    return found


PAIRS = [(seed, seed + 100, sharpness) for seed in range(4) for sharpness in (0.5, 2.0)]


def pair(data_seed: int, model_seed: int, sharpness: float) -> tuple[Oracle, Oracle]:
    joints = (ideal.random_joint(SIZE, LENGTH, seed, sharpness) for seed in (data_seed, model_seed))
    return Oracle(next(joints)), Oracle(next(joints))


# --- bounds of the divergence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data_seed", "model_seed", "sharpness"), PAIRS)
def test_the_drift_bounds_the_divergence_from_below_and_the_steps_from_above(data_seed, model_seed, sharpness):
    data, model = pair(data_seed, model_seed, sharpness)
    kl, true, own = divergence(data, model, STEPS)
    drift = Mean((own - true) / BIT, None, None, 1)
    printed, tight = (quantities.lower_bound(drift, math.log2(SIZE), factor).value for factor in (0.5, 2.0))
    each = step_divergences(data, model, STEPS)
    assert 0 < printed < tight < kl
    assert tight == pytest.approx(4 * printed)
    assert kl == pytest.approx(sum(each), abs=1e-9)  # the chain rule
    assert kl <= STEPS * max(each) + 1e-9


@pytest.mark.parametrize(("data_seed", "model_seed", "sharpness"), PAIRS[:2])
def test_the_divergence_is_the_loss_less_the_entropy_of_the_data(data_seed, model_seed, sharpness):
    """What `divergence` measures on sampled texts is what enumeration gives, and so are both path entropies."""
    data, model = pair(data_seed, model_seed, sharpness)
    kl, true, own = divergence(data, model, STEPS)
    texts = draws(data.table, 600, seed=1)
    paths, decoded = reference(model.table, texts, RECIPE), generated(model.table, texts, RECIPE)
    found = quantities.divergence(
        paths, [[one.path_entropy] for one in decoded], SIZE, STEPS, float(joint_entropy(data.joint)) / BIT
    )
    assert found.kl is not None and found.epsilon is not None
    for measured, exact in ((found.reference, true / BIT), (found.generated, own / BIT), (found.kl, kl)):
        assert abs(measured.value - exact) < SIGMAS / 1.96 * measured.half
    assert found.epsilon.value == pytest.approx(found.kl.value / STEPS)
    assert found.lower.low is not None and found.lower.low < kl


def test_with_the_law_of_the_data_the_divergence_needs_no_bound():
    """By bits of each text or by their mean the divergence is that of enumeration, and a perfect model's is 0."""
    data, other = pair(1, 101, 2.0)
    texts = [
        Known(text.tokens, text.open, -math.log2(data.joint[tuple(text.tokens)]))
        for text in draws(data.table, 160, seed=3)
    ]
    entropy = float(joint_entropy(data.joint)) / BIT
    for model, nelbo in ((data, 0.0), (other, float(sum(_nelbo(data, other))) / BIT - entropy)):
        measured = study(model.table, texts, RECIPE, draws=3, paths=1)
        for whole in (None, entropy):
            found = summary(measured, SIZE, None, whole)
            kl, law = Mean(**found["divergence"]["kl"]), Mean(**found["law"]["nelbo"])
            assert abs(kl.value - divergence(data, model, STEPS)[0]) < SIGMAS / 1.96 * kl.half
            assert abs(law.value - nelbo) < SIGMAS / 1.96 * law.half
            assert Mean(**found["law"]["data"]).value == pytest.approx(entropy, abs=0.2)
            gap = Mean(**found["law"]["entropy"])
            assert model is not data or abs(gap.value) < SIGMAS / 1.96 * gap.half


def test_the_loss_above_the_nelbo_bounds_the_divergence_without_the_entropy_of_the_data():
    data, other = pair(1, 101, 2.0)
    model = Oracle(0.8 * data.joint + 0.2 * other.joint)
    kl = divergence(data, model, 1)[0]
    found = study(model.table, draws(data.table, 300, seed=4), Recipe("ancestral", steps=1), draws=6, paths=1)
    least = summary(found, SIZE, None, None)["kl_at_least"]
    exact = kl - float(sum(_nelbo(data, model))) + float(joint_entropy(data.joint))
    assert 0.05 < exact < kl  # it may be negative for a model that context misleads
    assert abs(least["value"] - exact) < SIGMAS / 1.96 * (least["high"] - least["low"]) / 2


def _nelbo(data: Oracle, model: Oracle) -> list[float]:
    """Each text's part of the expected NELBO, nats: all sets of masks, sizes evenly."""
    found = []
    for text, chance in data.exact().items():
        for k in range(1, LENGTH + 1):
            sets = list(itertools.combinations(range(LENGTH), k))
            for hidden in sets:
                z = tuple(SIZE if place in hidden else token for place, token in enumerate(text))
                loss = -sum(math.log(model.conditionals(z)[place][text[place]]) for place in hidden) / k
                found.append(chance * loss / len(sets))
    return found


def test_a_perfect_denoiser_diverges_where_it_decides_several_tokens_at_once():
    """With the data's own conditionals ε is not 0: tokens of one step are independent. One a step, and it is."""
    data = Oracle(ideal.random_joint(SIZE, 2, seed=3, sharpness=2.0))
    assert divergence(data, data, 1)[0] == pytest.approx(
        float(marginal_entropies(data.joint).sum() - joint_entropy(data.joint)), abs=1e-9
    )
    falling = [divergence(data, data, steps)[0] for steps in (1, 2, 4, 8)]
    assert all(more > less > 0 for more, less in itertools.pairwise(falling))


# --- Proposition 2 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_loss_is_entropy_on_average_where_the_model_is_the_data(seed):
    """All texts with equal masks, weighted by their chances: equal in every part of time."""
    table = Table(ideal.random_joint(3, 3, seed))
    texts = everything(table)
    states = measure(table, texts, draws=5, seeds=[seed] * len(texts))
    loss, entropy = (table.probability @ numbers for numbers in (states.loss, states.entropy))
    assert (states.masked == states.masked[0]).all()
    assert torch.allclose(loss, entropy, rtol=0, atol=1e-12)


def test_loss_is_not_entropy_where_the_model_is_another():
    data, table = Table(ideal.random_joint(3, 3, 1)), Table(ideal.random_joint(3, 3, 2))
    states = measure(table, everything(data), draws=5, seeds=[4] * 27)
    gaps = data.probability @ (states.loss - states.entropy)
    assert gaps.abs().max() > 0.05


def test_the_bound_of_proposition_2_does_not_hold():
    """One position: a step's divergence is that of the token over N, but the gap of loss and entropy stays."""
    data, model = Oracle(torch.tensor([0.5, 0.5]).double()), Oracle(torch.tensor([0.9, 0.1]).double())
    token = sum(q * math.log(q / p) for q, p in ((0.5, 0.9), (0.5, 0.1)))
    gap = sum(-0.5 * math.log(p) for p in (0.9, 0.1)) - ideal.entropy([0.9, 0.1])
    for steps in (1, 4, 64):
        each = step_divergences(data, model, steps)
        assert sum(each) == pytest.approx(token)
        assert max(each) == pytest.approx(token / steps, rel=1e-3)  # the time grid ends at 1e-5, not at 0
    epsilon = max(step_divergences(data, model, 64))
    assert gap > 10 * (epsilon + math.sqrt(epsilon / 2) * math.log(2))
    assert quantities.needed_epsilon(gap, 2) > 10 * epsilon


def test_the_loss_is_the_entropy_of_the_data_and_the_divergence():
    """The lemma: -Σ q log p = H(q) + KL(q ‖ p), for the conditionals of every state of two tables."""
    data, model = pair(1, 2, 1.0)
    for z in data.states():
        for place in data.masked(z):
            q, p = data.conditionals(z)[place], model.conditionals(z)[place]
            loss = -sum(a * math.log(b) for a, b in zip(q, p, strict=True) if a > 0)
            divergence = sum(a * math.log(a / b) for a, b in zip(q, p, strict=True) if a > 0)
            assert loss == pytest.approx(ideal.entropy(q) + divergence, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_entropy_is_concave(seed):
    """The lemma: the entropy of a mixture is at least the mixture of entropies, and of the two tables' states too."""
    dice = torch.Generator().manual_seed(seed)
    q, p = torch.rand(2, 5, generator=dice, dtype=torch.float64)
    q, p = (one / one.sum() for one in (q, p))
    for share in (0.0, 0.25, 0.5, 1.0):
        mixed = ideal.entropy((share * q + (1 - share) * p).tolist())
        apart = share * ideal.entropy(q.tolist()) + (1 - share) * ideal.entropy(p.tolist())
        assert mixed >= apart - 1e-12 and (mixed > apart + 1e-6) == (0 < share < 1)


def test_what_the_proof_of_proposition_2_drops():
    """Two distributions whose entropies differ by more than δ log(K - 1): only h(δ) makes the bound true."""
    size, delta = 8, 0.1
    q = [1.0] + [0.0] * (size - 1)
    p = [1 - delta] + [delta / (size - 1)] * (size - 1)
    gap, without = ideal.entropy(p) - ideal.entropy(q), delta * math.log(size - 1)
    assert gap > without + 0.3
    assert gap == pytest.approx(without + quantities.dropped(2 * delta * delta))  # Audenaert's bound is met
    assert quantities.dropped(0.0) == 0 and quantities.dropped(0.5) == pytest.approx(math.log(2))
    printed, whole = (quantities.needed_epsilon(0.15, 4096, flag) for flag in (False, True))
    assert whole is not None and printed is not None and whole < printed
    again = whole + math.sqrt(whole / 2) * math.log(4096) + quantities.dropped(whole)
    assert again == pytest.approx(0.15)


def test_the_largest_step_is_that_of_the_definition():
    """Data of one sequence: a step's divergence is its loss, and the largest of them is ε of the definition."""
    joint = torch.full((SIZE,) * LENGTH, 1e-15, dtype=torch.float64)
    joint[0, 1, 1] = 1.0
    data, model = Oracle(joint), pair(3, 4, 1.0)[1]
    each = step_divergences(data, model, STEPS)
    texts = [Known([0, 1, 1], [True] * LENGTH)] * 400
    found = summary(study(model.table, texts, RECIPE.replace(temperature=0.0), draws=1, paths=4), SIZE, None, 0.0)
    paths = found["divergence"]
    assert paths["epsilon_largest"] == pytest.approx(max(each), rel=0.1)
    assert paths["epsilon"]["value"] == pytest.approx(sum(each) / STEPS, rel=0.1)
    assert paths["epsilon_largest"] > paths["epsilon"]["value"]


def test_the_best_of_several_paths_drifts_less():
    data, model = pair(0, 100, 2.0)
    texts = draws(data.table, 60, seed=1)
    one, four = (summary(study(model.table, texts, RECIPE, draws=1, best_of=n), SIZE, None, None) for n in (1, 4))
    assert one["divergence"]["best"] is None
    assert four["divergence"]["best_drift"]["value"] < four["divergence"]["drift"]["value"] - 0.05
    assert four["divergence"]["generated"]["value"] == pytest.approx(one["divergence"]["generated"]["value"], abs=0.1)


def test_the_oracle_of_a_table_is_below_the_state_entropies():
    table = Table(ideal.random_joint(3, 3, 5))
    found = oracle(table, everything(table), draws=4)
    assert found.least > 0 and found.joint.value < found.sum.value
    whole = torch.full((1, 3), table.vocab.mask)
    assert table.joint_entropy(whole).item() == pytest.approx(float(joint_entropy(table.joint)))
    assert table.joint_entropy(whole[:, :2]).item() == pytest.approx(float(joint_entropy(table.joint.sum(2))))


def test_the_command_prints_the_oracle_of_a_table(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("tea\nrats\n")
    given = ["theory", str(tmp_path / "words.txt"), "--model", "table", "--steps", "3", "--draws", "4"]
    assert main([*given, "--best-of", "2", "--data-entropy", "0", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "entropy of all masked positions together" in out and "its drift" in out and "largest" in out


# --- the NELBO and the integral of state entropy ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_weighs_sets_of_masks_alike(name):
    """∫ w(t) (1 - α)^k α^(L - k) dt = (k - 1)! (L - k)! / L!, which is why k may be drawn evenly."""
    schedule, n = SCHEDULES[name], 400_000
    t = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    kept = schedule.kept(t)
    for length in (1, 3, 6):
        for k in range(1, length + 1):
            found = (schedule.weight(t) * (1 - kept) ** k * kept ** (length - k)).mean()
            exact = math.factorial(k - 1) * math.factorial(length - k) / math.factorial(length)
            assert float(found) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_the_integral_of_state_entropy_is_the_joint_entropy(seed):
    """For exact conditionals: the mean of h over all states of all texts, k drawn evenly, is H / L; so is the loss."""
    oracle = Oracle(ideal.random_joint(3, 3, seed))
    total = 0.0
    for text, chance in oracle.exact().items():
        for k in range(1, 4):
            sets = list(itertools.combinations(range(3), k))
            for hidden in sets:
                z = tuple(3 if place in hidden else token for place, token in enumerate(text))
                total += chance * oracle.state_entropy(z) / len(sets) / 3
    exact = float(joint_entropy(oracle.joint)) / 3
    assert total == pytest.approx(exact, abs=1e-12)
    states = measure(oracle.table, draws(oracle.table, 400, seed), draws=6)
    found = quantities.integrals(states)
    for measured in (found.nelbo, found.entropy):
        assert abs(measured.value - exact / BIT) < SIGMAS / 1.96 * measured.half
    assert found.gap.low is not None and found.gap.low < 0 < found.gap.high


def test_a_path_of_single_steps_is_the_same_integral():
    """One position a step in random order: N times the path entropy is the joint entropy, on average."""
    table = Table(ideal.random_joint(2, 4, seed=8))
    paths = reference(table, draws(table, 500, seed=2), Recipe("uniform"))
    found = mean([path[0].path_entropy for path in paths])
    assert abs(found.value - float(joint_entropy(table.joint)) / BIT / 4) < SIGMAS / 1.96 * found.half


# --- the ends of time, and context -----------------------------------------------------------------------------------


def exchangeable(size: int, length: int, seed: int) -> Tensor:
    """A table that does not care for the order of its tokens."""
    joint = ideal.random_joint(size, length, seed, sharpness=2.0)
    return torch.stack([joint.permute(order) for order in itertools.permutations(range(length))]).mean(0)


def pooled(table: Table) -> float:
    """The entropy of a token at a random position, bits."""
    shares = torch.zeros(table.vocab.mask, dtype=torch.float64)
    for chance, row in zip(table.probability.tolist(), table.sequences.tolist(), strict=True):
        for token in row:
            shares[token] += chance / len(row)
    return quantities.unigram(dict(enumerate((shares * 1e12).long().tolist())))


def test_all_masked_is_the_unigram_entropy_only_if_positions_are_alike():
    """The limit is the mean entropy of the marginals. It is the unigram entropy if they are equal, and less if not."""
    for joint, alike in ((exchangeable(3, 3, 1), True), (ideal.random_joint(3, 3, 1, 2.0), False)):
        table = Table(joint)
        states = measure(table, everything(table), draws=1)
        full = states.entropy[:, -1] / BIT
        assert torch.allclose(full, marginal_entropies(joint).mean() / BIT, rtol=0, atol=1e-9)
        assert (abs(pooled(table) - float(full[0])) < 1e-6) if alike else (pooled(table) - float(full[0]) > 0.01)


def test_one_mask_is_what_the_rest_leaves_open_not_zero():
    oracle = Oracle(ideal.random_joint(2, 3, seed=5))
    exact = sum(
        chance * oracle.state_entropy(tuple(2 if place == hidden else token for place, token in enumerate(text))) / 3
        for text, chance in oracle.exact().items()
        for hidden in range(3)
    )
    states = measure(oracle.table, draws(oracle.table, 500, 3), draws=1)
    found = quantities.ends(states, {0: 1, 1: 1}).single
    assert abs(found.value - exact / BIT) < SIGMAS / 1.96 * found.half
    assert found.low is not None and found.low > 0.1


@pytest.mark.parametrize("seed", range(4))
def test_context_lowers_entropy_on_average_where_the_model_is_the_data(seed):
    table = Table(ideal.random_joint(2, 4, seed, sharpness=2.0))
    texts = everything(table)
    states = measure(table, texts, draws=4, seeds=[seed] * len(texts))
    average = table.probability @ states.watched  # from one mask to all
    assert (average.diff() > -1e-12).all()
    assert (states.watched.diff(dim=1) < -1e-9).any()  # single texts go the other way


def test_context_may_raise_entropy_where_the_model_is_another():
    """The model is sure of the first token unless the second is 1, and the data always have a 1 there."""
    table = Table(torch.tensor([[0.98, 0.01], [0.0001, 0.0099]]).double())
    states = measure(table, [Known([0, 1], [True, True])] * 8, draws=2, seeds=range(8))
    watched = states.watched[:, 0] - states.watched[:, -1]  # one mask less all
    assert (watched > 0.3).any()


# --- the theorem on λ* -----------------------------------------------------------------------------------------------


def guided(oracle: Oracle, every: int, strength: float) -> float:
    """E-SMC with infinitely many particles, one position a step: E[H ∏ G] / E[∏ G] over its paths, bits."""
    now = {oracle.blank: (1.0, 0.0)}  # mass, mass × summed state entropy
    for step in range(oracle.length):
        after: dict[Tokens, tuple[float, float]] = {}
        for z, (mass, summed) in now.items():
            h = oracle.state_entropy(z) / BIT
            factor = math.exp(-strength * h) if step > 0 and step % every == 0 else 1.0
            mass, summed = mass * factor, (summed + mass * h) * factor
            for place, law in oracle.conditionals(z).items():
                for token, p in enumerate(law):
                    following = (*z[:place], token, *z[place + 1 :])
                    share = p / len(oracle.masked(z))
                    old = after.get(following, (0.0, 0.0))
                    after[following] = (old[0] + share * mass, old[1] + share * summed)
        now = after
    masses, sums = zip(*now.values(), strict=True)
    return sum(sums) / sum(masses) / oracle.length


@pytest.mark.parametrize("seed", range(3))
def test_path_entropy_falls_with_the_strength_if_every_state_is_weighed(seed):
    """Then the potentials multiply to exp(-λ N H), and the derivative is -N Var(H)."""
    oracle = Oracle(ideal.random_joint(2, 3, seed))
    values = [guided(oracle, 1, strength) for strength in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(more > less for more, less in itertools.pairwise(values))


def test_path_entropy_may_rise_with_the_strength_if_some_states_are_weighed():
    """The derivative is -Cov(H, Σ h of the weighed states), which need not be negative: no unique λ* then."""
    oracle = Oracle(ideal.random_joint(2, 4, 185, 4.0))
    values = [guided(oracle, 3, strength) for strength in (0.0, 1.0, 4.0)]
    assert values[0] + 1e-4 < values[1] < values[2] - 1e-3
