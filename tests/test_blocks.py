"""Block-causal attention: what a position sees, the exact cache, training on two copies, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unmask.core.state import State, begin, padded
from unmask.decoding import parts
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import SettingError
from unmask.models import load
from unmask.models.cache import BlockCache, block_cached
from unmask.models.transformer import Transformer, block_causal, random_transformer
from unmask.models.wrap import Chunked
from unmask.train.process import block_times, blocks_of, noised_hidden, seen_copies

SIZE = 8
PROMPTS = ["hello there", "abc", "a b c d e f g"]
RECIPES = {
    "semi-ar": Recipe("semi-ar", attention="block", length=40, temperature=1.0),
    "shorter blocks": Recipe("uniform", attention="block", length=37, temperature=0.7, block_length=4),
    "threshold": Recipe("fast-dllm", attention="block", length=33, threshold=0.3),
    "guided": Recipe("confidence", attention="block", length=20, guidance=1.5),
    "resampled": Recipe(
        "uniform", attention="block", length=37, temperature=0.7, search="smc", particles=4, every=5, block_length=8
    ),
    "ended": Recipe("semi-ar", attention="block", length=40, temperature=1.0, fill_tail=True, skip_tail=True),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return replace(random_transformer(width=32, layers=3), blocks=SIZE)


def rows(model: Transformer, texts: list[str], length: int) -> State:
    mask = model.vocab.mask
    tokens, attend = padded([model.tokenizer.encode(text) + [mask] * length for text in texts], model.vocab.pad)
    return begin(tokens, (tokens == mask) & attend, attend, torch.arange(len(texts)), model.vocab, 1)


@pytest.mark.parametrize("name", RECIPES)
def test_same_with_and_without_the_cache(model: Transformer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = decode_batch(model, PROMPTS, recipe=RECIPES[name], seeds=[1, 2, 3])
    monkeypatch.setattr(parts, "block_cached", lambda denoiser, part: denoiser)
    fresh = decode_batch(model, PROMPTS, recipe=RECIPES[name], seeds=[1, 2, 3])
    for one, other in zip(kept, fresh, strict=True):
        assert one.tokens == other.tokens
        assert one.path_entropy == pytest.approx(other.path_entropy, abs=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_alone_as_in_a_batch(model: Transformer, name: str) -> None:
    together = decode_batch(model, PROMPTS, recipe=RECIPES[name], seeds=[1, 2, 3])
    for place, one in enumerate(together):
        assert decode_batch(model, [PROMPTS[place]], recipe=RECIPES[name], seeds=[place + 1])[0].tokens == one.tokens


def test_a_position_sees_no_later_block(model: Transformer) -> None:
    state = rows(model, PROMPTS, 4 * SIZE)
    blocks = block_causal(model)
    assert isinstance(blocks, Transformer)
    dice = torch.Generator().manual_seed(0)
    full = torch.randint(0, 20, state.tokens.shape, generator=dice)
    first = state.replace(tokens=full.where(state.writable, state.tokens))
    later = state.writable & (state.rank >= 2 * SIZE)
    second = first.replace(tokens=torch.where(later, (first.tokens + 1) % 20, first.tokens))
    everyone = torch.arange(len(PROMPTS))
    one, other = (blocks.look(each, everyone)[0] for each in (first, second))
    early = state.attend & ~later
    assert torch.equal(one[early], other[early])
    assert not torch.allclose(one[later], other[later])
    plain = model.look(second, everyone)[0]
    assert not torch.allclose(plain[early], other[early], atol=1e-3)


def test_training_sees_what_decoding_sees(model: Transformer) -> None:
    """Each noised block, beside the clean copy, as that block of a row whose blocks before it are decided."""
    network, mask = model.network, model.vocab.mask
    dice = torch.Generator().manual_seed(1)
    clean = torch.randint(0, 30, (3, 29), generator=dice)
    open = torch.arange(29) >= torch.tensor([[0], [5], [11]])
    blocks = blocks_of(open, SIZE)
    noised = clean.masked_fill(open & (torch.rand(clean.shape, generator=dice) < 0.6), mask)
    columns = torch.arange(29)[None]
    with torch.no_grad():
        found = noised_hidden(network, noised, clean, columns, network.waves(columns), blocks)
        for number in range(1, int(blocks.max()) + 1):
            tokens = torch.where(blocks < number, clean, torch.where(blocks == number, noised, mask))
            seen = blocks[:, :, None] >= blocks[:, None, :]
            alone, _ = network(tokens, columns, seen=seen)
            mine = blocks == number
            assert torch.allclose(found[mine], alone[mine], atol=1e-5)


def test_clean_copies_see_no_noise() -> None:
    blocks = blocks_of(torch.arange(12)[None] >= 3, 4)
    seen = seen_copies(blocks)[0]
    assert blocks[0].tolist() == [0] * 3 + [1] * 4 + [2] * 4 + [3]
    assert not seen[12:, :12].any()  # clean -> noised
    assert seen[:12, :12].equal(blocks[0][:, None] == blocks[0])
    assert seen[:12, 12:].equal(blocks[0][:, None] > blocks[0])
    assert seen[12:, 12:].equal(blocks[0][:, None] >= blocks[0])


def test_times_of_blocks_are_spread_evenly() -> None:
    blocks = blocks_of(torch.ones(64, 32, dtype=torch.bool), 8)
    when = block_times(blocks, 4, torch.Generator().manual_seed(0))
    each = when[:, ::8].flatten().sort().values
    assert (when.view(64, 4, 8) == when.view(64, 4, 8)[:, :, :1]).all()
    assert ((each * 256).floor() - torch.arange(256)).abs().max() <= 1


def test_cache_is_exact_and_rows_may_be_shared(model: Transformer) -> None:
    kept = block_cached(block_causal(model))
    assert isinstance(kept, BlockCache) and not kept.keeps_rows and kept.name == model.name
    assert isinstance(block_causal(Chunked(model, 2)), Chunked)


def test_entropies_are_those_of_the_block(model: Transformer) -> None:
    steps: list[dict] = []
    recipe = RECIPES["semi-ar"]
    decode_batch(model, ["abc"], recipe=recipe, on_event=steps.append)
    same = decode_batch(model, ["abc"], recipe=recipe.replace(block_length=SIZE, scope="block"))[0]
    assert decode_batch(model, ["abc"], recipe=recipe)[0].path_entropy == same.path_entropy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "p2", "steps": 4}, "attention block does not go with sampler p2, which knows no blocks"),
        (
            {"sampler": "confidence", "search": "smc", "reopen": 0.5},
            "attention block does not go with reopen, which masks positions of earlier blocks",
        ),
        ({"sampler": "semi-ar", "attention": "both"}, "unknown attention 'both'"),
    ],
)
def test_what_does_not_go_together(given: dict, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Recipe(**{"attention": "block", **given})
    assert message in str(caught.value)


def test_models_and_lengths_that_do_not_fit(model: Transformer) -> None:
    with pytest.raises(SettingError, match="sudoku was not trained with block-causal attention"):
        decode_batch(load("sudoku"), canvases=[[9] * 81], recipe=Recipe("semi-ar", attention="block"))
    with pytest.raises(SettingError, match="block_length is 3, which does not divide the 8 positions"):
        decode_batch(model, ["a"], recipe=Recipe("semi-ar", attention="block", block_length=3, length=8))
