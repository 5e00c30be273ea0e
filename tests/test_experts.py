"""Layers with experts: only the chosen ones are computed, in any grouping of tokens, in every type of numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.models import experts
from unmask.models.experts import ExpertMLP, Experts

WIDTH = 16
SOFTMAX = Experts(layers=(0,), count=8, used=3, inner=10)
SIGMOID = replace(SOFTMAX, score="sigmoid", bias=True, groups=4, used_groups=2, normed=True, scale=2.5, shared=6)
KINDS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "one": replace(SOFTMAX, used=1), "every": replace(SOFTMAX, used=8)}


def made(sizes: Experts, dtype: torch.dtype = torch.float64) -> ExpertMLP:
    layer, dice = ExpertMLP(WIDTH, sizes).requires_grad_(False), torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=dice) * 0.4)
    return layer.to(dtype)


def tokens(rows: int, length: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [1, 3000, 1 << 26])
def test_all_experts_with_weights_are_the_chosen_ones(kind, most, monkeypatch):
    layer, x = made(KINDS[kind]), tokens(3, 7)
    chosen = layer(x)
    monkeypatch.setattr(experts, "waits", lambda x: False)
    monkeypatch.setattr(experts, "MOST", most)
    assert (layer(x) - chosen).abs().max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_others(kind):
    layer, x = made(KINDS[kind]), tokens(5, 9)
    together = layer(x)
    for row in range(5):
        for begin, end in ((0, 9), (2, 3), (4, 9)):
            alone = layer(x[row : row + 1, begin:end])
            assert (alone - together[row : row + 1, begin:end]).abs().max() < 1e-12
    assert layer(x[:0]).shape == (0, 9, WIDTH)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_work_of_the_chosen_experts_is_done(kind):
    layer, x = made(KINDS[kind], torch.float32), tokens(2, 11, torch.float32)
    sizes, count = KINDS[kind], 22
    with FlopCounterMode(display=False) as flops:
        layer(x)
    each = 2 * 3 * WIDTH  # of one inner dimension of one token: gate, up and down
    assert flops.get_total_flops() == count * (
        2 * WIDTH * sizes.count + each * (sizes.used * sizes.inner + sizes.shared)
    )


def test_experts_that_nobody_chose_are_not_touched():
    layer, x = made(SOFTMAX), tokens(1, 2)
    _, chosen = layer.route(x[0])
    before = layer(x)
    idle = [expert for expert in range(8) if expert not in chosen]
    assert idle
    layer.up[idle], layer.down[idle] = torch.nan, torch.nan
    assert torch.equal(layer(x), before)


def test_groups_that_are_not_used_are_not_chosen():
    layer, x = made(replace(SIGMOID, groups=2, used_groups=1, used=4)), tokens(4, 16)
    _, chosen = layer.route(x.flatten(0, 1))
    assert ((chosen < 4).all(1) | (chosen >= 4).all(1)).all() and (chosen < 4).any() and (chosen >= 4).any()


def test_the_bias_chooses_and_does_not_weigh():
    layer, x = made(replace(SIGMOID, groups=1, used_groups=1)), tokens(2, 8).flatten(0, 1)
    layer.bias.zero_()
    weights, chosen = layer.route(x)
    layer.bias[5] = 10.0
    moved, others = layer.route(x)
    assert (others[:, 0] == 5).all() and not (chosen == 5).any(1).all()
    scores = (x @ layer.router.weight.T).sigmoid().gather(1, others)
    assert torch.allclose(moved, 2.5 * scores / scores.sum(1, keepdim=True))
    assert torch.allclose(weights.sum(1), torch.full((16,), 2.5).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_types_of_numbers(kind, dtype, monkeypatch):
    layer, x = made(KINDS[kind], dtype), tokens(3, 7, dtype)
    exact, finer = made(KINDS[kind]), x.double()
    for parameter, coarse in zip(exact.parameters(), layer.parameters(), strict=True):
        parameter.copy_(coarse)
    found, expected = layer(x), exact(finer)
    assert found.dtype == dtype
    assert torch.equal(layer.route(x.flatten(0, 1))[1], exact.route(finer.flatten(0, 1))[1])
    close = {torch.bfloat16: 0.05, torch.float16: 5e-3, torch.float32: 1e-5}[dtype]
    assert (found - expected).abs().max() < close * expected.std()
    monkeypatch.setattr(experts, "waits", lambda x: False)
    assert layer(x).dtype == dtype and (layer(x) - expected).abs().max() < close * expected.std()
