"""The table model: its beliefs are the exact conditionals, wherever the canvas lies and however short it is."""

from __future__ import annotations

import math

import oracle as ideal
import pytest
import torch
from oracle import Oracle, Tokens
from torch import Tensor

from unmask.core.state import State, begin
from unmask.errors import InputError
from unmask.models.made.table import Table

ORACLE = Oracle(ideal.random_joint(3, 3, seed=3, sharpness=1.5))


def look(table: Table, canvases: list[Tokens]) -> Tensor:  # [B, L, V] probabilities
    """What the model believes of canvases of any lengths, left-padded with a token that means something."""
    longest = max(map(len, canvases))
    tokens = torch.tensor([[1] * (longest - len(z)) + list(z) for z in canvases])
    attend = torch.tensor([[False] * (longest - len(z)) + [True] * len(z) for z in canvases])
    writable = (tokens == table.vocab.mask) & attend
    state: State = begin(tokens, writable, attend, torch.arange(len(tokens)), table.vocab, 1)
    hidden, cache = table.look(state, torch.arange(len(tokens)))
    assert cache is None and hidden.shape == (len(canvases), longest, table.head.width)
    return hidden.exp()


def check(oracle: Oracle, z: Tokens, found: Tensor) -> None:
    """Conditionals under the masks, certainty elsewhere."""
    for place, token in enumerate(z):
        exact = oracle.conditionals(z).get(place, [float(v == token) for v in range(oracle.size)])
        assert torch.allclose(found[place], torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 4), (3, 3)])
def test_conditionals_of_every_state(size: int, length: int) -> None:
    oracle = Oracle(ideal.random_joint(size, length, seed=size, sharpness=1.5))
    states = list(oracle.states())
    for z, found in zip(states, look(oracle.table, states), strict=True):
        check(oracle, z, found)


def test_left_padding_and_short_canvases() -> None:
    """A canvas of n positions has the law of the table's first n; padding is never read."""
    shorter = {n: Oracle(ORACLE.joint.sum(tuple(range(n, 3))) if n < 3 else ORACLE.joint) for n in (1, 2, 3)}
    canvases = [z for oracle in shorter.values() for z in oracle.states()]
    for z, found in zip(canvases, look(ORACLE.table, canvases), strict=True):
        check(shorter[len(z)], z, found[3 - len(z) :])


def test_only_the_rows_that_are_asked_for() -> None:
    states = list(ORACLE.states())[:8]
    tokens = torch.tensor(states)
    table, everywhere = ORACLE.table, torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == 3, everywhere, torch.arange(8), table.vocab, 1)
    hidden, _ = table.look(state, torch.tensor([6, 2]))
    assert torch.equal(hidden.exp(), look(table, [states[6], states[2]]))


def test_log_probability() -> None:
    """Of whole sequences and of beginnings; nothing given is certain."""
    table, joint = ORACLE.table, ORACLE.joint
    for z in ORACLE.exact():
        for n in range(1, 4):
            exact = math.log(float(joint[z[:n]].sum()))
            assert table.log_probability(list(z[:n])) == pytest.approx(exact, abs=1e-14)
    assert table.log_probability([]) == pytest.approx(0, abs=1e-14)


def test_an_unnormalised_table_is_normalised() -> None:
    table = Table(7 * ORACLE.joint)
    assert table.log_probability([1, 2, 0]) == pytest.approx(ORACLE.table.log_probability([1, 2, 0]), abs=1e-14)
    states = list(ORACLE.states())
    assert torch.allclose(look(table, states), look(ORACLE.table, states), rtol=0, atol=1e-14)


@pytest.mark.parametrize("joint", [torch.ones(2, 3), torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor(1.0)])
def test_what_is_no_table(joint: Tensor) -> None:
    with pytest.raises(InputError, match="not a distribution"):
        Table(joint)
