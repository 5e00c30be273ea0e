"""Default recipes: what a model brings, and how a user's settings go over it, in Python, in the shell and over HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from unmask import Denoiser, Recipe, decode, decode_batch, load
from unmask.cli import main
from unmask.core.denoiser import traits
from unmask.decoding.defaults import default_of, over
from unmask.errors import ModelError, SettingError, UnmaskError
from unmask.models import BUNDLED, FAMILIES, WEIGHTS, default_recipe
from unmask.models.made.fabricate import fabricate
from unmask.models.transformer import random_transformer
from unmask.models.wrap import Chunked, Counted, Guided

FAMILY = {
    "llada": "sampler=semi-ar search=vanilla length=128 block_length=32",
    "illada": "sampler=semi-ar search=vanilla length=128 block_length=32",
    "dream": "sampler=dream search=vanilla length=512 temperature=0.2 top_p=0.95 rule=entropy",
    "open-dcoder": "sampler=p2 search=vanilla length=128 temperature=0.5 top_k=200 rule=fresh-draw",
    "mdlm": "sampler=ancestral search=vanilla length=1024 temperature=1.0 steps=128",
    "llada-moe": "sampler=semi-ar search=vanilla length=128 block_length=32",
    "sdar": "sampler=sdar search=vanilla rule=dynamic threshold=0.85 length=2048",
    "sdar-moe": "sampler=sdar search=vanilla rule=dynamic threshold=0.85 length=2048",
    "llada2": "sampler=llada2 search=vanilla threshold=0.95 length=2048",
    "fast-dllm-v2": "sampler=fast-dllm-v2 search=vanilla threshold=0.9 sub_block=8 length=512",
    "stable-diffcoder": "sampler=sdar search=vanilla rule=static length=512",
    "a2d": "sampler=confidence search=vanilla length=128",
    "native": "sampler=confidence search=vanilla",
}
BLOCKS: dict[str, Any] = {"sampler": "semi-ar", "block_length": 4, "length": 12, "temperature": 0.7, "fill_tail": True}


class Own:
    """A model with a default recipe of its own."""

    def __init__(self, inner: Denoiser, recipe: dict[str, Any]) -> None:
        self.inner, self.recipe = inner, recipe

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture(scope="module")
def model() -> Denoiser:
    return Own(random_transformer(width=16, layers=1, limit=20), BLOCKS)


# --- what models bring -----------------------------------------------------------------------------------------------


def test_every_family_has_a_line_here() -> None:
    assert FAMILY.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILY)
def test_every_family_brings_the_published_recipe(family: str, tmp_path: Path) -> None:
    fabricate(family, tmp_path / "tiny")
    model = load(tmp_path / "tiny")
    recipe = default_of(model)
    assert recipe == Recipe.from_text(FAMILY[family])
    assert default_recipe(tmp_path / "tiny") == traits(model).recipe
    if family != "native":
        result = decode(model, "a", length=4)
        assert result.recipe == recipe.replace(length=4)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_model_brings_a_recipe(name: str) -> None:
    model = load(name)
    assert traits(model).recipe == default_recipe(name) != {}
    assert default_of(model).build_search().particles == 1
    assert default_of(Chunked(Counted(Guided(model, 1.0)), 2)) == default_of(model)


def test_a_file_beside_a_checkpoint_replaces_the_familys(tmp_path: Path) -> None:
    fabricate("dream", tmp_path / "tiny")
    (tmp_path / "tiny/recipe.json").write_text('{"sampler": "eb", "bound": 0.5, "max_new_tokens": 3}')
    model = load(tmp_path / "tiny")
    assert default_of(model) == Recipe(sampler="eb", bound=0.5, length=3)
    assert len(decode(model, "a").best.tokens) == len(model.tokenizer.encode("a")) + 3


WRITTEN = {"alg": "maskgit_plus", "temperature": 0.1, "alg_temp": 0.5, "max_new_tokens": 9, "top_p": None, "bos": 1}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (WRITTEN, "sampler=dream rule=maskgit_plus temperature=0.1 select_temperature=0.5 length=9 top_p=0.95"),
        ({"alg": "origin", "steps": 64}, "sampler=ancestral eps=0.001 steps=64 length=512 temperature=0.2 top_p=0.95"),
        ({**WRITTEN, "_from_model_config": True}, FAMILY["dream"]),  # transformers wrote it: nobody chose it
    ],
)
def test_dreams_own_file_is_read(values: dict[str, Any], expected: str, tmp_path: Path) -> None:
    fabricate("dream", tmp_path / "tiny")
    (tmp_path / "tiny/generation_config.json").write_text(json.dumps(values))
    assert default_of(load(tmp_path / "tiny")) == Recipe.from_text(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"sampler": "semiar"}', "the default recipe of NAME: unknown sampler 'semiar': did you mean 'semi-ar'?"),
        ('{"bound": 0.1}', "the default recipe of NAME: bound has no effect on sampler confidence"),
        ('{"steps": 0}', "the default recipe of NAME: steps is 0: it must be at least 1"),
        ("[]", "recipe.json holds a list: it must be an object"),
        ("{", "recipe.json is not JSON"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, expected: str, tmp_path: Path) -> None:
    fabricate("llada", tmp_path / "tiny")
    (tmp_path / "tiny/recipe.json").write_text(text)
    with pytest.raises(UnmaskError) as caught:
        decode(load(tmp_path / "tiny"), "a")
    assert str(caught.value).startswith(expected.replace("NAME", str(tmp_path / "tiny")))
    assert "\n" not in str(caught.value)
    if not isinstance(caught.value, ModelError):  # a whole recipe is the way out
        assert decode(load(tmp_path / "tiny"), "a", recipe=Recipe(length=2)).steps == 2


def test_a_default_that_the_model_cannot_take_is_one_line() -> None:
    with pytest.raises(SettingError, match="the default recipe of table: this model has no EOS token"):
        default_of(Own(load("table"), {"fill_tail": True}))


# --- settings over it ------------------------------------------------------------------------------------------------


def test_nothing_said_is_the_models_default(model: Denoiser) -> None:
    assert decode(model, "ab").recipe == Recipe(**BLOCKS)
    assert decode(model, "ab").tokens == decode(model, "ab", recipe=Recipe(**BLOCKS)).tokens
    assert decode(random_transformer(width=16, layers=1), canvas="a[MASK]").recipe == Recipe()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0.5}, {**BLOCKS, "temperature": 0.5}),
        ({"gen_length": 3}, {**BLOCKS, "length": 3}),
        ({"search": "auto", "particles": 2}, {**BLOCKS, "search": "auto", "particles": 2}),
        ({"sampler": "semi-ar", "steps": 6}, {**BLOCKS, "steps": 6}),
        # another sampler: the blocks were chosen for the default's, though this one takes them too
        ({"sampler": "confidence"}, {"length": 12, "temperature": 0.7, "fill_tail": True}),
        ({"remasking": "low_confidence"}, {"length": 12, "temperature": 0.7, "fill_tail": True}),
        ({"sampler": "uniform", "block_length": 2}, {**BLOCKS, "sampler": "uniform", "block_length": 2}),
        # what the user says excludes a default
        ({"sampler": "p2"}, {"sampler": "p2", "length": 12, "temperature": 0.7}),
        ({"search": "smc", "reopen": 0.5}, {**BLOCKS, "search": "smc", "reopen": 0.5, "fill_tail": False}),
        # None takes a default away
        ({"block_length": None, "fill_tail": None}, {"sampler": "semi-ar", "length": 12, "temperature": 0.7}),
    ],
)
def test_settings_go_over_the_default(given: dict[str, Any], expected: dict[str, Any], model: Denoiser) -> None:
    result = decode(model, "ab", **given)
    assert result.recipe == Recipe(**expected)
    assert result.tokens == decode(model, "ab", recipe=Recipe(**expected)).tokens


def test_a_search_of_the_default_takes_its_settings_with_it() -> None:
    default = {"search": "smc", "particles": 4, "every": 2, "temperature": 1.0, "top_p": 0.9}
    assert over({"search": "best-of-n"}, default, "a") == Recipe(search="best-of-n", temperature=1.0, top_p=0.9)
    assert over({"particles": 8}, default, "a") == Recipe(**{**default, "particles": 8})
    assert over({"temperature": 0.0}, default, "a") == Recipe(search="smc", particles=4, every=2)


def test_a_sampler_of_ones_own(model: Denoiser) -> None:
    from unmask.samplers import SAMPLERS

    def patient(steps: int | None = None, pace: int = 2) -> Any:
        return SAMPLERS["uniform"](steps)

    found = decode(model, "ab", sampler=patient, pace=3).recipe
    assert (found.name("sampler"), found.get("pace"), found.block_length) == ("patient", 3, None)
    assert decode(model, "ab", sampler=SAMPLERS["semi-ar"]).recipe == Recipe(**BLOCKS)


def test_a_recipe_is_complete(model: Denoiser) -> None:
    assert decode(model, "ab", recipe=Recipe(length=3)).recipe == Recipe(length=3)
    assert decode(model, "ab", recipe=Recipe(length=3), steps=2).recipe == Recipe(length=3, steps=2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temprature": 1.0}, "unknown setting 'temprature': did you mean 'temperature'?"),
        ({"bound": 0.1}, "bound has no effect on sampler semi-ar with search vanilla"),
        ({"length": 3, "gen_length": 3}, "length is given twice: leave one out"),
        ({"length": 19}, "a canvas of 21 positions is longer than random allows (20)"),
    ],
)
def test_what_the_user_says_wrongly_is_refused(given: dict[str, Any], expected: str, model: Denoiser) -> None:
    with pytest.raises(UnmaskError) as caught:
        decode(model, "ab", **given)
    assert str(caught.value).startswith(expected)


# --- the length ------------------------------------------------------------------------------------------------------


def test_the_defaults_length_is_an_upper_limit(model: Denoiser) -> None:
    events: list[dict[str, Any]] = []
    prompts = ["ab", "a" * 15, "a" * 19]
    together = decode_batch(model, prompts, on_event=events.append)
    assert [result.recipe.length for result in together] == [12, 5, 1]
    assert [len(result.tokens) for result in together] == [14, 20, 20]
    assert events[0]["recipe"]["length"] == 12
    for place, prompt in enumerate(prompts):  # alone as in a batch
        alone = decode(model, prompt, seed=place)
        assert (alone.tokens, alone.recipe.length) == (together[place].tokens, together[place].recipe.length)
    with pytest.raises(UnmaskError, match="longer than random allows"):
        decode(model, "a" * 20)


def test_a_canvas_has_no_length(model: Denoiser) -> None:
    assert decode(model, canvas="ab[MASK*3]").recipe.length is None
    with pytest.raises(UnmaskError, match="length has no effect on a canvas"):
        decode(model, canvas="ab[MASK*3]", length=3)


# --- the command line ------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    fabricate("llada", directory)
    return str(directory)


def test_generate_uses_the_default_and_flags_override_it(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("generate", "a", "--model", tiny)
    found = said(capsys, *ask, "--temperature", "0.5", "--length", "5")
    assert Recipe.from_dict(found["recipe"]) == Recipe("semi-ar", block_length=32, temperature=0.5, length=5)
    found = said(capsys, *ask, "--length", "5", "--recipe", "none")
    assert Recipe.from_dict(found["recipe"]) == Recipe(length=5)
    found = said(capsys, "generate", "--model", tiny, "--canvas", "a[MASK*3]")
    assert Recipe.from_dict(found["recipe"]) == Recipe("semi-ar", block_length=32)


def test_models_show_the_default(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = said(capsys, "models", tiny)["facts"]
    assert Recipe.from_dict(facts["default recipe"]) == Recipe.from_text(FAMILY["llada"])
    assert main(["models", tiny]) == 0
    assert f"default recipe: {FAMILY['llada']}" in capsys.readouterr().out


def test_eval_uses_the_default_only_where_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(shutil.copytree(WEIGHTS / "countdown", tmp_path / "own"))
    (directory / "recipe.json").write_text('{"sampler": "margin", "steps": 4}')
    (tmp_path / "problems").write_text("15,44,79,50\n")
    ask = ("eval", "countdown", "--data", str(tmp_path / "problems"), "--model", str(directory))
    for flags, expected in (
        ((), Recipe("margin", steps=4)),
        (("--seed", "3"), Recipe("margin", steps=4, seed=3)),
        (("--temperature", "0.5"), Recipe(temperature=0.5)),
        (("--steps", "3", "--recipe", "none"), Recipe(steps=3)),
    ):
        assert Recipe.from_dict(said(capsys, *ask, *flags)["recipe"]) == expected
    capsys.readouterr()
    main(["solve", "15,44,79,50", "--model", str(directory), "--steps", "3", "--json"])
    assert Recipe.from_dict(json.loads(capsys.readouterr().out)["recipe"]) == Recipe("margin", steps=3)


def test_a_trained_model_has_the_recipe_of_its_task(tmp_path: Path) -> None:
    small = """{"width": 16, "layers": 1, "heads": 2, "inner": 16}"""
    words = ("train", "countdown", str(tmp_path / "a"), "--steps", "1", "--batch", "4", "--held", "1", "--shape", small)
    assert main([*words]) == 0
    assert default_recipe(tmp_path / "a") == default_recipe("countdown")
    (tmp_path / "a/recipe.json").write_text('{"sampler": "margin"}')
    assert main(["merge", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    assert default_recipe(tmp_path / "b") == {"sampler": "margin"}
