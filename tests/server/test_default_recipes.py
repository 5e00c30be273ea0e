"""Request over server over model: which settings hold where a request says little."""

from __future__ import annotations

from typing import Any

import pytest
from serving import running

from unmask import Denoiser, Recipe, decode, load
from unmask.models.transformer import random_transformer
from unmask.server.limits import Limits, Refusal
from unmask.server.request import ServeConfig, parse, standing
from unmask.server.schemas import Completion

OWN: dict[str, Any] = {"sampler": "semi-ar", "block_length": 4, "length": 12, "temperature": 0.7, "fill_tail": True}


class Own:
    def __init__(self, inner: Denoiser, recipe: dict[str, Any]) -> None:
        self.inner, self.recipe = inner, recipe

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


MODELS = {"own": Own(random_transformer(width=16, layers=1, limit=20), OWN), "plain": random_transformer(limit=20)}


def recipe(server: dict[str, Any], complete: bool = False, **request: Any) -> Recipe:
    """The recipe of a request to a server that was started with these settings."""
    config = ServeConfig(MODELS, server, Limits(), complete=complete)
    return parse(Completion(**{"model": "own", "prompt": "ab", **request}), config).recipe


@pytest.mark.parametrize(
    ("server", "request_", "expected"),
    [
        ({}, {}, OWN),
        ({}, {"model": "plain"}, {"temperature": 1.0, "length": 18}),
        ({}, {"temperature": 0.2, "max_tokens": 5}, {**OWN, "temperature": 0.2, "length": 5}),
        ({}, {"prompt": "a" * 15}, {**OWN, "length": 5}),
        ({}, {"sampler": "uniform"}, {"sampler": "uniform", "length": 12, "temperature": 0.7, "fill_tail": True}),
        ({}, {"sampler": "p2"}, {"sampler": "p2", "length": 12, "temperature": 0.7}),
        ({"temperature": 0.9, "steps": 6}, {}, {**OWN, "temperature": 0.9, "steps": 6}),
        ({"temperature": 0.9, "steps": 6}, {"temperature": 0.1}, {**OWN, "temperature": 0.1, "steps": 6}),
        ({"sampler": "eb", "bound": 0.5}, {}, {"sampler": "eb", "bound": 0.5, "length": 12, "temperature": 0.7}),
        ({}, {"top_p": 1.0}, OWN),
        ({}, {"top_p": 0.5}, {**OWN, "top_p": 0.5}),
    ],
)
def test_request_over_server_over_model(
    server: dict[str, Any], request_: dict[str, Any], expected: dict[str, Any]
) -> None:
    filled = {"fill_tail": True} if expected.get("sampler") == "eb" else {}
    assert recipe(server, **request_) == Recipe(**expected, **filled)


def test_a_recipe_of_the_server_is_complete() -> None:
    assert recipe({"sampler": "uniform"}, complete=True) == Recipe("uniform", length=18)
    assert recipe({}, complete=True, temperature=0.5) == Recipe(temperature=0.5, length=18)


def test_top_p_of_a_default_gives_way() -> None:
    config = ServeConfig({"own": Own(MODELS["plain"], {**OWN, "top_p": 0.9})}, {}, Limits())
    for given, expected in (({}, 0.9), ({"top_p": 1.0}, None), ({"temperature": 0}, None), ({"top_p": 0.5}, 0.5)):
        assert parse(Completion(model="own", prompt="ab", **given), config).recipe.top_p == expected


def test_what_holds_is_listed_and_used() -> None:
    with running({"text": load("text"), **MODELS}, usual={}) as here:
        client = here.client()
        listed = {model.id: Recipe.from_dict(model.unmask["recipe"]) for model in client.models.list()}
        assert listed["own"] == Recipe(**OWN) and listed["plain"] == Recipe(temperature=1.0)
        assert listed["text"].sampler == "semi-ar"
        found = client.completions.create(model="own", prompt="ab", seed=3)
        expected = decode(MODELS["own"], "ab", seed=3)
        assert found.choices[0].text == expected.text
        assert Recipe.from_dict(found.unmask["recipe"]) == expected.recipe.replace(seed=0)


def test_a_wrong_default_is_refused() -> None:
    config = ServeConfig({"own": Own(MODELS["plain"], {"bound": 1.0})}, {}, Limits())
    with pytest.raises(Exception, match="the default recipe of own: bound has no effect"):
        standing(config, "own")
    with pytest.raises(Refusal, match="the default recipe of"):
        parse(Completion(model="own", prompt="ab"), config)
