"""What weighs particles beyond the printed state entropy: ratios, likelihoods, copies, and other choices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from unmask import Recipe, load
from unmask.cli import main
from unmask.core.resampling import copied, reopen, resample, standing_of
from unmask.core.state import State, Vocab, begin
from unmask.decoding.decode import Result, decode, decode_batch
from unmask.errors import InputError, SettingError
from unmask.search import CHOOSERS, POTENTIALS, Search, smc

BIT = math.log(2)
K = 4


@pytest.fixture(scope="module")
def table():
    return load("table")


def state_of(entropy: list[float], **changes: Any) -> State:
    """One prompt of ten open positions whose particles have these state entropies, in bits."""
    tokens = torch.full((1, 10), 2)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, everywhere, everywhere, torch.arange(1), Vocab(2), len(entropy), 10)
    return state.replace(entropy=torch.tensor(entropy).double() * BIT, **changes)


def once(search: Search, state: State):
    table = standing_of(search, state, torch.ones(search.particles, dtype=torch.bool), 8)
    return resample(search, table, 3, torch.tensor([True]))


def never(**settings: Any) -> Search:
    """Weights are seen where no effective sample size is low enough."""
    return smc(K, 1, **{"strength": 1.0, "below": 1e-9} | settings)


# --- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "confidence", "entropy", "margin"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_one_position_a_step_has_the_log_probability_of_the_whole(table, sampler: str, temperature: float) -> None:
    """The chain rule, in any order: a table's conditionals are exact."""
    recipe = Recipe(sampler, "best-of-n", length=6, temperature=temperature, particles=3)
    for found in decode_batch(table, ["", ""], recipe=recipe):
        for particle in found.particles:
            assert particle.log_prob == pytest.approx(table.log_probability(particle.tokens), abs=1e-9)


def test_a_copy_carries_its_log_probability_along(table) -> None:
    recipe = Recipe("uniform", "smc", length=6, temperature=1.0, particles=6, every=1, strength=50.0)
    found = decode(table, "", recipe=recipe)
    assert len({particle.origin for particle in found.particles}) < 6
    for particle in found.particles:
        assert particle.log_prob == pytest.approx(table.log_probability(particle.tokens), abs=1e-9)


def test_several_positions_a_step_are_counted_apart(table) -> None:
    """All at once: the product of the marginals."""
    found = decode(table, "", recipe=Recipe("uniform", length=6, temperature=1.0, steps=1, seed=3))
    joint = table.joint / table.joint.sum()
    marginals = [joint.sum([axis for axis in range(6) if axis != own]) for own in range(6)]
    exact = sum(float(m[token].log()) for m, token in zip(marginals, found.tokens, strict=True))
    assert found.particles[0].log_prob == pytest.approx(exact, abs=1e-9)


# --- potentials ------------------------------------------------------------------------------------------------------


def test_a_growth_is_counted_once() -> None:
    """Computed twice, `since` weighs by the difference, `plain` by the sum of both."""
    first, second = [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 1.0, 5.0]
    for since, expected in (
        (False, [-(a + b) for a, b in zip(first, second, strict=True)]),
        (True, [-b for b in second]),
    ):
        search = replace(never(), potential=replace(POTENTIALS["plain"], since=since))
        state = state_of(first)
        done = once(search, state)
        later = state.replace(log_weight=done.log_weight, score=done.score, entropy=torch.tensor(second).double() * BIT)
        assert once(search, later).log_weight.tolist() == pytest.approx(expected)


def test_a_copy_has_been_asked_what_its_ancestor_was() -> None:
    search = replace(smc(K, 1, strength=1e6), potential=replace(POTENTIALS["plain"], since=True))
    done = once(search, state_of([3.0, 1.0, 2.0, 4.0]))
    assert done.ancestors.tolist() == [1] * K and done.score.tolist() == pytest.approx([-1.0] * K)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_relative_weights_do_not_depend_on_the_scale(scale: float) -> None:
    done = once(never(potential="relative"), state_of([scale * h for h in (1.0, 2.0, 4.0, 8.0)]))
    assert (done.log_weight - done.log_weight[0]).exp().tolist() == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8])
    assert once(never(potential="relative"), state_of([0.0, 0.0, 1.0, 1.0])).log_weight.isfinite().all()


def test_relative_weights_leave_alone_what_is_alike() -> None:
    """Entropies within a fifth of each other move nobody; one of many times less does."""
    search = smc(K, 1, 1.0, "relative", "systematic", below=0.7)
    assert once(search, state_of([1.0, 1.1, 1.2, 1.05])).ancestors.tolist() == [0, 1, 2, 3]
    assert once(search, state_of([0.01, 1.0, 1.0, 1.0])).ancestors.tolist() != [0, 1, 2, 3]


# --- copies ----------------------------------------------------------------------------------------------------------


def canvases(*rows: str) -> State:
    """Particles of one prompt as text: a letter is a token, a dot a mask."""
    state = state_of([1.0] * len(rows))
    wide = [list(row.ljust(10, ".")) for row in rows]
    return state.replace(
        tokens=torch.tensor([[2 if letter == "." else 10 + ord(letter) for letter in row] for row in wide])
    )


def test_a_copy_reopens_what_was_unlikely() -> None:
    state = canvases("abcdefgh", "abcdefgh", "abcdefgh").replace(
        token_logp=torch.tensor([[-900.0, 0, 0, -900, 0, 0, 0, 0, 0, 0]] * 3).double()
    )
    copies = copied(torch.tensor([0, 0, 2]), 3)
    after = reopen(smc(3, reopen=0.25), state, 4, copies, torch.ones(3, dtype=torch.bool))
    assert after.masked.sum(1).tolist() == [2, 4, 2]
    assert after.masked[1, :8].nonzero()[:, 0].tolist() == [0, 3] and float(after.log_prob[1]) == 0
    last = reopen(smc(3, reopen=0.25), state, 4, copies, torch.zeros(3, dtype=torch.bool))
    assert last.tokens.equal(state.tokens)


def test_one_of_an_ancestors_rows_keeps_what_it_has() -> None:
    ancestors = torch.tensor([1, 2, 2, 2, 4, 4, 5, 7])  # of two prompts; 1, 5 and 7 have one row each
    open_ = torch.ones(2, 10, dtype=torch.bool)
    state = begin(torch.full((2, 10), 2), open_, open_, torch.arange(2), Vocab(2), 4, 10)
    state = state.replace(tokens=torch.tensor([10] * 8 + [2] * 2).repeat(8, 1))
    after = reopen(smc(4, reopen=0.25), state, 4, copied(ancestors, 4), torch.ones(8, dtype=torch.bool))
    assert (after.masked.sum(1) - 2).tolist() == [0, 0, 2, 2, 0, 2, 0, 0]


def test_a_whole_share_is_not_rounded_down() -> None:
    tokens, open_ = torch.full((1, 300), 2), torch.ones(1, 300, dtype=torch.bool)
    state = begin(tokens, open_, open_, torch.arange(1), Vocab(2), 2, 300)
    state = state.replace(tokens=torch.full((2, 300), 10))
    after = reopen(smc(2, reopen=0.21), state, 4, torch.tensor([False, True]), torch.ones(2, dtype=torch.bool))
    assert after.masked.sum(1).tolist() == [0, 63]


@pytest.mark.parametrize("choose", ["entropy", "surprise"])
def test_beams_are_chosen_from_as_told(table, choose: str) -> None:
    recipe = Recipe("uniform", "beam", temperature=1.0, beams=2, candidates=3, every=2, choose=choose, length=6)
    for found in decode_batch(table, [""] * 8, recipe=recipe):
        values = {"entropy": "path_entropy", "surprise": "surprise"}[choose]
        assert getattr(found.best, values) == pytest.approx(
            min(getattr(one, values) for one in found.particles), rel=1e-6
        )


def test_one_path_kept_and_its_copies_reopened() -> None:
    recipe = Recipe("uniform", "beam", temperature=1.0, beams=1, candidates=4, every=2, reopen=0.5, steps=8, length=16)
    kept = replace(recipe, reopen=None)
    found, plain = (decode(load("random"), recipe=one) for one in (recipe, kept))
    assert found.evaluations <= plain.evaluations
    apart, alike = (len({tuple(one.tokens) for one in each.particles}) for each in (found, plain))
    assert apart == 4 and alike <= apart


@pytest.mark.parametrize("sampler", ["uniform", "confidence", "semi-ar", "ancestral", "dream"])
def test_what_was_reopened_is_decided_again(sampler: str) -> None:
    steps = {"steps": 6} if sampler in ("ancestral", "dream") else {}
    recipe = Recipe(sampler, "smc", temperature=1.0, particles=6, every=1, target=0.5, reopen=0.5, **steps)
    canvas = "se[MASK][MASK]te [MASK][MASK][MASK][MASK]"
    found = decode(load("random"), canvas=canvas, recipe=recipe)
    again = decode(load("random"), canvas=canvas, recipe=recipe)
    assert [one.tokens for one in found.particles] == [one.tokens for one in again.particles]
    mask = load("random").vocab.mask
    assert all(mask not in one.tokens and one.text.startswith("se") for one in found.particles)
    assert found.lineages < 6


@pytest.mark.parametrize("least", [0.0, 0.3, 80.0])
def test_what_is_equal_up_to_rounding_is_a_tie(least: float) -> None:
    """Or the last bits, which a batch changes, would choose."""
    values = torch.tensor([least + 1, least * (1 + 5e-7), least, least * (1 + 5e-5) + 1e-12]).double()
    state = state_of([1.0] * K, entropy_sum=values, entropy_weight=torch.ones(K).double())
    assert int(CHOOSERS["entropy"](state, [])[0]) == 1
    state = state_of([1.0] * K, token_logp=-values[:, None])
    assert int(CHOOSERS["likelihood"](state, [])[0]) == 1


def test_likely_tokens_weigh_more() -> None:
    state = state_of([1.0] * K, token_logp=torch.tensor([[-1.0], [-2.0], [-3.0], [-4.0]]).double() * BIT)
    assert once(never(potential="likelihood"), state).log_weight.tolist() == pytest.approx([-1, -2, -3, -4])


@pytest.mark.parametrize("potential", POTENTIALS)
def test_one_particle_and_no_strength_change_nothing(table, potential: str) -> None:
    base = Recipe("uniform", length=6, temperature=1.0, seed=4)
    one = base.replace(search="smc", particles=1, every=1, potential=potential)
    more = {"reward": lambda text: text.count("e")} if potential == "reward" else {}
    more |= {"matches": ".*"} if potential == "constraint" else {}
    assert decode(table, "", recipe=one, **more).tokens == decode(table, "", recipe=base).tokens
    found = decode(table, "", recipe=one.replace(particles=8, strength=0.0), **more)
    assert found.log_evidence == pytest.approx(0, abs=1e-12)


def test_the_evidence_of_a_growth_is_the_mean_of_its_end(table) -> None:
    """Telescoping: with resampling at every step, E exp(log_evidence) = E_Q exp(λ score) at the last asking.

    Compared with free paths, whose scores are read off their own curves.
    """
    strength, many = 0.7, 6000
    recipe = Recipe("uniform", length=4, temperature=1.0)
    searched = recipe.replace(search="smc", particles=4, every=1, potential="likelihood", strength=strength)
    prompts = [""] * many
    estimates = (
        torch.tensor([r.log_evidence for r in decode_batch(table, prompts[::4], recipe=searched)]).double().exp()
    )
    last: dict[int, int] = {}  # the column that each row wrote last
    watch = lambda event: last.update({row: column for row, column, *_ in event.get("changes", [])})  # noqa: E731
    found = decode_batch(table, prompts, recipe=recipe, on_event=watch)
    ends = [end(one, table, last[row]) for row, one in enumerate(found)]
    free = (strength * torch.tensor(ends).double()).exp()
    error = math.sqrt(float(estimates.var()) / len(estimates) + float(free.var()) / len(free))
    assert abs(float(estimates.mean() - free.mean())) < 4.9 * error
    assert error < 0.05 * float(free.mean())


def end(found: Result, table, last: int) -> float:
    """The score of a path of four steps when it is asked for the last time: before its last step."""
    joint = table.joint.sum([axis for axis in range(table.joint.dim()) if axis >= 4])
    beside = joint[tuple(slice(None) if column == last else found.tokens[column] for column in range(4))]
    return (found.particles[0].log_prob - float((beside / beside.sum())[found.tokens[last]].log())) / BIT


# --- choices ---------------------------------------------------------------------------------------------------------


def test_the_likeliest_wins(table) -> None:
    recipe = Recipe("uniform", "best-of-n", length=6, temperature=1.0, particles=8, choose="likelihood")
    for found in decode_batch(table, [""] * 5, recipe=recipe):
        assert found.chosen == max(range(8), key=lambda place: found.particles[place].log_prob)


def test_the_least_surprised_wins(table) -> None:
    """The geometric mean of the geometric mean of the state entropies and of the mean surprise at six positions."""
    recipe = Recipe("uniform", "auto", length=6, temperature=1.0, particles=8)
    for found in decode_batch(table, [""] * 5, recipe=recipe):
        for one in found.particles:
            logs = [math.log(max(h * BIT, 1e-6)) for h in one.state_entropy if h is not None]
            foreseen, met = math.exp(sum(logs) / len(logs)), max(-one.log_prob / 6, 1e-6)
            assert one.surprise == pytest.approx(math.sqrt(foreseen * met), rel=1e-9)
        assert found.chosen == min(range(8), key=lambda place: found.particles[place].surprise)


def test_auto_walks_the_paths_of_best_of_n(table) -> None:
    """At the same evaluations; only the choice differs, and it does."""
    recipe = Recipe("uniform", "auto", length=6, temperature=1.0, particles=6)
    mine = decode_batch(table, [""] * 20, recipe=recipe)
    theirs = decode_batch(table, [""] * 20, recipe=recipe.replace(search="best-of-n"))
    for one, other in zip(mine, theirs, strict=True):
        assert [p.tokens for p in one.particles] == [p.tokens for p in other.particles]
        assert (one.calls, one.evaluations) == (other.calls, other.evaluations)
    assert [one.chosen for one in mine] != [one.chosen for one in theirs]


def test_what_follows_an_eos_does_not_count() -> None:
    """A short text and a long one whose tokens were equally likely are equally surprising."""
    state = state_of([1.0] * 2, log_entropy_sum=torch.zeros(2).double(), log_entropy_weight=torch.ones(2).double())
    tokens = torch.tensor([[5, 7, 7, 7, 7, 7, 7, 7, 7, 7], [5] * 10])
    said = torch.tensor([[-0.5, -0.5] + [0.0] * 8, [-0.5] * 10]).double()
    state = state.replace(tokens=tokens, token_logp=said, vocab=Vocab(2, (7,)))
    assert state.surprise.tolist() == pytest.approx([math.sqrt(0.5)] * 2)


@pytest.mark.parametrize("sampler", ["uniform", "ancestral"])
def test_sure_masks_behind_an_eos_are_not_foreseen(sampler: str) -> None:
    """Surprise is the same with and without them in state entropy, which they lower."""
    recipe = Recipe(sampler, "auto", length=12, steps=6, temperature=1.0, particles=8)
    model = load("random")
    everything, before = (
        [one for found in decode_batch(model, [""] * 8, recipe=each) for one in found.particles]
        for each in (recipe, recipe.replace(skip_tail=True))
    )
    assert [one.tokens for one in everything] == [one.tokens for one in before]
    assert [one.surprise for one in everything] == pytest.approx([one.surprise for one in before], rel=1e-9)
    ended = [any(token in model.vocab.eos for token in one.tokens[:-1]) for one in before]
    differ = [one.path_entropy != other.path_entropy for one, other in zip(everything, before, strict=True)]
    assert any(differ) and all(end for end, other in zip(ended, differ, strict=True) if other)


def test_certain_states_do_not_run_off() -> None:
    """Where all entropies and surprises are 0, so are their bounds, and the first particle wins."""
    state = state_of(
        [0.0] * 4, log_entropy_sum=torch.full((4,), 3 * math.log(1e-6)).double(), log_entropy_weight=3 * torch.ones(4)
    )
    assert state.surprise.tolist() == pytest.approx([1e-6] * 4)
    assert CHOOSERS["surprise"](state, []).tolist() == [0]


def test_what_was_chosen_by_is_said(table, capsys) -> None:
    told = "generate --model table --length 4 --sampler uniform --temperature 1 --search best-of-n --choose"
    assert main([*told.split(), "surprise"]) == 0
    assert "chosen by surprise" in capsys.readouterr().err
    assert main([*told.split(), "entropy"]) == 0
    assert "chosen by" not in capsys.readouterr().err


def test_an_answer_must_be_comparable(table) -> None:
    recipe = Recipe("uniform", "best-of-n", length=4, temperature=1.0, choose="vote")
    with pytest.raises(InputError, match="answer gave a list"):
        decode(table, "", recipe=recipe, answer=lambda text: [text])
    with pytest.raises(InputError, match="choose by vote"):
        decode(table, "", recipe=recipe.replace(choose="entropy"), answer=len)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target": 0.5, "strength": 1.0}, "strength and target exclude each other"),
        ({"reopen": 0.5, "sampler": "eb"}, "sampler eb, which plans no steps"),
        ({"reopen": 0.5, "sampler": "p2"}, "sampler p2, which revises by itself"),
        ({"reopen": 0.5, "cache_block": 8}, "an approximate cache does not go with reopen"),
        ({"reopen": 0.5, "potential": "likelihood"}, "reopen does not go with potential likelihood"),
        ({"choose": "entropi"}, "did you mean 'entropy'"),
        ({"reopen": 1.5}, "it must be at most 1"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Recipe(search="smc", **settings)
