"""Laws of randomness: the seed decides, nothing else does; one particle is no search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Denoiser, Recipe, Result, decode, decode_batch

from .cases import SAMPLER_CASES, SEEDS, SMC, Case, alone, canvases, names, samplers, searches
from .test_walk_laws import assert_equal_results

Decode = Callable[..., list[Result]]


@pytest.mark.parametrize("case", names("float64"), ids=str)
def test_same_seed_same_result(case: Case, decode_case: Decode) -> None:
    """Whatever the global generator, which is neither read nor moved."""
    torch.manual_seed(7)
    (first,) = decode_case(case, [1])
    torch.manual_seed(8)
    before = torch.get_rng_state()
    (again,) = decode_case(case, [1])
    assert {**first.to_dict(), "seconds": 0} == {**again.to_dict(), "seconds": 0}
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("case", names("float64"), ids=str)
def test_another_seed_gives_other_tokens(case: Case, models: dict[str, Denoiser], background: Path) -> None:
    model = models[case.model]
    rows = [canvases(model)[2]] * 3
    results = decode_batch(model, canvases=rows, recipe=case.recipe(background), seeds=[0, 1, 2**32])
    assert len({tuple(tuple(particle.tokens) for particle in result.particles) for result in results}) == 3


@pytest.mark.parametrize("case", SAMPLER_CASES, ids=str)
def test_one_particle_equals_vanilla(case: Case, decode_case: Decode) -> None:
    (vanilla,) = decode_case(case, [1])
    for search in SEARCHES:
        (single,) = decode_case(Case(case.sampler, search, {**case.settings, **alone(search)}), [1])
        assert len(single.particles) == 1
        assert_equal_results(vanilla, single, 0.0)
        assert single.log_evidence == 0


@pytest.mark.parametrize("case", SAMPLER_CASES, ids=str)
def test_without_resampling_particle_0_equals_vanilla(case: Case, decode_case: Decode) -> None:
    vanilla = decode_case(case, [1, 2])
    for name, build in SEARCHES.items():
        if name == "vanilla" or build(**searches(name)[0]).resamples:
            continue
        many = decode_case(Case(case.sampler, name, {**case.settings, **searches(name)[0]}), [1, 2])
        for one, result in zip(vanilla, many, strict=True):
            assert len(result.particles) > 1
            first = result.particles[0]
            assert (first.tokens, first.text, first.steps) == (one.tokens, one.text, one.steps)
            assert first.path_entropy == pytest.approx(one.path_entropy, abs=1e-9)


@pytest.mark.parametrize("how", [{"every": 100}, {"every": 1, "below": 1e-9}], ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_smc_that_never_resamples_equals_best_of_n(sampler: str, how: dict[str, float], decode_case: Decode) -> None:
    settings = samplers(sampler)[0]
    free = decode_case(Case(sampler, "best-of-n", {**settings, "particles": 4}), [1, 2])
    tied = decode_case(Case(sampler, "smc", {**settings, **SMC, **how}), [1, 2])
    for a, b in zip(free, tied, strict=True):
        assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
        assert (a.chosen, a.steps, a.calls, a.evaluations) == (b.chosen, b.steps, b.calls, b.evaluations)


def test_a_prompt_is_a_canvas_with_its_hole_at_the_end(models: dict[str, Denoiser]) -> None:
    model = models["float64"]
    mask, recipe = model.vocab.mask, Recipe(sampler="uniform", temperature=1.0)
    prompts = ["hello ", "", "a longer one"]
    after = decode_batch(model, prompts, recipe=recipe.replace(length=5), seeds=SEEDS)
    ids = [[*model.tokenizer.encode(prompt), *[mask] * 5] for prompt in prompts]
    inside = decode_batch(model, canvases=ids, recipe=recipe, seeds=SEEDS)
    marked = decode_batch(model, canvases=[prompt + "[MASK*5]" for prompt in prompts], recipe=recipe, seeds=SEEDS)
    for prompt, a, b, c in zip(prompts, after, inside, marked, strict=True):
        assert a.tokens == b.tokens == c.tokens
        assert b.text == c.text
        assert b.text.startswith(prompt) and a.text == b.text[len(prompt) :]


def test_seeds_count_up_from_the_recipe(models: dict[str, Denoiser]) -> None:
    recipe = Recipe(sampler="uniform", temperature=1.0, length=5, seed=41)
    batch = decode_batch(models["float64"], ["ab", "c"], recipe=recipe)
    assert [result.seed for result in batch] == [41, 42]
    assert batch[1].tokens == decode(models["float64"], "c", recipe=recipe.replace(seed=42)).tokens
