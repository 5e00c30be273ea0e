"""Laws of ties: rounding never chooses, neither between positions nor between particles."""

from __future__ import annotations

import pytest
import torch

from unmask import Recipe, decode, decode_batch
from unmask.core.sampler import rank
from unmask.models.transformer import random_transformer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sampler", ["confidence", "entropy", "margin", "eb", "p2", "dream"])
@pytest.mark.parametrize("length", [3, 8, 13])
def test_without_a_prompt_alone_equals_in_a_batch(dtype: torch.dtype, sampler: str, length: int) -> None:
    """All positions of an all-masked canvas looks alike to rotary positions: the leftmost goes first."""
    model, recipe = random_transformer(dtype=dtype, width=32), Recipe(sampler=sampler, length=length)
    alone = decode(model, "", recipe=recipe)
    for prompts in (["", "abc"], ["what is this", ""], ["", "", "x"]):
        together = decode_batch(model, prompts, recipe=recipe)
        assert together[prompts.index("")].tokens == alone.tokens


@pytest.mark.parametrize("particles", [3, 5, 8])
@pytest.mark.parametrize("how", [{}, {"ban": ("eos",)}, {"sampler": "dream", "top_k": 5}])
def test_paths_without_chance_stay_together(particles: int, how: dict[str, object]) -> None:
    model = random_transformer(dtype=torch.float64, width=32)
    for length in (4, 9, 16):
        result = decode(model, "", recipe=Recipe(**how, length=length, search="best-of-n", particles=particles))
        assert len({tuple(particle.tokens) for particle in result.particles}) == 1
        assert len({particle.path_entropy for particle in result.particles}) == 1
        assert result.chosen == 0


def test_scores_equal_up_to_rounding_go_from_the_left() -> None:
    order = torch.tensor([[1.0, 1.0 + 1e-15, 3.0, 1.0 - 1e-15, -torch.inf, -torch.inf]], dtype=torch.float64)
    candidates = torch.tensor([[True, True, True, True, True, False]])
    assert rank(order, candidates).columns.tolist() == [[2, 0, 1, 3, 4, 5]]
    late = torch.tensor([[True, False, True, False, False, False]])
    assert rank(order, candidates, late).columns.tolist() == [[1, 3, 4, 2, 0, 5]]
    apart = torch.tensor([[1.0, 1.0 + 1e-12, 3.0]], dtype=torch.float64)
    assert rank(apart, torch.ones(1, 3, dtype=torch.bool)).columns.tolist() == [[2, 1, 0]]
