"""Every family: a padded batch is each row alone, wrappers and caches change nothing that they may not change."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unmask import Recipe, decode, decode_batch, load
from unmask.core.denoiser import Denoiser, Head
from unmask.core.state import State, begin
from unmask.core.walk import walk
from unmask.decoding.prompt import from_prompt, start
from unmask.errors import InputError, ModelError, SettingError
from unmask.models import FAMILIES
from unmask.models.cache import BlockCache, WindowCache, cached
from unmask.models.families.blueprint import Config
from unmask.models.made.fabricate import fabricate
from unmask.models.transformer import Transformer
from unmask.models.wrap import Chunked, Counted, Guided

IN_BLOCKS = [name for name, family in FAMILIES.items() if family.read(Config(family.published.tiny)).aligned]
FULL_ATTENTION = [name for name in FAMILIES if name not in IN_BLOCKS]
VARIANTS = {  # switches of the shared network that no published family needs
    "learned": {"position": "learned", "places": 64, "limit": 64, "norm": "layer", "qkv_bias": True, "bias": True},
    "both": {"position": "both", "places": 64, "limit": 64, "tied": True},
    "plain-mlp": {
        "position": "rotary",
        "gated": False,
        "kv_heads": 2,
        "tied": True,
        "head_width": 24,
        "time_input": False,
    },
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """A tiny checkpoint of every family, and of some more shapes."""
    root, found = tmp_path_factory.mktemp("checkpoints"), {}
    for name in FAMILIES:
        fabricate(name, root / name, seed=1)
        found[name] = root / name
    for name, changes in VARIANTS.items():
        native = FAMILIES["native"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(FAMILIES, name, _replaced(native, {**native.published.tiny, **changes}))
            fabricate(name, root / name, seed=1)
        found[name] = root / name
    return found


def _replaced(family, tiny):
    return dataclasses.replace(family, published=dataclasses.replace(family.published, tiny=tiny))


@pytest.fixture(params=[*FULL_ATTENTION, *VARIANTS])
def model(request, checkpoints) -> Transformer:
    return load(checkpoints[request.param])


@pytest.fixture(params=IN_BLOCKS)
def block_model(request, checkpoints) -> Transformer:
    return load(checkpoints[request.param])


def canvases(model: Denoiser) -> list[list[int]]:
    """Rows of unequal lengths with prompts and holes."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for length in (23, 9, 16, 4):
        row = torch.randint(6, 200, (length,), generator=generator)
        holes = torch.rand(length, generator=generator) < 0.6
        holes[0], holes[-1] = False, True
        rows.append([model.vocab.mask if hole else int(token) for token, hole in zip(row, holes, strict=True)])
    return rows


def state_of(model: Denoiser, rows: list[list[int]]) -> State:
    longest = max(map(len, rows))
    tokens = torch.tensor([[model.vocab.pad] * (longest - len(row)) + row for row in rows])
    attend = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    state = begin(tokens, (tokens == model.vocab.mask) & attend, attend, torch.zeros(len(rows)).long(), model.vocab, 1)
    return state.replace(time=torch.linspace(0.2, 0.9, len(rows)).double())


def logits(model: Denoiser, state: State, rows: list[int] | None = None) -> torch.Tensor:
    hidden, _ = model.look(state, torch.tensor(rows or range(len(state.tokens))))
    return torch.nn.functional.linear(hidden, model.head.weight, model.head.bias)


# --- padding ---------------------------------------------------------------------------------------------------------


def test_a_padded_batch_has_the_numbers_of_each_row_alone(model):
    rows = canvases(model)
    state = state_of(model, rows)
    together = logits(model, state)
    for place, row in enumerate(rows):
        single = state_of(model, [row]).replace(time=state.time[place : place + 1])
        alone = logits(model, single)[0]
        scale = alone.std()
        assert (together[place, -len(row) :] - alone).abs().max() < 1e-5 * max(1.0, float(scale)), place
    assert together.isfinite().all()


@pytest.mark.parametrize("search", [{}, {"search": "smc", "particles": 3, "every": 2}], ids=["vanilla", "smc"])
@pytest.mark.parametrize("sampler", ["uniform", "confidence", "p2"])
def test_a_padded_batch_decodes_to_the_tokens_of_each_row_alone(model, sampler, search):
    rows = canvases(model)
    recipe = Recipe(sampler=sampler, temperature=0.7, **search)
    together = decode_batch(model, canvases=rows, recipe=recipe, seeds=[5, 6, 7, 8])
    for place, row in enumerate(rows):
        alone = decode(model, canvas=row, recipe=recipe.replace(seed=5 + place))
        assert [p.tokens for p in alone.particles] == [p.tokens for p in together[place].particles]
        assert alone.path_entropy == pytest.approx(together[place].path_entropy, abs=1e-4)


# --- attention in blocks ---------------------------------------------------------------------------------------------


def asked(model: Transformer, state: State) -> torch.Tensor:  # [B, L] bool
    """Masks in the block of a row's first mask: those that are decided next."""
    block = state.columns // model.blocks
    return state.masked & (block == block.where(state.masked, 1000).amin(1, keepdim=True))


def test_a_padded_batch_in_blocks_has_the_numbers_of_each_row_alone(block_model):
    rows = canvases(block_model)
    state = state_of(block_model, rows)
    together, here = logits(block_model, state), asked(block_model, state)
    for place, row in enumerate(rows):
        alone = logits(block_model, state_of(block_model, [row]))[0]
        mine = here[place, -len(row) :]
        assert mine.any() and (together[place, -len(row) :] - alone)[mine].abs().max() < 1e-5 * alone[mine].std()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_wrappers_change_nothing_in_blocks(block_model, rows):
    state = state_of(block_model, canvases(block_model))
    plain, here = logits(block_model, state), asked(block_model, state)
    for wrapped in (Chunked(block_model, rows), Counted(block_model)):
        assert (logits(wrapped, state) - plain)[here].abs().max() < 1e-5 * plain.std()


@pytest.mark.parametrize("blocks", [1, 3, 16, 1000])
def test_blocks_of_any_length(checkpoints, blocks):
    """What a block sees, against the network itself with a mask that is written out."""
    for name in IN_BLOCKS:
        model = load(checkpoints[name], blocks=blocks)
        assert (model.blocks, model.aligned, model.block_causal) == (blocks, True, True)
        tokens = torch.arange(6, 27)[None].repeat(2, 1)
        tokens[:, -1], tokens[1, 5] = model.vocab.mask, 99
        state = begin(tokens, tokens == model.vocab.mask, tokens > 0, torch.zeros(2).long(), model.vocab, 1)
        seen = torch.tensor([[[j // blocks <= i // blocks for j in range(21)] for i in range(21)]] * 2)
        hidden, _ = model.network(tokens, torch.arange(21)[None], seen=seen)
        expected = hidden.roll(1, 1) if model.shift else hidden
        found, _ = model.look(state, torch.arange(2))
        assert (found - expected)[:, 1:].abs().max() < 1e-5


def test_blocks_of_models_without_them(checkpoints):
    for name in FULL_ATTENTION:
        if not FAMILIES[name].blockwise:
            with pytest.raises(ModelError, match=f"blocks has no effect on {name}"):
                load(checkpoints[name], blocks=4)
    for wrong in (0, -1, True, 2.0, "4"):
        with pytest.raises(ModelError, match="it must be a whole number from 1 on"):
            load(checkpoints["sdar"], blocks=wrong)
    with pytest.raises(InputError, match="blocks has no effect on the model text"):
        load("text", blocks=4)
    with pytest.raises(InputError, match="blocks has no effect with trust_remote_code"):
        load(checkpoints["sdar"], blocks=4, trust_remote_code=True)


def test_a2d_is_in_blocks_where_the_user_says_so(checkpoints):
    plain, blocks = load(checkpoints["a2d"]), load(checkpoints["a2d"], blocks=8)
    assert not plain.block_causal and plain.blocks is None
    assert blocks.block_causal and blocks.aligned and blocks.blocks == 8
    state = state_of(plain, [[*range(6, 26), plain.vocab.mask, *range(30, 43)]])
    one, other = (logits(model, state)[0, 20] for model in (plain, blocks))
    assert (one - other).abs().max() > 1e-3


# --- wrappers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_chunks_of_rows_change_nothing(model, rows):
    state = state_of(model, canvases(model))
    assert (logits(Chunked(model, rows), state) - logits(model, state)).abs().max() < 1e-5 * logits(model, state).std()


def test_counting(model):
    counted = Counted(model)
    recipe = Recipe(sampler="uniform", steps=4, length=8, temperature=1.0, search="best-of-n", particles=3)
    result = decode(counted, [15, 16, 17], recipe=recipe)
    assert result.evaluations == 12 and counted.count.rows == 12 - 2  # the first step has three equal rows
    assert counted.count.calls == result.calls == 4
    assert result.tokens == decode(model, [15, 16, 17], recipe=recipe).tokens


def test_chunks_bound_the_rows_of_a_call(model):
    most = []

    class Watched(Counted):
        def look(self, state, rows):
            most.append(len(rows))
            return super().look(state, rows)

    recipe = Recipe(sampler="uniform", steps=4, length=8, temperature=1.0, search="smc", particles=7, every=1)
    found = decode(Chunked(Watched(model), 3), [15, 16, 17], recipe=recipe)
    assert max(most) == 3 and found.tokens == decode(model, [15, 16, 17], recipe=recipe).tokens


def test_wrappers_go_over_each_other(model):
    state = state_of(model, canvases(model))
    plain = logits(Guided(model, 1.5), state)
    for wrapped in (
        Guided(Chunked(model, 3), 1.5),
        Chunked(Guided(model, 1.5), 3),
        Counted(Guided(Counted(Chunked(model, 2)), 1.5)),
        Guided(WindowCache(model, 4), 1.5),
        Chunked(Guided(Chunked(WindowCache(model, 4), 3), 1.5), 2),
    ):
        masked = state.masked
        assert (logits(wrapped, state)[masked] - plain[masked]).abs().max() < 1e-5 * plain.std()


# --- the prefix cache ------------------------------------------------------------------------------------------------

SEMI = Recipe(sampler="semi-ar", block_length=4, length=12, temperature=1.0)


def test_blocks_of_one_refresh_at_every_step_and_are_exact(model):
    recipe = SEMI.replace(block_length=1)
    plain, kept = (decode(model, [15, 16, 17], recipe=r) for r in (recipe, recipe.replace(cache_block=1)))
    assert plain.tokens == kept.tokens
    assert plain.path_entropy == pytest.approx(kept.path_entropy, abs=1e-5)


def test_it_is_exact_at_each_refresh_and_approximate_in_between(model):
    seen: list[tuple[bool, float]] = []

    class Watched(Counted):
        def look(self, state, rows):
            hidden, cache = super().look(state, rows)
            exact = model.look(state, rows)[0]
            gap = float((hidden - exact)[state.masked[rows]].abs().max() / exact.std())
            old = state.cache is not None and bool((state.cache.block == cache.block).all())
            seen.append((old, gap))
            return hidden, cache

    walked = Watched(cached(model, 4))
    sampler, search = SEMI.build_sampler(), SEMI.build_search()
    state = start(walked, [from_prompt(walked, [15, 16, 17, 18], 12)], [0], sampler, 1)
    for _ in walk(walked, state, sampler, search):
        pass
    fresh, old = [gap for kept, gap in seen if not kept], [gap for kept, gap in seen if kept]
    assert len(fresh) == 3 and len(old) == 9  # one refresh for each block of 4
    assert max(fresh) < 1e-5
    assert max(old) > 1e-4  # a prefix that does not hear of new tokens


def test_a_cached_batch_decodes_to_the_tokens_of_each_row_alone(model):
    rows = canvases(model)
    for changes in ({}, {"guidance": 0.5}, {"search": "smc", "particles": 3, "every": 2}):
        recipe = Recipe(sampler="semi-ar", block_length=3, temperature=0.7, cache_block=3, **changes)
        together = decode_batch(model, canvases=rows, recipe=recipe, seeds=[5, 6, 7, 8])
        for place, row in enumerate(rows):
            alone = decode(Chunked(model, 2), canvas=row, recipe=recipe.replace(seed=5 + place))
            assert [p.tokens for p in alone.particles] == [p.tokens for p in together[place].particles]


def test_the_cache_follows_its_particle(model):
    state = state_of(model, canvases(model))
    kept = WindowCache(model, 3)
    _, cache = kept.look(state, torch.arange(4))
    ancestors = torch.tensor([2, 2, 0, 3])
    copied = state.replace(cache=cache).resample(ancestors)
    for (keys, values), (new_keys, new_values) in zip(cache.layers, copied.cache.layers, strict=True):
        assert torch.equal(new_keys, keys[ancestors]) and torch.equal(new_values, values[ancestors])
    assert torch.equal(copied.cache.block, cache.block[ancestors])
    again, same = kept.look(copied, torch.arange(4))
    exact, _ = model.look(state, ancestors)
    masked = copied.masked
    assert (again - exact)[masked].abs().max() < 1e-5 * exact.std()
    assert torch.equal(same.block, copied.cache.block)  # nothing was refreshed


@pytest.mark.parametrize("sampler", ["p2", "draft-refine"])
def test_it_is_refused_where_state_entropy_would_be_partial(sampler):
    with pytest.raises(SettingError, match="state entropy would leave them out"):
        Recipe(sampler=sampler, cache_block=8)


def test_it_is_refused_where_there_is_nothing_to_keep():
    with pytest.raises(SettingError, match="no keys and values"):
        decode(load("table"), "se", recipe=Recipe(length=4, cache_block=2))


def test_it_is_labelled(model):
    assert "approximate" in cached(model, 8).name
    assert decode(model, [15, 16], recipe=SEMI.replace(cache_block=4)).to_dict()["recipe"]["cache_block"] == 4


def test_what_is_kept_is_keys_and_values_only(model):
    state = state_of(model, canvases(model))
    kept = WindowCache(model, 3)
    _, cache = kept.look(state, torch.arange(4))
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for pair in cache.layers
        for tensor in pair
    }
    assert sum(held.values()) == state.tokens.numel() * kept.position_bytes


def test_a_cached_model_is_refused_where_a_setting_would_be(model):
    given = Chunked(WindowCache(model, 4), 2)
    with pytest.raises(SettingError, match="state entropy would leave them out"):
        decode(given, [15, 16], recipe=Recipe(sampler="p2", length=8))
    with pytest.raises(SettingError, match="a cache already"):
        decode(given, [15, 16], recipe=SEMI.replace(cache_block=4))
    assert (
        decode(given, [15, 16], recipe=SEMI).tokens
        == decode(model, [15, 16], recipe=SEMI.replace(cache_block=4, cache_before=0)).tokens
    )


def test_memory_for_the_cache_is_counted(model, monkeypatch):
    recipe = SEMI.replace(search="best-of-n", particles=40)
    need = 40 * 14 * 2 * WindowCache(model, 4).position_bytes
    monkeypatch.setattr("unmask.models.memory.free", lambda device: need)
    decode(model, [15, 16], recipe=recipe)
    with pytest.raises(SettingError, match="GiB are free"):
        decode(model, [15, 16], recipe=recipe.replace(cache_block=4))


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_of_wrappers_are_positive(model, size):
    for wrap in (Chunked, WindowCache):
        with pytest.raises(SettingError, match="at least 1"):
            wrap(model, size)


# --- ends and masks --------------------------------------------------------------------------------------------------


def test_a_text_of_mdlm_goes_on_after_the_end_of_a_document(checkpoints):
    """Its training text has <|endoftext|> at both ends of every chunk: a sample often begins with it."""
    model = load(checkpoints["mdlm"])
    words, end = model.tokenizer, 256
    assert model.vocab.eos == ()
    ids = [end, *words.encode("hello"), end, *words.encode("you")]
    fixed = _Says(model, ids)
    assert decode(fixed, canvas=[model.vocab.mask] * len(ids)).text == "helloyou"
    ended = load(checkpoints["llada"])
    said = [*ended.tokenizer.encode("hello"), ended.vocab.eos[1], *ended.tokenizer.encode("you")]
    assert decode(_Says(ended, said), canvas=[ended.vocab.mask] * len(said)).text == "hello"


class _Says(Counted):
    """A model that is sure of a text."""

    def __init__(self, inner, ids):
        super().__init__(inner)
        object.__setattr__(self, "ids", torch.tensor(ids))

    @property
    def head(self):
        return Head(self.inner.head.width)

    def look(self, state, rows):
        sure = torch.nn.functional.one_hot(self.ids, self.head.width).float() * 30
        return sure.expand(len(rows), -1, -1), None


def test_the_mask_of_mdlm_is_the_tokenizers_where_it_has_one(tmp_path):
    fabricate("mdlm", tmp_path / "mdlm")
    assert load(tmp_path / "mdlm").vocab.mask == 257
    path = tmp_path / "mdlm/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token": "!"}))
    model = load(tmp_path / "mdlm")
    assert model.vocab.mask == model.tokenizer.id("!") != 257
    assert model.head.absent == (model.vocab.mask,)


@pytest.mark.parametrize("kind", ["plain", "blocks", "window"])
def test_a_longer_neighbour_changes_no_bit(kind):
    """A row's numbers in float32, alone and beside rows of other lengths, for the bundled model of text."""
    text = load("text")
    model = {
        "plain": text,
        "blocks": BlockCache(replace(text, block_causal=True)),
        "window": WindowCache(text, 16, before=8, after=8),
    }[kind]
    mask = model.vocab.mask
    rows = [[5, 6, 7, *[mask] * 24], [9] * 17 + [mask] * 24, [1, 2, *[mask] * 24]]
    together, cache = model.look(state_of(model, rows), torch.arange(3))
    tokens = state_of(model, rows).tokens.clone()
    tokens[:, -24] = 11  # a step later, from what is kept
    after, _ = model.look(state_of(model, rows).replace(tokens=tokens, cache=cache), torch.arange(3))
    for place, row in enumerate(rows):
        state = state_of(model, [row])
        alone, kept = model.look(state, torch.arange(1))
        assert torch.equal(alone[0], together[place, -len(row) :])
        later = state.replace(tokens=tokens[place : place + 1, -len(row) :], cache=kept)
        assert torch.equal(model.look(later, torch.arange(1))[0][0], after[place, -len(row) :])
