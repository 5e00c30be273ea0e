"""The loop does no more than it must: equal rows go through the network once, what is known is not asked again."""

from __future__ import annotations

import pytest

from unmask import Recipe, decode, decode_batch, load
from unmask.models.wrap import Counted


def counted(recipe: Recipe, prompts: list[str]) -> tuple[Counted, list]:
    model = Counted(load("random"))
    return model, decode_batch(model, prompts, recipe=recipe)


def test_equal_rows_are_computed_once() -> None:
    """Without randomness the particles of a prompt never part."""
    recipe = Recipe("confidence", "best-of-n", length=6, particles=4)
    model, results = counted(recipe, ["ab", "cd"])
    assert model.count.rows == 2 * 6 and model.count.calls == 6
    for result in results:
        assert result.evaluations == 4 * 6 and len({tuple(one.tokens) for one in result.particles}) == 1


@pytest.mark.parametrize("search", ["best-of-n", "smc", "vote"])
def test_the_first_step_of_all_particles_is_one_row(search: str) -> None:
    recipe = Recipe("uniform", search, length=12, particles=4, temperature=1.0)
    model, [result] = counted(recipe, ["ab"])
    assert result.evaluations == 4 * 12
    assert 12 < model.count.rows <= 1 + 4 * 11


def test_a_step_that_changes_nothing_calls_nothing() -> None:
    recipe = Recipe("uniform", length=4, steps=12, temperature=1.0)
    model, [result] = counted(recipe, ["ab"])
    assert result.steps == 12 and model.count.rows == result.evaluations == 4


def test_equal_rows_have_the_tokens_that_they_would_have_alone() -> None:
    """Twins of one prompt share numbers, never those of another prompt."""
    recipe = Recipe("confidence", "best-of-n", length=6, particles=3, temperature=0.7)
    model = load("random")
    together = decode_batch(model, ["same", "same"], recipe=recipe, seeds=[5, 5])
    alone = decode(model, "same", recipe=recipe.replace(seed=5))
    for result in together:
        assert [one.tokens for one in result.particles] == [one.tokens for one in alone.particles]
