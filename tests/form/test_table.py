"""The table of allowed tokens: pairs of sets by the word, and several automata in one table."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import unmask
from unmask.core.constraint import allowed
from unmask.decoding.form import form
from unmask.decoding.form import sets as of_states
from unmask.decoding.form.sets import OPEN, Sets
from unmask.decoding.form.tokens import unpacked

PATTERNS = ["[0-9]{1,40}a?|b+", "(ab|ba|c){2,90}", "", ".*", "a{0,200}b{3}"]


@pytest.fixture(scope="module")
def text() -> unmask.Denoiser:
    return unmask.load("text")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_what_they_are_by_definition(pattern: str, text: unmask.Denoiser) -> None:
    """A class may stand where it leads from a state of the left to one of the right; of more pairs than a word has."""
    made = form(matches=pattern)
    assert made is not None
    sets, dice = Sets(made.automata(text)[0]), random.Random(pattern)
    kinds = [OPEN, *range(len(sets.tokens.moves))]
    for _ in range(60):
        sets.after(dice.randrange(len(sets.left)), dice.choice(kinds))
        sets.before(dice.randrange(len(sets.right)), dice.choice(kinds))
    pairs = [(dice.randrange(len(sets.left)), dice.randrange(len(sets.right))) for _ in range(150)]
    found = sets.masks([left for left, _ in pairs], [right for _, right in pairs])
    for (left, right), mask in zip(pairs, found, strict=True):
        froms, goals = (unpacked(one, sets.size) for one in (sets.left[left], sets.right[right]))
        goals[0] = False
        assert np.array_equal(mask, (goals[sets.tokens.moves] & froms).any(1))


@pytest.mark.parametrize("room", [1 << 28, 0])
def test_several_automata_share_a_table(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hole allows what it allows alone, also where the table begins anew."""
    monkeypatch.setattr(of_states, "BYTES", room)
    table, dice = unmask.Table(torch.ones(3, 3, 3, 3, 3, 3, dtype=torch.float64)), random.Random(1)
    patterns = ["0*1?", None, "(01|12|20)*", "0*1?"]
    canvas = [3, 3, 0, 3, 1, 3, 3, 3, 2, 3, 3]
    every = form(matches=patterns)
    assert every is not None
    together = every.constraint(table)
    alone = [None if one is None else form(matches=one) for one in patterns]
    spans = [(0, 2), (3, 4), (5, 8), (9, 11)]
    for _ in range(20):
        row = [token if token != 3 or dice.random() < 0.7 else dice.randrange(3) for token in canvas]
        tokens, open_ = torch.tensor([row]), torch.tensor([[token == 3 for token in canvas]])
        found = allowed(together, tokens, open_, open_)
        for (begin, end), one in zip(spans, alone, strict=True):
            mine = found.table[found.row[0, begin:end]][:, found.kind.long()]
            if one is None:
                assert mine.all()
                continue
            part, all_ = tokens[:, begin:end], torch.ones(1, end - begin, dtype=torch.bool)
            own = allowed(one.constraint(table), part, all_, all_)
            assert torch.equal(mine, own.table[own.row[0]][:, own.kind.long()])
