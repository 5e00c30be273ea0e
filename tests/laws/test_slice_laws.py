"""Laws of slices: one prompt decoded in slices of its particles is what it is on one device, whatever their number."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Denoiser, Recipe, Result, decode, decode_batch, load
from unmask.core import slices
from unmask.core.resampling import Potential
from unmask.core.state import State, tensors
from unmask.core.step import Setup
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_canvas
from unmask.errors import InputError, ModelError, SettingError
from unmask.evaluate.crew import Here
from unmask.models.transformer import random_transformer
from unmask.search import SCHEMES

from .cases import Case, Settings, samplers
from .conftest import Jittered
from .test_block_laws import model as in_blocks

K = 4
EVERY: Settings = {"particles": K, "every": 2, "strength": 3.0}
HOW: dict[str, list[Settings]] = {
    "best-of-n": [{"particles": K}],
    "auto": [{"particles": K}],
    "vote": [{"particles": K}],
    "greedy": [{"candidates": K}],
    "beam": [{"beams": 2, "candidates": 2, "every": 2}],
    "smc": [
        {**EVERY, "every": 1, "potential": "likelihood"},
        *({**EVERY, "scheme": scheme} for scheme in SCHEMES),
    ],
}


def cases(sampler: str) -> list[Case]:
    mine = samplers(sampler)[0]
    several = [search for search in SEARCHES if search != "vanilla"]  # which has one path
    return [Case(sampler, search, {**mine, **how}, "table") for search in several for how in HOW.get(search, [{}])]


def exact(result: Result) -> str:
    """Everything but what a walk took."""
    told = [vars(one) for one in result.particles]
    return repr((told, result.chosen, result.log_evidence, result.evaluations))


def alike(one: Result, other: Result, close: float = 1e-6) -> None:
    """Equal tokens, origins and choice; numbers up to the rounding of a network whose rows depend on the batch."""
    for a, b in zip(one.particles, other.particles, strict=True):
        assert (a.tokens, a.origin, a.steps, a.finish) == (b.tokens, b.origin, b.steps, b.finish)
        assert a.path_entropy == pytest.approx(b.path_entropy, abs=close)
        assert a.log_prob == pytest.approx(b.log_prob, abs=close)
        assert (a.look is None) == (b.look is None) and a.look == (b.look and pytest.approx(b.look, abs=close))
        assert a.state_entropy == [h if h is None else pytest.approx(h, abs=close) for h in b.state_entropy]
    assert (one.chosen, one.evaluations) == (other.chosen, other.evaluations)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=close, abs=close)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_slices_are_one_device_to_the_bit(sampler: str, models: dict[str, Denoiser], background: Path) -> None:
    """On a network whose rows do not depend on the batch: 2 and 4 slices, for one search 1, without resampling 2."""
    model = models["table"]
    canvas = [2, *[model.vocab.mask] * 3]
    for case in cases(sampler):
        recipe = case.recipe(background, seed=5)
        whole = exact(decode(model, canvas=canvas, recipe=recipe))
        sizes = (2, 1) if recipe.build_search().resamples else (2,)
        for size in (4, *sizes) if "potential" in case.settings else sizes:  # one slice: less is different
            assert exact(decode(model, canvas=canvas, recipe=recipe, slice_size=size)) == whole, (str(case), size)


@pytest.mark.parametrize("sampler", ["uniform", "confidence"])
def test_copies_of_ancestors_in_other_slices_reopen(sampler: str, models: dict[str, Denoiser]) -> None:
    model = models["table"]
    canvas = [model.vocab.mask] * 6
    recipe = Recipe(sampler, "smc", temperature=1.0, particles=8, every=2, strength=3.0, reopen=0.5)
    whole = exact(decode(model, canvas=canvas, recipe=recipe))
    assert whole != exact(decode(model, canvas=canvas, recipe=recipe.replace(reopen=0.01)))
    for size in (4, 2):
        assert exact(decode(model, canvas=canvas, recipe=recipe, slice_size=size)) == whole


GIVEN: list[Settings] = [
    {"search": "smc", "guidance": 0.8},
    {"search": "smc", "scheme": "systematic", "target": 0.5},
    {"search": "auto", "sampler": "eb", "bound": 3.0},
    {"search": "beam", "beams": 2, "candidates": 3, "every": 2, "temperature": 0.0, "select_temperature": 0.1},
    {"search": "smc", "sampler": "p2", "fill_tail": False, "skip_tail": True},
]


@pytest.mark.parametrize(("given", "threads"), [*((given, 1) for given in GIVEN), (GIVEN[1], 2)], ids=str)
def test_where_numbers_depend_on_the_batch(given: Settings, threads: int, models: dict[str, Denoiser]) -> None:
    """Odd slices, two threads: the tokens are those of one device, entropies up to rounding."""
    model = models["float32"]
    mask, ids = model.vocab.mask, [7, 4]
    recipe = Recipe(**{"sampler": "confidence", "temperature": 1.0, **given})
    recipe = recipe if recipe.search == "beam" else recipe.replace(particles=6)
    try:
        torch.set_num_threads(threads)
        for canvas in ([*ids, *[mask] * 4], [1, mask, mask, 20, 8, mask, 30, mask, 2])[: 3 - threads]:
            whole = decode(model, canvas=canvas, recipe=recipe)
            for size in (3, 4)[: 3 - threads]:
                alike(decode(model, canvas=canvas, recipe=recipe, slice_size=size), whole, 1e-4)
    finally:
        torch.set_num_threads(1)


def test_twins_in_different_slices_have_the_numbers_of_the_first(models: dict[str, Denoiser]) -> None:
    """Every look has other last bits; ties between equal canvases stay ties, and beams come by slot."""
    recipe = Recipe("confidence", "beam", beams=2, candidates=4, every=1, temperature=0.3, seed=2)
    canvas = [7, 4, *[models["float64"].vocab.mask] * 6]
    whole = decode(models["float64"], canvas=canvas, recipe=recipe)
    for size in (1, 3):
        alike(decode(Jittered(models["float64"]), canvas=canvas, recipe=recipe, slice_size=size), whole)


@pytest.mark.parametrize("given", [{"search": "smc"}, {"search": "smc", "every": 2}, {"search": "auto"}], ids=str)
@pytest.mark.parametrize("sampler", ["confidence", "eb", "llada2"])
def test_attention_in_blocks(sampler: str, given: Settings) -> None:
    """Particles meet at blocks, or at planned steps; their keys and values are made anew after a meeting."""
    model, more = in_blocks(), {"threshold": 0.1} if sampler == "llada2" else {}
    recipe = Recipe(sampler, temperature=1.0, particles=6, **more, **given)
    canvas = [5, 9, *[model.vocab.mask] * 10]
    whole = decode(model, canvas=canvas, recipe=recipe)
    assert given["search"] == "auto" or whole.lineages < 6
    for size in (2, 4):
        alike(decode(model, canvas=canvas, recipe=recipe, slice_size=size), whole)


def test_constraints_rewards_stops_and_approximate_caches() -> None:
    model = load("random")
    how: dict[str, Any] = {"search": "smc", "sampler": "uniform", "temperature": 1.0, "length": 8, "particles": 6}
    asks: list[dict[str, Any]] = [
        {**how, "matches": "[ab]+c*", "potential": "constraint"},
        {**how, "choices": ["abcd", "dcba"], "constrained_entropy": True},
        {**how, "potential": "reward", "reward": lambda text: text.count("a")},
        {**how, "search": "best-of-n", "choose": "reward", "reward": lambda text: text.count("a")},
        {**how, "search": "vote", "answer": lambda text: text[:1]},
        {**how, "stop": "a"},
        {**how, "search": "auto", "sampler": "semi-ar", "block_length": 4, "cache_block": 4},
    ]
    for ask in asks:
        whole = decode(model, "abc", **ask)
        for size in (2, 4):
            alike(decode(model, "abc", slice_size=size, **ask), whole, 1e-4)


def test_a_potential_reads_all_particles(models: dict[str, Denoiser]) -> None:
    """One of the user's own may compare particles; in a slice it would not see the others."""

    def crowd(state: State, width: int) -> torch.Tensor:
        same = (state.tokens[:, None] == state.tokens[None]).all(2).sum(1)
        return -same.double()

    def smc(particles: int = 8) -> Any:
        return replace(SEARCHES["smc"](particles, every=2, strength=1.0), potential=Potential(crowd))

    model = models["table"]
    canvas = [model.vocab.mask] * 6
    recipe = Recipe("uniform", smc, temperature=1.0, particles=8)
    whole = exact(decode(model, canvas=canvas, recipe=recipe))
    assert exact(decode(model, canvas=canvas, recipe=recipe, slice_size=2)) == whole


class Timed:
    """A network that is told the time."""

    timed = True

    def __init__(self, inner: Denoiser) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        hidden, cache = self.inner.look(state, rows)
        return hidden * (1 + state.time[rows, None, None]).to(hidden.dtype), cache


def test_a_network_that_is_told_the_time(models: dict[str, Denoiser]) -> None:
    model = Timed(models["float64"])
    recipe = Recipe("ancestral", "smc", temperature=1.0, particles=8, every=3, steps=9, seed=4)
    canvas = [7, 4, *[model.vocab.mask] * 6]
    whole = decode(model, canvas=canvas, recipe=recipe)
    for size in (4, 3):
        alike(decode(model, canvas=canvas, recipe=recipe, slice_size=size), whole)


def legs_of(model: Denoiser, recipe: Recipe, size: int) -> tuple[Setup, list[slices.Leg]]:
    """All segments of a walk, as they are given to whoever does them."""
    canvas = from_canvas(model, [7, 4, *[model.vocab.mask] * 6])
    denoiser, state, sampler, search, rules = prepare(model, [canvas], [3], recipe)
    setup, legs = Setup(denoiser, sampler, search, rules), list[slices.Leg]()

    def work(some: list[slices.Leg]) -> list[slices.Reached]:
        legs.extend(some)
        return [slices.segment(setup, leg) for leg in some]

    with torch.no_grad():
        slices.walk(setup, state, size, work)
    return setup, legs


def numbers(value: Any) -> list[Any]:
    plain = [getattr(value, one.name) for one in fields(value) if isinstance(getattr(value, one.name), int)]
    return [*plain, *(one.nan_to_num(-1).tolist() for one in tensors(value))]


@pytest.mark.parametrize("search", ["smc", "auto"])
def test_a_segment_is_a_pure_function(search: str, models: dict[str, Denoiser]) -> None:
    setup, legs = legs_of(models["float32"], Recipe("uniform", search, temperature=1.0, particles=6), 3)
    assert len(legs) == (2 if search == "auto" else 2 * 3)
    before = [numbers(leg) for leg in legs]
    with torch.no_grad():
        first = [numbers(slices.segment(setup, leg)) for leg in legs]
        again = [numbers(slices.segment(setup, leg)) for leg in reversed(legs)]
    assert again == first[::-1] and before == [numbers(leg) for leg in legs]


def test_what_a_walk_in_slices_takes(models: dict[str, Denoiser]) -> None:
    """Evaluations are those of one device; rows and calls have the second looks, and equal canvases of two slices."""
    model, recipe = models["table"], Recipe("uniform", "smc", temperature=1.0, particles=8, every=2)
    canvas = [model.vocab.mask] * 6
    whole = decode(model, canvas=canvas, recipe=recipe)
    some = [decode(model, canvas=canvas, recipe=recipe, slice_size=size) for size in (8, 4, 2)]
    assert {one.evaluations for one in some} == {whole.evaluations} == {48}
    assert [one.calls for one in some] == [8, 16, 32]  # six steps, two meetings: once more after each
    assert whole.rows < some[0].rows < some[1].rows < some[2].rows <= 48 + 16
    assert [one.slice_size for one in some] == [8, 4, 2] and whole.slice_size is None
    assert "in slices of 4" in some[1].cost() and some[1].to_dict()["slice_size"] == 4


def test_prompts_in_slices_are_decoded_one_after_another(models: dict[str, Denoiser]) -> None:
    model, recipe = models["table"], Recipe("uniform", "smc", temperature=1.0, particles=4, every=2)
    canvases = [[model.vocab.mask] * 6, [2, *[model.vocab.mask] * 3]]
    whole = decode_batch(model, canvases=canvases, recipe=recipe, n=2, batch_size=1)
    for crew in (model, Here(model)):
        parts = decode_batch(crew, canvases=canvases, recipe=recipe, n=2, slice_size=2)
        assert [exact(one) for one in parts] == [exact(one) for one in whole]
        assert [one.number for one in parts] == [0, 1, 2, 3]
    assert decode(Here(model), canvas=canvases[0], recipe=recipe).slice_size == 4  # of a crew, always


def test_errors_name_the_particle() -> None:
    class Broken:
        def __init__(self) -> None:
            self.inner = random_transformer(width=32, layers=1, limit=64)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
            hidden, cache = self.inner.look(state, rows)
            return hidden.masked_fill((state.slot[rows] == 5)[:, None, None], torch.nan), cache

    with pytest.raises(ModelError, match=r"row 5 \(prompt 0, particle 5\)"):
        decode(
            Broken(), "ab", sampler="uniform", search="best-of-n", particles=6, length=4, temperature=1.0, slice_size=4
        )


def test_what_is_refused(tmp_path: Path) -> None:
    model = load("random")
    how: dict[str, Any] = {"length": 8, "temperature": 1.0, "search": "smc", "particles": 4, "slice_size": 2}
    plain = {**how, "search": "auto"}
    cached = {"sampler": "semi-ar", "block_length": 4, "cache_block": 4}
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({**plain, "until": 0.5}, InputError, "until decodes one or two paths at first"),
        ({**plain, "verify": bool}, InputError, "verify decodes one or two paths at first"),
        ({**how, "trace": str(tmp_path / "t")}, InputError, "^trace has what happens in each step"),
        ({**how, "on_event": print}, InputError, "on_event has what happens in each step"),
        ({**how, "logprobs": 1}, InputError, "logprobs has what happens in each step"),
        ({**how, **cached}, SettingError, "keeps numbers of earlier canvases"),
        ({**how, "sampler": "semi-ar", "block_length": 4, "stop": "a"}, InputError, "no slice has"),
        ({**how, "slice_size": 0}, InputError, "slice_size is 0"),
        ({**how, "slice_size": True}, InputError, "slice_size is True"),
        ({**how, "search": "vanilla", "particles": None}, InputError, "slice_size has no effect on one path"),
    ]
    for given, kind, what in refused:
        with pytest.raises(kind, match=what):
            decode(model, "abc", **given)
    with pytest.raises(InputError, match="batch_size is 2"):
        decode_batch(model, ["a", "b"], batch_size=2, **how)


def test_memory_is_that_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All canvases are in this process, hidden states of a slice where it is decoded."""
    model, how = load("random"), {"length": 8, "temperature": 1.0, "search": "auto", "particles": 64}
    whole = decode(model, "abc", **how)
    monkeypatch.setattr("unmask.models.memory.free", lambda device: 150_000)
    with pytest.raises(SettingError, match="64 particles of 11 positions need about"):
        decode(model, "abc", **how)
    assert [one.tokens for one in decode(model, "abc", slice_size=8, **how).particles] == [
        one.tokens for one in whole.particles
    ]
    with pytest.raises(SettingError, match=r"64 particles of 11 positions .*: give a smaller slice_size"):
        decode(model, "abc", slice_size=64, **how)
    with pytest.raises(SettingError, match=r"512 particles of 11 positions .*: lower particles"):
        decode(model, "abc", slice_size=8, **{**how, "particles": 512})
