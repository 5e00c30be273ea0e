"""On a GPU: recorded steps give what steps with questions give, and no step waits for the device."""

from __future__ import annotations

import warnings
import weakref
from itertools import islice

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Recipe, decode_batch, load
from unmask.core import walk as engine
from unmask.core.gpu import recorded
from unmask.core.step import Setup
from unmask.decoding.background import count
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.errors import ModelError
from unmask.models.made.fabricate import fabricate
from unmask.models.made.random_sizes import make
from unmask.models.transformer import compiled, random_transformer
from unmask.models.wrap import Chunked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
PROMPTS = ["a cat", "what is this, a dog"]


def both(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, model=None, stop=None):
    """The results of recorded steps, and those of steps with questions."""
    model = model or load("random", "cuda")
    found = decode_batch(model, PROMPTS, recipe=recipe, stop=stop)
    monkeypatch.setattr(recorded, "can_record", lambda setup, state: False)
    return found, decode_batch(model, PROMPTS, recipe=recipe, stop=stop)


def assert_same(one, other) -> None:
    for a, b in zip(*(one, other), strict=True):
        assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
        assert (a.chosen, a.steps, a.calls, a.evaluations) == (b.chosen, b.steps, b.calls, b.evaluations)
        assert a.path_entropy == pytest.approx(b.path_entropy, abs=1e-4)
        assert [p.origin for p in a.particles] == [p.origin for p in b.particles]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_and_search(sampler: str, search: str, tmp_path, monkeypatch) -> None:
    extra = {}
    if sampler == "pc":
        count(["the cat sat on the mat"], load("random").tokenizer.encode).save(tmp_path / "table.json")
        extra = {"background": str(tmp_path / "table.json")}
    steps = {"steps": 5} if sampler in ("ancestral", "dream") else {}
    recipe = Recipe(sampler, search, length=12, temperature=0.8, late=("eos",), **extra, **steps)
    assert_same(*both(recipe, monkeypatch))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0, "ban": (3, 4)}, {"guidance": 1.5}], ids=str)
def test_steps_are_recorded(options, monkeypatch) -> None:
    """None of this passes because everything asks."""
    recipe = Recipe(**{"sampler": "uniform", "search": "smc", "length": 12, "temperature": 1.0, **options})
    played = []
    real = recorded.Recorded.play
    monkeypatch.setattr(recorded.Recorded, "play", lambda self, step: played.append(step) or real(self, step))
    assert_same(*both(recipe, monkeypatch))
    assert played == list(range(1, 12))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "pc"])
def test_steps_with_a_constraint(sampler: str, temperature: float, monkeypatch) -> None:
    """Recorded in parts, where they are recorded at all; nothing has failed silently."""
    steps = {"steps": 5} if sampler in ("ancestral", "dream") else {}
    recipe = Recipe(sampler, "smc", length=16, temperature=temperature, particles=4, every=2, **steps)
    model, matches = load("random", "cuda"), "[a-f]{1,4}( ?[a-m]){0,40}"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = decode_batch(model, PROMPTS, recipe=recipe, matches=matches)
    monkeypatch.setattr(recorded, "can_record", lambda setup, state: False)
    assert_same(found, decode_batch(model, PROMPTS, recipe=recipe, matches=matches))


@pytest.mark.parametrize("settings", [{}, {"search": "best-of-n", "temperature": 0.0}], ids=str)
def test_texts_that_are_over(settings, monkeypatch) -> None:
    recipe = Recipe(**{"sampler": "semi-ar", "length": 32, "block_length": 4, "temperature": 0.8, **settings})
    one, other = both(recipe, monkeypatch, stop=list("abcdefghijklmnop"))
    assert_same(one, other)
    assert all(result.evaluations < 32 * len(result.particles) for result in one)


def test_what_was_recorded_serves_the_next_batch_and_goes_with_its_model(monkeypatch) -> None:
    model, recipe = random_transformer("cuda"), Recipe("uniform", "smc", length=24, temperature=1.0, every=8)
    made, real = [], recorded.Recorded.__init__
    monkeypatch.setattr(recorded.Recorded, "__init__", lambda self, *given: made.append(1) or real(self, *given))
    first = decode_batch(model, ["a cat", "a dog"], recipe=recipe)
    assert len(made) == 2
    other = decode_batch(model, ["a cow", "a pig"], recipe=recipe)
    again = decode_batch(model, ["a cat", "a dog"], recipe=recipe)
    assert len(made) == 2
    assert_same(first, again)
    assert_same(other, decode_batch(random_transformer("cuda"), ["a cow", "a pig"], recipe=recipe))
    gone = weakref.ref(model.network)
    del model
    assert gone() is None


def walk_of(model, recipe: Recipe, length: int):
    rows = [from_prompt(model, [1, 2, 3], length), from_prompt(model, [4, 5, 6], length)]
    return engine.walk(*prepare(model, rows, [0, 1], recipe))


@pytest.mark.parametrize("search", ["vanilla", "best-of-n", "smc"])
@pytest.mark.parametrize("sampler", ["uniform", "confidence", "entropy", "margin", "eb", "fast-dllm", "semi-ar", "p2"])
def test_no_step_waits(sampler: str, search: str) -> None:
    extra = {"every": 2} if search == "smc" else {}
    recipe = Recipe(sampler, search, length=24, temperature=1.0, **extra)
    moments = walk_of(random_transformer("cuda"), recipe, 24)
    list(islice(moments, 4))  # the first step, and both kinds of step recorded
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in islice(moments, 6):
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    list(moments)


def test_broken_logits_are_told() -> None:
    model = random_transformer("cuda")
    moments = walk_of(model, Recipe("uniform", length=12, temperature=1.0), 12)
    list(islice(moments, 5))
    model.network.norm.weight.data.fill_(torch.nan)
    with pytest.raises(ModelError, match="NaN or"):
        list(moments)


def test_prompts_that_end_sooner_are_left_out(monkeypatch) -> None:
    model, sizes = load("random", "cuda"), []
    real = recorded.Recorded.__init__
    monkeypatch.setattr(
        recorded.Recorded,
        "__init__",
        lambda self, step, loop: sizes.append(len(loop.carry.active)) or real(self, step, loop),
    )
    canvases = [[1, *[model.vocab.mask] * holes, 2] for holes in (20, 2, 3, 2, 11)]
    recipe = Recipe("confidence", "best-of-n", particles=3, temperature=1.0)
    found = decode_batch(model, canvases=canvases, recipe=recipe)
    monkeypatch.setattr(recorded, "can_record", lambda setup, state: False)
    assert_same(found, decode_batch(model, canvases=canvases, recipe=recipe))
    assert min(sizes) == 3 and max(sizes) == 15


def test_a_compiled_network() -> None:
    """Compiled numbers may differ in their last bits, so tokens are only nearly always the same."""
    model = load("random", "cuda")
    recipe = Recipe("uniform", "smc", length=24, temperature=1.0, particles=4, every=6)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a step could not be compiled")
        one, two = (decode_batch(each, PROMPTS, recipe=recipe) for each in (model, compiled(model)))
    for a, b in zip(one, two, strict=True):
        assert a.evaluations == b.evaluations and a.path_entropy == pytest.approx(b.path_entropy, abs=0.05)


def test_memory_of_a_step() -> None:
    """8 × 1,024 masked positions and 126,464 tokens: a step takes next to nothing beyond the network."""
    model = make("tiny", torch.device("cuda"), torch.bfloat16)
    shape, device = (8, 1024), model.device
    hidden = torch.randn(*shape, 4096, device=device, dtype=torch.bfloat16, generator=torch.Generator(device))
    weight = torch.randn(126_464, 4096, device=device, dtype=torch.bfloat16, generator=torch.Generator(device))
    from unmask.core import beliefs
    from unmask.core.denoiser import Head

    head, everywhere = Head(len(weight), weight / 64), torch.ones(shape, dtype=torch.bool, device=device)
    noise = torch.rand(shape, device=device, dtype=torch.float64, generator=torch.Generator(device))
    for how in (
        beliefs.DrawRule(1.0),
        beliefs.DrawRule(0.7, ban=(5,)),
        beliefs.DrawRule(1.0, top_p=0.9),
        beliefs.DrawRule(1.0, top_k=50),
    ):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        beliefs.weigh(hidden, head, everywhere, torch.zeros(shape, dtype=torch.int64, device=device))
        beliefs.draw(hidden, head, everywhere, noise, how)
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() - before <= 256 * 2**20, how


def test_what_cannot_be_recorded_asks() -> None:
    model = load("random", "cuda", torch.float64)
    recipe = Recipe("uniform", length=4, temperature=1.0)
    denoiser, state, sampler, search, rules = prepare(model, [from_prompt(model, [1], 4)], [0], recipe)
    assert not recorded.can_record(Setup(denoiser, sampler, search, rules), state)
    assert len(list(engine.walk(denoiser, state, sampler, search, rules))) == 4


# --- with a cache -----------------------------------------------------------------------------------------------------

IN_BLOCKS = [
    {},
    {"search": "smc", "particles": 3},
    {"search": "smc", "particles": 3, "every": 3, "strength": 20.0},
    {"search": "beam", "beams": 2},
    {"search": "auto", "particles": 4, "guidance": 0.7},
    {"search": "smc", "particles": 3, "length": 11},
]
WINDOWS = [{"cache_after": 0}, {"cache_before": 2, "cache_after": 3, "cache_every": 3}, {}]


@pytest.mark.parametrize("settings", IN_BLOCKS, ids=str)
@pytest.mark.parametrize("family", ["sdar", "fast-dllm-v2", "llada2", "a2d"])
def test_attention_in_blocks(family: str, settings, tmp_path, monkeypatch) -> None:
    """Recorded steps, steps that ask, and the CPU give the same tokens."""
    fabricate(family, tmp_path / family, seed=3)
    model, here = (load(tmp_path / family, device, torch.float32) for device in ("cuda", "cpu"))
    recipe = Recipe(**{"sampler": "semi-ar", "search": "vanilla", "length": 18, "temperature": 0.8, **settings})
    played, real = [], recorded.Recorded.play
    monkeypatch.setattr(recorded.Recorded, "play", lambda self, step: played.append(step) or real(self, step))
    found, asked = both(recipe, monkeypatch, Chunked(model, 2) if recipe.length == 11 else model)
    assert len(played) >= 8
    assert_same(found, asked)
    assert_same(found, decode_batch(here, PROMPTS, recipe=recipe))


@pytest.mark.parametrize("cache", WINDOWS, ids=str)
@pytest.mark.parametrize("settings", IN_BLOCKS, ids=str)
@pytest.mark.parametrize("family", ["llada", "dream", "mdlm"])
def test_windows(family: str, settings, cache, tmp_path, monkeypatch) -> None:
    fabricate(family, tmp_path / family, seed=3)
    model = load(tmp_path / family, "cuda", torch.float32)
    blocks = {"cache_block": 4, "cache_before": 0, "block_length": 4, "scope": "block", **cache}
    recipe = Recipe(
        **{"sampler": "semi-ar", "search": "vanilla", "length": 14, "temperature": 0.8, **blocks, **settings}
    )
    found, asked = both(recipe, monkeypatch, Chunked(model, 2) if recipe.length == 11 else model)
    assert_same(found, asked)


@pytest.mark.parametrize("family", ["sdar", "llada"])
def test_recordings_with_a_cache_serve_the_next_batch(family: str, tmp_path, monkeypatch) -> None:
    fabricate(family, tmp_path / family, seed=3)
    blocks = {"cache_block": 4, "cache_after": 0, "block_length": 4} if family == "llada" else {}
    recipe = Recipe("semi-ar", "smc", particles=3, length=16, temperature=1.0, **blocks)
    made, real = [], recorded.Recorded.__init__
    monkeypatch.setattr(recorded.Recorded, "__init__", lambda self, *given: made.append(1) or real(self, *given))
    model = load(tmp_path / family, "cuda", torch.float32)
    first = decode_batch(model, ["a cat", "a dog"], recipe=recipe)
    count = len(made)
    other = decode_batch(model, ["a cow", "a pig"], recipe=recipe)
    again = decode_batch(model, ["a cat", "a dog"], recipe=recipe)
    assert 0 < count == len(made)
    assert_same(first, again)
    assert_same(other, decode_batch(load(tmp_path / family, "cuda", torch.float32), ["a cow", "a pig"], recipe=recipe))
    gone = weakref.ref(model.network)
    del model
    assert gone() is None


@pytest.mark.parametrize("family", ["sdar", "llada"])
def test_no_step_with_a_cache_waits(family: str, tmp_path) -> None:
    fabricate(family, tmp_path / family, seed=3)
    blocks = {"cache_block": 4, "cache_after": 0, "block_length": 4} if family == "llada" else {}
    recipe = Recipe("semi-ar", "smc", particles=3, length=32, temperature=1.0, **blocks)
    moments = walk_of(load(tmp_path / family, "cuda", torch.float32), recipe, 32)
    list(islice(moments, 10))  # the first step, and each kind of step recorded
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in islice(moments, 8):
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    list(moments)
