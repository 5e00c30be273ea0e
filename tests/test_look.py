"""The second look: what it asks, what it costs, and that neither company nor caches change it."""

from __future__ import annotations

import math

import pytest
import torch

import unmask
from unmask.core import dice
from unmask.core.dice import Purpose
from unmask.core.state import begin, padded, tail
from unmask.decoding.decode import decode_batch
from unmask.decoding.recipe import Recipe

BLOCKS = {"sampler": "sdar", "attention": "block", "threshold": 0.4, "temperature": 1.0, "length": 40}


@pytest.fixture(scope="module")
def table():
    return unmask.load("table")


@pytest.fixture(scope="module")
def text():
    return unmask.load("text")


def by_hand(model, tokens: list[int], given: int, seed: int) -> float:
    """The look at one finished row, in plain steps: two canvases, each with one half masked."""
    row, attend = padded([tokens], model.vocab.pad)
    writable = torch.arange(len(tokens))[None] >= given
    state = begin(row, writable, attend, dice.keys([seed]), model.vocab, 1)
    content = (writable & ~tail(state))[0]
    order = dice.uniform(
        dice.keys([seed])[:, None], torch.zeros(1, 1).long(), 0, torch.arange(len(tokens))[None], Purpose.LOOK
    )
    places = sorted(range(given, len(tokens)), key=lambda column: float(order[0, column]))
    first = set(places[: (len(places) + 1) // 2])
    total = 0.0
    for half in (first, set(places) - first):
        hidden = [column for column in half if bool(content[column])]
        canvas = row.clone()
        canvas[0, hidden] = model.vocab.mask
        share = torch.tensor([len(hidden) / len(places)], dtype=torch.float64)
        masked = begin(canvas, writable, attend, dice.keys([seed]), model.vocab, 1).replace(time=share)
        with torch.no_grad():
            states, _ = model.look(masked, torch.tensor([0]))
            logs = model.head.logits(states[0]).double().log_softmax(1)
        total -= sum(float(logs[column, tokens[column]]) for column in hidden)
    return total / int(content.sum())


@pytest.mark.parametrize("sampler", ["uniform", "eb", "confidence"])
def test_the_look_is_what_its_page_says(table, sampler):
    recipe = Recipe(sampler=sampler, temperature=1.0, search="best-of-n", particles=6, choose="look")
    [found] = decode_batch(table, canvases=["[MASK*6]"], recipe=recipe, seeds=[5])
    looked = [one for one in found.particles if one.look is not None]
    assert looked
    for one in looked:
        assert one.look == pytest.approx(by_hand(table, one.tokens, 0, 5), rel=1e-5, abs=1e-7)
    assert found.best.look == min(one.look for one in looked)


def test_ends_are_left_out(text):
    recipe = Recipe(
        sampler="fast-dllm", threshold=0.3, block_length=32, temperature=1.0, length=48, search="auto", particles=2
    )
    [found] = decode_batch(
        text,
        ["Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?"],
        recipe=recipe,
        seeds=[3],
    )
    given = len(found.tokens) - 48
    assert any(token in text.vocab.eos for token in found.tokens[given:-1])
    for one in found.particles:
        assert one.look == pytest.approx(by_hand(text, one.tokens, given, 3), rel=1e-4, abs=1e-6)


def test_it_costs_two_evaluations_for_each_of_the_four_distinct_answers_of_least_surprise(table):
    for seed in range(6):
        plain = Recipe(sampler="eb", bound=2.0, temperature=1.0, search="best-of-n", particles=8, choose="surprise")
        [before] = decode_batch(table, canvases=["[MASK*6]"], recipe=plain, seeds=[seed])
        [after] = decode_batch(table, canvases=["[MASK*6]"], recipe=plain.replace(choose="look"), seeds=[seed])
        assert [one.tokens for one in before.particles] == [one.tokens for one in after.particles]
        ranked = sorted(after.particles, key=lambda one: one.surprise)
        distinct = list(dict.fromkeys(tuple(one.tokens) for one in ranked))[:4]
        assert {tuple(one.tokens) for one in after.particles if one.look is not None} == set(distinct)
        assert after.evaluations - before.evaluations == after.rows - before.rows == 2 * len(distinct)
        assert after.calls - before.calls == 2
        assert before.best.look is None and before.rows <= before.evaluations


def test_auto_looks_where_steps_write_many(table):
    planned, free = (
        decode_batch(table, canvases=["[MASK*6]"], sampler=sampler, temperature=1.0, search="auto", particles=4)[0]
        for sampler in ("confidence", "eb")
    )
    assert all(one.look is None for one in planned.particles)
    assert planned.best.surprise == min(one.surprise for one in planned.particles)
    both = {
        place: one.surprise * max(one.look, 1e-6) for place, one in enumerate(free.particles) if one.look is not None
    }
    assert free.chosen == min(both, key=both.__getitem__)


@pytest.mark.parametrize("settings", [BLOCKS, {"sampler": "eb", "bound": 1.0, "temperature": 1.0, "length": 24}])
def test_alone_as_in_a_batch(text, settings):
    prompts = ["Once upon a time", "Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?"]
    recipe = Recipe(search="auto", particles=3, **settings)
    together = decode_batch(text, prompts, recipe=recipe, seeds=[1, 2])
    for prompt, seed, found in zip(prompts, (1, 2), together, strict=True):
        [alone] = decode_batch(text, [prompt], recipe=recipe, seeds=[seed])
        assert [one.tokens for one in alone.particles] == [one.tokens for one in found.particles]
        assert [one.look for one in alone.particles] == pytest.approx([one.look for one in found.particles], rel=1e-4)
        assert (alone.chosen, alone.evaluations) == (found.chosen, found.evaluations)


def test_blocks_are_looked_at_one_after_another(text):
    """Each block with the finished ones before it, none after it: as the model was trained, and as it decoded."""
    recipe = Recipe(search="best-of-n", particles=2, choose="look", **BLOCKS)
    [found] = decode_batch(text, ["Once upon a time"], recipe=recipe, seeds=[4])
    plain = decode_batch(text, ["Once upon a time"], recipe=recipe.replace(choose="entropy"), seeds=[4])[0]
    distinct = {tuple(one.tokens) for one in found.particles}
    given = len(found.tokens) - 40
    blocks = 0
    for tokens in distinct:
        end = next((at for at in range(given, len(tokens)) if tokens[at] in text.vocab.eos), len(tokens) - 1)
        blocks += (end - given) // 16 + 1
    assert 1.5 * blocks <= found.evaluations - plain.evaluations <= 2 * blocks  # a half of a block may be empty
    assert all(one.look is not None and math.isfinite(one.look) for one in found.particles)


def test_a_trace_has_the_looks(table, tmp_path):
    events = []
    decode_batch(
        table,
        canvases=["[MASK*6]"] * 2,
        sampler="eb",
        search="auto",
        particles=2,
        temperature=1.0,
        on_event=events.append,
    )
    assert len(events[-1]["look"]) == 4 and all(one is not None for one in events[-1]["look"])
    assert len(events[-1]["rows"]) == 2 and len(events[1]["rows"]) == 2
