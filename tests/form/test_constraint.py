"""Every text that is decoded under a constraint meets it, whatever the sampler, search, cache and batch."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from unmask import Denoiser, Recipe, decode, decode_batch
from unmask.core.constraint import allowed
from unmask.decoding.background import Background
from unmask.decoding.form import form
from unmask.errors import InputError, ModelError, SettingError
from unmask.models.made.fabricate import fabricate

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "search"))
sys.path.append(str(Path(__file__).parents[2]))

import forms  # type: ignore[import-not-found]  # experiments/search/forms.py
from tests.laws.cases import CASES, Case, canvases, models, names, samplers

MODELS = models()
SOME = [
    *names("float64"),
    *[Case(a, "smc", {**how, "particles": 3}) for a in unmask.SAMPLERS for how in samplers(a)[1:]],
]


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("background") / "counts.json"
    Background({0: 700, 1: 90, 3: 8}, 2000).save(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", [*SOME, *CASES[-15:]], ids=str)
def test_every_particle_meets_it(case: Case, background: Path) -> None:
    """One random pattern for each; `forms.py random` runs thousands."""
    dice, model = random.Random(str(case)), MODELS[case.model]
    letters = "012" if case.model == "table" else "abcxyz019 .,\n"
    row = dice.choice(canvases(model)[:2])  # the third is all open, which guidance refuses
    several = len(list(forms.holes(row, row, model.vocab.mask)))
    recipe = case.recipe(background, constrained_entropy=dice.random() < 0.5)
    for _ in range(20):
        asked = [forms.pattern(dice, letters) for _ in range(several if dice.random() < 0.5 else 1)]
        try:
            found = decode(model, canvas=row, recipe=recipe, matches=asked if len(asked) > 1 else asked[0])
        except InputError:  # it cannot be met here: another one
            continue
        assert not [fault for one in found.particles for fault in forms.faults(model, one.tokens, row, asked)]
        return
    raise AssertionError("no pattern could be met")


@pytest.mark.parametrize("case", names("table"), ids=str)
def test_a_constraint_that_allows_everything_changes_no_token(case: Case, background: Path) -> None:
    """On a table without an end of text: `.` is then any token."""
    model = unmask.Table(MODELS["table"].joint)  # type: ignore[attr-defined]
    rows, recipe = canvases(MODELS["table"]), case.recipe(background)
    free = decode_batch(model, canvases=rows, recipe=recipe)
    for how in ({}, {"constrained_entropy": True}):
        bound = decode_batch(model, canvases=rows, recipe=recipe.replace(**how), matches="(?s:.)*")
        assert [p.tokens for one in bound for p in one.particles] == [p.tokens for one in free for p in one.particles]
        assert [one.evaluations for one in bound] == [one.evaluations for one in free]
        for a, b in zip(free, bound, strict=True):
            assert a.path_entropy == pytest.approx(b.path_entropy, abs=1e-9)
            assert a.best.log_prob == pytest.approx(b.best.log_prob, abs=1e-9)


class Silent:
    """A model that may not be asked."""

    def __init__(self, inner: Denoiser) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def look(self, *_: object) -> None:
        raise AssertionError("it was asked")


def test_what_cannot_be_met_is_refused_before_the_first_step_and_nothing_else_is() -> None:
    """Against all texts of a length."""
    table, dice = unmask.Table(torch.rand(3, 3, 3, 3, dtype=torch.float64) + 0.1), random.Random(2)
    refused = 0
    for _ in range(150):
        pattern, length = forms.pattern(dice, "012"), dice.randint(1, 4)
        texts = ("".join(one) for one in itertools.product("012", repeat=length))
        possible = any(re.fullmatch(pattern, text, re.ASCII) for text in texts)
        try:
            decode(table, canvas=[3] * length, recipe=Recipe(), matches=pattern)
            assert possible, (pattern, length)
        except InputError:
            refused += 1
            assert not possible, (pattern, length)
            with pytest.raises(InputError, match=r"position|nothing that the model can write|no text"):
                decode(Silent(table), canvas=[3] * length, recipe=Recipe(), matches=pattern)  # type: ignore[arg-type]
    assert 10 < refused < 140


def test_allowed_tokens_are_those_that_leave_a_completion() -> None:
    """The two sweeps against trying all completions, on random canvases."""
    table, dice = unmask.Table(torch.ones(3, 3, 3, 3, 3, dtype=torch.float64), eos=(2,)), random.Random(3)
    for _ in range(60):
        pattern = forms.pattern(dice, "01")
        full = [z for z in itertools.product(range(3), repeat=5) if not forms.faults(table, z, [3] * 5, [pattern])]
        if not full:
            continue
        z = [token if dice.random() < 0.4 else 3 for token in dice.choice(full)]
        made = form(matches=pattern)
        assert made is not None
        tokens = torch.tensor([z])
        found = allowed(made.constraint(table), tokens, torch.ones_like(tokens, dtype=torch.bool), tokens == 3)
        fits = [one for one in full if all(a in (3, b) for a, b in zip(z, one, strict=True))]
        for place in (i for i in range(5) if z[i] == 3):
            assert found.table[found.row[0, place]][found.kind].nonzero().ravel().tolist() == sorted(
                {one[place] for one in fits}
            )


def test_ends_bans_and_batches() -> None:
    model = MODELS["float64"]
    recipe = Recipe("fast-dllm", "smc", temperature=1.0, particles=3, threshold=0.05, length=9)
    prompts = ["ab", "abcdef", ""]
    together = decode_batch(model, prompts, recipe=recipe, matches="[a-f]{2,5}x?")
    for place, one in enumerate(together):
        alone = decode(model, prompts[place], recipe=recipe.replace(seed=place), matches="[a-f]{2,5}x?")
        assert alone.tokens == one.tokens and re.fullmatch("[a-f]{2,5}x?", one.text) and one.finish == "end"
    banned = decode(model, "", recipe=recipe, matches="[a-f]{2,5}x?", ban=(0, 1, 2, "eos"), length=6)
    assert re.fullmatch("[d-f]{5}x", banned.text) and banned.finish == "length"
    with pytest.raises(InputError, match="nothing that the model can write meets the constraint"):
        decode(model, "", recipe=recipe, matches="aa", ban=(0,))


def test_a_constraint_for_each_hole() -> None:
    model, canvas = MODELS["float64"], "a[MASK*4]b[MASK*2]c[MASK*3]d"
    found = decode(
        model, canvas=canvas, recipe=Recipe(), matches=[r"\d+", None, None], choices=[None, None, ["x", "yy"]]
    )
    assert found.text.endswith(("cxd", "cyyd")) and re.match(r"a\d{1,4}b", found.text)
    with pytest.raises(InputError, match="2 constraints for 3 holes"):
        decode(model, canvas=canvas, recipe=Recipe(), matches=["a", "b"])
    with pytest.raises(InputError, match="the constraint of hole 2 needs 3 positions, and there are 2"):
        decode(model, canvas=canvas, recipe=Recipe(), matches="abc")


def test_waves_escalation_rewards_and_logprobs() -> None:
    model, pattern = MODELS["float64"], "(ab|cd)+"
    how = [
        {"recipe": Recipe("fast-dllm", "auto", temperature=1.0, particles=3, until=0.5, length=6)},
        {"recipe": Recipe("uniform", "best-of-n", temperature=1.0, particles=3, length=6), "verify": lambda text: True},
        {"recipe": Recipe("uniform", "smc", temperature=1.0, potential="reward", length=6, particles=3), "reward": len},
        {
            "recipe": Recipe(
                "uniform", "smc", temperature=1.0, potential="constraint", strength=1.0, length=6, particles=3
            )
        },
        {"recipe": Recipe("p2", length=6), "logprobs": 2},
        {"recipe": Recipe("uniform", "smc", temperature=1.0, reopen=0.5, every=2, length=6, particles=3)},
        {"recipe": Recipe("confidence", "auto", end_penalty=2.0, temperature=0.5, length=6)},
    ]
    for one in how:
        found = decode(model, "ab", matches=pattern, **one)  # type: ignore[arg-type]
        assert all(re.fullmatch(pattern, particle.text) for particle in found.particles)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_byte_level_tokens_of_families(family: str, tmp_path: Path) -> None:
    """Tokens of several letters, blocks and their cache; the bytes of a tokenizer are what it decodes."""
    fabricate(family, tmp_path / family)
    model = unmask.load(tmp_path / family)
    from unmask.decoding.form.tokens import spelling

    words = {token: letters for letters, token in spelling(model, ())}
    ids = random.Random(0).choices(sorted(words), k=300)
    assert model.tokenizer.decode(ids) == b"".join(words[token] for token in ids).decode(errors="replace")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    for sampler in ("confidence", "fast-dllm"):
        recipe = Recipe(sampler, temperature=1.0, length=48)
        found = decode(model, "hello", recipe=recipe, schema=schema)
        assert set(json.loads(found.text)) == {"a", "b"}


def test_entropies_of_both_kinds() -> None:
    model = MODELS["float64"]
    recipe = Recipe("confidence", length=5)
    own = decode(model, "", recipe=recipe, matches="[ab]{5}")
    bound = decode(model, "", recipe=recipe, matches="[ab]{5}", constrained_entropy=True)
    assert bound.path_entropy <= 1.0 < own.path_entropy  # bits: two letters are left of 41
    one = decode(model, "", recipe=recipe, matches="abcab", constrained_entropy=True)
    assert one.path_entropy == pytest.approx(0, abs=1e-9) and one.best.log_prob == pytest.approx(0, abs=1e-9)
    looked = decode(model, "", recipe=recipe.replace(search="best-of-n", choose="look"), matches="[ab]{5}")
    inside = decode(model, "", recipe=looked.recipe, matches="[ab]{5}", constrained_entropy=True)
    assert looked.best.look is not None and inside.best.look is not None and inside.best.look < looked.best.look


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"matches": "a", "choices": ["b"]}, "matches and choices exclude each other"),
        ({"choices": []}, "at least one text"),
        ({"choices": "ab"}, "choices is a str"),
        ({"choices": ["a"] * 3000}, "3,000 choices"),
        ({"matches": 3}, "matches is a int"),
        ({"schema": "{}"}, "a schema is a str"),
        ({"schema": {"a": {1, 2}}}, "the schema is not JSON"),
        ({"matches": "a", "stop": "b"}, "a stop string would cut"),
        ({"constrained_entropy": True}, "no effect without a constraint"),
        ({"search": "smc", "potential": "constraint"}, "weighs by a constraint"),
    ],
)
def test_arguments_that_do_not_go(given: dict[str, object], why: str) -> None:
    with pytest.raises((InputError, SettingError), match=why):
        decode(MODELS["float64"], "", length=4, **given)  # type: ignore[arg-type]


def test_a_tokenizer_without_bytes_is_refused() -> None:
    class Words:
        encode: Callable[[str], list[int]] = staticmethod(lambda text: [0])
        decode: Callable[[list[int]], str] = staticmethod(lambda ids: "")

    class Strange(Silent):
        tokenizer = Words()

    with pytest.raises(InputError, match="needs the bytes of tokens, which a Words does not give"):
        decode(Strange(MODELS["float64"]), [1], length=4, matches="a")  # type: ignore[arg-type]


def test_a_model_that_rules_out_all_that_is_allowed() -> None:
    class Sure(Silent):
        def look(self, state: object, rows: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            logits = torch.full((len(rows), 4, 3), -torch.inf, dtype=torch.float64)
            logits[:, :, 0] = 0.0
            return logits, None

    table = unmask.Table(torch.ones(3, 3, 3, 3, dtype=torch.float64))
    for temperature in (0.0, 1.0):
        with pytest.raises(ModelError, match="gives all tokens that the constraint allows probability 0"):
            decode(Sure(table), canvas=[3] * 4, recipe=Recipe(temperature=temperature), matches="1*")  # type: ignore[arg-type]


def test_the_table_of_allowed_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.decoding.form import rows, sets

    monkeypatch.setattr(sets, "BYTES", 0)
    monkeypatch.setattr(rows, "KEPT", 3)
    found = decode(MODELS["float64"], "", recipe=Recipe("p2", length=40), matches="([a-z]{3} )*[a-z]{4}")
    assert re.fullmatch("([a-z]{3} )*[a-z]{4}", found.text)
    assert np.isfinite(found.path_entropy)


@pytest.mark.parametrize("kind", ["matches", "choices", "schema"])
def test_a_list_of_one_is_for_each_hole(kind: str) -> None:
    given: Any = {"matches": "[a-c]{1,2}", "choices": ["ab", "c"], "schema": {"enum": [1, 20]}}[kind]
    mask = MODELS["float64"].vocab.mask
    canvas, how = [1, mask, mask, 2, mask, mask, mask, 3], Recipe("uniform", temperature=1.0, seed=4)

    def tokens(value: Any) -> list[int]:
        return decode(MODELS["float64"], canvas=canvas, recipe=how, **{kind: value}).tokens

    assert tokens(given) == tokens([given]) == tokens([given, given])
    with pytest.raises(InputError, match="3 constraints for 2 holes"):
        tokens([given] * 3)
