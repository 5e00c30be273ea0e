"""The trap of ends on an exact joint distribution: surest-first decides the ends first and answers nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from unmask import Recipe, Result, Table, decode, decode_batch

LETTERS, END, LONG = 8, 8, 4
EMPTY, ANSWER = 0.04, 0.30  # the probabilities of the empty text and of `abcd`
SHORT = {1: 0.16, 2: 0.25, 3: 0.25}  # of all other texts of a length, each of which is as likely as the next
FIRST = ("confidence", "entropy", "margin", "eb", "semi-ar", "fast-dllm", "p2", "draft-refine")  # surest first


@pytest.fixture(scope="module")
def table() -> Table:
    """One long answer, and many short texts; what follows a text is ends."""
    joint = torch.full((LETTERS + 1,) * LONG, 1e-12, dtype=torch.float64)
    joint[(END,) * LONG] = EMPTY
    for size, mass in SHORT.items():
        for text in itertools.product(range(LETTERS), repeat=size):
            joint[(*text, *[END] * (LONG - size))] = mass / LETTERS**size
    joint[0, 1, 2, 3] = ANSWER
    return Table(joint, "abcdefgh$", eos=(END,))


def answered(table: Table, sampler: str, **settings: Any) -> Result:
    return decode(table, recipe=Recipe(sampler, length=LONG, **settings))


def test_why_it_is_a_trap(table: Table) -> None:
    """At each step an end is surer than any letter, although the answer is 7.5 times as likely as the empty text."""
    assert table.log_probability([0, 1, 2, 3]) > table.log_probability([END] * LONG) + 2
    canvas = torch.full((1, LONG), table.vocab.mask)
    for column, chance in zip(reversed(range(LONG)), (0.70, 0.45 / 0.70, 0.20 / 0.45, 0.04 / 0.20), strict=True):
        chances = table._conditionals(canvas)[0].where(canvas[0, :, None] == table.vocab.mask, 0.0)
        assert divmod(int(chances.argmax()), LETTERS + 1) == (column, END)
        assert float(chances.max()) == pytest.approx(chance, abs=1e-6)
        canvas[0, column] = END


@pytest.mark.parametrize("sampler", FIRST)
def test_surest_first_answers_nothing(table: Table, sampler: str) -> None:
    result = answered(table, sampler)
    assert (result.text, result.finish) == ("", "end")


@pytest.mark.parametrize("sampler", FIRST)
@pytest.mark.parametrize(
    "remedy", [{"late": ("eos",)}, {"end_penalty": 1.0}, {"end_penalty": 3.0}, {"ban": ("eos",)}, {"block_length": 2}]
)
def test_each_remedy_mends_it(table: Table, sampler: str, remedy: dict[str, Any]) -> None:
    if "block_length" in remedy and sampler in ("p2", "draft-refine"):
        pytest.skip("it knows no blocks")
    assert answered(table, sampler, **remedy).text == "abcd"


@pytest.mark.parametrize("sampler", FIRST)
def test_what_is_no_remedy(table: Table, sampler: str) -> None:
    """A penalty that is too small; and tails, which are filled after the ends were decided."""
    assert answered(table, sampler, end_penalty=0.1).text == ""
    if sampler not in ("p2", "draft-refine"):
        assert answered(table, sampler, fill_tail=True).text == ""


def test_a_penalised_confidence_is_exact(table: Table) -> None:
    """`d` is decided first: its probability, where the end beside it counts e^-1."""
    events: list[dict[str, Any]] = []
    result = decode(table, recipe=Recipe(length=LONG, end_penalty=1.0), on_event=events.append)
    ((_, column, token, _),) = events[1]["changes"]
    assert (column, token) == (3, 3)
    assert result.best.log_prob == pytest.approx(table.log_probability([0, 1, 2, 3]), abs=1e-6)  # the model's own


def test_choosing_among_paths_prefers_short_texts_without_skip_tail(table: Table) -> None:
    """Masks after an end are certain: in a mean over all masks they make short texts look sure."""
    recipe = Recipe("uniform", "best-of-n", particles=8, length=LONG, temperature=1.0)
    empty, answers = {}, {}
    for skip in (False, True):
        found = decode_batch(table, [""], recipe=recipe.replace(skip_tail=skip), n=200)
        empty[skip] = sum(result.text == "" for result in found)
        answers[skip] = sum(result.text == "abcd" for result in found)
    assert empty[False] >= 8 and empty[True] == 0 and answers[True] > answers[False]


# --- ends late, and LLaDA's own rule ----------------------------------------------------------------------------------


def random_table(seed: int, long: int = 5, letters: int = 4) -> Table:
    """Texts of random probabilities, each length with its own."""
    generator = torch.Generator().manual_seed(seed)
    joint = torch.full((letters + 1,) * long, 1e-12, dtype=torch.float64)
    for size, mass in enumerate(torch.rand(long + 1, generator=generator, dtype=torch.float64)):
        weights = torch.rand((letters,) * size, generator=generator, dtype=torch.float64) ** 3
        inside = (*[slice(letters)] * size, *[letters] * (long - size))
        joint[inside] = weights / weights.sum() * mass
    return Table(joint, "abcd$", eos=(letters,))


def by_llada(table: Table) -> str:
    """`confidence_eos_eot_inf`: ends are proposed, but have no confidence; that of the others leaves ends out."""
    end, canvas = table.eos[0], torch.full((1, table.limit), table.vocab.mask)
    for _ in range(table.limit):
        chances = table._conditionals(canvas)[0]
        proposed = chances.argmax(1, keepdim=True)
        without = chances.index_fill(1, torch.tensor([end]), 0.0)
        sure = (without / without.sum(1, keepdim=True)).gather(1, proposed)[:, 0]
        place = int(sure.where(canvas[0] == table.vocab.mask, -1.0).argmax())
        canvas[0, place] = proposed[place, 0]
    return table.tokenizer.decode(list(itertools.takewhile(lambda token: token != end, canvas[0].tolist())))


def test_late_is_confidence_without_ends() -> None:
    """They differ only in whether the confidence of a word is a share of all tokens or of all words: rarely, in order.

    So there is one setting for it.
    """
    texts = [(by_llada(one), answered(one, "confidence", late=("eos",)).text) for one in map(random_table, range(60))]
    assert sum(theirs == ours for theirs, ours in texts) >= 55
