"""The published decoders of block-wise models: what a row does at the end of a text, and how many rounds it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from unmask import Recipe, Result, decode
from unmask.core.state import Vocab
from unmask.errors import SettingError
from unmask.models.transformer import Transformer, random_transformer

SIZE = 4


@pytest.fixture(scope="module")
def model() -> Transformer:
    plain = random_transformer(seed=51, width=32, layers=2, dtype=torch.float64, limit=64)
    return replace(plain, blocks=SIZE, aligned=True, block_causal=True)


def written(model: Transformer, **settings: Any) -> tuple[Result, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    recipe = Recipe(**{"length": 21, "temperature": 1.0, **settings})
    return decode(model, [7, 4, 9], recipe=recipe, on_event=events.append), [e for e in events if e["event"] == "step"]


def ending(model: Transformer, **settings: Any) -> tuple[Result, list[dict[str, Any]], int]:
    """A walk in which every second token is an end, and the column of its first end."""
    wordy = replace(model, vocab=Vocab(model.vocab.mask, tuple(range(0, 40, 2)), model.vocab.pad))
    result, steps = written(wordy, **settings)
    return result, steps, next(at for at, token in enumerate(result.tokens[3:], 3) if token in wordy.vocab.eos)


@pytest.mark.parametrize("sampler", ["sdar", "llada2"])
def test_a_text_is_over_when_its_block_is_finished(model: Transformer, sampler: str) -> None:
    for seed in range(6):
        result, steps, first = ending(model, sampler=sampler, threshold=0.99, seed=seed)
        end = (first // SIZE + 1) * SIZE
        assert all(token == 0 for token in result.tokens[end:])  # filled with the first of the ends
        assert result.evaluations == len(steps) == end - 3  # one position a round, none after the end
        assert result.finish == "end"


@pytest.mark.parametrize("given", [{"sampler": "fast-dllm-v2"}, {"sampler": "llada2", "early_stop": True}], ids=str)
def test_a_text_may_be_over_where_nothing_is_masked_before_its_end(model: Transformer, given: dict[str, Any]) -> None:
    sooner = 0
    for seed in range(24):
        result, steps, first = ending(model, threshold=0.99, seed=seed, **given)
        assert all(token == 0 for token in result.tokens[(first // SIZE + 1) * SIZE :])
        assert len(steps) <= (first // SIZE + 1) * SIZE - 3
        sooner += len(steps) < (first // SIZE + 1) * SIZE - 3
    assert sooner > 2


def test_what_is_filled_has_no_probability_to_answer_for(model: Transformer) -> None:
    """The log-probability of a path is that of the tokens that it drew, in the model's own distribution."""
    filled = {"sdar": 0, "fast-dllm-v2": 0}
    for sampler, seed in [(name, seed) for name in filled for seed in range(6)]:
        result, steps, first = ending(model, sampler=sampler, threshold=0.99, seed=seed)
        tokens, total = [7, 4, 9, *[model.vocab.mask] * 21], 0.0
        for step in steps:
            changes = sorted((column, token) for _, column, token, _ in step["changes"])
            column, token = changes[0]  # what is filled, in the last step, comes after it
            assert len(changes) == 1 or (step is steps[-1] and changes[1][0] > first)
            end = (column // SIZE + 1) * SIZE
            rows = torch.tensor([tokens[:end]])
            hidden, _ = model.network(rows, torch.arange(end)[None], seen=seen(end))
            total += float(model.head.logits(hidden[0])[column].log_softmax(0)[token])
            for column, token in changes:
                tokens[column] = token
        filled[sampler] += len(steps[-1]["changes"]) - 1
        assert result.best.log_prob == pytest.approx(total, abs=1e-9)
    assert min(filled.values()) > 0


def seen(length: int) -> torch.Tensor:
    block = torch.arange(length)[None] // SIZE
    return block[:, :, None] >= block[:, None]


def test_holes_before_given_text_do_not_end_it(model: Transformer) -> None:
    wordy = replace(model, vocab=Vocab(model.vocab.mask, tuple(range(40)), model.vocab.pad))  # every token is an end
    mask = model.vocab.mask
    canvas = [7, mask, mask, 9, 5, mask, mask, mask, 1, 2, *[mask] * 10]
    result = decode(wordy, canvas=canvas, recipe=Recipe("fast-dllm-v2", temperature=1.0, threshold=0.99))
    assert all(token == 0 for token in result.tokens[12:])  # the text is over in the first block of the last hole
    assert result.evaluations in (5 + 1, 5 + 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rule": "static", "rounds": 2}, [1] + [2] * 10),
        ({"rule": "static", "rounds": 3}, [1] + [2, 1, 1] * 5),
        ({"rule": "sequential", "rounds": 1}, [1] + [4] * 5),
        ({"rule": "dynamic", "threshold": 0.0}, [1] + [4] * 5),
        ({"rule": "dynamic", "threshold": 1.0}, [1] * 21),
        ({"rule": "static", "rounds": 9}, [1] * 21),
    ],
    ids=str,
)
def test_rounds_share_a_block_that_may_begin_in_the_prompt(
    model: Transformer, given: dict[str, Any], expected: list[int]
) -> None:
    _, steps = written(model, sampler="sdar", ban=("eos",), **given)
    counts = [len(step["changes"]) for step in steps]
    assert counts == expected


def test_edits_stay_in_their_block_and_stop(model: Transformer) -> None:
    mask = model.vocab.mask
    _, steps = written(model, sampler="llada2", threshold=0.9, edit_threshold=0.03, edit_rounds=3, ban=("eos",))
    tokens, edited, idle = [7, 4, 9, *[mask] * 21], 0, 0
    block = 0
    for step in steps:
        block = (
            tokens.index(mask) // SIZE
            if mask not in tokens[block * SIZE : block * SIZE + SIZE]
            and any(column >= (block + 1) * SIZE for _, column, _, _ in step["changes"])
            else block
        )
        idle = 0 if mask in tokens[block * SIZE : block * SIZE + SIZE] else idle + 1
        assert idle <= 3
        for _, column, token, _ in step["changes"]:
            assert column // SIZE == block
            edited += tokens[column] != mask
            tokens[column] = token
    assert edited > 3 and mask not in tokens


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "sdar", "rule": "static", "threshold": 0.5}, "threshold has no effect on rule static"),
        ({"sampler": "sdar", "rule": "quick"}, "unknown rule of sdar 'quick'"),
        ({"sampler": "llada2", "edit_rounds": 3}, "edit_rounds has no effect without edit_threshold"),
        ({"sampler": "llada2", "edit_threshold": 0.9, "rounds": 3}, "rounds has no effect with edit_threshold"),
        ({"sampler": "llada2", "rounds": 3, "reveal": 2}, "rounds and reveal exclude each other"),
        ({"sampler": "llada2", "edit_threshold": 0.9, "fill_tail": True}, "fill_tail has no effect on sampler llada2"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Recipe(**given)
