"""entropy.py and what the walk makes of it: state entropy, path entropy and its options."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.core import beliefs
from unmask.core.denoiser import Head
from unmask.core.entropy import BIT, bits, state_entropy
from unmask.core.state import begin
from unmask.core.step import Moment, Rules
from unmask.core.walk import walk
from unmask.models.made.table import Table
from unmask.samplers import SAMPLERS, Sampler
from unmask.search import Search, smc

JOINT = torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(4)).double().flatten().softmax(0).view([3] * 4)
MASK, EOS = 3, 2
TABLE = Table(JOINT, eos=(EOS,))


def real(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def position_entropies(canvas: list[int]) -> dict[int, float]:
    """Of every masked position given the decided ones, by summing the table; nats."""
    part = JOINT[tuple(slice(None) if token == MASK else token for token in canvas)]
    part = part / part.sum()
    places = [place for place, token in enumerate(canvas) if token == MASK]
    found = {}
    for axis, place in enumerate(places):
        marginal = part.movedim(axis, 0).reshape(3, -1).sum(1)
        found[place] = float(-(marginal * marginal.log()).sum())
    return found


# --- the functions ---------------------------------------------------------------------------------------------------


def test_the_golden_vector() -> None:
    """facts.md, section 7: rows [.5, .25, .25, 0] and [1, 0, 0, 0] have 0.75 bits; impossible tokens count nothing."""
    logits = real([[[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]]).log()
    where = torch.ones(1, 2, dtype=torch.bool)
    raw = beliefs.weigh(logits, Head(4), where, torch.full((1, 2), 4))
    assert bits(raw.entropy).tolist() == [[1.5, 0.0]]
    assert bits(state_entropy(raw.entropy, where)).tolist() == [0.75]


def test_only_counted_positions_count() -> None:
    entropy = torch.tensor([[1.0, 2.0, 4.0], [1.0, math.nan, 3.0], [1.0, 1.0, 1.0]])
    counted = torch.tensor([[True, False, True], [True, False, True], [False, False, False]])
    found = state_entropy(entropy, counted)
    assert found.dtype == torch.float64
    assert found[:2].tolist() == [2.5, 2.0]
    assert found[2].isnan()


def test_bits() -> None:
    assert bits(real([0.0, BIT, 3 * BIT])).tolist() == [0, 1, 3]


# --- along a walk ----------------------------------------------------------------------------------------------------


def moments(
    sampler: Sampler, rules: Rules, search: Search = Search(3), canvas: list[int] | None = None
) -> list[Moment]:
    tokens = torch.tensor([canvas or [MASK] * 4] * 5)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    keys = torch.arange(5)
    state = begin(tokens, tokens == MASK, everywhere, keys, TABLE.vocab, search.particles, sampler.steps)
    with torch.no_grad():
        return list(walk(TABLE, state, sampler, search, rules))


def histories(steps: list[Moment]) -> list[list[tuple[list[int], list[int]]]]:
    """For each final row the (canvas before, canvas after) of its steps along its ancestry; steps it did not take are
    left out."""
    found = []
    for row in range(len(steps[-1].state.tokens)):
        path, at = [], row
        for moment in reversed(steps):
            if bool(moment.active[at]):
                path.append((moment.before[at].tolist(), moment.state.tokens[at].tolist()))
            if moment.resampled is not None:
                at = int(moment.resampled.ancestors[at])
        found.append(path[::-1])
    return found


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("uniform", {"steps": 4}),
        ("uniform", {"steps": 3}),
        ("uniform", {"steps": 7}),  # three steps without masks: not counted
        ("ancestral", {"steps": 5}),  # wasted steps count again
        ("eb", {"bound": 1.0}),
        ("fast-dllm", {"threshold": 0.4}),
        ("p2", {"steps": 4}),
        ("draft-refine", {"draft": 0.5, "reveal": 1, "loops": 2}),
    ],
)
@pytest.mark.parametrize("search", [Search(3), smc(3, 1, 5.0), smc(3, 2, 5.0, scheme="systematic")])
def test_path_entropy_is_the_mean_over_the_inputs_that_had_masks(
    name: str, settings: dict[str, Any], search: Search
) -> None:
    """The all-masked state counts, the final one does not; a copy inherits its ancestor's history."""
    steps = moments(SAMPLERS[name](**settings), Rules(beliefs.DrawRule(1.0)), search)
    for row, path in enumerate(histories(steps)):
        values = [list(position_entropies(before).values()) for before, _ in path]
        means = [sum(value) / len(value) for value in values if value]
        assert path[0][0] == [MASK] * 4 and MASK not in path[-1][1]
        assert float(steps[-1].state.path_entropy[row]) == pytest.approx(sum(means) / len(means), abs=1e-12)
        assert float(steps[-1].state.entropy[row]) == pytest.approx(means[-1], abs=1e-12)  # kept by the finished


@pytest.mark.parametrize("name", ["uniform", "semi-ar"])
def test_block_scope_counts_the_current_block(name: str) -> None:
    """scope="block": only masks before the end of the current block of 2."""
    steps = moments(SAMPLERS[name](steps=4, block_length=2), Rules(beliefs.DrawRule(1.0), scope="block"))
    whole = moments(SAMPLERS[name](steps=4, block_length=2), Rules(beliefs.DrawRule(1.0)))
    assert torch.equal(steps[-1].state.tokens, whole[-1].state.tokens)  # a measure, not a rule
    for row, path in enumerate(histories(steps)):
        means = []
        for number, (before, _) in enumerate(path):
            values = [h for place, h in position_entropies(before).items() if place < (2 if number < 2 else 4)]
            means.append(sum(values) / len(values))
        assert float(steps[-1].state.path_entropy[row]) == pytest.approx(sum(means) / 4, abs=1e-12)


def test_the_tail_after_an_eos_can_be_left_out() -> None:
    """skip_tail: masks behind a decided EOS do not count; a state with no others counts for nothing."""
    steps = moments(SAMPLERS["uniform"](steps=4), Rules(beliefs.DrawRule(1.0), skip_tail=True))
    skipped = 0
    for row, path in enumerate(histories(steps)):
        means = []
        for before, _ in path:
            end = before.index(EOS) if EOS in before else 4
            values = [h for place, h in position_entropies(before).items() if place < end]
            skipped += len(values) < before.count(MASK)
            if values:
                means.append(sum(values) / len(values))
        assert float(steps[-1].state.path_entropy[row]) == pytest.approx(sum(means) / len(means), abs=1e-12)
    assert skipped > 5


def test_given_cells_do_not_count() -> None:
    """Infilling: only the holes, given what stands around them."""
    steps = moments(SAMPLERS["uniform"](), Rules(beliefs.DrawRule(1.0)), canvas=[MASK, 1, MASK, 0])
    first: Tensor = steps[0].entropy
    values = list(position_entropies([MASK, 1, MASK, 0]).values())
    assert len(values) == 2
    assert first.tolist() == pytest.approx([sum(values) / 2] * 15, abs=1e-12)
