"""What `decode` makes of a walk: texts, choices, and options that must not be ignored."""

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Recipe, UnmaskError, decode, decode_batch, load
from unmask.core.beliefs import DrawRule, filtered
from unmask.core.state import State
from unmask.decoding import trace
from unmask.models.made.table import Table
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
        ({"prompts": [["s", "t"]]}, "decode_batch takes several prompts"),
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


# --- where a text ends -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story() -> Table:
    """`the end.` and the end token, up to a length of 6 letters, with little doubt."""
    letters = "thend. "  # 7: the end token
    joint = torch.full((8,) * 6, 1e-9, dtype=torch.float64)
    for text, weight in (("the", 5.0), ("then", 2.0), ("the th", 1.0)):
        tokens = [letters.index(letter) for letter in text]
        joint[(*tokens, *[7] * (6 - len(tokens)))] = weight
    return Table(joint, letters + "$", eos=(7,))


def test_a_result_says_what_ended_its_text(story: Table) -> None:
    ended = decode(story, recipe=Recipe(length=6))
    assert (ended.text, ended.finish) == ("the", "end") and "ended by an end token" in ended.cost()
    full = decode(story, "the", recipe=Recipe(length=3, ban=("eos",)))
    assert (len(full.text), full.finish) == (3, "length")
    for stop, text, finish in (
        ("e", "th", "stop"),
        (["never", "he", "e"], "t", "stop"),
        (("x",), "the", "end"),
        ("t", "", "stop"),
        ([], "the", "end"),
    ):
        result = decode(story, "", recipe=Recipe(length=6), stop=stop)
        assert (result.text, result.finish) == (text, finish)
        assert result.tokens == decode(story, "", recipe=Recipe(length=6)).tokens  # all positions are decoded
        assert result.to_dict()["finish"] == result.to_dict()["particles"][0]["finish"] == finish


def test_every_particle_says_what_ended_its_text(story: Table, tmp_path: Path) -> None:
    recipe = Recipe("uniform", "best-of-n", particles=8, length=6, temperature=1.0)
    seen: list[dict[str, Any]] = []
    result = decode(story, recipe=recipe, stop="n", on_event=seen.append)
    finishes = [particle.finish for particle in result.particles]
    assert {"end", "stop"} <= set(finishes) <= {"end", "stop", "length"}
    assert seen[-1]["finish"] == finishes and seen[-1]["texts"] == [particle.text for particle in result.particles]
    for particle in result.particles:
        assert "n" not in particle.text and (particle.finish == "end") <= (7 in particle.tokens)
    voted = decode(story, recipe=recipe.replace(search="vote"), stop="e")
    assert voted.text == "th"  # cut texts vote


def test_a_canvas_ends_with_its_last_hole(story: Table) -> None:
    mask = story.vocab.mask
    assert decode(story, canvas="th[MASK*4]").finish == "end"
    assert decode(story, canvas="[MASK*3]n" + "$$").finish == "length"
    assert decode(story, canvas=[mask, 1, 7, mask, 7, 7], recipe=Recipe(ban=("eos",))).finish == "length"
    with pytest.raises(UnmaskError, match="stop has no effect on a canvas"):
        decode(story, canvas="th[MASK]", stop="e")


@pytest.mark.parametrize(("stop", "said"), [("", "a stop string is empty"), ([1], "a stop string is a int")])
def test_a_wrong_stop_is_refused(story: Table, stop: Any, said: str) -> None:
    with pytest.raises(UnmaskError, match=said):
        decode(story, stop=stop, length=2)


def test_what_a_tokenizer_of_transformers_returns_is_a_prompt() -> None:
    model = load("table")
    expected = decode(model, [4, 1], length=4).tokens
    encoding = UserDict  # the base of transformers' BatchEncoding
    for given in (
        torch.tensor([4, 1]),
        torch.tensor([[4, 1]]),
        torch.tensor([[4, 1]]).numpy(),
        encoding({"input_ids": [4, 1]}),
        encoding({"input_ids": [[4, 1]]}),
        encoding({"input_ids": torch.tensor([[4, 1]]), "attention_mask": torch.ones(1, 2)}),
    ):
        assert decode(model, given, length=4).tokens == expected
    with pytest.raises(UnmaskError, match="decode_batch takes several"):
        decode(model, torch.tensor([[4, 1], [4, 1]]), length=4)
