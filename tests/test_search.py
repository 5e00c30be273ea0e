"""search.py: weights, strengths, times, beams, votes. The schemes' laws are in tests/exact."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask import Recipe
from unmask.core.denoiser import Head
from unmask.core.resampling import Resampled, Search, resample, solve_strength, standing_of
from unmask.core.state import State, Vocab, begin
from unmask.core.step import Rules
from unmask.core.walk import walk
from unmask.decoding import trace as traces
from unmask.decoding.decode import decode, decode_batch
from unmask.errors import SettingError
from unmask.models.made.table import Table
from unmask.samplers import SAMPLERS
from unmask.search import CHOOSERS, POTENTIALS, SCHEMES, beam, greedy, smc

BIT = math.log(2)
FACTS = [3, 3.5, 4.2, 3.1, 5]  # facts.md, section 2: state entropies in bits
WIDTH = 126464


def real(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def population(entropy: Tensor, log_weight: Tensor | None = None) -> State:  # [P, K] bits
    """A State whose rows have these state entropies."""
    prompts, k = entropy.shape
    tokens = torch.full((prompts, 1), 2)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, everywhere, everywhere, torch.arange(prompts), Vocab(2), k, 10)
    state = state.replace(entropy=entropy.flatten() * BIT)
    return state if log_weight is None else state.replace(log_weight=log_weight.flatten())


def step(search: Search, state: State, live: Tensor | None = None, due: Tensor | None = None) -> Resampled:
    prompts, k = len(state.tokens) // search.particles, search.particles
    live = torch.ones(prompts * k, dtype=torch.bool) if live is None else live.flatten()
    due = torch.ones(prompts, dtype=torch.bool) if due is None else due
    return resample(search, standing_of(search, state, live, WIDTH), 3, due)


def weights(search: Search, entropy: Tensor) -> Tensor:  # [P, K]
    """The normalised weights, seen by never resampling."""
    unresampled = Search(**{**vars(search), "below": 1e-9})
    return step(unresampled, population(entropy)).log_weight.view(entropy.shape).softmax(1)


def ess(w: Tensor) -> Tensor:  # [P, K] -> [P]
    return 1 / w.square().sum(1)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_the_weights_of_the_facts() -> None:
    h = real([FACTS])
    found = weights(smc(5, 1, 5.0), h)
    assert torch.allclose(found, real([[0.2445, 0.2110, 0.1716, 0.2374, 0.1355]]), rtol=0, atol=5e-5)
    assert float(step(smc(5, 1, 5.0), population(h)).ess) == pytest.approx(4.80, abs=5e-3)
    assert float(step(smc(5, 1, 10.0), population(h)).ess) == pytest.approx(4.37, abs=5e-3)


def test_the_two_potentials_are_one_family() -> None:
    """exp(λ (1 - h/log V)) at λ weighs as exp(-λ h) at λ / log2 V; only the evidence differs, by exp(λ)."""
    h, strength = real([FACTS]), 5.0
    one = step(smc(5, 1, strength), population(h))
    two = step(smc(5, 1, strength / math.log2(WIDTH), "plain"), population(h))
    assert torch.equal(one.ancestors, two.ancestors)
    assert float(one.log_evidence - two.log_evidence) == pytest.approx(strength, abs=1e-12)
    exact = sum(math.exp(strength * (1 - x / math.log2(WIDTH))) for x in FACTS) / 5
    assert float(one.log_evidence) == pytest.approx(math.log(exact), abs=1e-12)


def test_weights_accumulate_until_a_resampling() -> None:
    """`below`: a prompt with a large effective sample size keeps its particles and carries its weights on."""
    h = real([[3.0, 3.1, 3.2, 3.0], [1.0, 9.0, 9.0, 9.0]])
    before = real([[0.3, 0.0, 0.1, 0.2], [0.0, 0.1, 0.2, 0.0]])
    search = smc(4, 1, 1.0, "plain", below=0.5)
    done = step(search, population(h, before))
    after = before - h
    assert torch.equal(done.ancestors[:4], torch.arange(4))
    assert torch.allclose(done.log_weight[:4], after[0], rtol=0, atol=1e-12)
    assert torch.equal(done.ancestors[4:], torch.full((4,), 4))
    assert torch.equal(done.log_weight[4:], torch.zeros(4).double())
    growth = after.logsumexp(1) - before.logsumexp(1)
    assert torch.allclose(done.log_evidence, growth, rtol=0, atol=1e-12)
    assert torch.allclose(done.ess, ess(after.softmax(1)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("potential", [name for name, one in POTENTIALS.items() if not one.since])
@pytest.mark.parametrize("strength", [1e4, 1e8, 1e12])
def test_a_very_large_strength_keeps_the_best(scheme: str, potential: str, strength: float) -> None:
    done = step(smc(5, 1, strength, potential, scheme), population(real([FACTS, FACTS[::-1]])))
    assert done.ancestors.tolist() == [0] * 5 + [9] * 5
    assert done.ess.tolist() == [1, 1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_takes_no_part(scheme: str) -> None:
    """Rows that are not live, prompts that are not due, and a prompt with one live row are left as they are."""
    h = real([[1.0, 9.0, 9.0]] * 4)
    live = torch.tensor([[True, True, True], [False, True, True], [True, False, False], [True, True, True]])
    due = torch.tensor([True, True, True, False])
    before = real([[0.0, 0.0, 0.0], [0.7, 0.0, 0.0], [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    done = step(smc(3, 1, 100.0, "plain", scheme), population(h, before), live, due)
    assert done.ancestors[:3].tolist() == [0, 0, 0]
    assert int(done.ancestors[3]) == 3 and set(done.ancestors[4:6].tolist()) <= {4, 5}
    assert done.ancestors[6:].tolist() == [6, 7, 8, 9, 10, 11]
    assert torch.equal(done.log_weight[3:4], before[1, :1])
    assert torch.equal(done.log_weight[6:], before[2:].flatten())
    assert done.log_evidence[2:].tolist() == [0, 0]
    assert done.ess.isnan().tolist() == [False, False, True, True]
    assert float(done.ess[1]) == pytest.approx(2)


# --- the strength ----------------------------------------------------------------------------------------------------


def rewards(prompts: int, k: int, seed: int) -> Tensor:
    return torch.randn(prompts, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("target", [0.25, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_solved_strength_reaches_its_target(target: float, scale: float) -> None:
    """300 prompts without ties, so every size from 1 to 5 can be reached; also where the best two are close."""
    reward, everyone = scale * rewards(300, 5, seed=1), torch.ones(300, 5, dtype=torch.bool)
    strength = solve_strength(reward, torch.zeros(300, 5).double(), everyone, target)
    reached = ess((strength[:, None] * reward).softmax(1))
    assert (strength > 0).all()
    assert (reached - 5 * target).abs().max() < 1e-6


def test_it_is_reached_where_the_best_two_are_close() -> None:
    """The worst particle is gone long before the best one leads: sizes under 2 need a strength of order 1/gap."""
    reward, everyone = real([[0.0, -1e-3, -1.0]]), torch.ones(1, 3, dtype=torch.bool)
    strength = solve_strength(reward, torch.zeros_like(reward), everyone, 0.4)
    assert float(ess((strength[:, None] * reward).softmax(1))) == pytest.approx(1.2, abs=1e-6)


def test_it_is_reached_by_many_particles() -> None:
    """200 particles: the goal itself must be a float64."""
    reward, everyone = rewards(20, 200, seed=7), torch.ones(20, 200, dtype=torch.bool)
    strength = solve_strength(reward, torch.zeros_like(reward), everyone, 1 / 3)
    assert (ess((strength[:, None] * reward).softmax(1)) - 200 / 3).abs().max() < 1e-6


def test_it_is_the_smallest_strength_from_equal_weights() -> None:
    """From equal weights the size falls with the strength: d log ESS/dλ = 2 (E_λ r - E_2λ r) ≤ 0."""
    reward, everyone = rewards(50, 6, seed=2), torch.ones(50, 6, dtype=torch.bool)
    strength = solve_strength(reward, torch.zeros(50, 6).double(), everyone, 0.4)
    sizes = torch.stack([ess((s * strength[:, None] * reward).softmax(1)) for s in torch.linspace(0, 1, 101)])
    assert (sizes.diff(dim=0) < 1e-12).all()
    assert (sizes[:-1] > 0.4 * 6).all()


def test_it_is_reached_from_accumulated_weights_that_are_above_it() -> None:
    reward, before = rewards(500, 4, seed=3), rewards(500, 4, seed=4)
    above = ess(before.softmax(1)) > 2
    strength = solve_strength(reward, before, torch.ones(500, 4, dtype=torch.bool), 0.5)
    assert above.sum() > 100
    assert (ess((before + strength[:, None] * reward).softmax(1)) - 2)[above].abs().max() < 1e-6


def test_each_prompt_has_its_own_strength() -> None:
    """Solved alone = solved in a batch, to the bit; rows that take no part do not matter."""
    reward, zero = rewards(40, 5, seed=5), torch.zeros(40, 5).double()
    taking = torch.rand(40, 5, generator=torch.Generator().manual_seed(6)) < 0.7
    taking[:, :2] = True
    together = solve_strength(reward, zero, taking, 0.6)
    for prompt in range(40):
        mine = taking[prompt]
        alone = solve_strength(reward[prompt : prompt + 1], zero[:1], mine[None], 0.6)
        without = solve_strength(reward[prompt, mine][None], zero[0, mine][None], mine[mine][None], 0.6)
        assert torch.equal(alone, together[prompt : prompt + 1])
        assert torch.allclose(without, alone, rtol=1e-12, atol=0)


def test_ties_hold_the_size_up() -> None:
    """Two equal best of four: 3 is reached, below 2 nothing is, and the strength stays finite."""
    reward = real([[1.0, 1.0, 0.0, 0.0]])
    zero, everyone = torch.zeros_like(reward), torch.ones(1, 4, dtype=torch.bool)
    reached = solve_strength(reward, zero, everyone, 0.75)
    assert float(ess((reached[:, None] * reward).softmax(1))) == pytest.approx(3, abs=1e-6)
    limit = solve_strength(reward, zero, everyone, 0.25)
    assert limit.isfinite().all()
    assert torch.allclose((limit[:, None] * reward).softmax(1), real([[0.5, 0.5, 0, 0]]))


@pytest.mark.parametrize("scheme", ["systematic", "stratified", "residual"])
def test_equal_entropies_give_equal_weights(scheme: str) -> None:
    h = torch.full((3, 5), 2.5, dtype=torch.float64)
    done = step(smc(5, 1, scheme=scheme, target=0.5), population(h))
    assert done.strength.tolist() == [0, 0, 0]
    assert done.ess.tolist() == pytest.approx([5, 5, 5])
    assert torch.equal(done.ancestors, torch.arange(15))
    assert done.log_evidence.tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_resampling_uses_the_solved_strength() -> None:
    """Through `resample`: the size is the target's share of the live particles; others are ignored."""
    h = real([FACTS, [9.0, 1.0, 2.0, 4.0, 0.5]])
    live = torch.tensor([[True] * 5, [False, True, True, True, False]])
    done = step(smc(5, 1, target=0.6), population(h), live)
    assert done.ess.tolist() == pytest.approx([3.0, 1.8], abs=1e-6)
    for row, mine in enumerate(live):
        reward = done.strength[row] * (1 - h[row, mine] / math.log2(WIDTH))
        assert float(ess(reward.softmax(0)[None])) == pytest.approx(float(done.ess[row]), abs=1e-9)


def test_target_leaves_below_nothing_to_decide() -> None:
    """The solved strength gives every evaluation the target's effective sample size, so `below` is either met always
    (it has no effect) or never (nothing is ever resampled): refused together, as strength and target are."""
    with pytest.raises(SettingError):
        smc(target=0.5, below=0.8)
    with pytest.raises(SettingError):
        smc(target=0.5, below=0.4)


@pytest.mark.parametrize("potential", [name for name, one in POTENTIALS.items() if not one.since])
def test_one_resampling_lowers_the_expected_entropy(potential: str) -> None:
    """facts.md 23: with λ the strength and r the reward, d E[h]/dλ = Cov(h, r), which is -Var(h)/s where r = c - h/s.
    Central differences to 1e-6 of the largest, and E[h] falls strictly; s = log2 V for `gibbs`, h in bits."""
    h = real([FACTS])
    reward = -h.log() if potential == "relative" else -h / (math.log2(WIDTH) if potential == "gibbs" else 1.0)

    def mean(strength: float) -> float:
        return float((weights(smc(5, 1, strength, potential), h) * h).sum())

    found = []
    for strength in (0.0, 0.5, 1.0, 2.0, 5.0, 10.0):
        w = weights(smc(5, 1, strength, potential), h)
        covariance = float((w * h * reward).sum() - (w * h).sum() * (w * reward).sum())
        slope = (mean(strength + 1e-4) - mean(strength - 1e-4)) / 2e-4
        assert slope == pytest.approx(covariance, abs=1e-6)
        found.append(mean(strength))
    assert all(more > less for more, less in itertools.pairwise(found))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_resampled_mean_entropy_is_the_weighted_one(scheme: str) -> None:
    """20,000 resamplings, |z| < 4.9 (a false alarm in 10⁶), at three strengths; it falls with the strength."""
    h, means = real([FACTS]), []
    for strength in (0.0, 1.0, 3.0):
        search = smc(5, 1, strength, "plain", scheme)
        found = h.repeat(20_000, 1).flatten()[step(search, population(h.repeat(20_000, 1))).ancestors].view(-1, 5)
        exact, each = float((weights(search, h) * h).sum()), found.mean(1)
        assert abs(float(each.mean()) - exact) <= 4.9 * float(each.std()) / math.sqrt(20_000) + 1e-9
        means.append(float(each.mean()))
    assert means[0] > means[1] > means[2]


# --- when ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flat:
    """A model that knows nothing, for as long a canvas as one likes."""

    name: str = "flat"
    vocab: Vocab = Vocab(2)
    head: Head = Head(2)
    tokenizer: Any = None
    device: torch.device = torch.device("cpu")
    limit: None = None
    cost: int = 1
    timed: bool = False

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        return torch.zeros(len(rows), state.tokens.shape[1], 2, dtype=torch.float64), None


def times(lengths: list[int], steps: int | None, search: Search) -> list[list[int]]:
    """For each prompt the steps at which it was resampled."""
    longest = max(lengths)
    attend = torch.tensor([[False] * (longest - n) + [True] * n for n in lengths])
    tokens = torch.full_like(attend, 2, dtype=torch.int64)
    state = begin(tokens, attend, attend, torch.arange(len(lengths)), Vocab(2), search.particles, steps)
    found: list[list[int]] = [[] for _ in lengths]
    for moment in walk(Flat(), state, SAMPLERS["uniform"](steps), search, Rules()):
        if moment.resampled is not None:
            for prompt in (~moment.resampled.ess.isnan()).nonzero()[:, 0].tolist():
                found[prompt].append(moment.step)
    return found


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(256, 64, [64, 128, 192]), (10, 3, [3, 6, 9]), (9, 3, [3, 6]), (5, 5, [])]
)
def test_times(steps: int, every: int, expected: list[int]) -> None:
    assert times([steps], steps, smc(2, every)) == [expected]


def test_the_default_time_is_a_quarter_of_each_prompts_steps() -> None:
    assert times([16], 16, smc(2)) == [[4, 8, 12]]
    assert times([16, 8, 3], None, smc(2)) == [[4, 8, 12], [2, 4, 6], [1, 2]]


# --- greedy and beam -------------------------------------------------------------------------------------------------

TABLE = Table(
    torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(8)).double().flatten().softmax(0).view(3, 3, 3, 3)
)


def exact_entropy(canvas: list[int]) -> float | None:
    """h of a state by summing the table, bits."""
    part = TABLE.joint[tuple(slice(None) if token == 3 else token for token in canvas)]
    part = part / part.sum()
    if not part.dim():
        return None
    marginals = [
        part.sum([a for a in range(part.dim()) if a != axis] or []) if part.dim() > 1 else part
        for axis in range(part.dim())
    ]
    return float(sum(-(p * p.log2()).sum() for p in marginals)) / len(marginals)


@pytest.mark.parametrize(
    ("search", "settings", "keep", "copies", "every"),
    [
        ("greedy", {"candidates": 5}, 1, 5, 1),
        ("greedy", {"candidates": 3, "every": 2}, 1, 3, 2),
        ("beam", {"beams": 2, "candidates": 3}, 2, 3, 1),
        ("beam", {"beams": 3, "candidates": 2}, 3, 2, 1),
        ("beam", {"beams": 4, "candidates": 1}, 4, 1, 1),
    ],
)
def test_the_lowest_state_entropies_go_on(
    tmp_path: Path, search: str, settings: dict[str, int], keep: int, copies: int, every: int
) -> None:
    """By hand from the trace, for 6 prompts: h from the canvases, the kept rows, their copies, the winner."""
    recipe = Recipe(sampler="uniform", search=search, temperature=1.0, length=4, **settings)
    results = decode_batch(TABLE, [""] * 6, recipe=recipe, seeds=range(6), trace=tmp_path / "trace")
    events = traces.load(tmp_path / "trace")
    k = keep * copies
    assert events[0]["particles"] == k
    canvases = list(traces.replay(events))
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 4
    for number, event in enumerate(steps):
        assert event["h"] == pytest.approx([exact_entropy(canvas) for canvas in canvases[number]], abs=1e-9)
        assert ("ancestors" in event) == (number > 0 and number % every == 0)
        for prompt in range(6 if "ancestors" in event else 0):
            rows = range(prompt * k, prompt * k + k)
            best = sorted(rows, key=lambda row: (event["h"][row], row))[:keep]
            assert sorted(event["ancestors"][row] for row in rows) == sorted(best * copies)
    paths = traces.lineages(events)
    for prompt, result in enumerate(results):
        means = [sum(path) / len(path) for path in paths[prompt * k : prompt * k + k]]
        assert [particle.path_entropy for particle in result.particles] == pytest.approx(means, abs=1e-9)
        assert means[result.chosen] == pytest.approx(min(means), abs=1e-12)


def test_beams_among_particles_that_finish_at_different_times(tmp_path: Path) -> None:
    """A finished particle is neither kept nor replaced: the beams are the best of those that still have masks."""
    recipe = Recipe(sampler="fast-dllm", threshold=0.4, search="beam", beams=2, candidates=3, temperature=1.0, length=4)
    decode_batch(TABLE, [""] * 40, recipe=recipe, seeds=range(40), trace=tmp_path / "trace")
    events = traces.load(tmp_path / "trace")
    mixed = 0
    for event in events:
        for prompt in range(40 if "ancestors" in event else 0):
            rows = range(prompt * 6, prompt * 6 + 6)
            live = [row for row in rows if event["h"][row] is not None]
            mixed += 1 < len(live) < 6
            kept = sorted(live, key=lambda row: (event["h"][row], row))[:2]
            found = [event["ancestors"][row] for row in live]
            if len(live) > 1:
                assert set(found) == set(kept)
                assert found.count(kept[0]) in (len(live) // 2, -(-len(live) // 2))
            else:
                assert found == live
            assert all(event["ancestors"][row] == row for row in rows if row not in live)
    assert mixed > 10


@pytest.mark.parametrize(("search", "keep"), [(greedy(4), 1), (beam(2, 2), 2)])
def test_beams_ties_go_to_the_lowest_slot(search: Search, keep: int) -> None:
    done = step(search, population(real([[2.0, 1.0, 1.0, 1.0]])))
    assert sorted(set(done.ancestors.tolist())) == [1, 2][:keep]


def test_greedy_search_finds_lower_paths() -> None:
    """Over 300 seeds the mean path entropy of greedy search is under that of single paths."""
    common = {"sampler": "uniform", "temperature": 1.0, "length": 4}
    many = [""] * 300
    ours = decode_batch(TABLE, many, recipe=Recipe(search="greedy", candidates=4, **common))
    theirs = decode_batch(TABLE, many, recipe=Recipe(search="vanilla", **common))
    mean = [sum(result.path_entropy for result in results) / 300 for results in (ours, theirs)]
    assert mean[0] < mean[1]


# --- choosing --------------------------------------------------------------------------------------------------------


def finished(path_entropy: list[list[float]]) -> State:
    """Prompts whose particles ended with these path entropies."""
    entropy = real(path_entropy)
    return population(entropy).replace(
        entropy_sum=2 * entropy.flatten(), entropy_weight=torch.full((entropy.numel(),), 2.0).double()
    )


def test_the_lowest_path_entropy_wins() -> None:
    state = finished([[3, 1, 2], [5, 5, 4], [2, 1, 1]])
    assert CHOOSERS["entropy"](state, []).tolist() == [1, 2, 1]
    nothing = state.replace(entropy_sum=state.entropy_sum * 0, entropy_weight=state.entropy_weight * 0)
    assert CHOOSERS["entropy"](nothing, []).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("answers", "entropies", "winner"),
    [
        ("aabbb", [1, 1, 3, 2, 4], 3),  # the most frequent; its spokesman has its lowest path entropy
        ("aabbc", [5, 3, 9, 2, 1], 3),  # a tie: the group that holds the lowest path entropy
        ("aabbc", [2, 9, 4, 3, 1], 0),
        ("abcde", [5, 4, 3, 2, 1], 4),  # all alone
        ("..abb", [1, 2, 3, 9, 8], 4),  # None is no answer, however certain
        ("...a.", [1, 1, 1, 9, 1], 3),
        (".....", [3, 2, 1, 4, 5], 2),  # nobody answered: the lowest path entropy
        ("aabbc", [2, 2, 2, 2, 1], 0),  # a full tie: the first
    ],
)
def test_votes(answers: str, entropies: list[int], winner: int) -> None:
    state = finished([list(map(float, entropies))] * 2)
    votes = [None if answer == "." else answer for answer in answers]
    assert CHOOSERS["vote"](state, votes + votes).tolist() == [winner, winner]


def test_each_prompt_votes_for_itself() -> None:
    state = finished([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert CHOOSERS["vote"](state, ["x", "y", "y", "y", "x", "x"]).tolist() == [1, 2]


def test_the_vote_through_decode() -> None:
    """By hand from the particles: the most frequent first letter among those that are no "0"."""

    def answer(text: str) -> str | None:
        return None if text[0] == "0" else text[0]

    contested = 0
    for seed in range(30):
        recipe = Recipe(sampler="uniform", search="vote", particles=7, temperature=1.0, length=4, seed=seed)
        result = decode(TABLE, "", recipe=recipe, answer=answer)
        groups: dict[str, list[float]] = {}
        for particle in result.particles:
            if answer(particle.text) is not None:
                groups.setdefault(particle.text[0], []).append(particle.path_entropy)
        best = max(groups.values(), key=lambda group: (len(group), -min(group)))
        assert result.path_entropy == min(best)
        contested += min(best) > min(particle.path_entropy for particle in result.particles)
    assert contested > 5  # often enough the vote is not the lowest path entropy


def test_traces_are_json(tmp_path: Path) -> None:
    """What the hand-recomputation above reads: one event a line, NaN nowhere."""
    recipe = Recipe(sampler="eb", bound=0.5, search="smc", every=1, temperature=1.0, length=4)
    decode(TABLE, "", recipe=recipe, trace=tmp_path / "trace")
    for line in (tmp_path / "trace").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
