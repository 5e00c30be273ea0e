"""Matrices in 4 and 8 bits: their numbers, products, kernels, and networks of them; what is refused."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask import Recipe, decode_batch, load
from unmask.cli import main
from unmask.core.gpu import packed as gpu
from unmask.errors import InputError, ModelError, UnmaskError
from unmask.models import memory
from unmask.models.families.blueprint import Config
from unmask.models.files.directory import FAMILIES
from unmask.models.laws import check
from unmask.models.made.fabricate import fabricate
from unmask.models.made.random_sizes import make
from unmask.models.network import Network, empty, parameter_shapes
from unmask.models.packed import Packed, Packing, pack, packed_of, packings, times, unpack
from unmask.models.transformer import Transformer

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
KINDS = [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])]
kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or TRITON_INTERPRET=1")
both = pytest.mark.parametrize("bits", [4, 8])
EDGES = [1, 64, 100, 128, 129, 300]  # columns, around groups of 128


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def made(matrix: Tensor, bits: int, ordered: bool = False) -> Packed:
    """A packed matrix with these numbers."""
    found = Packed(matrix.shape, Packing(bits, ordered)).to(matrix.device)
    for part, values in zip(found.parts, pack(matrix, bits), strict=True):
        part.copy_(values)
    return found


# --- numbers ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("columns", EDGES)
def test_no_weight_is_off_by_more_than_half_a_scale(columns, bits):
    exact = random(9, columns) * torch.logspace(-18, 18, 9, device=DEVICE)[:, None]
    whole, scale, zero = pack(exact, bits)
    groups = -(-columns // 128)
    assert whole.shape == (9, groups * 16 * bits) and scale.shape == zero.shape == (9, groups)
    found = unpack(whole, scale, zero, columns, torch.float64)
    assert found.shape == exact.shape
    half = scale.double().repeat_interleave(128, 1)[:, :columns] / 2
    assert ((found - exact.double()).abs() <= half * (1 + 1e-4)).all()
    spread = [(part.amax(1).clamp(min=0) - part.amin(1).clamp(max=0)) for part in exact.split(128, 1)]
    assert torch.allclose(scale, torch.stack(spread, 1) / (2**bits - 1))  # and no scale is larger than it must be


@both
def test_whole_numbers_and_zeros_come_back_exactly(bits):
    least = torch.tensor([[0], [-(2**bits) + 1], [-5]], device=DEVICE)
    exact = (torch.arange(2**bits, device=DEVICE) + least).float().repeat(1, 256 // 2**bits) * 0.25
    exact[:, 7::16] = 0
    exact[:, ::128], exact[:, 1::128] = least * 0.25, (least + 2**bits - 1) * 0.25  # the range of every group
    whole, scale, zero = pack(exact, bits)
    assert torch.equal(unpack(whole, scale, zero, 256, torch.float32), exact)
    nothing = torch.zeros(2, 130, device=DEVICE)
    assert torch.equal(unpack(*pack(nothing, bits), 130, torch.float32), nothing)


@both
@pytest.mark.parametrize("columns", EDGES)
def test_a_product_is_that_of_the_floats(columns, bits, monkeypatch):
    monkeypatch.setattr("unmask.models.packed.SOME", 7 * columns)  # in several parts
    matrix, x, bias = made(random(20, columns), bits), random(2, 5, columns, seed=1), random(20, seed=2)
    expected = x.double() @ matrix.unpacked(dtype=torch.float64).T + bias
    assert torch.allclose(matrix.times(x, bias=bias).double(), expected, atol=1e-4)
    assert torch.equal(times(x, random(20, columns)), x @ random(20, columns).T)


def test_an_order_of_columns():
    exact, order = random(6, 200), torch.randperm(200, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    matrix = made(exact[:, order], 8, ordered=True)
    assert matrix.order is not None
    matrix.order.copy_(order)
    x = random(3, 200, seed=1)
    assert torch.allclose(matrix.unpacked(), exact, atol=0.02)
    assert torch.allclose(matrix.times(x), x @ matrix.unpacked().T, atol=1e-4)


# --- the kernels -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Kernels do what they can, in the interpreter too; what they were asked about."""
    asked: list[Any] = []
    if INTERPRETED:
        monkeypatch.setattr(gpu, "compiled", lambda *tensors: asked.append(tensors) or True)
    return asked


def reference(x: Tensor, matrix: Packed, bias: Tensor | None = None) -> Tensor:
    """The product in float64, on the host."""
    parts = (part.cpu() for part in matrix.parts)
    found = x.double().cpu() @ unpack(*parts, matrix.columns, torch.float64).mT
    return found if bias is None else found + bias.double().cpu()


@kernels
@both
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize(("rows", "shape"), [(1, (70, 128)), (17, (33, 300)), (40, (130, 1024)), (70, (20, 100))])
def test_the_kernel_against_float64(rows, shape, dtype, bits, on):
    matrix = made(random(*shape), bits)
    x, bias = random(rows, shape[1], seed=1, dtype=dtype), random(shape[0], seed=2, dtype=dtype)
    assert gpu.usable(x, matrix.whole)
    close = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype] * shape[1] ** 0.5
    for given in (None, bias):
        found = matrix.times(x, bias=given)
        assert found.dtype == dtype and found.shape == (rows, shape[0])
        assert torch.allclose(found.double().cpu(), reference(x, matrix, given), atol=close)


@kernels
@both
def test_the_kernels_unpack_what_torch_unpacks(bits, on):
    for columns in EDGES:
        matrix = made(random(5, columns), bits)
        whole, scale, zero = (part.cpu() for part in matrix.parts)
        expected = unpack(whole, scale, zero, columns, torch.float64)
        found = unpack(*matrix.parts, columns, torch.float32)
        assert torch.allclose(found.double().cpu(), expected, rtol=1e-6, atol=0)


@kernels
@both
def test_stacked_matrices(bits, on):
    stack, x = made(random(3, 20, 200), bits), random(7, 200, seed=1)
    assert torch.allclose(stack.times(x, slice(1, 3)).cpu(), reference(x, stack)[1:].float(), atol=1e-3)
    each = random(3, 7, 200, seed=2)
    assert torch.allclose(stack.times(each, slice(0, 3)).cpu(), reference(each, stack).float(), atol=1e-3)
    assert torch.allclose(stack.times(x, 2).cpu(), reference(x, stack)[2].float(), atol=1e-3)


@kernels
def test_a_row_alone_and_among_others_in_the_kernel(on):
    matrix, x = made(random(64, 1024), 4), random(40, 1024, seed=1)
    together = matrix.times(x)
    for row in (0, 17, 39):
        assert torch.allclose(matrix.times(x[row : row + 1])[0], together[row], atol=1e-5 * 1024**0.5)


@kernels
def test_many_rows_are_multiplied_unpacked(on, monkeypatch):
    matrix, x = made(random(20, 200), 4), random(9, 200, seed=1)
    few = matrix.times(x)
    monkeypatch.setattr(gpu, "ROWS", 8)
    monkeypatch.setattr(gpu, "_read", None)
    assert torch.allclose(matrix.times(x), few, atol=1e-4)


@kernels
def test_a_network_by_the_kernels(on, tmp_path):
    fabricate("llada2", tmp_path / "moe")
    model = load(tmp_path / "moe", DEVICE, torch.float32, weights="int4")
    tokens, columns = torch.arange(12, device=DEVICE)[None], torch.arange(12, device=DEVICE)[None]
    found = model.network(tokens, columns)[0]
    exact = load(tmp_path / "moe", "cpu", torch.float64, weights="int4").network
    assert torch.allclose(found.double().cpu(), exact(tokens.cpu(), columns.cpu())[0], atol=1e-3)


# --- networks --------------------------------------------------------------------------------------------------------


def unpacked(network: Network) -> Network:
    """The same network with its packed numbers as floats."""
    plain, packed = empty(network.shape, network.like.device, network.like.dtype), packed_of(network)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(packed[name].unpacked() if name in packed else network.get_parameter(name))
    return plain


@both
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_its_numbers_give(family, bits, tmp_path):
    fabricate(family, tmp_path / family)
    model = load(tmp_path / family, dtype=torch.float32, weights=f"int{bits}")
    network = model.network
    shapes = parameter_shapes(network.shape)
    assert packed_of(network).keys() == packings(shapes, bits).keys()
    left = {name: size for name, size in shapes.items() if len(size) > 1 and name not in packed_of(network)}
    assert all(part not in name for name in left for part in ("qkv", "up", "down", ".out"))
    assert packed_of(network)["blocks.0.qkv.weight"].bits == bits
    assert "embed.weight" not in packed_of(network) or packed_of(network)["embed.weight"].bits == 8
    tokens, columns = torch.arange(24).view(2, 12), torch.arange(12)[None]
    with torch.no_grad():
        found, expected = (one(tokens, columns)[0] for one in (network, unpacked(network)))
    assert torch.allclose(found, expected, atol=1e-4)
    assert [verdict for verdict in check(model) if verdict.held is False] == []
    assert model.bytes == memory.needed(network.shape, torch.float32, packings(shapes, bits))
    exact = load(tmp_path / family, dtype=torch.float32).network  # and it is close to what was there before
    for name, one in packed_of(network).items():
        off = (one.unpacked() - exact.get_parameter(name)).norm() / exact.get_parameter(name).norm()
        assert off < {8: 0.01, 4: 0.12}[one.bits], name


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_decodes_with_a_cache(family, tmp_path):
    fabricate(family, tmp_path / family)
    model = load(tmp_path / family, dtype=torch.float64, weights="int4")
    changes: dict[str, Any] = {} if family == "sdar" else {"cache": True, "cache_before": 0, "cache_after": 0}
    recipe = Recipe("semi-ar", "smc", length=16, block_length=4, particles=3, every=3, temperature=0.8, **changes)
    prompts = ["a cat", "what is this, a dog"]
    together = decode_batch(model, prompts, recipe=recipe)
    plain = Transformer(**{**vars_of(model), "network": unpacked(model.network)})
    for found, expected in zip(together, decode_batch(plain, prompts, recipe=recipe), strict=True):
        assert [p.tokens for p in found.particles] == [p.tokens for p in expected.particles]
        assert found.path_entropy == pytest.approx(expected.path_entropy, abs=1e-6)


def vars_of(model: Transformer) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__dataclass_fields__}


def test_a_model_moved_to_another_type(tmp_path):
    fabricate("dream", tmp_path / "dream")
    model = load(tmp_path / "dream", dtype=torch.float32, weights="int8")
    half, packed = model.to(torch.bfloat16), packed_of(model.network)
    assert half.network.like.dtype == torch.bfloat16 and model.network.like.dtype == torch.float32
    for name, one in packed_of(half.network).items():
        assert all(torch.equal(a, b) for a, b in zip(one.parts, packed[name].parts, strict=True))
    assert half.network.blocks[0].qkv.bias.dtype == torch.bfloat16
    assert [verdict for verdict in check(half) if verdict.held is False] == []


def test_bundled_and_random_models_are_packed_too():
    plain, eight, four = (load("countdown", weights=name) for name in ("float", "int8", "int4"))
    assert plain.bytes > eight.bytes > four.bytes
    made = make("tiny", torch.device("cpu"), weights="int4")
    spread = float(made.network.get_submodule("blocks.0.down.weight").unpacked().std())  # type: ignore[operator]
    down = parameter_shapes(made.network.shape)["blocks.0.down.weight"]
    assert spread == pytest.approx(down[1] ** -0.5, rel=0.05) and [v for v in check(made) if v.held is False] == []


def test_sizes_of_published_models():
    """Bytes of LLaDA-8B: 6.98 billion weights in 4.375 or 8.375 bits, an embedding in 8.375, a head in 16."""
    shape = FAMILIES["llada"].read(Config(FAMILIES["llada"].published.full)).shape
    found = [memory.needed(shape, torch.bfloat16, packings(parameter_shapes(shape), bits)) for bits in (None, 8, 4)]
    assert [round(size / 2**30, 2) for size in found] == [14.93, 8.28, 5.03]


# --- loading ---------------------------------------------------------------------------------------------------------

PEAK = """
import sys
from unmask import load
from unmask.models import memory
from unmask.models.files import fill
fill.MAPPED, fill.PIECE = 2**24, 2**20
load(sys.argv[2], weights="int4")
base = memory.host_peak()
print(base, load(sys.argv[1], weights="int4").bytes, memory.host_peak())
"""


def test_loading_needs_the_packed_weights_and_little_more(tmp_path, monkeypatch):
    fabricate("llada", tmp_path / "small")
    family, published = FAMILIES["llada"], FAMILIES["llada"].published
    large = {"d_model": 1024, "n_heads": 8, "n_kv_heads": 8, "n_layers": 4, "mlp_hidden_size": 1024}
    monkeypatch.setitem(
        FAMILIES, "llada", replace(family, published=replace(published, tiny={**published.tiny, **large}))
    )
    fabricate("llada", tmp_path / "large")
    whole = sum(path.stat().st_size for path in (tmp_path / "large").glob("*.safetensors"))
    words = [sys.executable, "-c", PEAK, str(tmp_path / "large"), str(tmp_path / "small")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    base, size, peak = map(int, done.stdout.split())
    assert whole > 10**8 and size < whole / 5
    assert peak - base < size + 2**26  # 64 MiB: what is read at a time, and pieces


@pytest.mark.parametrize("family", ["llada", "llada2"])
def test_pieces_and_progress(family, tmp_path, monkeypatch):
    fabricate(family, tmp_path / family)
    whole = load(tmp_path / family, weights="int8")
    monkeypatch.setattr("unmask.models.files.fill.PIECE", 500)
    monkeypatch.setattr("unmask.models.files.fill.MAPPED", 40_000)
    seen: list[tuple[int, int]] = []
    model = load(tmp_path / family, weights="int8", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)
    for one, other in zip(model.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_flags(tmp_path, capsys):
    fabricate("sdar", tmp_path / "sdar")
    assert main(["models", str(tmp_path / "sdar"), "--weights", "int4"]) == 0
    assert "float32, layers in 4 bits" in capsys.readouterr().out
    assert main(["models", "countdown", "--weights", "int8", "--json"]) == 0
    assert "8 bits" in capsys.readouterr().out
    assert main(["models", "--weights", "int8"]) == 2
    assert "--weights has no effect" in capsys.readouterr().err


def test_refused(tmp_path):
    fabricate("llada", tmp_path / "llada")
    for name, weights, said in [
        (tmp_path / "llada", "int3", "unknown kind of weights 'int3'"),
        ("table", "int8", "weights has no effect on the model table"),
        ("random", "int4", "weights has no effect on the model random"),
    ]:
        with pytest.raises(UnmaskError, match=said):
            load(name, weights=weights)
    with pytest.raises(InputError, match="no effect with trust_remote_code"):
        load(tmp_path / "llada", weights="int8", trust_remote_code=True)


@both
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(bad, bits, tmp_path):
    from safetensors.torch import load_file, save_file

    fabricate("llada", tmp_path / "llada")
    file = next((tmp_path / "llada").glob("*.safetensors"))
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[name][3, 5] = bad
    save_file(tensors, file)
    with pytest.raises(ModelError, match="weights that are not finite"):
        load(tmp_path / "llada", weights=f"int{bits}")


def test_modules_that_are_packed_keep_their_names():
    network = empty(parameter_shapes_of("dream"), "cpu", torch.float32)
    names = [name for name, _ in network.named_parameters()]
    packed = empty(network.shape, "cpu", torch.float32, packings(parameter_shapes(network.shape), 4))
    parts = (".whole", ".scale", ".zero")
    found = [name for name, _ in packed.named_parameters() if not name.endswith(parts)]
    assert set(found) | set(packed_of(packed)) == set(names)


def parameter_shapes_of(family: str) -> Any:
    return FAMILIES[family].read(Config(FAMILIES[family].published.tiny)).shape
