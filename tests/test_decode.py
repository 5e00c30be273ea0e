"""What `decode` makes of a walk: texts, choices, and options that must not be ignored."""

from typing import Any

import pytest
import torch

from unmask import Recipe, UnmaskError, decode, decode_batch, load
from unmask.core.beliefs import DrawRule, filtered
from unmask.core.state import State
from unmask.decoding import trace
from unmask.models.transformer import random_transformer


def test_the_text_of_a_canvas_keeps_what_was_given() -> None:
    """A given EOS cuts nothing; a generated one ends its own hole only."""
    model = random_transformer(width=32)
    mask, (eos,) = model.vocab.mask, model.vocab.eos
    result = decode(model, canvas=[0, 1, eos, 2, 3, mask, mask, 4])
    assert result.text == model.tokenizer.decode([t for t in result.tokens if t != eos or t == result.tokens[2]])
    every = tuple(i for i in range(model.head.width) if i not in (eos, mask))
    only_eos = Recipe(ban=every)
    assert decode(model, canvas=[0, mask, mask, 1, mask, 2], recipe=only_eos).text == "abc"
    assert decode(model, "ab", recipe=only_eos.replace(length=3)).text == ""


def test_an_answer_without_a_vote_is_an_error() -> None:
    with pytest.raises(UnmaskError, match="answer has no effect on search vanilla: choose by vote"):
        decode(load("table"), recipe=Recipe(length=6), answer=str.upper)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompts": "se"}, "is not a list"),
        ({"prompts": ["s"], "seeds": 3}, "is not a list"),
        ({"prompts": [3]}, "neither text nor token ids"),
        ({"prompts": [[1.5]]}, "neither text nor token ids"),
        ({"prompts": ["s"], "recipe": {"length": 2}}, "recipe is a dict"),
        ({"prompts": [""], "recipe": Recipe(length=2, guidance=1.0)}, "guidance has no effect where nothing is given"),
    ],
)
def test_wrong_kinds_are_told(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        decode_batch(load("table"), **{"recipe": Recipe(length=2), **how})


def test_a_model_that_gives_the_wrong_shape_is_told() -> None:
    class Wide(type(load("table"))):  # type: ignore[misc]
        def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, None]:
            hidden, _ = super().look(state, rows)
            return torch.cat([hidden, hidden], 2), None

    with pytest.raises(UnmaskError, match=r"gave hidden states of shape \(1, 2, 12\): for these rows"):
        decode(Wide(load("table").joint), recipe=Recipe(length=2))


def test_events_that_are_no_trace_are_told() -> None:
    for read in (trace.replay, trace.lineages, trace.ancestry):
        with pytest.raises(UnmaskError, match="do not begin with a start"):
            list(read([{"event": "step"}]))


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.5}, {"sampler": "p2", "top_k": 3}])
def test_filters_without_effect_are_an_error(settings: dict[str, object]) -> None:
    with pytest.raises(UnmaskError, match=r"have no effect on sampler .* at temperature 0: give a temperature"):
        Recipe(**settings)
    Recipe(**settings, temperature=0.5)
    Recipe(sampler="p2", rule="fresh-draw", top_k=3)


def test_a_top_p_of_one_is_off() -> None:
    logits = 4 * torch.randn(2, 126_464, generator=torch.Generator().manual_seed(0))
    assert torch.equal(filtered(logits, DrawRule(0.0, top_p=1.0)), logits)


def test_late_tokens_keep_their_scores_under_a_selection_temperature() -> None:
    model = random_transformer(dtype=torch.float64, width=32)
    late = tuple(range(40))
    order: list[int] = []
    recipe = Recipe(length=8, select_temperature=1e-12, late=late)
    decode(model, "ab", recipe=recipe, on_event=lambda e: order.extend(c[1] for c in e.get("changes", [])))
    plain: list[int] = []
    decode(model, "ab", recipe=Recipe(length=8), on_event=lambda e: plain.extend(c[1] for c in e.get("changes", [])))
    assert order == plain


def test_loading_a_model_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    load("random")
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("sampler", "steps"), [("eb", [4, 8]), ("uniform", [3, 6, 9])])
def test_smc_resamples_without_being_told_when(sampler: str, steps: list[int]) -> None:
    events: list[dict] = []
    decode(load("random"), recipe=Recipe(sampler=sampler, search="smc", length=12), on_event=events.append)
    assert [event["step"] for event in events if "ancestors" in event] == steps
