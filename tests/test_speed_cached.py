"""`unmask bench speed` with caches and blocks: the bare pass is the network, the columns counted are those computed."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from unmask import Recipe
from unmask.cli import main
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import from_prompt
from unmask.errors import InputError
from unmask.evaluate.speed import bare, baselines, blocks, clock, measure, walking
from unmask.evaluate.speed.bare import Columns
from unmask.evaluate.speed.blocks import Watch
from unmask.evaluate.speed.walking import TIMED
from unmask.models.cache import BlockCache, block_cached
from unmask.models.families.fast_dllm import FAST_DLLM
from unmask.models.families.llada_moe import LLADA2
from unmask.models.families.mdlm import MDLM
from unmask.models.made.random_sizes import SIZES, Size, make
from unmask.models.transformer import Transformer, random_transformer

SVG = "{http://www.w3.org/2000/svg}"
QUICK = ["--repeat", "1", "--no-compile", "--json"]
TINY = {"mdlm": MDLM, "fast-dllm-v2": FAST_DLLM, "llada2": LLADA2}
DUAL = "--sampler semi-ar --block-length 8 --cache --cache-before 0 --cache-after 0".split()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setitem(clock.BLOCK, "cpu", 0.01)
    for name, family in TINY.items():
        monkeypatch.setitem(SIZES, name, Size(family, family.published.tiny | {"mask_token_id": 257}, 8, 64))


def made(name: str, **changes) -> Transformer:
    if name == "text":
        return replace(random_transformer(width=32), blocks=8)
    return replace(make(name, torch.device("cpu")), **changes)


def measured(capsys, *argv: str) -> dict:
    assert main(["bench", "speed", *argv, *QUICK]) == 0
    return json.loads(capsys.readouterr().out)


def consistent(found: dict) -> None:
    cached = found["cached"]
    share = cached["refresh_share"]
    mixed = (1 - share) * cached["inner_ms"] + share * cached["refresh_ms"]
    assert 0 < share < 1 and found["backbone_ms"] == pytest.approx(mixed)
    assert found["floor_ms"] == pytest.approx(found["backbone_ms"] + found["head_ms"])
    assert found["ratio_to_floor"] == pytest.approx(found["step_ms"] / found["floor_ms"])
    assert cached["public_cached_ms"] > 0 and cached["public_cached_row_ms"] > 0
    kept = cached["kept"]
    assert kept["prompt_bytes"] + kept["rows_bytes"] == kept["expected_bytes"] > 0


# --- the command -----------------------------------------------------------------------------------------------------


def test_blocks_of_attention_with_a_sweep_and_a_plot(capsys, tmp_path):
    plot = tmp_path / "cost.svg"
    flags = ["--size", "tiny-sdar", "--prompt", "10", "--length", "22", "--particles", "4", "--against", "exact"]
    found = measured(capsys, *flags, "--sweep", "particles=1,4", "--plot", str(plot))
    for one in (found, *found["sweep"]["particles"]):
        consistent(one)
    cached = found["cached"]
    # Blocks of 4 columns from the start: 8 are given before the first open block, whose first 2 are given, too.
    assert (cached["inner_columns"], cached["refresh_columns"]) == (4, 8)
    assert cached["refresh_share"] == pytest.approx(5 / 20)  # 22 steps, of which 2 are in the first block
    assert cached["inner_kept"] == 20  # 12, 16, … 28
    assert found["head_rows"] == 4 * 2.5  # 4, 3, 2, 1
    kept = cached["kept"]
    assert (kept["prompt_positions"], kept["rows"], kept["row_positions"]) == (8, 4, 20)
    assert kept["position_bytes"] * 8 == kept["prompt_bytes"]  # once, whatever the particles
    assert found["sweep"]["particles"][0]["cached"]["kept"]["prompt_bytes"] == kept["prompt_bytes"]
    assert found["ratio_to_against"] == pytest.approx(found["step_ms"] / found["against_ms"])
    assert found["against_seconds"] > 0 and found["against"] == "exact"
    texts = {text.text.strip() for text in ElementTree.parse(plot).getroot().iter(f"{SVG}text")}
    assert {"milliseconds a step, by particles", "tokens a second, by particles"} <= texts
    assert {"public, cached", "public, cached, one row", "of the answer", "of all particles"} <= texts


def test_a_window(capsys):
    found = measured(capsys, "--size", "tiny", *DUAL, "--particles", "2", "--against", "exact")
    consistent(found)
    cached = found["cached"]
    assert (cached["inner_columns"], cached["inner_kept"], cached["refresh_columns"]) == (8, 32, None)
    assert cached["refresh_share"] == pytest.approx(1 / 8)
    # a refresh looks at all masks; the steps after it at those of the block
    assert found["head_rows"] == pytest.approx(2 * (24 + 16 + 8 + 3 * 28) / 24)
    kept = cached["kept"]
    assert (kept["prompt_positions"], kept["rows"], kept["row_positions"]) == (0, 2, 40)


def test_of_a_long_decode_without_a_cache_some_steps_are_timed(capsys, monkeypatch):
    monkeypatch.setattr(walking, "LIKE", 2)
    found = measured(capsys, "--size", "tiny", *DUAL, "--particles", "2", "--against", "exact", "--length", "16")
    assert found["against_seconds"] is None and found["against_ms"] > 0


def test_masks_of_the_block_alone(capsys):
    found = measured(capsys, "--size", "tiny", *DUAL, "--particles", "2", "--scope", "block")
    assert found["head_rows"] == 2 * 4.5  # 8, 7, … 1


def test_experts_and_guidance(capsys):
    consistent(measured(capsys, "--size", "llada2", "--particles", "2", "--guidance", "0.5"))


def test_the_table(capsys):
    flags = ["--size", "tiny-sdar", "--particles", "2", "--against", "exact", "--repeat", "1", "--no-compile"]
    assert main(["bench", "speed", *flags]) == 0
    out = capsys.readouterr().out
    for part in ("4 columns, 24 kept", "8 columns, in 25.0% of the steps", "unmask, exact", "one row"):
        assert part in out
    assert "public style with a cache, eager" in out
    assert "kept: prompt of 8 positions once 0.01 MiB, 2 rows of 28 positions 0.04 MiB · at 768 bytes a position" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--size", "tiny", "--against", "exact"], "nothing is cached: give --cache or --attention block"),
        (["--size", "tiny-sdar", "--length", "4"], "the decode has one block of 4 positions: take a longer one"),
    ],
)
def test_bad_input(capsys, argv, said):
    assert main(["bench", "speed", *argv, "--no-compile"]) == 2
    assert said in capsys.readouterr().err


def test_the_compiled_columns_are_timed(monkeypatch):
    asked = []

    def compiled(function, **how):
        asked.append(how)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    recipe = Recipe(sampler="uniform", temperature=1.0, length=12)
    found = measure.measure(make("tiny-sdar", torch.device("cpu")), recipe, repeat=1)
    assert asked == [{"dynamic": False}] * 4  # unmask's own, all columns, a block, a block and the one before
    assert set(found["backbones_ms"]) == {"eager", "compiled"} and found["network"] == "eager"


def test_a_public_step_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(baselines, "COPIES", 2**60)
    recipe = Recipe(sampler="semi-ar", block_length=4, length=12, cache=True, cache_before=0, cache_after=0)
    found = measure.measure(make("tiny", torch.device("cpu")), recipe, compile=False, repeat=1)
    assert found["public_eager_ms"] is found["cached"]["public_cached_ms"] is None
    assert found["cached"]["public_cached_row_ms"] > 0


# --- the floor --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "tiny-sdar", "fast-dllm-v2", "llada2", "mdlm"])
def test_the_bare_pass_is_the_network(name):
    model = made(name)
    network, columns = model.network, Columns(6, (4, 4))
    tokens = torch.randint(0, 100, (3, 14), generator=torch.Generator().manual_seed(0))
    at, number = torch.arange(14)[None], torch.tensor([0] * 6 + [1] * 4 + [2] * 4)
    sigma = None if model.noise is None else model.noise(torch.full((3,), 0.5, dtype=torch.float64))
    seen = (number[:, None] >= number)[None]
    hidden, layers = network(tokens, at, None, sigma, (), True, None, seen)
    kept = bare.buffers(network, 3, columns)
    for (keys, values), (true_keys, true_values) in zip(kept, layers, strict=True):
        keys[:, :, :6], values[:, :, :6] = true_keys[:, :, :6], true_values[:, :, :6]
    some = at[:, 6:]
    found = bare.forward(network, columns)(tokens[:, 6:], some, sigma, kept, *(network.waves(some) or ()))
    assert torch.allclose(found, hidden[:, 6:], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("text", Recipe("semi-ar", attention="block", temperature=1.0)),
        ("text", Recipe("uniform", attention="block", temperature=1.0, block_length=4)),
        ("text", Recipe("fast-dllm", attention="block", threshold=0.2)),
        ("tiny-sdar", Recipe("uniform", temperature=1.0)),
        ("fast-dllm-v2", Recipe("fast-dllm-v2", threshold=0.02)),
        ("fast-dllm-v2", Recipe("fast-dllm-v2", threshold=0.9, sub_block=4, cache_block=4)),
        ("tiny", Recipe("semi-ar", block_length=8, cache=True)),
        ("tiny", Recipe("semi-ar", block_length=8, cache=True, cache_before=0, cache_after=0)),
        ("tiny", Recipe("semi-ar", block_length=8, cache=True, cache_before=3, cache_after=4, cache_every=3)),
        ("tiny", Recipe("fast-dllm", threshold=0.01, block_length=8, cache=True, temperature=1.0)),
    ],
)
def test_the_columns_that_are_counted_are_computed(name, recipe):
    """Every call of the network has the columns that were counted: what is timed is what a decode does."""
    model, recipe, prompt = made(name), recipe.replace(length=40), 11
    canvas = measure.canvas(model, recipe, prompt)
    denoiser, state, sampler, search, rules = prepare(model, [canvas], [0], recipe)
    scheme = blocks.scheme(denoiser, state, sampler.block_length, rules.scope)
    watch, widths = Watch(scheme, state), []
    model.network.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    for moment in walk(denoiser, state, sampler, search, rules):
        watch(moment)
    looks = [look for looks in watch.steps for look in looks]
    refreshed = sum(look.refreshed for look in looks)
    assert looks[0].entered and looks[0].refreshed and 0 < refreshed < len(looks)
    given = [scheme.given] if scheme.window is None and scheme.given else []
    assert widths == given + [look.stored + look.whole if look.refreshed else look.width for look in looks]


def test_the_prompt_is_kept_once():
    model = replace(random_transformer(width=32), blocks=8)
    recipe = Recipe("uniform", attention="block", temperature=1.0, search="smc", particles=8, length=24)
    canvas = measure.canvas(model, recipe, 2048)
    denoiser, state, sampler, search, rules = prepare(model, [canvas], [0], recipe)
    watch = Watch(blocks.scheme(denoiser, state, sampler.block_length, rules.scope), state)
    for moment in walk(denoiser, state, sampler, search, rules):
        watch(moment)
    found, each = blocks.kept(denoiser, watch), 2 * 2 * 32 * 4  # keys and values, layers, width, bytes
    assert found == {
        "prompt_positions": 2048,
        "prompt_bytes": 2048 * each,
        "rows": 8,
        "row_positions": 16,
        "rows_bytes": 8 * 16 * each,
        "position_bytes": each,
        "expected_bytes": (2048 + 8 * 16) * each,
    }
    assert moment.state.cache.bytes == found["expected_bytes"]


def test_one_block_is_too_short():
    model = replace(random_transformer(width=32), blocks=8)
    recipe = Recipe("uniform", attention="block", length=8)
    denoiser, state, sampler, search, rules = prepare(model, [measure.canvas(model, recipe, 0)], [0], recipe)
    watch = Watch(blocks.scheme(denoiser, state, sampler.block_length, rules.scope), state)
    for moment in walk(denoiser, state, sampler, search, rules):
        watch(moment)
    with pytest.raises(InputError, match="one block of 8 positions"):
        blocks.pace(watch.scheme, watch.steps, TIMED)


def test_without_a_cache():
    model = replace(random_transformer(width=32), blocks=8)
    recipe = Recipe("uniform", attention="block", temperature=1.0, length=24)
    assert measure.without_cache(model, recipe) == Recipe("uniform", temperature=1.0, length=24, block_length=8)
    kept = block_cached(replace(model, block_causal=True))
    assert isinstance(kept, BlockCache) and blocks.uncached(kept) is kept.inner
    windowed = Recipe("semi-ar", block_length=8, cache=True, cache_after=0)
    assert measure.without_cache(model, windowed) == Recipe("semi-ar", block_length=8)


@torch.no_grad()
@pytest.mark.parametrize("columns", [None, Columns(8, (4,))])
def test_layers_of_a_deep_network_are_compiled_once(monkeypatch, columns):
    from torch._dynamo.utils import counters  # a second and a half: nobody else who collects tests waits for it

    compiling, model = torch.compile, random_transformer(layers=baselines.DEEP)
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiling(function, backend="eager", **how))
    _, state, *_ = prepare(model, [from_prompt(model, [1, 2, 3], 9)], [0], Recipe("uniform"))
    torch.compiler.reset()
    counters.clear()
    if columns is None:
        found = baselines.backbones(model, state, 2, compile=True)
    else:
        found = baselines.column_backbones(model, state, 2, columns, compile=True)
    assert list(found.runs) == ["eager", "compiled by layer"] and found.notes == []
    assert counters["stats"]["unique_graphs"] == 1
    eager, compiled = (run() for run in found.runs.values())
    torch.testing.assert_close(compiled, eager)
