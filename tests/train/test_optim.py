"""The optimiser: orthogonal directions, matrices that are stacked, the steps of Muon and AdamW, and going on."""

from __future__ import annotations

import pytest
import torch

from unmask.train.initial import fresh
from unmask.train.optim import CURVE, MOMENTUM, TURNS, Optimizer, orthogonal

SMALL = {"model_type": "unmask", "vocabulary": 11, "width": 8, "layers": 2, "heads": 2, "inner": 12, "qk_norm": True}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(**other):
    return fresh({**SMALL, **other}, "cpu", 0).requires_grad_(True)


def push(net, seed: int) -> None:
    """Random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def weights(net) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


# --- orthogonal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (9, 5)])
def test_singular_values_go_to_one_and_their_vectors_stay(shape):
    u, _, vt = torch.linalg.svd(random(3, *shape), full_matrices=False)
    sizes = torch.linspace(0.05, 1, min(shape), dtype=torch.float64) * torch.tensor([[1e-3], [1.0], [1e3]])
    found = orthogonal(u * sizes[:, None] @ vt)
    assert torch.allclose(orthogonal(u * sizes[:, None] @ vt * 1e4), found, atol=1e-2)  # whatever their size
    values = u.mT @ found @ vt.mT
    kept = values.diagonal(dim1=1, dim2=2)
    assert (values - torch.diag_embed(kept)).abs().max() < 1e-3
    assert kept.min() > 0.6 and kept.max() < 1.25
    assert (found - u @ vt).norm(dim=(1, 2)).max() < 0.35 * min(shape) ** 0.5


def test_a_gradient_of_nothing_moves_nothing():
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


# --- one step --------------------------------------------------------------------------------------------------------


def turned(matrix: torch.Tensor) -> torch.Tensor:
    """Newton and Schulz on one matrix, which is wide or square."""
    if matrix.shape[0] > matrix.shape[1]:
        return turned(matrix.T).T
    a, b, c = CURVE
    x = matrix / matrix.norm()
    for _ in range(TURNS):
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    return x


@pytest.mark.parametrize(
    ("other", "stacked"),
    [
        ({}, {"qkv": 8, "up": 12}),  # rows of a part: queries, keys and values; gate and up
        ({"kv_heads": 1}, {"up": 12}),  # keys are not as wide as queries: one matrix
        ({"gated": False}, {"qkv": 8}),
    ],
)
def test_muon_is_what_it_is_for_each_matrix_alone(other, stacked):
    net = network(**other)
    mine = Optimizer(net, "muon", decay=0.1)
    expected, momentum = weights(net), {}
    for turn, rate in enumerate((0.01, 0.03)):
        push(net, turn)
        for name, weight in net.named_parameters():
            if name.startswith("blocks.") and weight.dim() == 2:
                momentum[name] = momentum.get(name, 0) * MOMENTUM + weight.grad * (1 - MOMENTUM)
                ahead = momentum[name] * MOMENTUM + weight.grad * (1 - MOMENTUM)
                parts = ahead.split(stacked.get(name.split(".")[2], len(ahead)))
                steps = [0.2 * max(part.shape) ** 0.5 * turned(part) for part in parts]
                expected[name] = expected[name] * (1 - rate * 0.1) - rate * torch.cat(steps)
        mine.step(rate)
        assert all(weight.grad is None for weight in net.parameters())
    assert len(momentum) == 8
    for name in momentum:
        assert torch.allclose(net.get_parameter(name), expected[name], atol=1e-6), name


def test_large_gradients_of_values_leave_queries_and_keys_their_steps():
    net = network()
    weight = net.blocks[0].qkv.weight
    before = weight.detach().clone()
    push(net, 0)
    weight.grad[16:] *= 1e4
    Optimizer(net, "muon", 0.0).step(0.1)
    sizes = [float(part.norm()) for part in (weight.detach() - before).split(8)]
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_rest_moves_as_torch_has_it(kind):
    net, other = network(), network()
    mine = Optimizer(net, kind, decay=0.2)
    named = [(n, w) for n, w in other.named_parameters() if kind == "adamw" or not (n[:6] == "blocks" and w.dim() == 2)]
    groups = [
        {"params": [weight for _, weight in named if weight.dim() > 1], "weight_decay": 0.2},
        {"params": [weight for _, weight in named if weight.dim() == 1], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    for turn, rate in enumerate((0.01, 0.02, 0.005)):
        push(net, turn)
        push(other, turn)
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
        mine.step(rate)
    for name, weight in named:
        assert torch.equal(net.get_parameter(name), weight), name


def test_tied_embeddings_take_larger_steps_and_no_decay():
    moved = {}
    for tied in (True, False):
        net = network(tied=tied, logit_scale=0.25)
        before = weights(net)["embed.weight"]
        push(net, 0)
        signs = net.embed.weight.grad.sign()
        Optimizer(net, "muon", decay=0.5).step(0.01)
        moved[tied] = before - net.embed.weight.detach(), before, signs
    tied, _, signs = moved[True]
    assert torch.allclose(tied, 0.04 * signs, atol=1e-5)  # a first step of Adam is the sign, times the rate
    free, before, signs = moved[False]
    assert torch.allclose(free, 0.01 * signs + 0.01 * 0.5 * before, atol=1e-5)


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_it_goes_on_from_its_state(kind):
    def steps(net, mine, numbers):
        for number in numbers:
            push(net, number)
            mine.step(0.02)

    whole = network()
    steps(whole, Optimizer(whole, kind, 0.1), range(6))
    first = network()
    begun = Optimizer(first, kind, 0.1)
    steps(first, begun, range(3))
    kept = {name: tensor.clone() for name, tensor in begun.state().items()}
    for restore in (True, False):
        other = network()
        other.load_state_dict(first.state_dict())
        again = Optimizer(other, kind, 0.1)
        if restore:
            again.restore(kept)
        steps(other, again, range(3, 6))
        same = [torch.equal(a, b) for a, b in zip(whole.parameters(), other.parameters(), strict=True)]
        assert all(same) if restore else not any(same)


def test_another_kind_begins_anew_where_it_knows_nothing():
    net = network()
    begun = Optimizer(net, "muon", 0.1)
    push(net, 0)
    begun.step(0.01)
    other = Optimizer(net, "adamw", 0.1)
    other.restore(begun.state())
    push(net, 1)
    other.step(0.01)
    assert all(weight.isfinite().all() for weight in net.parameters())
    assert other.adam.state[net.embed.weight]["step"] == 2
    assert other.adam.state[net.blocks[0].out.weight]["step"] == 1


def test_equal_gradients_give_equal_weights():
    found = []
    for seed in (0, 0, 1):
        net = network()
        mine = Optimizer(net, "muon", 0.1)
        for turn in range(3):
            push(net, 10 * seed + turn)
            mine.step(0.01)
        found.append(torch.cat([weight.flatten() for weight in net.parameters()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
