"""Laws of block-causal models: every sampler that knows blocks × every search, with the exact cache and without.

Blocks are aligned to columns, prompts have unequal lengths (so that the first open block holds a part of some), and one
canvas has holes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Recipe, Result, decode_batch
from unmask.core.state import begin, numbers, padded
from unmask.core.walk import walk
from unmask.decoding import decode as decoding
from unmask.decoding import parts
from unmask.decoding.settings import takes
from unmask.errors import SettingError
from unmask.models.cache import KeptBlocks
from unmask.models.transformer import Transformer, random_transformer
from unmask.models.wrap import Chunked, Counted

from .cases import SEARCH_VARIANTS, alone, samplers

SIZE = 4
MASK = -1
ROWS = [
    [7, 4, 9, *[MASK] * 9],  # the first open block begins in the prompt
    [1, 20, 8, 30, *[MASK] * 8],  # and here behind it
    [5, *[MASK] * 7],
    [3, 8, MASK, MASK, 11, MASK, MASK, 2, 6, 6, MASK, 1],  # holes: a block with one, one with two, one without
]
SEEDS = [3, 5, 8, 2**41]
KNOWS = [name for name in SAMPLERS if "block_length" in takes(SAMPLERS[name]) and name != "pc"]
SETTINGS = {
    name: {key: value for key, value in samplers(name)[0].items() if key not in ("block_length", "steps")}
    for name in KNOWS
}
EDITS = {"threshold": 0.1, "edit_threshold": 0.05, "edit_rounds": 2}
PAIRS = [(name, SETTINGS[name]) for name in KNOWS] + [("llada2", EDITS), ("semi-ar", {"block_length": 2, "steps": 11})]
PLACES = range(len(PAIRS))
NAMES = [f"{name}-{given}" for name, given in PAIRS]
SEARCH = {name: (SEARCH_VARIANTS.get(name) or [{}])[0] for name in SEARCHES}


def model(dtype: torch.dtype = torch.float64, shift: bool = False) -> Transformer:
    plain = random_transformer(seed=51, width=32, layers=2, dtype=dtype, limit=64)
    return replace(plain, blocks=SIZE, aligned=True, block_causal=True, shift=shift)


@lru_cache
def models() -> dict[str, Transformer]:
    return {"float64": model(), "float32": model(torch.float32), "shifted": model(shift=True)}


def recipe(sampler: str, given: dict[str, Any], search: str, **more: Any) -> Recipe:
    found = {"temperature": 0.8, **given, **SEARCH[search], **more}
    if search == "smc":  # at blocks, where the model determines it
        found.pop("every", None)
    return Recipe(sampler, search, **found)


def decoded(denoiser: Any, one: Recipe, places: list[int] | None = None) -> list[Result]:
    places = list(range(len(ROWS))) if places is None else places
    rows = [[denoiser.vocab.mask if token == MASK else token for token in ROWS[place]] for place in places]
    return decode_batch(denoiser, canvases=rows, recipe=one, seeds=[SEEDS[place] for place in places])


@lru_cache
def together(place: int, search: str) -> list[Result]:
    """All rows in one batch, under PAIRS[place] and a search: what several laws compare with."""
    return decoded(models()["float64"], recipe(*PAIRS[place], search))


@lru_cache
def vanilla(place: int) -> list[Result]:
    sampler, given = PAIRS[place]
    return decoded(models()["float64"], Recipe(sampler, **{"temperature": 0.8, **given}))


def same(one: list[Result], other: list[Result], close: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
        assert a.evaluations == b.evaluations and a.chosen == b.chosen
        for p, q in zip(a.particles, b.particles, strict=True):
            assert p.path_entropy == pytest.approx(q.path_entropy, abs=close)
            assert p.log_prob == pytest.approx(q.log_prob, abs=close)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("place", PLACES, ids=NAMES)
def test_cached_is_uncached(place: int, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precision and shift know nothing of the search: one that copies rows stands for all."""
    one = recipe(*PAIRS[place], search)
    for name, denoiser in models().items() if search == "smc" else [("float64", models()["float64"])]:
        with_cache = together(place, search) if name == "float64" else decoded(denoiser, one)
        with monkeypatch.context() as patch:
            patch.setattr(parts, "block_cached", lambda inner, part: inner)
            without = decoded(denoiser, one)
        same(with_cache, without, 1e-4 if name == "float32" else 1e-9)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("place", PLACES, ids=NAMES)
def test_alone_is_in_a_batch(place: int, search: str) -> None:
    one, denoiser, all_of_them = recipe(*PAIRS[place], search), models()["float64"], together(place, search)
    for places in ([0], [2], [3, 1]):  # alone, and in another batch in another order
        same(decoded(denoiser, one, places), [all_of_them[place] for place in places], 1e-9)
    same(decoded(Chunked(denoiser, 2), one), all_of_them, 1e-9)
    for result, row in zip(all_of_them, ROWS, strict=True):
        for particle in result.particles:
            assert all(token == given for token, given in zip(particle.tokens, row, strict=True) if given != MASK)
            assert denoiser.vocab.mask not in particle.tokens


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("place", PLACES, ids=NAMES)
def test_one_particle_is_vanilla(place: int, search: str) -> None:
    sampler, given = PAIRS[place]
    settings = {"temperature": 0.8, **given, **alone(search)}
    one, plain = decoded(models()["float64"], Recipe(sampler, search, **settings)), vanilla(place)
    assert [a.tokens for a in one] == [b.tokens for b in plain]
    assert [a.evaluations for a in one] == [b.evaluations for b in plain]


@pytest.mark.parametrize(("sampler", "given"), PAIRS, ids=str)
def test_entropies_are_those_of_the_open_block(sampler: str, given: dict[str, Any]) -> None:
    """Every state entropy again, from one pass over the whole row, at the masks of the first block that has any."""
    denoiser, events = models()["float64"], list[dict[str, Any]]()
    if "edit_threshold" in given:
        given = {**given, "edit_rounds": 0}  # otherwise a block may be open without masks
    one = Recipe(sampler, temperature=0.8, ban=("eos",), **given)
    rows = [[denoiser.vocab.mask if token == MASK else token for token in row] for row in ROWS]
    decode_batch(denoiser, canvases=rows, recipe=one, seeds=SEEDS, on_event=events.append)
    tokens, attend = padded(rows, denoiser.vocab.pad)
    state = begin(tokens, (tokens == denoiser.vocab.mask) & attend, attend, torch.arange(4), denoiser.vocab, 1)
    length, checked = tokens.shape[1], 0
    for event in (event for event in events if event["event"] == "step"):
        hidden, _ = denoiser.look(state, torch.arange(4))
        block = numbers(state, denoiser.attention).where(state.masked, length)
        masked = state.masked & (block == block.amin(1, keepdim=True))
        logs = torch.stack([denoiser.head.logits(row).log_softmax(1) for row in hidden])
        entropy = torch.distributions.Categorical(logits=logs).entropy() / torch.log(torch.tensor(2.0))
        for row, h in enumerate(event["h"]):
            if h is not None:
                assert h == pytest.approx(float(entropy[row][masked[row]].mean()), abs=1e-6)
                checked += 1
        changed = state.tokens.clone()
        for row, column, token, _ in event["changes"]:
            changed[row, column + length - len(rows[row])] = token
        state = state.replace(tokens=changed)
    assert checked > 12


def test_particles_meet_where_a_block_begins() -> None:
    """Resampling happens with all particles at the first step of a block, also where rounds are of unequal numbers."""
    denoiser, events = models()["float64"], list[dict[str, Any]]()
    one = Recipe("sdar", "smc", threshold=0.08, temperature=1.0, particles=6, strength=3.0, ban=("eos",))
    row = [7, 4, 9] + [denoiser.vocab.mask] * 17
    decode_batch(denoiser, canvases=[row], recipe=one, seeds=[4], on_event=events.append)
    canvases = [list(row) for _ in range(6)]
    meetings, waited = 0, False
    for event in (event for event in events if event["event"] == "step"):
        firsts = [(c.index(denoiser.vocab.mask) if denoiser.vocab.mask in c else 99) // SIZE for c in canvases]
        moved = {row for row, *_ in event["changes"]}
        waited = waited or len(set(firsts)) > 1
        assert all(firsts[row] == min(firsts) for row in moved)  # nobody runs ahead
        if event.get("ancestors") is not None:
            meetings += 1
            begin = firsts[0] * SIZE
            assert len(set(firsts)) == 1
            assert all(c[begin : begin + SIZE] == [denoiser.vocab.mask] * SIZE for c in canvases)
            canvases = [list(canvases[ancestor]) for ancestor in event["ancestors"]]
        for row_number, column, token, _ in event["changes"]:
            canvases[row_number][column] = token
    assert meetings == 4 and waited


def test_the_prompt_is_kept_once() -> None:
    """One prompt's keys and values for all particles, whatever is resampled; the rows' own beside it."""
    denoiser, kept = models()["float32"], list[KeptBlocks]()

    class Watched(Counted):
        def look(self, state: Any, rows: torch.Tensor) -> Any:
            hidden, cache = super().look(state, rows)
            kept.append(cache)
            return hidden, cache

    one = Recipe("sdar", "smc", threshold=0.1, temperature=1.0, particles=8, length=16, block_length=4, scope="block")
    wrapped = parts.parts(denoiser, one)[0]
    rows = decoding.layout(denoiser, [[*range(30), 3]], None, one)
    state, sampler, search = decoding.prepare(denoiser, rows, [0], one)[1:4]
    for _ in walk(Watched(wrapped), state, sampler, search):
        pass
    shape, last = denoiser.network.shape, kept[-1]
    position = 2 * shape.layers * shape.kv * shape.each * 4
    assert last.given[0][0].shape[:1] == (1,) and last.given[0][0].shape[2] == 28  # seven blocks; three tokens remain
    assert last.bytes == position * (28 + 8 * last.stored) and last.stored == 16
    assert wrapped.position_bytes == position


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "p2"}, "does not go with sampler p2, which knows no blocks"),
        ({"sampler": "semi-ar", "block_length": 8}, "block_length is 8, which does not divide the 4 positions"),
        ({"sampler": "semi-ar", "attention": "full"}, "random knows attention in blocks only"),
        ({"sampler": "fast-dllm-v2", "sub_block": 3}, "sub_block is 3, which does not divide the 4 positions"),
        ({"sampler": "semi-ar", "cache_block": 2}, "sampler semi-ar has no sub-blocks of that size"),
        ({"sampler": "semi-ar", "cache": True, "cache_before": 3}, "cache_before has no effect on attention in blocks"),
        ({"sampler": "uniform", "search": "smc", "reopen": 0.5}, "does not go with reopen"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        decoded(models()["float64"], Recipe(**given))
