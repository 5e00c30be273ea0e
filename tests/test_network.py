"""The shared network against plain formulas, written out position by position, for every switch of a Shape."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import unmask
from unmask.models.experts import Experts
from unmask.models.network import Network, Past, Shape, empty

BASE = Shape(vocabulary=30, width=16, layers=2, heads=4, inner=24)
EXPERTS = Experts(layers=(0, 1), count=8, used=3, inner=10)
SIGMOID = replace(EXPERTS, score="sigmoid", bias=True, groups=4, used_groups=2, normed=True, scale=2.5, shared=14)
SHAPES = {
    "plain": BASE,
    "grouped": replace(BASE, kv_heads=2),
    "one-kv-head": replace(BASE, kv_heads=1),
    "wide-heads": replace(BASE, head_width=6),
    "qk-norm": replace(BASE, qk_norm=True, kv_heads=2),
    "biases": replace(BASE, qkv_bias=True, bias=True, head_bias=True),
    "plain-mlp": replace(BASE, gated=False, mlp_bias=True),
    "layer-norm": replace(BASE, norm="layer", eps=1e-3),
    "learned": replace(BASE, position="learned", places=12),
    "both": replace(BASE, position="both", places=12),
    "grid": replace(BASE, position="grid", places=4),
    "other-base": replace(BASE, base=37.0, eps=0.1),
    "time": replace(BASE, condition=8),
    "partial-rotary": replace(BASE, head_width=10, rotary=6),
    "experts": replace(BASE, experts=EXPERTS),
    "normed-experts": replace(BASE, experts=replace(EXPERTS, normed=True, layers=(0,))),
    "grouped-experts": replace(BASE, experts=replace(SIGMOID, layers=(1,)), condition=8),
    "one-expert": replace(BASE, experts=replace(SIGMOID, used=1, groups=2, used_groups=1, normed=False)),
    "lonely-groups": replace(BASE, experts=replace(SIGMOID, groups=8, used_groups=5)),
    "all": Shape(
        30, 16, 2, 4, 24, 2, 6, "layer", 1e-5, "grid", 10.0, 4, True, True, True, False, True, True, True, 8, 0.5
    ),
}


def filled(shape: Shape) -> Network:
    network = empty(shape, "cpu", torch.float64)
    generator = torch.Generator().manual_seed(7)
    for parameter in network.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return network


def norm(shape: Shape, x: list[float] | Tensor, weight: Tensor, kind: str | None = None) -> Tensor:
    x = torch.as_tensor(x, dtype=torch.float64)
    if (kind or shape.norm) == "layer":
        x = x - x.mean()
    return x / torch.sqrt((x**2).mean() + shape.eps) * weight


def turned(shape: Shape, x: Tensor, column: int) -> Tensor:
    """Each pair (c, c + half) as a point that is turned round the origin."""
    if shape.position not in ("rotary", "both"):
        return x
    width = shape.rotary or len(x)
    half, made = width // 2, x.clone()
    for c in range(half):
        angle = column * shape.base ** (-2 * c / width)
        point = complex(x[c], x[c + half]) * complex(math.cos(angle), math.sin(angle))
        made[c], made[c + half] = point.real, point.imag
    return made


def gated(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    half = len(up) // 2
    return down @ (torch.nn.functional.silu(up[:half] @ x) * (up[half:] @ x))


def mixture(sizes: Experts, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """One token through its experts, which are looked for one after the other."""
    logits = (w["router.weight"] @ x).tolist()
    total = sum(map(math.exp, logits))
    scores = [math.exp(a) / total if sizes.score == "softmax" else 1 / (1 + math.exp(-a)) for a in logits]
    ranks = [score + float(w["bias"][e]) for e, score in enumerate(scores)] if sizes.bias else scores
    size = sizes.count // sizes.groups
    groups = [range(g * size, (g + 1) * size) for g in range(sizes.groups)]
    groups.sort(key=lambda group: -sum(sorted((ranks[e] for e in group), reverse=True)[:2]))
    allowed = [e for group in groups[: sizes.used_groups] for e in group]
    chosen = sorted(allowed, key=lambda e: -ranks[e])[: sizes.used]
    whole = sum(scores[e] for e in chosen) if sizes.normed else 1.0
    mixed = sum(scores[e] / whole * sizes.scale * gated(x, w["up"][e], w["down"][e]) for e in chosen)
    return mixed + gated(x, w["shared_up.weight"], w["shared_down.weight"]) if sizes.shared else mixed


def formulas(network: Network, tokens: list[int], sigma: float = 0.0) -> Tensor:  # [L, D]
    """One row without padding."""
    shape, w = network.shape, dict(network.named_parameters())
    sees = range(len(tokens))
    x = [w["embed.weight"][token].clone() for token in tokens]
    for c in sees:
        if shape.position in ("learned", "both"):
            x[c] += w["place.weight"][c]
        if shape.position == "grid":
            row, column = divmod(c, shape.places)
            side = math.isqrt(shape.places)
            x[c] += w["row.weight"][row] + w["column.weight"][column]
            x[c] += w["box.weight"][(row // side) * side + column // side]
    condition = torch.zeros(0)
    if shape.condition:
        wave = [sigma * 10_000 ** (-k / 128) for k in range(128)]
        phi = torch.tensor([math.cos(a) for a in wave] + [math.sin(a) for a in wave], dtype=torch.float64)
        silu = torch.nn.functional.silu
        condition = silu(w["time.1.weight"] @ silu(w["time.0.weight"] @ phi + w["time.0.bias"]) + w["time.1.bias"])
    for layer in range(shape.layers):
        b = {name.removeprefix(f"blocks.{layer}."): p for name, p in w.items() if name.startswith(f"blocks.{layer}.")}
        zero = torch.zeros(shape.width)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (
            (b["modulate.weight"] @ condition + b["modulate.bias"]).split(shape.width)
            if shape.condition
            else (zero, zero, zero + 1, zero, zero, zero + 1)
        )
        y = [norm(shape, x[c], b["attention_norm.weight"]) * (1 + scale_a) + shift_a for c in sees]
        heads = [(b["qkv.weight"] @ y[c] + b.get("qkv.bias", 0.0)).view(-1, shape.each) for c in sees]
        mixed = []
        for c in sees:
            parts = []
            for head in range(shape.heads):
                group = shape.heads + head // (shape.heads // shape.kv)

                def ready(at: int, which: int, name: str, heads=heads, b=b) -> Tensor:
                    part = heads[at][which]
                    part = norm(shape, part, b[f"{name}_norm.weight"], "rms") if shape.qk_norm else part
                    return turned(shape, part, at)

                q = ready(c, head, "q")
                scores = torch.stack([q @ ready(o, group, "k") / math.sqrt(shape.each) for o in sees])
                chance = scores.softmax(0)
                parts.append(sum(chance[o] * heads[o][group + shape.kv] for o in sees))
            mixed.append(torch.cat(parts))
        x = [x[c] + gate_a * (b["out.weight"] @ mixed[c] + b.get("out.bias", 0.0)) for c in sees]
        for c in sees:
            y = norm(shape, x[c], b["mlp_norm.weight"]) * (1 + scale_m) + shift_m
            if shape.experts is not None and layer in shape.experts.layers:
                mine = {name.removeprefix("experts."): p for name, p in b.items() if name.startswith("experts.")}
                x[c] = x[c] + gate_m * mixture(shape.experts, mine, y)
                continue
            up = b["up.weight"] @ y + b.get("up.bias", 0.0)
            if shape.gated:
                up = torch.nn.functional.silu(up[: shape.inner]) * up[shape.inner :]
            else:
                up = torch.nn.functional.gelu(up, approximate="tanh")
            x[c] = x[c] + gate_m * (b["down.weight"] @ up + b.get("down.bias", 0.0))
    last = [norm(shape, x[c], w["norm.weight"]) for c in sees]
    if shape.condition:
        shift, scale = (w["modulate.weight"] @ condition + w["modulate.bias"]).split(shape.width)
        last = [y * (1 + scale) + shift for y in last]
    return torch.stack(last)


@pytest.mark.parametrize("name", SHAPES)
def test_hidden_states_are_those_of_the_formulas(name):
    network = filled(SHAPES[name])
    tokens = torch.tensor([[3, 29, 7, 7, 0, 12, 5], [1, 2, 3, 4, 5, 6, 7]])
    columns = torch.arange(7).expand(2, 7)
    sigma = torch.tensor([0.3, 4.0])
    hidden, _ = network(tokens, columns, None, sigma if network.shape.condition else None)
    for row in range(2):
        plain = formulas(network, tokens[row].tolist(), float(sigma[row]))
        assert (hidden[row] - plain).abs().max() < 1e-9


@pytest.mark.parametrize("name", SHAPES)
def test_padding_is_not_seen(name):
    network = filled(SHAPES[name])
    tokens = torch.tensor([[9, 9, 9, 3, 29, 7, 7], [1, 2, 3, 4, 5, 6, 7]])
    attend = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7]).bool()
    hidden, _ = network(tokens, attend.long().cumsum(1) - 1, attend)
    assert (hidden[0, 3:] - formulas(network, tokens[0, 3:].tolist())).abs().max() < 1e-9
    assert (hidden[1] - formulas(network, tokens[1].tolist())).abs().max() < 1e-9
    assert hidden.isfinite().all()


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_matters(name):
    network = filled(SHAPES[name])
    tokens, columns = torch.tensor([[3, 29, 7, 7, 0, 12, 5]]), torch.arange(7)[None]
    before, _ = network(tokens, columns)
    for label, parameter in network.named_parameters():
        if label.startswith("head."):
            continue  # the head is applied where it is asked for
        old = parameter.clone()
        parameter.copy_(parameter.flip(0) + 0.01)
        after, _ = network(tokens, columns)
        parameter.copy_(old)
        assert (after - before).abs().max() > 1e-6, label


@pytest.mark.parametrize("name", SHAPES)
def test_kept_keys_stand_in_for_fresh_ones(name):
    network = filled(SHAPES[name])
    tokens, columns = torch.tensor([[3, 29, 7, 7, 0, 12, 5], [1, 2, 3, 4, 5, 6, 7]]), torch.arange(7).expand(2, 7)
    whole, used = network(tokens, columns, keep=True)
    assert len(used) == network.shape.layers and not network(tokens, columns)[1]
    past = Past(tuple(used), count=torch.tensor([3, 3]))
    part, new = network(tokens[:, 3:], columns[:, 3:], past=(past,), keep=True)
    assert part.shape[1] == 4 and (part - whole[:, 3:]).abs().max() < 1e-12
    assert new[-1][0].shape[2] == 4 and (new[-1][0] - used[-1][0][:, :, 3:]).abs().max() < 1e-12
    for entry in ([0, 0, 1, 1], [1, 0, 0, 1]):  # rows that share an entry, side by side and not
        shared = replace(past, count=past.count[entry], entry=torch.tensor(entry))
        several, _ = network(tokens[entry, 3:], columns[entry, 3:], past=(shared,))
        assert (several - whole[entry, 3:]).abs().max() < 1e-12
    some = replace(past, count=None, seen=torch.tensor([[True] * 3 + [False] * 4] * 2))
    assert (network(tokens[:, 3:], columns[:, 3:], past=(some,))[0] - part).abs().max() < 1e-12


ROWS = """
import torch
import unmask
torch.set_num_threads(1)
for dtype in (torch.float32, torch.float64):
    for inside, outside in ((128, 32), (256, 12), (384, 4096), (896, 384)):
        weight, rows = torch.randn(outside, inside, dtype=dtype), torch.randn(96, inside, dtype=dtype)
        whole = torch.nn.functional.linear(rows, weight)
        for few in (*range(1, 33), 64):
            found = torch.nn.functional.linear(rows[:few], weight)
            assert torch.equal(found, whole[:few]), (dtype, inside, outside, few)
"""


@pytest.mark.skipif(not unmask._is_intel(), reason="MKL promises this on Intel processors only")
def test_few_rows_are_multiplied_as_many_are() -> None:
    """A process without our environment: `import unmask` has the products of MKL add in one order."""
    left = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    subprocess.run([sys.executable, "-c", ROWS], check=True, env=left)
