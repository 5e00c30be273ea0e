"""Recipe: to and from keywords, text, TOML and JSON without loss; what it stands for; what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from unmask import SAMPLERS, SEARCHES, Recipe, UnmaskError
from unmask.core.state import Vocab
from unmask.decoding.background import Background
from unmask.decoding.settings import ALIASES, SAMPLER_ALIASES, SEARCH_ALIASES, SETTINGS, known, parse, takers, takes
from unmask.errors import SettingError
from unmask.search import SCHEMES

SPECIFIC = {name for name, row in SETTINGS.items() if not row.general}

RECIPES: list[dict[str, Any]] = [
    {},
    {"sampler": "eb", "search": "smc", "bound": 0.1, "particles": 8, "length": 64, "seed": -3},
    {"temperature": 1e-05, "top_k": 50, "top_p": 0.95, "guidance": 1.5},
    {"ban": (3, "eos", 40), "late": ("eos",), "fill_tail": True, "skip_tail": True},
    {"sampler": "semi-ar", "block_length": 8, "steps": 16, "scope": "block"},
    {"sampler": "p2", "rule": "fresh-draw", "eta": 0.0},
    {"sampler": "dream", "rule": "confidence_threshold", "threshold": 0.5, "select_temperature": 0.25},
    {"sampler": "dream", "rule": "maskgit_plus", "eps": 1e-4},
    {"search": "smc", "scheme": "systematic", "potential": "plain", "target": 0.5, "every": 7},
    {"search": "beam", "beams": 3, "candidates": 2, "every": 2},
    {"sampler": "draft-refine", "draft": 1.0, "reveal": 2, "loops": 0},
    {"sampler": "fast-dllm", "factor": 1.25, "select_temperature": 0.1},
    {"ban": (7,), "seed": 2**63 - 1, "temperature": 0.1 + 0.2},
]
WAYS = {
    "dict": (Recipe.to_dict, Recipe.from_dict),
    "text": (Recipe.to_text, Recipe.from_text),
    "json": (Recipe.to_json, Recipe.from_json),
    "toml": (Recipe.to_toml, Recipe.from_toml),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", RECIPES, ids=str)
def test_round_trips(how: dict[str, Any], way: str) -> None:
    write, read = WAYS[way]
    recipe = Recipe(**how)
    assert read(write(recipe)) == recipe
    assert "\n" not in recipe.to_text()
    assert json.loads(recipe.to_json())["sampler"] == recipe.sampler


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["counts.json", "my counts.json", "zählung=1.json", "\U0001f3b2.json"])
def test_round_trips_of_a_path(name: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / name
    Background({1: 2}, 3).save(path)
    recipe = Recipe(sampler="pc", background=str(path))
    write, read = WAYS[way]
    assert read(write(recipe)) == recipe


def test_the_signature_shows_the_fields() -> None:
    shown = inspect.signature(Recipe).parameters
    assert [*shown] == [field.name for field in dataclasses.fields(Recipe)] and shown["temperature"].default == 0.0


def test_only_what_differs_is_written() -> None:
    assert Recipe().to_dict() == {"sampler": "confidence", "search": "vanilla"}
    assert Recipe(temperature=0.0, steps=None).to_text() == "sampler=confidence search=vanilla"
    assert Recipe(sampler="eb", bound=0.1).to_text() == "sampler=eb search=vanilla bound=0.1"


def test_numbers_keep_their_kind() -> None:
    recipe = Recipe.from_json('{"temperature": 1, "search": "smc", "strength": 5}')
    assert type(recipe.temperature) is float and type(recipe.strength) is float
    assert recipe == Recipe(temperature=1.0, search="smc", strength=5.0)
    assert Recipe(ban=3) == Recipe(ban=(3,)) and Recipe(late="eos") == Recipe(late=("eos",))
    assert Recipe.from_text("ban=3,eos,40").ban == (3, "eos", 40)
    assert Recipe.from_json('{"ban": [3, "eos"]}').ban == (3, "eos")
    assert hash(Recipe.from_json('{"ban": [3]}')) == hash(Recipe(ban=(3,)))


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias: str, name: str) -> None:
    values = {
        "length": 7,
        "guidance": 1.5,
        "sampler": "entropy",
        "rule": "entropy",
        "particles": 3,
        "select_temperature": 0.5,
    }
    extra = {"rule": {"sampler": "dream"}, "particles": {"search": "best-of-n"}}.get(name, {})
    assert Recipe.from_dict({**extra, alias: values[name]}) == Recipe(**extra, **{name: values[name]})
    text = " ".join(f"{k}={v}" for k, v in {**extra, alias: values[name]}.items())
    assert getattr(Recipe.from_text(text), name) == values[name]
    with pytest.raises(UnmaskError, match="given twice"):
        Recipe.from_dict({**extra, alias: values[name], name: values[name]})


def test_samplers_by_their_community_names() -> None:
    assert Recipe.from_dict({"remasking": "low_confidence"}).sampler == "confidence"
    assert Recipe.from_text("remasking=random").sampler == "uniform"
    assert set(SAMPLER_ALIASES.values()) <= set(SAMPLERS) and set(SEARCH_ALIASES.values()) <= set(SEARCHES)
    assert Recipe(search="bon") == Recipe.from_dict({"search": "e-bon"}) == Recipe(search="best-of-n")


def test_every_setting_of_the_registries_has_a_row() -> None:
    assert {name for name in SETTINGS if takers(name)} == SPECIFIC and set(ALIASES.values()) <= set(SETTINGS)
    assert known() == SETTINGS


WITHOUT_FIELD = {
    "cache",
    "cache_before",
    "cache_after",
    "cache_every",
    "constrained_entropy",
}  # a Recipe has forty fields at most


def test_the_fields_agree_with_the_table() -> None:
    """Names and their order, kinds and defaults; what only one sampler takes needs no field."""
    fields = {field.name: field for field in dataclasses.fields(Recipe)[2:-1]}
    assert len(dataclasses.fields(Recipe)) <= 40
    assert [name for name in SETTINGS if name in fields] == list(fields)
    assert set(SETTINGS) - set(fields) <= {"sampler", "search", *SPECIFIC, *WITHOUT_FIELD}
    for name, field in fields.items():
        kind = SETTINGS[name].kind.__name__
        assert (
            field.type in (kind, f"{kind} | None", "tuple[int | str, ...]") and field.default == SETTINGS[name].default
        )


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_pair_can_be_made(sampler: str, search: str, tmp_path: Path) -> None:
    extra = {}
    if "background" in takes(SAMPLERS[sampler]):
        Background({1: 2}, 3).save(tmp_path / "counts.json")
        extra = {"background": str(tmp_path / "counts.json")}
    recipe = Recipe(sampler=sampler, search=search, **extra)
    assert recipe.build_search() == SEARCHES[search]()
    assert type(recipe.build_sampler()).__name__ in ("Reveal", "P2", "DraftRefine") or recipe.build_sampler()


@pytest.mark.parametrize("name", sorted(SPECIFIC))
def test_a_setting_that_nobody_takes_is_refused(name: str) -> None:
    value: Any = {int: 1, float: 0.5, bool: True, str: (SETTINGS[name].names() or ["x"])[0]}[SETTINGS[name].kind]
    for sampler, search in [(a, b) for a in SAMPLERS for b in SEARCHES]:
        taken = [*takes(SAMPLERS[sampler]), *takes(SEARCHES[search])]
        if name not in taken:
            with pytest.raises(UnmaskError, match=f"{name} has no effect on sampler {sampler} with search {search}"):
                Recipe(sampler=sampler, search=search, **{name: value})


def test_what_the_settings_stand_for() -> None:
    recipe = Recipe(temperature=0.5, top_k=3, ban=("eos", 2), late=("eos",))
    rules = recipe.build_rules(Vocab(mask=9, eos=(7, 8)), 10)
    assert rules.draw.temperature == 0.5 and rules.draw.top_k == 3
    assert rules.draw.ban == (7, 8, 2) and rules.late == (7, 8)
    assert rules.scope == "region"
    search = Recipe(search="smc", particles=7, every=3, scheme="residual").build_search()
    assert (search.particles, search.every, search.scheme, search.strength) == (7, 3, SCHEMES["residual"], 5.0)
    sampler = Recipe(sampler="semi-ar", steps=9, block_length=4).build_sampler()
    assert (sampler.steps, sampler.block_length) == (9, 4)


def test_replace_checks_again() -> None:
    recipe = Recipe(sampler="eb", bound=0.1)
    assert recipe.replace(bound=0.2).bound == 0.2 and recipe.bound == 0.1
    with pytest.raises(UnmaskError, match="bound has no effect"):
        recipe.replace(sampler="uniform")


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (Recipe.from_json, "{", "not JSON"),
        (Recipe.from_json, "[1, 2]", "list"),
        (Recipe.from_json, '{"ban": null}', "ban"),
        (Recipe.from_json, '{"ban": 2.5}', "ban"),
        (Recipe.from_json, '{"sampler": ["eb"]}', "sampler"),
        (Recipe.from_json, '{"sampler": null}', "sampler"),
        (Recipe.from_json, '{"search": {}}', "search"),
        (Recipe.from_json, '{"temperature": NaN}', "temperature is nan"),
        (Recipe.from_json, '{"steps": 2.0}', "steps is 2.0"),
        (Recipe.from_json, '{"steps": "2"}', "steps is '2'"),
        (Recipe.from_json, '{"fill_tail": 1}', "fill_tail is 1"),
        (Recipe.from_json, '{"scope": "blocks"}', "did you mean 'block'"),
        (Recipe.from_toml, "sampler = ", "not TOML"),
        (Recipe.from_toml, "sampler = 3", "unknown sampler 3"),
        (Recipe.from_text, "eb", "'eb' is not a setting"),
        (Recipe.from_text, "steps=many", "steps is 'many'"),
        (Recipe.from_text, "fill_tail=yes", "fill_tail is 'yes'"),
        (Recipe.from_text, "temperatur=1", "did you mean 'temperature'"),
        (Recipe.from_text, "steps=1 steps=2", "steps is given twice"),
    ],
)
def test_errors_are_one_line(read: Any, text: str, words: str) -> None:
    with pytest.raises(UnmaskError) as caught:
        read(text)
    assert words in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint


def test_parse() -> None:
    assert parse("steps", "12") == 12 and type(parse("temperature", "1")) is float
    assert parse("fill_tail", "true") is True and parse("fill_tail", "False") is False
    assert parse("ban", "1,eos,") == ("1", "eos") and parse("sampler", "eb") == "eb"


def test_a_recipe_as_0_1_had_it():
    """Settings without a field are attributes, too; positional arguments; copies; pickles of 0.1."""
    recipe = Recipe(sampler="draft-refine", loops=2)
    assert (recipe.loops, recipe.draft, recipe.alg_temp) == (2, None, None)
    with pytest.raises(AttributeError, match="nonsense"):
        recipe.nonsense  # noqa: B018
    assert dataclasses.replace(recipe, loops=4).loops == recipe.replace(loops=4).loops == 4
    assert Recipe(length=4).replace(max_new_tokens=7).length == 7
    assert Recipe("uniform", "smc", 5, 6, 1.0) == Recipe("uniform", "smc", length=5, seed=6, temperature=1.0)
    with pytest.raises(TypeError, match="positional"):
        Recipe(*[None] * 60)
    assert dataclasses.asdict(recipe)["settings"] == {"loops": 2}
    assert json.loads(json.dumps(recipe.settings)) == {"loops": 2}
    assert copy.deepcopy(recipe) == recipe == pickle.loads(pickle.dumps(recipe))
    for one in (recipe, pickle.loads(pickle.dumps(recipe))):
        with pytest.raises(TypeError, match="read-only"):
            one.settings["loops"] = 3
    old = Recipe.__new__(Recipe)
    old.__setstate__(
        {"sampler": "dream", "search": "vanilla", "alg_temp": 0.3, "select_temperature": None, "after": None}
    )
    assert old == Recipe("dream", select_temperature=0.3) and old.alg_temp == 0.3
    with pytest.raises(SettingError, match=r"after was removed in 0\.2"):
        Recipe(search="smc", after=0.5)


def test_a_recipe_without_end_is_refused() -> None:
    with pytest.raises(SettingError, match="'/dev/zero' is larger than 1048576 characters: it is another file"):
        Recipe.load("/dev/zero")
