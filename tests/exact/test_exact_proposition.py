"""Proposition 1: the sum of marginal entropies bounds the joint entropy, with equality only under independence.

Checked at every partial state of a table with at least two masks: the marginal entropies are what the model says
through `look` and `weigh`, the joint entropy is that of the table's slice.
"""

from __future__ import annotations

import itertools

import oracle as ideal
import pytest
import torch
from oracle import Oracle, Tokens, joint_entropy, marginal_entropies
from torch import Tensor

from unmask.core import beliefs
from unmask.core.entropy import state_entropy
from unmask.core.state import begin

SHAPES = [(2, 3), (3, 3), (2, 4), (4, 2)]


def gaps(joint: Tensor) -> tuple[list[Tokens], Tensor]:
    """For every state with two masks or more: Σ marginal entropies - joint entropy, nats."""
    oracle = Oracle(joint)
    states = [z for z in oracle.states() if len(oracle.masked(z)) > 1]
    tokens, table = torch.tensor(states), oracle.table
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == table.vocab.mask, everywhere, torch.arange(len(tokens)), table.vocab, 1)
    hidden, _ = table.look(state, torch.arange(len(tokens)))
    raw = beliefs.weigh(hidden, table.head, state.masked, tokens)
    marginals = state_entropy(raw.entropy, state.masked) * state.masked.sum(1)  # the mean times the number
    exact = torch.stack([joint_entropy(torch.from_numpy(oracle.slice(z))) for z in states])
    return states, marginals - exact


@pytest.mark.parametrize(("size", "length"), SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_strict_where_positions_depend_on_each_other(size: int, length: int, seed: int) -> None:
    states, gap = gaps(ideal.random_joint(size, length, seed=seed))
    assert len(states) > 0
    assert (gap > 1e-9).all()


@pytest.mark.parametrize(("size", "length"), SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_equal_under_independence(size: int, length: int, seed: int) -> None:
    _, gap = gaps(ideal.product_joint(size, length, seed=seed))
    assert gap.abs().max() < 1e-9


def test_equal_exactly_where_the_masked_positions_are_independent() -> None:
    """Positions 0 and 1 depend on each other, 2 on neither: there is a gap just where 0 and 1 are both masked."""
    pair, single = ideal.random_joint(3, 2, seed=1), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    states, gap = gaps(pair[..., None] * single)
    for z, found in zip(states, gap.tolist(), strict=True):
        together = z[0] == z[1] == 3
        assert (found > 1e-3) if together else (abs(found) < 1e-9)


def test_the_gap_grows_with_dependence() -> None:
    """A mixture (1 - a) product + a copy: from independence to log V bits of shared knowledge."""
    size = 3
    copy, product = torch.eye(size, dtype=torch.float64) / size, torch.full((size, size), 1 / size**2).double()
    found = [float(gaps((1 - a) * product + a * copy + 1e-300)[1].max()) for a in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert found[0] == pytest.approx(0, abs=1e-9)
    assert all(more > less for less, more in itertools.pairwise(found))
    assert found[-1] == pytest.approx(float(torch.tensor(size).double().log()), abs=1e-9)


@pytest.mark.parametrize(("size", "length"), SHAPES)
def test_the_functions_agree_with_the_model(size: int, length: int) -> None:
    """`marginal_entropies` of the table is what the model believes of an empty canvas."""
    joint = ideal.random_joint(size, length, seed=9)
    exact = torch.tensor(list(Oracle(joint).entropies((size,) * length).values()), dtype=torch.float64)
    assert torch.allclose(marginal_entropies(joint), exact, rtol=0, atol=1e-12)
    assert marginal_entropies(joint).sum() > joint_entropy(joint)
