"""Laws of the end penalty: off at 0, exact in what is proposed, absent from entropies and likelihoods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from unmask import SAMPLERS, Denoiser, Result
from unmask.core.dice import Purpose, uniform
from unmask.core.state import Vocab

from . import oracle
from .cases import FULL_CASES, SAMPLER_CASES, SEEDS, Case, samplers
from .conftest import Walk
from .test_option_laws import check_entropies, under_smc
from .test_walk_laws import alone_equals_in_a_batch_in_any_order

Decode = Callable[..., list[Result]]
WalkCase = Callable[..., Walk]
PENALTY = 1.5


@pytest.fixture(scope="module")
def wordy(models: dict[str, Denoiser]) -> Denoiser:
    """A model whose EOS is a whole class of tokens, so that a short text meets it."""
    model = models["float64"]
    return dataclasses.replace(model, vocab=Vocab(model.vocab.mask, (40, 18, 35, *range(1, 40, 3)), model.vocab.pad))


def ends(walk: Walk) -> int:
    eos = walk.model.vocab.eos
    return sum(token in eos for event in walk.steps for _, _, token, _ in event["changes"])


@pytest.mark.parametrize("case", SAMPLER_CASES, ids=str)
def test_strength_0_is_off_and_next_to_nothing_changes_next_to_nothing(case: Case, decode_case: Decode) -> None:
    plain, off, least = (decode_case(case, **more) for more in ({}, {"end_penalty": 0.0}, {"end_penalty": 1e-14}))
    for one, none, little in zip(plain, off, least, strict=True):
        assert {**one.to_dict(), "seconds": 0} == {**none.to_dict(), "seconds": 0}
        assert one.tokens == little.tokens
        assert one.best.log_prob == pytest.approx(little.best.log_prob, abs=1e-9)
        assert one.path_entropy == pytest.approx(little.path_entropy, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("case", FULL_CASES, ids=str)
def test_tokens_come_from_the_lowered_logits(
    case: Case, temperature: float, walk_case: WalkCase, wordy: Denoiser
) -> None:
    walk = walk_case(under_smc(case, every=1, temperature=temperature), model=wordy, end_penalty=PENALTY)
    table = oracle.of_every_input(walk.model, walk.replayed)
    for step, event in enumerate(walk.steps):
        ancestors = event.get("ancestors", range(len(walk.replayed[0])))
        for row, column, token, _ in event["changes"]:
            if token == walk.mask:
                assert walk.recipe.build_sampler().revises
                continue
            scores = table[tuple(walk.replayed[step][ancestors[row]])][column].clone()
            scores[list(wordy.vocab.eos)] -= PENALTY
            chances = scores.div(temperature or 1.0).softmax(0)
            place = torch.tensor([[column]])
            noise = uniform(
                torch.tensor(SEEDS[row // walk.k]), torch.tensor([[row % walk.k]]), step, place, Purpose.TOKEN
            )
            drawn = int((chances.cumsum(0) < noise[0, 0]).sum()) if temperature else int(chances.argmax())
            assert token == drawn, (step, row, column)


@pytest.mark.parametrize("case", FULL_CASES, ids=str)
def test_entropies_and_likelihoods_do_not_know_it(case: Case, walk_case: WalkCase, wordy: Denoiser) -> None:
    walk = walk_case(under_smc(case), model=wordy, end_penalty=PENALTY)
    check_entropies(walk, lambda step, row, canvas: [c for c, token in enumerate(canvas) if token == walk.mask])
    table = oracle.of_every_input(walk.model, walk.replayed)
    logs: list[dict[int, float]] = [{} for _ in walk.replayed[0]]
    for step, event in enumerate(walk.steps):
        ancestors = event.get("ancestors", range(len(logs)))
        logs = [dict(logs[ancestor]) for ancestor in ancestors]
        for row, column, token, _ in event["changes"]:
            own = table[tuple(walk.replayed[step][ancestors[row]])][column].log_softmax(0)
            logs[row][column] = 0.0 if token == walk.mask else float(own[token])
    everyone = [particle for result in walk.results for particle in result.particles]
    for particle, log in zip(everyone, logs, strict=True):
        assert particle.log_prob == pytest.approx(sum(log.values()), abs=1e-9)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_alone_equals_in_a_batch(sampler: str, walk_case: WalkCase, wordy: Denoiser) -> None:
    walk = walk_case(under_smc(Case(sampler, "smc", samplers(sampler)[0])), model=wordy, end_penalty=PENALTY)
    alone_equals_in_a_batch_in_any_order(walk)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_large_one_is_a_ban(sampler: str, walk_case: WalkCase, wordy: Denoiser) -> None:
    case = Case(sampler, "best-of-n", {**samplers(sampler)[0], "particles": 3})
    free, heavy = walk_case(case, model=wordy), walk_case(case, model=wordy, end_penalty=1000.0)
    assert ends(free) > 0 and ends(heavy) == 0
    if sampler in ("uniform", "ancestral"):  # whose order does not depend on what is proposed
        banned = walk_case(case, model=wordy, ban=("eos",))
        assert [result.tokens for result in heavy.results] == [result.tokens for result in banned.results]


@pytest.mark.parametrize("sampler", ["confidence", "entropy", "margin"])
def test_positions_are_ranked_by_it(sampler: str, walk_case: WalkCase, wordy: Denoiser) -> None:
    """The position that is decided is the surest one under the lowered logits."""
    walk = walk_case(Case(sampler, "vanilla", {"temperature": 0.0}), model=wordy, end_penalty=PENALTY)
    free = walk_case(Case(sampler, "vanilla", {"temperature": 0.0}), model=wordy)
    for step, event in enumerate(walk.steps):
        for row, column, _, _ in event["changes"]:
            canvas = walk.replayed[step][row]
            scores = oracle.logits(walk.model, [canvas])[0].clone()
            scores[:, list(wordy.vocab.eos)] -= PENALTY
            chances = scores.softmax(1)
            top = chances.topk(2, 1).values
            order = {
                "confidence": top[:, 0],
                "entropy": -torch.special.entr(chances).sum(1),
                "margin": top[:, 0] - top[:, 1],
            }[sampler]
            masked = torch.tensor([token == walk.mask for token in canvas])
            assert int(order.where(masked, -torch.inf).argmax()) == column, (step, row)
    assert [event["changes"] for event in walk.steps] != [event["changes"] for event in free.steps]
