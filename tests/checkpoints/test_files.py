"""Files of a checkpoint: tensors, safetensors, pickles, links, pipes, indices, types."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask import load
from unmask.models import memory
from unmask.models.files.checkpoint import INDEX, TYPES, WEIGHTS

from .small import (
    EMBED,
    LLADA,
    MICRO,
    RECORDED,
    Bomb,
    logits,
    plain,
    refused,
    split,
    weights,
    write,
)


def test_the_small_checkpoints_are_good(tmp_path):
    for name, config in MICRO.items():
        model = load(write(tmp_path / name, config), mask_id=15)
        assert model.family == name and logits(model).isfinite().any(1).all()


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_missing_tensor(small):
    tensors = weights(LLADA)
    del tensors[EMBED]
    write(small, tensors=tensors)
    refused(small, "1 tensors are missing", EMBED)


def test_unexpected_tensor(small):
    write(small, tensors=weights(LLADA) | {"model.extra\n.weight": torch.zeros(2)})
    refused(small, "1 tensors are unexpected", "model.extra\\n.weight")


def test_many_missing_tensors_are_not_all_listed(small):
    write(small, tensors={EMBED: torch.zeros(16, 8)})
    refused(small, "11 tensors are missing", "and 7 more")


@pytest.mark.parametrize("shape", [(15, 8), (8, 16), (16, 8, 1), (128,), (0, 8), (1,) * 500, ()])
def test_misshapen_tensor(small, shape):
    write(small, tensors=weights(LLADA) | {EMBED: torch.zeros(shape)})
    refused(small, EMBED, "by the config it must be 16 × 8")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_wrong_type_of_tensor(small, dtype):
    write(small, tensors=weights(LLADA) | {EMBED: torch.zeros(16, 8).to(dtype)})
    refused(small, EMBED, "has the type", *TYPES)


def test_too_large_for_the_memory(small, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    refused(small, "GiB on cpu", "smaller dtype or another device")


# --- the file of the weights -----------------------------------------------------------------------------------------


def header(length: int, text: bytes | str, body: int = 0) -> bytes:
    text = text.encode() if isinstance(text, str) else text
    return length.to_bytes(8, "little") + text + bytes(body)


def entry(dtype: str = "F32", shape: Any = (16, 8), offsets: Any = (0, 512)) -> str:
    return json.dumps({EMBED: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


BROKEN = {
    "empty": b"",
    "short": b"\x02\x00\x00",
    "text": b"Not Found\n" * 20,
    "a page of HTML": b"<!DOCTYPE html><html><body>Sign in</body></html>",
    "no header": header(0, ""),
    "length of 2^64 - 1": header(2**64 - 1, "{}"),
    "length of 2^40": header(2**40, "{}"),
    "length beyond the file": header(500, "{}"),
    "length that cuts": header(20, entry(), 512),
    "header is no JSON": header(4, b"{{{{"),
    "header is a list": header(2, "[]"),
    "header is no UTF-8": header(4, b"\xff\xfe\xff\xfe"),
    "header is nested": header(200_000, "[" * 200_000),
    "offsets beyond the file": header(len(entry()), entry(), 100),
    "bytes after the end": header(len(entry()), entry(), 600),
    "backward offsets": header(len(entry(offsets=[512, 0])), entry(offsets=[512, 0]), 512),
    "negative offsets": header(len(entry(offsets=[-4, 508])), entry(offsets=[-4, 508]), 512),
    "unknown type": header(len(entry("X99")), entry("X99"), 512),
    "shape that overflows": header(len(entry(shape=[2**40, 2**40])), entry(shape=[2**40, 2**40]), 512),
    "shape that is larger": header(len(entry(shape=[2**20, 2**20])), entry(shape=[2**20, 2**20]), 512),
    "shape of words": header(len(entry(shape=["a"])), entry(shape=["a"]), 512),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file(small, name):
    (small / WEIGHTS).write_bytes(BROKEN[name])
    refused(small, WEIGHTS, "not a whole safetensors file", "download it again")


def test_a_name_twice_in_a_header(small):
    """The library takes the last one; another reader may take the first."""
    whole = (small / WEIGHTS).read_bytes()
    size = int.from_bytes(whole[:8], "little")
    names = whole[8 : 8 + size].rstrip()
    first = next(iter(json.loads(names).items()))
    twice = names[:-1] + b", " + json.dumps(dict([first])).encode()[1:]
    (small / WEIGHTS).write_bytes(header(len(twice), twice) + whole[8 + size :])
    refused(small, WEIGHTS, "twice in its header")


@pytest.mark.parametrize("left", [1, 7, 8, 9, 100, 2000, -1])
def test_truncated_file(small, left):
    (small / WEIGHTS).write_bytes((small / WEIGHTS).read_bytes()[:left])
    refused(small, WEIGHTS, "not a whole safetensors file")


def test_the_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "it"))).close()
    assert (tmp_path / "it").exists()


@pytest.mark.parametrize("wrapped", [False, True])
def test_pickle_under_the_name_of_safetensors(small, mark, wrapped):
    (small / WEIGHTS).unlink()
    if wrapped:
        torch.save({"weight": Bomb(mark)}, small / WEIGHTS)
    else:
        (small / WEIGHTS).write_bytes(pickle.dumps(Bomb(mark)))
    refused(small, WEIGHTS, "not a whole safetensors file")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "last.ckpt", "model.pt"])
def test_only_pickles(small, mark, name):
    (small / WEIGHTS).unlink()
    (small / name).write_bytes(pickle.dumps(Bomb(mark)))
    refused(small, name, "pickle", "only safetensors")


def test_path_to_a_pickle(small, mark):
    (small / "last.ckpt").write_bytes(pickle.dumps(Bomb(mark)))
    refused(small / "last.ckpt", "last.ckpt", "pickle", "unmask convert")


def test_path_to_the_weights(small):
    refused(small / WEIGHTS, "is a file", "give the directory")


def test_code_beside_the_weights_is_not_run(small, mark):
    code = f"open({str(mark)!r}, 'w')\n"
    for name in ("modeling_llada.py", "configuration_llada.py", "__init__.py", "tokenization_llada.py"):
        (small / name).write_text(code)
    changes = {"auto_map": {"AutoModel": "modeling_llada.X", "AutoConfig": "configuration_llada.X"}}
    (small / "config.json").write_text(json.dumps(LLADA | changes))
    (small / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization_llada.X", null]}}')
    load(small)


def test_no_weights(small):
    (small / WEIGHTS).unlink()
    refused(small, "no model.safetensors", "only safetensors are loaded")


def test_no_config(small):
    (small / "config.json").unlink()
    refused(small, "no config.json", "directory of a checkpoint")


# --- links, pipes and directories ------------------------------------------------------------------------------------

FILES = ("config.json", WEIGHTS)


@pytest.mark.parametrize("name", FILES)
def test_link_out_of_the_directory(small, tmp_path, name):
    shutil.move(small / name, tmp_path / "elsewhere")
    (small / name).symlink_to("../elsewhere")
    refused(small, name, "link that leaves", "copy the file")
    (small / name).unlink()
    (small / name).symlink_to(tmp_path / "elsewhere")
    refused(small, name, "link that leaves", "copy the file")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"])
def test_link_of_a_text_out_of_the_directory(small, tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    (small / "tokenizer.json").write_text(plain().to_str())
    if name == "merges.txt":
        (small / "tokenizer.json").rename(small / "vocab.json")
    (small / name).unlink(missing_ok=True)
    (small / name).symlink_to(tmp_path / "secret")
    refused(small, name, "link that leaves")


@pytest.mark.parametrize("name", FILES)
def test_link_within_the_directory(small, name):
    expected = logits(load(small))
    (small / "deep").mkdir()
    shutil.move(small / name, small / "deep" / "file")
    (small / name).symlink_to("deep/file")
    assert torch.equal(logits(load(small)), expected)


def test_link_to_the_directory(small, tmp_path):
    (tmp_path / "link").symlink_to(small)
    assert torch.equal(logits(load(tmp_path / "link")), logits(load(small)))


def test_layout_of_the_hub_cache(small, tmp_path):
    home = tmp_path / "models--org--name"
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots" / "0a1b").mkdir(parents=True)
    for number, name in enumerate(FILES):
        shutil.copy(small / name, home / "blobs" / f"{number}")
        (home / "snapshots" / "0a1b" / name).symlink_to(f"../../blobs/{number}")
    assert torch.equal(logits(load(home / "snapshots" / "0a1b")), logits(load(small)))
    (home / "snapshots" / "0a1b" / WEIGHTS).unlink()
    (home / "snapshots" / "0a1b" / WEIGHTS).symlink_to(small / WEIGHTS)
    refused(home / "snapshots" / "0a1b", WEIGHTS, "link that leaves")


def test_layout_that_only_looks_like_the_hub_cache(small, tmp_path):
    (tmp_path / "blobs").mkdir()
    shutil.move(small / WEIGHTS, tmp_path / "blobs" / "0")
    (small / WEIGHTS).symlink_to("../../blobs/0")
    (tmp_path / "snapshots").mkdir()
    refused(shutil.move(small, tmp_path / "snapshots"), WEIGHTS, "link that leaves")


@pytest.mark.parametrize("name", [*FILES, INDEX, "tokenizer.json"])
def test_link_to_nothing(small, name):
    (small / name).unlink(missing_ok=True)
    (small / name).symlink_to("nothing")
    refused(small, name, "link to nothing", "download")
    (small / name).unlink()
    (small / name).symlink_to(name)  # and round in a circle
    refused(small, name, "link to nothing", "download")


@pytest.mark.parametrize("name", [*FILES, INDEX, "tokenizer.json"])
def test_directory_in_place_of_a_file(small, name):
    (small / name).unlink(missing_ok=True)
    (small / name).mkdir()
    refused(small, name, "not a regular file", "download")
    (small / name).rmdir()
    (small / "deep").mkdir()
    (small / name).symlink_to("deep")
    refused(small, name, "not a regular file", "download")


@pytest.mark.parametrize("name", [*FILES, INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_pipe_in_place_of_a_file(small, name):
    (small / name).unlink(missing_ok=True)
    os.mkfifo(small / name)
    refused(small, name, "not a regular file", "download")


def test_device_in_place_of_a_file(small):
    (small / "config.json").unlink()
    (small / "config.json").symlink_to("/dev/zero")
    refused(small, "config.json", "link that leaves")


# --- the index -------------------------------------------------------------------------------------------------------


def test_sharded(tmp_path):
    for family in ("llada", "mdlm"):
        directory = shutil.copytree(RECORDED / family, tmp_path / family)
        expected = logits(load(directory))
        split(directory)
        assert torch.equal(logits(load(directory)), expected)


def test_missing_shard(small):
    split(small)
    (small / "model-00002-of-00003.safetensors").unlink()
    refused(small, "lacks model-00002-of-00003.safetensors", "download")


def test_shard_that_the_index_forgets(small):
    places = split(small)
    left = {name: file for name, file in places.items() if "00002" not in file}
    (small / INDEX).write_text(json.dumps({"weight_map": left}))
    refused(small, f"{len(places) - len(left)} tensors are missing")


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "{outside}/x.safetensors",
        "./../x.safetensors",
        "deep/x.safetensors",
        "deep/../model-00001-of-00003.safetensors",
        "",
        "..",
        "pytorch_model.bin",
        "x.safetensors\n",
        "x\ny.safetensors",
        "x\x00.safetensors",
        "\ud800.safetensors",
    ],
)
def test_index_that_leads_elsewhere(small, tmp_path, file):
    places = split(small)
    name = next(iter(places))
    save_file({name: torch.zeros(1)}, tmp_path / "x.safetensors")
    places[name] = file.replace("{outside}", str(tmp_path))
    (small / INDEX).write_text(json.dumps({"weight_map": places}))
    refused(small, INDEX, "names the file", "only safetensors files beside it")


def test_index_with_a_name_that_no_file_can_have(small):
    places = split(small)
    (small / INDEX).write_text(json.dumps({"weight_map": places | {EMBED: "x" * 500 + ".safetensors"}}))
    refused(small, "cannot read xxx")


@pytest.mark.parametrize("name", ["model.nothing", "two\nlines", "\ud800"])
def test_index_with_a_tensor_that_is_nowhere(small, name):
    places = split(small)
    (small / INDEX).write_text(json.dumps({"weight_map": places | {name: places[EMBED]}}))
    refused(small, INDEX, "not in its files", ascii(name)[1:-1])


def test_index_with_tensors_swapped(small):
    places = split(small)
    other = next(file for file in places.values() if file != places[EMBED])
    (small / INDEX).write_text(json.dumps({"weight_map": places | {EMBED: other}}))
    refused(small, INDEX, "not in its files", EMBED)


def test_tensor_in_two_shards(small):
    places = split(small)
    other = next(file for file in sorted(places.values()) if file != places[EMBED])
    save_file(load_file(small / other) | {EMBED: torch.zeros(16, 8)}, small / other)
    refused(small, EMBED, places[EMBED], other)


@pytest.mark.parametrize("places", [None, [], {}, "x", 3, {"a": 1}, {"a": None}, {"a": ["b"]}])
def test_index_without_a_map(small, places):
    split(small)
    (small / INDEX).write_text(json.dumps({"weight_map": places}))
    refused(small, INDEX, "has no weight_map")
    (small / INDEX).write_text(json.dumps({} if places is None else places))
    refused(small, INDEX)


def test_shard_that_is_a_link_out_of_the_directory(small, tmp_path):
    places = split(small)
    shutil.move(small / places[EMBED], tmp_path / "elsewhere.safetensors")
    (small / places[EMBED]).symlink_to(tmp_path / "elsewhere.safetensors")
    refused(small, places[EMBED], "link that leaves")


# --- types, progress and what may lie beside -------------------------------------------------------------------------

TYPED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "float16": torch.float16}


@pytest.mark.parametrize("name", TYPED)
def test_bfloat16_file_in_every_type(small, name):
    half = {key: tensor.bfloat16() for key, tensor in weights(LLADA).items()}
    write(small, LLADA | {"torch_dtype": "bfloat16"}, half)
    assert load(small).network.embed.weight.dtype == torch.bfloat16
    for given in (name, TYPED[name]):
        weight = load(small, dtype=given).network.embed.weight
        assert weight.dtype == TYPED[name]
        assert torch.equal(weight.double(), half[EMBED].double() if name != "float16" else half[EMBED].half().double())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),
        ({"dtype": None, "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": None}, "float32"),
        ({"torch_dtype": "int4"}, "float32"),
        ({"torch_dtype": ["bfloat16"]}, "float32"),
    ],
)
def test_type_that_the_config_names(small, fields, expected):
    (small / "config.json").write_text(json.dumps(LLADA | {"torch_dtype": None} | fields))
    assert load(small).network.embed.weight.dtype == TYPED[expected]


def test_type_of_a_file_with_several(small):
    config = LLADA | {"torch_dtype": None}
    write(small, config, {name: tensor.half() for name, tensor in weights(LLADA).items()})
    assert load(small).network.embed.weight.dtype == torch.float16
    write(small, config, weights(LLADA) | {EMBED: weights(LLADA)[EMBED].bfloat16()})
    assert load(small).network.embed.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["int8", "float", "", torch.int8, 32])
def test_type_that_is_none(small, dtype):
    refused(small, "dtype is", "float64, float32, float16, bfloat16", dtype=dtype)


def test_tied_head_that_is_in_the_file_too(tmp_path):
    directory = shutil.copytree(RECORDED / "open_dcoder", tmp_path / "coder")
    expected = logits(load(directory, mask_id=252))
    tensors = load_file(directory / WEIGHTS)
    assert "lm_head.weight" not in tensors
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, directory / WEIGHTS)
    assert torch.equal(logits(load(directory, mask_id=252)), expected)


def test_mdlm_with_and_without_its_buffer(tmp_path):
    directory = shutil.copytree(RECORDED / "mdlm", tmp_path / "mdlm")
    expected, tensors = logits(load(directory)), load_file(directory / WEIGHTS)
    buffer = "backbone.rotary_emb.inv_freq"
    tensors = {name: tensor for name, tensor in tensors.items() if name != buffer}
    save_file(tensors, directory / WEIGHTS)
    assert torch.equal(logits(load(directory)), expected)
    save_file(tensors | {buffer: torch.zeros(3, dtype=torch.int8)}, directory / WEIGHTS)  # never read
    assert torch.equal(logits(load(directory)), expected)


@pytest.mark.parametrize("shards", [1, 3])
def test_progress(small, shards):
    if shards > 1:
        split(small, shards)
    seen: list[tuple[int, int]] = []
    load(small, progress=lambda done, total: seen.append((done, total)))
    total = sum(tensor.nbytes for tensor in weights(LLADA).values())
    done = [bytes_read for bytes_read, _ in seen]
    assert {all_bytes for _, all_bytes in seen} == {total}
    assert done == sorted(done) and done[0] > 0 and done[-1] == total


def test_loaded_weights_belong_to_the_model(small):
    """The file may go once the model is there."""
    model = load(small)
    expected = logits(model)
    (small / WEIGHTS).write_bytes(bytes((small / WEIGHTS).stat().st_size))
    assert torch.equal(logits(model), expected)
