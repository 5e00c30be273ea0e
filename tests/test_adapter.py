"""LoRA adapters of PEFT: merged as PEFT merges them, before weights are packed; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask import load
from unmask.cli import main
from unmask.errors import InputError, ModelError
from unmask.models.made.fabricate import fabricate
from unmask.models.packed import pack, packed_of

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 6,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "bias": "none",
    "target_modules": ["q_proj", "attn_out"],
    "init_lora_weights": True,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_dora": False,
}
BLOCK = "model.transformer.blocks.0."
NAMES = (f"{BLOCK}q_proj", f"{BLOCK}attn_out")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    fabricate("llada", tmp_path / "plain")
    return tmp_path / "plain"


def made(directory: Path, model: Path, names: Any = NAMES, rank: int = 4, **fields: Any) -> dict[str, Tensor]:
    """An adapter of these matrices; its tensors."""
    (file,) = model.glob("*.safetensors")
    shapes, tensors = {name: values.shape for name, values in load_file(file).items()}, {}
    generator = torch.Generator().manual_seed(len(names))
    for name in names:
        rows, columns = shapes[f"{name}.weight"][-2:]
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator)
    written(directory, tensors, **fields)
    return tensors


def written(directory: Path, tensors: dict[str, Tensor], **fields: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **fields}))
    save_file({name: one.clone() for name, one in tensors.items()}, directory / "adapter_model.safetensors")


def merged(model: Path, tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The checkpoint's own tensors with what the adapter adds, in float64."""
    (file,) = model.glob("*.safetensors")
    found = {name: values.double() for name, values in load_file(file).items()}
    for name in {full.split(".lora_")[0] for full in tensors}:
        down, up = (tensors[f"{name}.lora_{part}.weight"].double() for part in "AB")
        found[f"{name.removeprefix('base_model.model.')}.weight"] += scale * up @ down
    return found


# --- what is merged --------------------------------------------------------------------------------------------------

SCALES = [({}, 1.5), ({"use_rslora": True}, 3.0), ({"lora_alpha": -1.0}, -0.25), ({"fan_in_fan_out": True}, 1.5)]


@pytest.mark.parametrize(("fields", "scale"), SCALES, ids=str)
def test_weights_are_those_of_the_merge(fields, scale, plain, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.models.files.fill.PIECE", 500)
    wanted = merged(plain, made(tmp_path / "lora", plain, **fields), scale)
    network = load(plain, dtype=torch.float32, adapter=tmp_path / "lora").network
    assert torch.allclose(network.blocks[0].out.weight.double(), wanted[f"{BLOCK}attn_out.weight"], atol=1e-6)
    qkv = torch.cat([wanted[f"{BLOCK}{part}_proj.weight"] for part in "qkv"])
    assert torch.allclose(network.blocks[0].qkv.weight.double(), qkv, atol=1e-6)
    bare = load(plain, dtype=torch.float32).network
    changed = [name for name, one in network.named_parameters() if not torch.equal(one, bare.get_parameter(name))]
    assert changed == ["blocks.0.qkv.weight", "blocks.0.out.weight"]


@pytest.mark.parametrize("bits", [4, 8])
def test_merged_before_it_is_packed(bits, plain, tmp_path):
    wanted = merged(plain, made(tmp_path / "lora", plain), 1.5)[f"{BLOCK}attn_out.weight"]
    network = load(plain, adapter=tmp_path / "lora", weights=f"int{bits}").network
    parts = packed_of(network)["blocks.0.out.weight"].parts
    for found, expected in zip(parts, pack(wanted.float(), bits), strict=True):
        assert torch.allclose(found.double(), expected.double(), rtol=1e-5, atol=1)


def test_experts_and_patterns(tmp_path):
    fabricate("sdar-moe", tmp_path / "moe")
    names = ["model.layers.0.mlp.experts.1.up_proj", "model.layers.0.mlp.gate", "lm_head"]
    lora = made(tmp_path / "lora", tmp_path / "moe", names, target_modules=r".*\.(up_proj|gate)|lm_head")
    wanted = merged(tmp_path / "moe", lora, 1.5)
    network = load(tmp_path / "moe", dtype=torch.float32, adapter=tmp_path / "lora").network
    inner = network.shape.experts.inner
    assert torch.allclose(network.blocks[0].experts.up[1, inner:].double(), wanted[f"{names[0]}.weight"], atol=1e-5)
    assert torch.allclose(network.blocks[0].experts.router.weight.double(), wanted[f"{names[1]}.weight"], atol=1e-5)
    assert torch.allclose(network.head.weight.double(), wanted["lm_head.weight"], atol=1e-5)


def test_the_flag_and_the_header(plain, tmp_path, capsys):
    made(tmp_path / "lora", plain)
    (tmp_path / "prompts.txt").write_text("a cat\n")
    words = ["generate", "--model", str(plain), "--prompts", str(tmp_path / "prompts.txt"), "--length", "4"]
    lora = ["--adapter", str(tmp_path / "lora"), "--weights", "int8"]
    rows = tmp_path / "rows.jsonl"
    assert main([*words, *lora, "-o", str(rows)]) == 0
    loading = json.loads(rows.read_text().splitlines()[0])["loading"]
    assert loading["weights"] == "int8" and loading["adapter"] == str(tmp_path / "lora")
    assert len(loading["adapter_sha256"]) == 64
    capsys.readouterr()
    assert main([*words, "-o", str(rows)]) == 2  # rows of another model are not continued
    assert main([*words, *lora, "--adapter", "other", "-o", str(tmp_path / "new.jsonl")]) == 2
    assert "given twice" in capsys.readouterr().err


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(model: Any, adapter: Path, *said: str, **options: Any) -> None:
    with pytest.raises((ModelError, InputError)) as caught:
        load(model, adapter=adapter, **options)
    message = str(caught.value)
    assert "\n" not in message and all(one in message for one in said), message


FIELDS: dict[str, list[Any]] = {
    "peft_type": ["LOHA", 3],
    "use_dora": [True],
    "lora_bias": [True],
    "bias": ["all", "lora_only"],
    "rank_pattern": [{"q_proj": 2}],
    "alpha_pattern": [{"q_proj": 2}],
    "modules_to_save": [["lm_head"]],
    "init_lora_weights": ["pissa", "loftq", 3],
    "use_rslora": ["yes"],
    "r": [0, -1, True, 4.0, "4", None, 10**9],
    "lora_alpha": [None, "6", True, [6], 1e300],
    "target_modules": [[3], {"a": 1}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_other_kinds_of_adapters(name, value, plain, tmp_path):
    made(tmp_path / "lora", plain, **{name: value})
    refused(plain, tmp_path / "lora", f"adapter_config.json: {name} is")


def test_hostile_tensors(plain, tmp_path):
    good, lora = made(tmp_path / "lora", plain), tmp_path / "lora"
    a, b = f"base_model.model.{NAMES[0]}.lora_A.weight", f"base_model.model.{NAMES[0]}.lora_B.weight"
    narrow = good[a].shape[1]
    for changes, said in [
        ({a: torch.ones(5, narrow)}, "its rank must be 4"),
        ({a: torch.ones(narrow)}, "its rank must be 4"),
        ({a: torch.ones(4, narrow + 1)}, "the model's"),
        ({b: torch.ones(narrow - 1, 4)}, "the model's"),
        ({a: torch.ones(4, narrow, dtype=torch.int8)}, "has the type I8"),
        ({f"base_model.model.{NAMES[0]}.lora_magnitude_vector": torch.ones(4)}, "only LoRA of matrices"),
        ({"base_model.model.model.wte.lora_embedding_A": torch.ones(4, 4)}, "only LoRA of matrices"),
        ({"x\ny": torch.ones(1)}, "x\\ny"),
        ({"base_model.model.q_proj.lora_A.weight": torch.ones(4, 4)}, "no A and B for q_proj.weight"),
        ({name.replace("blocks.0", "blocks.99"): one for name, one in good.items()}, "no matrix of the model"),
        ({name.replace("q_proj", "k_proj"): one for name, one in good.items()}, "names no"),
    ]:
        written(lora, good | changes)
        refused(plain, lora, said)
    written(lora, {name: one for name, one in good.items() if name != b})
    refused(plain, lora, "no A and B for")
    written(lora, {})
    refused(plain, lora, "any matrix")
    written(lora, {name: one for name, one in good.items() if "q_proj" not in name})
    refused(plain, lora, "has no tensors for q_proj")
    good[b][0, 0] = float("nan")
    written(lora, good)
    refused(plain, lora, "not finite", weights="int8")


def test_what_is_no_adapter(plain, tmp_path):
    refused(plain, tmp_path / "none", "there is no directory")
    (tmp_path / "lora").mkdir()
    refused(plain, tmp_path / "lora", "has no adapter_config.json")
    (tmp_path / "lora/adapter_config.json").write_text(json.dumps(CONFIG))
    refused(plain, tmp_path / "lora", "has no adapter_model.safetensors")
    (tmp_path / "lora/adapter_model.bin").write_bytes(b"")
    refused(plain, tmp_path / "lora", "a pickle can run code")
    made(tmp_path / "lora", plain)
    refused("text", tmp_path / "lora", "adapter has no effect on the model text")
    refused(plain, tmp_path / "lora", "no effect with trust_remote_code", trust_remote_code=True)
