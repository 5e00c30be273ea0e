"""The kernels between a layer's matrix products against torch: on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask import load
from unmask.core.gpu import attention, layer
from unmask.models import elementwise
from unmask.models.experts import ExpertMLP, Experts
from unmask.models.files.directory import FAMILIES
from unmask.models.made.fabricate import fabricate
from unmask.models.network import Past

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cpu" if INTERPRETED else "cuda"
CLOSE = {torch.float32: 1e-6, torch.float16: 2**-9} | ({} if INTERPRETED else {torch.bfloat16: 2**-7})
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about exp of large numbers
kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or TRITON_INTERPRET=1")
every_type = pytest.mark.parametrize("dtype", CLOSE, ids=str)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Kernels do what they can, in the interpreter too; what they were asked about."""
    asked: list[Any] = []
    if INTERPRETED:
        monkeypatch.setattr(layer, "compiled", lambda *tensors: asked.append(tensors) or True)
    return asked


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(DEVICE, dtype)


def same(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape and found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=CLOSE[dtype], atol=CLOSE[dtype])


def made_norm(kind: str, width: int, dtype: torch.dtype, eps: float = 1e-5) -> elementwise.Norm:
    made = nn.RMSNorm(width, eps=eps) if kind == "rms" else nn.LayerNorm(width, eps=eps, bias=False)
    made = made.to(DEVICE, dtype).requires_grad_(False)
    made.weight.copy_(random(width, dtype=dtype, seed=9) + 1)
    return made


# --- each against torch -----------------------------------------------------------------------------------------------


@kernels
@every_type
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("rows", "columns", "width"), [(2, 3, 288), (1, 1, 24), (3, 2, 64), (0, 4, 16), (2, 0, 16)])
@pytest.mark.parametrize("modulation", ["none", "gate", "each", "shared"])
def test_added_norm(
    rows: int, columns: int, width: int, kind: str, modulation: str, dtype: torch.dtype, on: list[Any]
) -> None:
    x, y = (random(rows, columns, width, dtype=dtype, seed=seed, scale=3.0) for seed in (1, 2))
    change = random(1 if modulation == "shared" else rows, 1, 6 * width, dtype=dtype, seed=3, scale=0.3).chunk(6, 2)
    gate, shifts = (None, None) if modulation == "none" else (change[2], None if modulation == "gate" else change[3:5])
    norm = made_norm(kind, width, dtype)
    total, out = elementwise.added_norm(x, (y, gate), norm, shifts)
    expected = x + (y if gate is None else gate * y)
    assert torch.equal(total, expected) and total.dtype == dtype
    same(out, elementwise.modulated(norm(expected), shifts), dtype)


@kernels
@every_type
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "heads", "kv", "each", "turned"),
    [(2, 3, 4, 4, 16, 16), (2, 3, 6, 2, 24, 24), (1, 1, 20, 4, 8, 8), (3, 2, 3, 1, 18, 10), (0, 2, 2, 2, 8, 8)],
)
def test_split_heads(
    rows: int, columns: int, heads: int, kv: int, each: int, turned: int, normed: bool, keep: bool,
    dtype: torch.dtype, on: list[Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    qkv = random(rows, columns, (heads + 2 * kv) * each, dtype=dtype, seed=1)
    norms = (made_norm("rms", each, dtype, 1e-3), made_norm("rms", each, dtype, 1e-3)) if normed else None
    if norms is not None:
        norms[1].weight.copy_(random(each, dtype=dtype, seed=4))
    for shared in (False, True):
        angles = random(1 if shared else rows, 1, columns, turned // 2, seed=5)
        waves = angles.cos(), angles.sin()
        found = elementwise.split_heads(qkv, heads, kv, norms, waves, keep)
        with monkeypatch.context() as patch:
            patch.setattr(layer, "usable", lambda *_: False)
            expected = elementwise.split_heads(qkv, heads, kv, norms, waves, keep)
        for one, other in zip(found, expected, strict=True):
            same(one, other, dtype)
            assert normed or torch.equal(one, other)
        assert found[0].transpose(1, 2).is_contiguous() and found[1].is_contiguous()
        assert found[2].is_contiguous() if keep else not qkv.numel() or found[2].data_ptr() > qkv.data_ptr()


@kernels
@every_type
@pytest.mark.parametrize("shape", [(2, 3, 10), (1, 1, 288), (0, 2, 8), (4, 2, 3, 6000)])
def test_gated(shape: tuple[int, ...], dtype: torch.dtype, on: list[Any]) -> None:
    both = random(*shape, dtype=dtype, seed=1, scale=4.0)
    gate, up = both.chunk(2, -1)
    same(elementwise.gated(both), F.silu(gate) * up, dtype)
    same(elementwise.gated(both.transpose(0, 1)), (F.silu(gate) * up).transpose(0, 1), dtype)
    extreme = torch.tensor([[-1e4, 1e4, 0.0, -0.0, 1.0, 2.0, 3.0, 4.0]], device=DEVICE).to(dtype)
    same(elementwise.gated(extreme), F.silu(extreme[:, :4]) * extreme[:, 4:], dtype)


@kernels
@every_type
@pytest.mark.parametrize("most", [1 << 26, 1, 900])
def test_experts(most: int, dtype: torch.dtype, on: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mlp = ExpertMLP(24, Experts((0,), 6, 2, 10, shared=14, normed=True)).to(DEVICE, dtype).requires_grad_(False)
    for seed, parameter in enumerate(mlp.parameters()):
        parameter.copy_(random(*parameter.shape, dtype=dtype, seed=seed, scale=0.3))
    monkeypatch.setattr("unmask.models.experts.MOST", most)
    monkeypatch.setattr("unmask.models.experts.waits", lambda _: False)
    for x in (random(2, 5, 24, dtype=dtype, seed=20), random(0, 5, 24, dtype=dtype)):
        found = mlp(x)
        with monkeypatch.context() as patch:
            patch.setattr(layer, "usable", lambda *_: False)
            same(found, mlp(x), dtype)


# --- where they are used ----------------------------------------------------------------------------------------------


def test_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "compiled", lambda *_: True)
    x, half = torch.ones(3), torch.ones(3, dtype=torch.bfloat16)
    assert layer.usable(x) and layer.usable(half, None, half)
    assert not layer.usable(x, half) and not layer.usable(x.double())
    trained = nn.Parameter(torch.ones(3))
    assert not layer.usable(x, trained)
    with torch.no_grad():
        assert layer.usable(x, trained)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not layer.usable(x)


def test_a_cpu_uses_none() -> None:
    assert not layer.usable(torch.ones(3))


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("made") / request.param
    fabricate(request.param, place, seed=1)
    return place


@kernels
@pytest.mark.parametrize("dtype", [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16], ids=str)
def test_families_have_the_same_hidden_states(
    checkpoint: Path, dtype: torch.dtype, on: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole rows, padded ones, and columns against kept ones; keys and values as well."""
    model: Any = load(checkpoint, DEVICE, dtype)
    network, calls = model.network, []
    monkeypatch.setattr("unmask.models.experts.waits", lambda _: False)
    for name in ("added_norm", "split_heads", "gated", "add_chosen"):
        real = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda *args, real=real, name=name: calls.append(name) or real(*args))
    tokens = torch.randint(5, 200, (2, 7), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    columns = torch.stack([torch.arange(7), (torch.arange(7) - 2).clamp(min=-1)]).to(DEVICE)
    sigma = torch.tensor([0.3, 2.0], device=DEVICE) if network.shape.condition else None

    def runs() -> list[Tensor]:
        with torch.no_grad():
            whole, layers = network(tokens, columns, columns >= 0, sigma, keep=True)
            past = Past(tuple((k[:, :, :4], v[:, :, :4]) for k, v in layers), low=torch.tensor([0, 2], device=DEVICE))
            part, _ = network(tokens[:, 4:], columns[:, 4:], None, sigma, (past,))
        return [whole, part, *(x for pair in layers for x in pair)]

    found = runs()
    shape = network.shape
    expected = {"added_norm"} | ({"split_heads"} if shape.position in ("rotary", "both") else set())
    expected |= {"gated"} if shape.gated or shape.experts else set()
    assert set(calls) == expected | ({"add_chosen"} if shape.experts else set())
    assert calls.count("added_norm") == 2 * 2 * shape.layers
    with monkeypatch.context() as patch:
        patch.setattr(layer, "usable", lambda *_: False)
        for one, other in zip(found, runs(), strict=True):
            tolerance = 2e-5 if dtype == torch.float32 else 0.05
            assert (one.double() - other.double()).abs().max() < tolerance * max(1.0, float(other.abs().max()))


@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs CUDA")
def test_a_layer_can_be_captured() -> None:
    x, y, qkv, both = (random(2, 5, width, dtype=torch.bfloat16, seed=width) for width in (64, 64, 192, 256))
    norm, angles = made_norm("rms", 64, torch.bfloat16), random(1, 1, 5, 8, seed=7)
    assert attention.usable(x)

    def all_of_it() -> list[Tensor]:
        waves = angles.cos(), angles.sin()
        heads = elementwise.split_heads(qkv, 4, 4, None, waves, True)
        return [*elementwise.added_norm(x, (y, None), norm, None), *heads, elementwise.gated(both)]

    all_of_it()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = all_of_it()
    for tensor in (x, qkv, both):
        tensor.copy_(tensor.flip(0))
    graph.replay()
    replayed = [tensor.clone() for tensor in recorded]
    assert all(torch.equal(a, b) for a, b in zip(replayed, all_of_it(), strict=True))
