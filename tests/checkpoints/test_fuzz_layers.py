"""Thousands of damaged GPTQ checkpoints, LoRA adapters and checkpoints that are packed while they are read."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask import load
from unmask.errors import ModelError
from unmask.models.devices import on_devices
from unmask.models.files.adapter import CONFIG as LORA
from unmask.models.files.adapter import WEIGHTS as CHANGES
from unmask.models.files.checkpoint import WEIGHTS

from .small import LLADA, SDAR_MOE, logits, refused, weights, write
from .test_fuzz import Case, change_bytes, change_fields, change_values, headers, held, strange

FIELDS = (
    "quant_method bits group_size desc_act sym checkpoint_format format dynamic pack_dtype lm_head true_sequential "
    "damp_percent meta model_file_base_name"
).split()
SIZES = (128, 256, 1024, -1, 0, 2**20, 2**40, 2**62, 2**64, 128 * 10**40, -128)
ABOUT = (
    "peft_type r lora_alpha use_dora lora_bias bias rank_pattern alpha_pattern modules_to_save init_lora_weights "
    "use_rslora fan_in_fan_out target_modules layer_replication target_parameters trainable_token_indices use_qalora"
).split()
CASES = int(os.environ.get("UNMASK_CASES", "100"))  # of each chunk; `make attack` takes more
KINDS: list[Any] = [None, "float", "int8", "int4"]


def turned(tensors: dict[str, Tensor], bits: int = 4) -> dict[str, Tensor]:
    """The matrices of the layers as GPTQ, one group each; any numbers are good ones."""
    found: dict[str, Tensor] = {}
    for name, one in tensors.items():
        rows, columns = one.shape if one.dim() == 2 else (0, 0)
        each, base = 32 // bits, name.removesuffix(".weight")
        if not re.search(r"\.(blocks|layers)\.", name) or rows % each or columns % each or not rows:
            found[name] = one
            continue
        found[f"{base}.qweight"] = torch.randint(-(2**31), 2**31, (columns // each, rows), dtype=torch.int32)
        found[f"{base}.qzeros"] = torch.randint(-(2**31), 2**31, (1, rows // each), dtype=torch.int32)
        found[f"{base}.scales"] = torch.rand(1, rows).half() / 2**bits
        found[f"{base}.g_idx"] = torch.zeros(columns, dtype=torch.int32)
    return found


def gptq(home: Path) -> tuple[Path, dict[str, Any]]:
    """A good checkpoint of GPTQ and its config."""
    how = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    config = {**LLADA, "quantization_config": how}
    return write(home / "gptq", config, turned(weights(LLADA))), config


def gptq_headers(home: Path) -> Callable[[Random], Case]:
    """The header of its file, well formed but wrong; packed or as floats."""
    directory, _ = gptq(home)
    case = headers(directory)

    def chosen(random: Random) -> Case:
        place, _, done = case(random)
        return place, {"weights": random.choice([None, "float", "int4"])}, done

    return chosen


def gptq_configs(home: Path) -> Callable[[Random], Case]:
    """What config.json says of quantized weights."""
    directory, config = gptq(home)

    def case(random: Random) -> Case:
        changed = copy.deepcopy(config)
        inner = changed["quantization_config"]
        name = random.choice(FIELDS)
        inner[name] = random.choice(SIZES) if random.random() < 0.3 else strange(random)
        done = f"{name} = {str(inner[name])[:60]!a}; "
        if random.random() < 0.5:
            inner["group_size"] = random.choice(SIZES)
            done += f"group_size = {inner['group_size']}; "
        if random.random() < 0.4:
            done += change_values(random, inner)
        (directory / "config.json").unlink(missing_ok=True)
        (directory / "quantize_config.json").unlink(missing_ok=True)
        if random.random() < 0.3 and isinstance(inner, dict):  # beside config.json, as older programs write it
            (directory / "quantize_config.json").write_text(json.dumps(inner))
            changed["quantization_config"] = None
        (directory / "config.json").write_text(json.dumps(changed))
        return directory, {"weights": random.choice([None, "float", "int4", "int8"])}, done

    return case


def gptq_numbers(home: Path) -> Callable[[Random], Case]:
    """Other tensors than GPTQ has, well formed: of other types and shapes, missing, too many, not finite."""
    directory, _ = gptq(home)
    good = turned(weights(LLADA))
    types = [torch.int32, torch.int64, torch.int8, torch.bool, torch.half, torch.float64, torch.float8_e4m3fn]

    def case(random: Random) -> Case:
        tensors, done = dict(good), []
        for _ in range(random.randint(1, 3)):
            name = random.choice(sorted(tensors))
            what = random.choice(["type", "shape", "delete", "rename", "add", "fill"])
            if what == "type":
                tensors[name] = tensors[name].to(random.choice(types))
            elif what == "shape":
                shape = [random.choice([0, 1, 2, 3, 8, 16, 17]) for _ in range(random.randint(0, 3))]
                tensors[name] = torch.zeros(shape, dtype=tensors[name].dtype)
            elif what in ("delete", "rename"):
                values = tensors.pop(name)
                if what == "rename":
                    base, _, last = name.rpartition(".")
                    other = random.choice(["qweight", "qzeros", "scales", "g_idx", "weight", "bias", f"{last}x"])
                    tensors[f"{base}.{other}"] = values
            elif what == "add":
                base = random.choice([name.rpartition(".")[0], "", "x", "model"])
                some = torch.ones(random.choice([(), (8,), (1, 8), (8, 8)]), dtype=torch.int32)
                tensors[f"{base}.{random.choice(['qweight', 'bias', 'g_idx'])}"] = some.to(random.choice(types))
            else:
                values = tensors[name].clone()
                values.fill_(random.choice([-1, 0, 1, 127, float("nan")]) if values.is_floating_point() else -1)
                tensors[name] = values
            done.append(f"{what} {name}")
        save_file({name: one.clone() for name, one in tensors.items()}, directory / WEIGHTS)
        return directory, {"weights": random.choice([None, "float", "int4"])}, "; ".join(done)

    return case


def adapters(home: Path) -> tuple[Path, Path, dict[str, Any]]:
    """A good checkpoint, a good adapter of it, and what that says of itself."""
    directory, lora = write(home / "llada"), home / "lora"
    lora.mkdir()
    names = ["q_proj", "attn_out"]
    tensors = {}
    for name in names:
        rows, columns = 8, 8
        full = f"base_model.model.model.transformer.blocks.0.{name}.lora_"
        tensors |= {f"{full}A.weight": torch.randn(2, columns), f"{full}B.weight": torch.randn(rows, 2)}
    save_file(tensors, lora / CHANGES)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": names}
    config |= {"rank_pattern": {}, "use_rslora": False, "init_lora_weights": True}
    (lora / LORA).write_text(json.dumps(config))
    return directory, lora, config


def adapter_configs(home: Path) -> Callable[[Random], Case]:
    """adapter_config.json, as values or as bytes."""
    directory, lora, config = adapters(home)

    def case(random: Random) -> Case:
        changed = copy.deepcopy(config)
        done = change_fields(random, changed, ABOUT, 0.6)
        data = json.dumps(changed).encode()
        if random.random() < 0.3:
            data, more = change_bytes(random, data)
            done += f"; {more}"
        (lora / LORA).write_bytes(data)
        return directory, {"adapter": lora, "weights": random.choice(KINDS)}, done

    return case


def adapter_headers(home: Path) -> Callable[[Random], Case]:
    """The header or the bytes of its file."""
    directory, lora, _ = adapters(home)
    whole = (lora / CHANGES).read_bytes()
    (lora / WEIGHTS).write_bytes(whole)
    case = headers(lora)

    def chosen(random: Random) -> Case:
        _, _, done = case(random)
        data = (lora / WEIGHTS).read_bytes()
        if random.random() < 0.3:
            data, done = change_bytes(random, whole)
        (lora / CHANGES).write_bytes(data)
        return directory, {"adapter": lora, "weights": random.choice(KINDS)}, done

    return chosen


def packed(home: Path) -> Callable[[Random], Case]:
    """A checkpoint of floats, one with experts too, that is packed into 4 or 8 bits; its header and numbers."""
    bases = [(headers(write(home / name, config)), home / name) for name, config in (("a", LLADA), ("b", SDAR_MOE))]
    whole = [(directory / WEIGHTS).read_bytes() for _, directory in bases]

    def case(random: Random) -> Case:
        place = random.randrange(2)
        make, directory = bases[place]
        if random.random() < 0.6:
            _, _, done = make(random)
        else:
            data, done = change_bytes(random, whole[place])
            (directory / WEIGHTS).write_bytes(data)
        return directory, {"weights": random.choice(["int8", "int4"])}, done

    return case


CHUNKS = [gptq_headers, gptq_configs, gptq_numbers, adapter_configs, adapter_headers, packed]


@pytest.mark.parametrize("make", CHUNKS)
def test_every_case_of_layers_loads_or_is_refused(make, tmp_path, ring):
    held(make, 0, tmp_path, ring, CASES)


def test_the_bases_are_good(tmp_path):
    directory, _ = gptq(tmp_path)
    directories = [(directory, {}), (directory, {"weights": "float"})]
    plain, lora, _ = adapters(tmp_path)
    directories += [(plain, {"adapter": lora, "weights": kind}) for kind in KINDS]
    for place, options in directories:
        assert logits(load(place, **options)).shape == (6, 16)


@pytest.mark.parametrize("group", [2**40, 128 * 10**40], ids=["2^40", "10^42"])
def test_a_group_wider_than_any_matrix(group, tmp_path):
    directory, config = gptq(tmp_path)
    config["quantization_config"]["group_size"] = group
    (directory / "config.json").write_text(json.dumps(config))
    refused(directory, "group_size is")
    config["quantization_config"]["group_size"] = 2**20  # wider than these matrices, and all the same
    (directory / "config.json").write_text(json.dumps(config))
    assert logits(load(directory)).shape == (6, 16)


def test_many_targets_of_many_tensors(tmp_path):
    """Each with each, they were compared for a minute."""
    directory, lora, config = adapters(tmp_path)
    tensors = {}
    for number in range(10_000):
        base = f"base_model.model.x{number}.lora_"
        tensors |= {f"{base}A.weight": torch.zeros(2, 1), f"{base}B.weight": torch.zeros(1, 2)}
    save_file(tensors, lora / CHANGES)
    (lora / LORA).write_text(json.dumps({**config, "target_modules": [f"x{number}" for number in range(10_000)]}))
    refused(directory, "which is no matrix of the model", adapter=lora)


DEVICES = ("cpu", "cuda", "cuda:0", "meta", "auto", "mps", "xpu:0", "", " ", "cpu:0", "cuda:99", "cuda:-1", "\x00", "é")


def refusal(device: str) -> str | None:
    """What is said of a device that is refused."""
    try:
        on_devices("sudoku", device)
    except ModelError as error:
        return str(error)
    return None


def test_strange_devices_are_refused_in_one_line():
    """Names of devices are made of parts, numbers and signs; a number may be of any length."""
    random = Random(0)
    counts = ("", "=1", "=0", "=-1", "= 3 ", "=99999999999999999999", "=" + "9" * 5000, "=a", "==1", "=\u0663")
    given = [
        ",".join(random.choice(DEVICES) + random.choice(counts) for _ in range(random.randint(1, 4))) for _ in "x" * 400
    ]
    given += ["cuda:" + "9" * 30, "cpu=" + "9" * 5000, ",", "=", "cpu," * 5000, "cpu" + " " * 20_000 + "x"]
    for one in given:
        said = refusal(one)
        assert said is None or (said.isprintable() and len(said) < 1000), one
    with pytest.raises(ModelError):
        on_devices("sudoku", ["cpu", 3, None])  # type: ignore[list-item]
