"""Checkpoints in the layout of GPTQ: loaded exactly, packed or as floats; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask import load
from unmask.errors import InputError, ModelError
from unmask.models.files.directory import FAMILIES
from unmask.models.laws import check
from unmask.models.made.fabricate import fabricate
from unmask.models.packed import packed_of

LLADA = {"d_model": 256, "n_heads": 2, "n_kv_heads": 2, "n_layers": 1, "mlp_hidden_size": 384}
Tensors = dict[str, Tensor]


def numbers(values: Tensor, bits: int, axis: int) -> Tensor:
    """Whole numbers as int32, several in each along an axis, the first in the lowest bits."""
    parts = values.long().unflatten(axis, (-1, 32 // bits))
    shift = torch.arange(0, 32, bits).view([-1 if at == axis + 1 else 1 for at in range(parts.dim())])
    found = (parts << shift).sum(axis + 1)
    return torch.where(found >= 2**31, found - 2**32, found).int()


def quantize(
    weight: Tensor, bits: int, group: int, order: Tensor | None = None, offset: int = 1
) -> tuple[Tensors, Tensor]:
    """Random numbers, zeros and scales for a matrix of this shape, as four tensors; and its floats in float64."""
    rows, columns = weight.shape
    size = columns if group < 0 else group
    generator = torch.Generator().manual_seed(rows + columns + bits)
    at = torch.arange(columns) // size
    if order is not None:
        at = torch.empty_like(at).index_copy_(0, order, at)
    groups = int(at.max()) + 1
    whole = torch.randint(2**bits, (columns, rows), generator=generator)
    zero = torch.randint(2**bits, (groups, rows), generator=generator)
    scale = ((torch.rand(groups, rows, generator=generator) + 0.5) * columns**-0.5 / 2 ** (bits - 1)).half()
    exact = (whole - zero[at] - offset).double() * scale[at].double()
    made = {"qweight": numbers(whole, bits, 0), "qzeros": numbers(zero, bits, 1), "scales": scale, "g_idx": at.int()}
    return made, exact.T


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from dataclasses import replace

    family = FAMILIES["llada"]
    published = replace(family.published, tiny={**family.published.tiny, **LLADA})
    monkeypatch.setitem(FAMILIES, "llada", replace(family, published=published))
    fabricate("llada", tmp_path / "plain")
    return tmp_path / "plain"


def turn(directory: Path, bits: int = 4, group: int = 128, act: bool = False, **fields: Any) -> dict[str, Tensor]:
    """The matrices of its layers quantized in place; their floats."""
    (file,) = directory.glob("*.safetensors")
    tensors, exact = load_file(file), {}
    offset = 0 if fields.get("checkpoint_format") == "gptq_v2" else 1
    for name in [one for one in tensors if ".blocks." in one or ".layers." in one]:
        weight = tensors[name]
        if weight.dim() != 2 or "router" in name or name.endswith("mlp.gate.weight"):
            continue
        columns = weight.shape[1]
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns)) if act else None
        made, exact[name] = quantize(tensors.pop(name), bits, group, order, offset)
        tensors |= {name.removesuffix("weight") + part: values for part, values in made.items()}
    save_file(tensors, file)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act,
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return exact


def change(directory: Path, name: str, values: Tensor | None) -> str:
    """Another tensor in the place of the first one whose name ends so; None: it is missing."""
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    full = next(one for one in sorted(tensors) if one.endswith(name))
    del tensors[full]
    save_file(tensors if values is None else tensors | {full: values}, file)
    return full


def settings(directory: Path, **fields: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] |= fields
    (directory / "config.json").write_text(json.dumps(config))


def same(model: Any, exact: dict[str, Tensor], dtype: torch.dtype, packed: bool) -> None:
    """Its parameters are these floats; queries, keys and values share one, and so do gate and up."""
    block = "model.transformer.blocks.0."
    parts = {
        "qkv": ("q_proj", "k_proj", "v_proj"),
        "out": ("attn_out",),
        "up": ("ff_proj", "up_proj"),
        "down": ("ff_out",),
    }
    for name, old in parts.items():
        wanted = torch.cat([exact[f"{block}{one}.weight"] for one in old])
        found = model.network.get_submodule(f"blocks.0.{name}").weight
        found = found.unpacked(dtype=torch.float64) if packed else found
        assert torch.equal(found, wanted.to(dtype)), name


# --- what is loaded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [False, True], ids=["in order", "act order"])
@pytest.mark.parametrize("group", [128, 256, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_taken_exactly(bits, group, act, plain):
    exact = turn(plain, bits, group, act)
    model = load(plain, dtype=torch.float32)
    same(model, exact, torch.float64, packed=True)
    assert {one.bits for one in packed_of(model.network).values()} == {bits}
    same(load(plain, dtype=torch.float32, weights=f"int{bits}"), exact, torch.float64, packed=True)
    floats = load(plain, dtype=torch.float32, weights="float")
    same(floats, exact, torch.float32, packed=False)
    assert not packed_of(floats.network) and floats.bytes > model.bytes
    tokens, columns = torch.arange(24).view(2, 12), torch.arange(12)[None]
    found, expected = (one.network(tokens, columns)[0] for one in (model, floats))
    assert torch.allclose(found, expected, atol=1e-4)
    assert [verdict for verdict in check(model) if verdict.held is False] == []


@pytest.mark.parametrize("offset", [("gptq_v2", 0), ("gptq", 1)], ids=str)
def test_formats_differ_in_their_zeros(offset, plain):
    exact = turn(plain, checkpoint_format=offset[0])
    same(load(plain), exact, torch.float64, packed=True)


def test_the_config_in_a_file_of_its_own(plain):
    exact = turn(plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "quantize_config.json").write_text(json.dumps(config.pop("quantization_config")))
    (plain / "config.json").write_text(json.dumps(config))
    same(load(plain), exact, torch.float64, packed=True)


def test_without_g_idx_and_with_biases_of_zeros(plain):
    exact = turn(plain)
    (file,) = plain.glob("*.safetensors")
    tensors = {name: values for name, values in load_file(file).items() if not name.endswith("g_idx")}
    biases = {name.replace("scales", "bias"): torch.zeros(values.shape[1]) for name, values in tensors.items()
              if name.endswith("scales")}  # fmt: skip
    save_file(tensors | biases, file)
    same(load(plain), exact, torch.float64, packed=True)


@pytest.mark.parametrize("family", ["sdar", "llada2", "dream"])
def test_other_families_and_experts(family, tmp_path):
    fabricate(family, tmp_path / family)
    turn(tmp_path / family, group=-1)
    model, floats = (load(tmp_path / family, dtype=torch.float32, weights=weights) for weights in (None, "float"))
    assert len(packed_of(model.network)) >= 4 * model.network.shape.layers
    tokens, columns = torch.arange(24).view(2, 12), torch.arange(12)[None]
    found, expected = (one.network(tokens, columns)[0] for one in (model, floats))
    assert torch.allclose(found, expected, atol=1e-4)


def test_matrices_that_are_not_quantized_stay_floats(plain):
    turn(plain)
    (file,) = plain.glob("*.safetensors")
    tensors = load_file(file)
    base = "model.transformer.blocks.0.k_proj"
    for part in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{base}.{part}"]
    tensors[f"{base}.weight"] = torch.ones(256, 256)
    save_file(tensors, file)
    network = load(plain, dtype=torch.float32).network
    assert "blocks.0.qkv.weight" not in packed_of(network) and "blocks.0.out.weight" in packed_of(network)
    assert torch.equal(network.blocks[0].qkv.weight[256:512], torch.ones(256, 256))


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(directory: Path, *said: str, **options: Any) -> None:
    with pytest.raises((ModelError, InputError)) as caught:
        load(directory, **options)
    message = str(caught.value)
    assert "\n" not in message and all(one in message for one in said), message


FIELDS = {
    "bits": [3, 2, True, "4", 4.0, None, 10**30],
    "group_size": [64, 32, 0, -2, 100, "128", True],
    "quant_method": ["awq", "bitsandbytes", None, 7, ["gptq"]],
    "checkpoint_format": ["marlin", 1, ["gptq"]],
    "pack_dtype": ["int16"],
    "lm_head": [True],
    "dynamic": [{"+:.*": {"bits": 8}}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_other_kinds_of_quantization(name, value, plain):
    turn(plain)
    settings(plain, **{name: value})
    refused(plain, f"config.json: {name} is")


def test_hostile_tensors(plain, tmp_path):
    import shutil

    turn(plain)
    int32 = torch.int32
    cases: list[tuple[str, Tensor | None, str]] = [
        ("q_proj.qzeros", None, "is missing"),
        ("q_proj.scales", None, "is missing"),
        ("q_proj.qweight", None, "tensors are missing"),
        ("q_proj.qweight", torch.zeros(31, 256, dtype=int32), "one of them is damaged"),
        ("q_proj.qweight", torch.zeros(32, 255, dtype=int32), "one of them is damaged"),
        ("q_proj.qweight", torch.zeros(0, 0, dtype=int32), "damaged"),
        ("q_proj.qweight", torch.zeros(32, 256), "is no matrix of GPTQ"),
        ("q_proj.qweight", torch.zeros(32, dtype=int32), "is no matrix of GPTQ"),
        ("q_proj.qzeros", torch.zeros(3, 32, dtype=int32), "must be 2 × 32"),
        ("q_proj.scales", torch.ones(2, 128).half(), "must be 2 × 256"),
        ("q_proj.scales", torch.ones(2, 256, dtype=int32), "has the type I32"),
        ("q_proj.scales", torch.full((2, 256), float("nan")).half(), "not all finite"),
        ("q_proj.g_idx", torch.full((256,), 2, dtype=int32), "names groups that there are not"),
        ("q_proj.g_idx", torch.full((256,), -1, dtype=int32), "names groups that there are not"),
        ("q_proj.g_idx", torch.zeros(255, dtype=int32), "must be 256"),
        ("q_proj.g_idx", torch.zeros(256, dtype=int32), "are in other groups"),
    ]
    for number, (name, values, said) in enumerate(cases):
        shutil.copytree(plain, tmp_path / str(number))
        change(tmp_path / str(number), name, values)
        refused(tmp_path / str(number), said)
    uneven = torch.zeros(256, dtype=int32)
    change(plain, "q_proj.g_idx", uneven)
    refused(plain, "are in other groups", "give weights float")
    assert load(plain, weights="float")


def test_nothing_is_quantized_or_otherwise_than_asked(plain):
    config = json.loads((plain / "config.json").read_text())
    quantized = {**config, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    (plain / "config.json").write_text(json.dumps(quantized))
    refused(plain, "no tensor is quantized")
    (plain / "config.json").write_text(json.dumps({**config, "quantization_config": [4]}))
    refused(plain, "it must be an object")
    (plain / "config.json").write_text(json.dumps(config))
    turn(plain)
    refused(plain, "weights is int8, the checkpoint has 4 bits", weights="int8")
    (plain / "config.json").write_text(json.dumps(config))
    refused(plain, "tensors are missing")
