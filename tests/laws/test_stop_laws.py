"""Laws of stop strings: what is not decoded after one changes no text; every sampler with blocks × every search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch

from unmask import SEARCHES, Recipe, Result, decode, decode_batch
from unmask.core.state import Vocab
from unmask.decoding import decode as decoding
from unmask.decoding.ends import TextsOver, cut
from unmask.models.tokenizers import Characters
from unmask.models.transformer import Transformer, random_transformer

from .cases import SAMPLER_VARIANTS, SEARCH_VARIANTS, SMC
from .test_block_laws import SIZE
from .test_block_laws import model as in_blocks

PROMPTS = [[7, 4, 9], [1, 20, 8, 30], [5]]
SEEDS = [3, 8, 2**41]
LENGTH = 14
STOPS = ["ab", "e", "k", "t 7", "7", "t", "1", "\n"]  # one begins another
MANY = list("abcdefghijklmnopqrstu")  # most particles of a prompt end at once, with the same text
WITH_BLOCKS = [
    (sampler, {key: value for key, value in given.items() if key != "steps"})
    for sampler, variants in SAMPLER_VARIANTS.items()
    for given in variants
    if "block_length" in given and "background" not in given
]
VARIANTS = [(name, given) for name in SEARCHES for given in SEARCH_VARIANTS.get(name, [{}])[:1]]
# As in cases.py, the first variant of a name stands for it where names are crossed; the others meet two searches.
FIRST = [one for place, one in enumerate(WITH_BLOCKS) if one[0] not in [name for name, _ in WITH_BLOCKS[:place]]]
FEW = [how for how in VARIANTS if how[0] in ("vanilla", "smc")]
PAIRS = [("everything", *one, *how) for one in WITH_BLOCKS for how in (VARIANTS if one in FIRST else FEW)]
PAIRS += [("blocks", *one, *how) for one in WITH_BLOCKS for how in FEW]
KEPT = [("smc", {**SMC, "reopen": 0.5}), ("best-of-n", {"particles": 3, "until": 0.5, "most": 4})]


@lru_cache
def models() -> dict[str, Transformer]:
    plain = random_transformer(seed=51, width=32, layers=2, dtype=torch.float64, limit=64)
    return {"everything": plain, "blocks": in_blocks()}


def decoded(name: str, recipe: Recipe, stop: Sequence[str], places: Sequence[int] = range(3)) -> list[Result]:
    prompts, seeds = [PROMPTS[place] for place in places], [SEEDS[place] for place in places]
    return decode_batch(models()[name], prompts, recipe=recipe, seeds=seeds, stop=stop)


def whole(name: str, recipe: Recipe, stop: Sequence[str]) -> list[Result]:
    """Everything is decoded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "texts_over", lambda *about: None)
        return decoded(name, recipe, stop)


def endings(result: Result) -> list[tuple[str, str]]:
    return [(particle.text, particle.finish) for particle in result.particles]


@pytest.mark.parametrize(("attention", "sampler", "given", "search", "how"), PAIRS, ids=str)
def test_the_text_is_the_same(
    attention: str, sampler: str, given: dict[str, Any], search: str, how: dict[str, Any]
) -> None:
    given = {"temperature": 0.7, **given, **({"block_length": SIZE} if attention == "blocks" else {})}
    recipe = Recipe(sampler, search, length=LENGTH, **given, **how)
    for stop in (STOPS, MANY):
        found, expected = decoded(attention, recipe, stop), whole(attention, recipe, stop)
        for one, other in zip(found, expected, strict=True):
            assert endings(one) == endings(other)
            assert (one.text, one.finish) == (other.text, other.finish)
            assert one.evaluations <= other.evaluations and one.rows <= other.rows
            if one.evaluations < other.evaluations:
                assert len(set(endings(one))) == 1 and one.finish != "length"
            else:
                assert one.tokens == other.tokens and one.chosen == other.chosen
    [alone] = decoded(attention, recipe, MANY, [1])
    assert alone.tokens == found[1].tokens and alone.evaluations == found[1].evaluations


@pytest.mark.parametrize(("search", "how"), VARIANTS, ids=str)
@pytest.mark.parametrize("attention", ["everything", "blocks"])
@pytest.mark.filterwarnings("ignore::unmask.errors.AlikeWarning")
def test_evaluations_fall(attention: str, search: str, how: dict[str, Any]) -> None:
    """At temperature 0 all particles have the same text."""
    recipe = Recipe("semi-ar", search, length=LENGTH, block_length=SIZE, **how)
    found, expected = decoded(attention, recipe, MANY), whole(attention, recipe, MANY)
    assert sum(one.evaluations for one in found) < sum(one.evaluations for one in expected)
    for one in found:
        assert models()[attention].vocab.mask not in one.tokens


@pytest.mark.parametrize(("search", "how"), KEPT, ids=str)
def test_what_may_still_change_is_decoded(search: str, how: dict[str, Any]) -> None:
    """Copies reopen what is final; a wave goes by the path entropy of all positions."""
    recipe = Recipe("semi-ar", search, length=LENGTH, block_length=SIZE, temperature=0.7, **how)
    found, expected = decoded("everything", recipe, MANY), whole("everything", recipe, MANY)
    for one, other in zip(found, expected, strict=True):
        assert endings(one) == endings(other) and one.evaluations == other.evaluations


@pytest.mark.parametrize("sampler", ["confidence", "uniform", "eb", "dream", "p2"])
def test_an_order_that_fills_anywhere_is_left_alone(sampler: str) -> None:
    recipe = Recipe(sampler, length=LENGTH, temperature=0.7)
    for one, other in zip(decoded("everything", recipe, MANY), decoded("everything", recipe, []), strict=True):
        assert one.tokens == other.tokens and one.evaluations == other.evaluations
        assert one.text == other.text[: cut(other.text, MANY)]


def test_nothing_changes_without_a_stop_string() -> None:
    recipe = Recipe("semi-ar", length=LENGTH, block_length=SIZE, temperature=0.7)
    for one, other in zip(decoded("everything", recipe, []), whole("everything", recipe, []), strict=True):
        assert one.tokens == other.tokens and one.evaluations == other.evaluations


def test_an_end_token_ends_it_too() -> None:
    """With a stop string that never comes, a row is over where its end token is final."""
    recipe = Recipe("semi-ar", length=LENGTH, block_length=SIZE, temperature=0.7, top_k=8, end_penalty=0.0)
    ended = 0
    for seed in range(24):
        few = recipe.replace(seed=seed)
        one, other = (decode(models()["everything"], [5], recipe=few, stop=stop) for stop in (["never"], None))
        assert (one.text, one.finish) == (other.text, other.finish)
        ended += one.evaluations < other.evaluations
    assert ended


def test_a_trace_and_log_probabilities_are_those_of_the_tokens() -> None:
    recipe, events = Recipe("semi-ar", length=LENGTH, block_length=SIZE, temperature=0.7), list[dict[str, Any]]()
    result = decode(models()["everything"], [5], recipe=recipe, stop=MANY, logprobs=1, on_event=events.append)
    tokens = {column: token for event in events[1:-1] for _, column, token, _ in event["changes"]}
    assert [5, *(tokens[column] for column in range(1, 1 + LENGTH))] == result.tokens
    assert result.logprobs is not None and [one.token for one in result.logprobs] == result.new_tokens
    assert result.evaluations < LENGTH


# --- what is known of a beginning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [("a",), ("ab",), ("aab", "b"), ("abab", "ba"), ("bb", "abba"), ("ab", "aba")])
def test_a_beginning_knows_the_text_only_where_every_continuation_has_it(stops: tuple[str, ...]) -> None:
    over = TextsOver(Characters("ab$"), None, stops)  # type: ignore[arg-type]
    vocab, known = Vocab(3, (2,)), 0
    for size in range(6):
        for tokens in itertools.product(range(3), repeat=size):
            found = over.ending(tokens, vocab)
            ends = {
                over.ending([*tokens, *more, 2], vocab)
                for length in range(5)
                for more in itertools.product((0, 1), repeat=length)
            }
            assert found is None or ends == {found}
            known += found is not None
    assert known


def test_a_part_of_a_character_is_not_known_yet() -> None:
    class Bytes:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode(errors="replace")

    over = TextsOver(Bytes(), None, ("\ufffd", "é"))  # type: ignore[arg-type]
    one, two = "aé".encode()[:-1], "aé".encode()
    assert over.ending(list(one), Vocab(256)) is None
    assert over.ending(list(two), Vocab(256)) == ("a", "stop")
