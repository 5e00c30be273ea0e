"""Checkpoints on disk: damaged and hostile ones are refused in one line, good ones of every layout load."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Fast
from torch import Tensor

from unmask import decode, load, memory
from unmask.errors import InputError, ModelError, UnmaskError
from unmask.models.checkpoint import INDEX, TYPES, WEIGHTS, tensor_shapes
from unmask.models.family import Config
from unmask.models.pretrained import FAMILIES, family_of
from unmask.models.tokens import Numbers, Pieces, read_tokenizer
from unmask.models.transformer import Transformer
from unmask.state import begin

RECORDED = Path(__file__).parent / "parity" / "models"
LLADA = FAMILIES["llada"].tiny | {
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 2,
    "mlp_hidden_size": 16,
    "vocab_size": 16,
    "embedding_size": 16,
    "mask_token_id": 15,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
QWEN = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 16,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
DREAM = FAMILIES["dream"].tiny | QWEN | {"mask_token_id": 15}
CODER = FAMILIES["open-dcoder"].tiny | QWEN
ILLADA = FAMILIES["illada"].tiny | QWEN
MDLM = FAMILIES["mdlm"].tiny | {"hidden_dim": 8, "n_blocks": 1, "n_heads": 2, "cond_dim": 4, "vocab_size": 16}
NATIVE = FAMILIES["native"].tiny | {
    "vocabulary": 16,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "inner": 16,
    "condition": 4,
    "mask_token_id": 15,
    "eos_token_id": 14,
    "pad_token_id": 14,
}
MICRO = {"llada": LLADA, "dream": DREAM, "open-dcoder": CODER, "illada": ILLADA, "mdlm": MDLM, "native": NATIVE}
EMBED = "model.transformer.wte.weight"


def weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors as this config wants them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(family_of(dict(config)).read(Config(config)))
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(directory: Path, config: Mapping[str, Any] = LLADA, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """A checkpoint of one file."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(dict(weights(config) if tensors is None else tensors), directory / WEIGHTS)
    return directory


def split(directory: Path, shards: int = 3) -> dict[str, str]:
    """The one file of a checkpoint as several with an index; the index's weight_map."""
    tensors, places = load_file(directory / WEIGHTS), {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number::shards]}
        save_file(part, directory / file)
        places |= dict.fromkeys(part, file)
    (directory / WEIGHTS).unlink()
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def logits(model: Any, length: int = 6) -> Tensor:
    """Logits of a canvas with a few tokens and a few masks."""
    assert isinstance(model, Transformer)
    tokens = torch.tensor([[3, model.vocab.mask, 5, model.vocab.mask, 7, 2][: min(length, model.limit or length)]])
    here = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == model.vocab.mask, here, torch.zeros(1, dtype=torch.int64), model.vocab, 1)
    hidden, _ = model.look(state, torch.tensor([0]))
    assert hidden.shape == (1, tokens.shape[1], model.network.shape.width)
    return model.head.logits(hidden[0])


def refused(directory: str | Path, *words: str, kind: type[UnmaskError] = ModelError, **options: Any) -> None:
    """Loading fails at once, without taking memory, in one line that has these words and a way out."""
    peak, start = memory.host_peak(), time.process_time()
    with pytest.raises(kind) as caught:
        load(directory, **options)
    assert time.process_time() - start < 2
    assert memory.host_peak() - peak < 128 * 2**20
    said = str(caught.value)
    assert said.isprintable() and len(said) < 600, said
    assert caught.value.hint
    for word in words:
        assert word in said


def complaint(directory: Path, **options: Any) -> str:
    """What loading says, where it says anything."""
    try:
        load(directory, **options)
    except ModelError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError("a test took half a minute")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A good checkpoint of a few kilobytes."""
    return write(tmp_path / "small")


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
    refused(small, WEIGHTS, "no whole safetensors file", "download it again")


@pytest.mark.parametrize("left", [1, 7, 8, 9, 100, 2000, -1])
def test_truncated_file(small, left):
    (small / WEIGHTS).write_bytes((small / WEIGHTS).read_bytes()[:left])
    refused(small, WEIGHTS, "no whole safetensors file")


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self.mark), "w")


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists(), "code of the checkpoint ran"


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
    refused(small, WEIGHTS, "no whole safetensors file")


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
    refused(small, "no model.safetensors", "directory of a checkpoint")


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
    refused(small, name, "no regular file", "download")
    (small / name).rmdir()
    (small / "deep").mkdir()
    (small / name).symlink_to("deep")
    refused(small, name, "no regular file", "download")


@pytest.mark.parametrize("name", [*FILES, INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_pipe_in_place_of_a_file(small, name):
    (small / name).unlink(missing_ok=True)
    os.mkfifo(small / name)
    refused(small, name, "no regular file", "download")


def test_device_in_place_of_a_file(small):
    (small / "config.json").unlink()
    (small / "config.json").symlink_to("/dev/zero")
    refused(small, "config.json", "link that leaves")


# --- config.json: its text -------------------------------------------------------------------------------------------

TEXTS = {
    "empty": (b"", "no JSON"),
    "cut": (b'{"model_type": "llada", ', "no JSON"),
    "bytes": (b"\xff\xfe\x00\x01", "no JSON"),
    "UTF-16": ('{"model_type": "llada"}'.encode("utf-16"), "no JSON"),
    "NaN": (b'{"model_type": "llada", "rope_theta": NaN}', "NaN is no number"),
    "infinity": (b'{"model_type": "llada", "rope_theta": -Infinity}', "-Infinity is no number"),
    "a long number": (b'{"model_type": ' + b"9" * 100_000 + b"}", "no JSON"),
    "nested lists": (b"[" * 100_000 + b"]" * 100_000, "no JSON"),
    "nested objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "no JSON"),
    "list": (b"[]", "holds a list"),
    "text": (b'"llada"', "holds a str"),
    "number": (b"7", "holds a int"),
    "null": (b"null", "holds a NoneType"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_config_that_is_no_object(small, name):
    text, word = TEXTS[name]
    (small / "config.json").write_bytes(text)
    refused(small, "config.json", word)


@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_huge_text(small, name):
    with (small / name).open("wb") as file:
        file.truncate(300 * 2**20)
    refused(small, name, "bytes", "at most")


# --- config.json: its values -----------------------------------------------------------------------------------------

WRONG = (0, -1, 10**12, 2**70, True, "8", 8.0, 1e400, [8], {"a": 8}, None)
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "embedding_size", "max_sequence_length")
MAY_BE_NULL = ("n_kv_heads", "embedding_size", "mlp_hidden_size")


@pytest.mark.parametrize("field", [*SIZES, "mlp_hidden_size"])
def test_sizes_of_a_wrong_kind(small, field):
    for value in WRONG:
        if value is not None or field not in MAY_BE_NULL:
            (small / "config.json").write_text(json.dumps(LLADA | {field: value}).replace("Infinity", "1e400"))
            refused(small, f"config.json: {field} is", "a whole number from 1 to")


@pytest.mark.parametrize("family", MICRO)
def test_every_required_field_is_asked_for(tmp_path, family):
    """Without any one field, the checkpoint loads as before, or the field is named."""
    config = MICRO[family]
    directory = write(tmp_path / family, config)
    named = 0
    for field in config:
        (directory / "config.json").write_text(json.dumps({f: value for f, value in config.items() if f != field}))
        said = complaint(directory, mask_id=15)
        assert not said or field in said or said.startswith(MISSING[family, field])
        named += bool(said)
    assert named >= 6


# Fields whose usual value is another one: what is then wrong.
MISSING = {
    ("llada", "mlp_hidden_size"): "model.transformer.blocks.0.ff_out.weight is 8 × 16",
    ("dream", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("open-dcoder", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("open-dcoder", "tie_word_embeddings"): "1 tensors are missing: lm_head.weight",
    ("illada", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("native", "condition"): "8 tensors are unexpected: ",
    ("native", "position"): "3 tensors are unexpected: ",
    ("native", "qk_norm"): "2 tensors are unexpected: ",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_heads": 3, "n_kv_heads": 3}, ["d_model", "n_heads", "do not divide: 8 by 6"]),
        ({"n_kv_heads": 3}, ["heads", "do not divide"]),
        ({"d_model": 10}, ["d_model", "do not divide: 10 by 4"]),  # heads of odd width
        ({"vocab_size": 17, "embedding_size": 17}, [EMBED, "16 × 8", "17 × 8"]),
        ({"embedding_size": 15, "mask_token_id": 14}, [EMBED, "16 × 8", "15 × 8"]),
        ({"n_layers": 2}, ["9 tensors are missing", "blocks.1."]),
        ({"n_layers": 1024}, ["9207 tensors are missing"]),
        ({"vocab_size": 2**23, "embedding_size": 2**23, "d_model": 2**17}, ["8388608 × 131072"]),
        ({"mlp_ratio": 2**17, "mlp_hidden_size": None, "d_model": 2**17}, ["mlp_hidden_size", "from 1 to"]),
        ({"weight_tying": True}, ["unexpected", "model.transformer.ff_out.weight"]),
        ({"weight_tying": "yes"}, ["weight_tying is 'yes'", "true or false"]),
        ({"include_qkv_bias": True}, ["missing", "q_proj.bias"]),
        ({"rope_theta": 0}, ["rope_theta is 0", "positive number"]),
        ({"rope_theta": 1e400}, ["rope_theta is inf", "positive number"]),
        ({"rms_norm_eps": -1e-5}, ["rms_norm_eps", "positive number"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps", "positive number"]),
        ({"rms_norm_eps": True}, ["rms_norm_eps is True"]),
        ({"rope_theta": 10**4000}, ["rope_theta is 1000", "positive number"]),
    ],
)
def test_sizes_that_do_not_fit(small, changes, words):
    (small / "config.json").write_text(json.dumps(LLADA | changes).replace("Infinity", "1e400"))
    refused(small, *words)


@pytest.mark.parametrize("field", ["mask_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", [16, -1, True, "1", 1.0, [1, 99], {"id": 1}, 10**30])
def test_token_ids_out_of_range(small, field, value):
    (small / "config.json").write_text(json.dumps(LLADA | {field: value}))
    refused(small, f"config.json: {field} is", "token ids go from 0 to 15")


def test_several_masks(small):
    (small / "config.json").write_text(json.dumps(LLADA | {"mask_token_id": [1, 2]}))
    refused(small, "mask_token_id is [1, 2]", "one token id")


def test_several_ends(small):
    (small / "config.json").write_text(json.dumps(LLADA | {"eos_token_id": [3, 4], "pad_token_id": None}))
    assert (load(small).vocab.eos, load(small).vocab.pad) == ((3, 4), 3)


@pytest.mark.parametrize("kind", ["bert", None, 7, ["llada"], "LLADA", "llada\n", "x" * 10_000])
def test_unknown_model_type(small, kind):
    (small / "config.json").write_text(json.dumps(LLADA | {"model_type": kind}))
    refused(small, "config.json: model_type is", "llada, illada, Dream, qwen2", "trust_remote_code")


SCALED = {"type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("llada", "alibi", True),
        ("llada", "rope", False),
        ("llada", "layer_norm_type", "default"),
        ("llada", "activation_type", "gelu"),
        ("llada", "block_type", "sequential"),
        ("llada", "include_bias", True),
        ("llada", "attention_layer_norm", True),
        ("llada", "multi_query_attention", True),
        ("llada", "rope_scaling", SCALED),
        ("dream", "rope_scaling", SCALED),
        ("dream", "rope_scaling", "linear\nscaling"),
        ("dream", "rope_parameters", YARN),
        ("dream", "use_sliding_window", True),
        ("dream", "hidden_act", "gelu"),
        ("dream", "head_dim", 6),
        ("open-dcoder", "use_sliding_window", True),
        ("illada", "attention_bias", True),
        ("illada", "mlp_bias", True),
        ("native", "norm", "batch"),
        ("native", "position", ["rotary"]),
        ("native", "places", 8),  # no square number, so no boxes
        ("native", "limit", 82),
    ],
)
def test_unsupported_variant(tmp_path, family, field, value):
    directory = write(tmp_path / family, MICRO[family])
    (directory / "config.json").write_text(json.dumps(MICRO[family] | {field: value}))
    refused(directory, f"config.json: {field} is", mask_id=15)


def test_rotary_positions_of_odd_width(tmp_path):
    config = NATIVE | {"position": "rotary", "head_width": 3}
    directory = write(tmp_path / "native", NATIVE)
    (directory / "config.json").write_text(json.dumps(config))
    refused(directory, "head_width is 3", "an even one")


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


# --- the mask --------------------------------------------------------------------------------------------------------


def test_no_mask_anywhere(tmp_path):
    directory = write(tmp_path / "coder", CODER)
    refused(directory, "neither config.json nor the tokenizer names a mask token", "mask_id")
    plain().save(str(directory / "tokenizer.json"))
    refused(directory, "neither config.json nor the tokenizer names a mask token", "mask_id")
    assert load(directory, mask_id=9).vocab.mask == 9


@pytest.mark.parametrize("mask_id", [16, -1, True, "5", 5.0, [5], 10**30])
def test_mask_id_out_of_range(small, mask_id):
    refused(small, "mask_id is", "token ids go from 0 to 15", mask_id=mask_id)


def test_mask_from_the_tokenizer(tmp_path):
    directory = write(tmp_path / "coder", CODER)
    fast = plain()
    fast.add_special_tokens(["[MASK]", "<M>"])  # 8 and 9
    fast.save(str(directory / "tokenizer.json"))
    assert load(directory).vocab.mask == 9  # the family's own name for it
    (directory / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "[MASK]"}}))
    assert load(directory).vocab.mask == 8  # what the tokenizer says
    assert load(directory, mask_id=7).vocab.mask == 7  # what the user says
    (directory / "tokenizer_config.json").write_text(json.dumps({"mask_token": "\ud800"}))  # half a character
    assert load(directory).vocab.mask == 9


# --- tokenizers ------------------------------------------------------------------------------------------------------


def plain() -> Fast:
    """Eight letters."""
    return Fast(models.BPE({letter: number for number, letter in enumerate("abcdefgh")}, []))


def test_no_tokenizer(small):
    model = load(small)
    assert isinstance(model.tokenizer, Numbers)
    assert model.tokenizer.encode(" 3 14\n1") == [3, 14, 1] and model.tokenizer.decode([3, 14]) == "3 14"
    with pytest.raises(InputError, match=r"no tokenizer, and 'three' is not made of token ids: write ids like"):
        model.tokenizer.encode("three")
    assert len(decode(model, canvas="1 2 [MASK*2]").tokens) == 4
    with pytest.raises(InputError, match="token id 16 is outside the vocabulary"):
        decode(model, canvas="16 [MASK]")


BAD_TOKENIZERS = {
    "empty": b"",
    "no JSON": b"{",
    "bytes": b"\x80\x02}q\x00.",
    "list": b"[]",
    "other JSON": b'{"a": 1}',
    "nested": b"[" * 100_000,
    "unknown model": b'{"model": {"type": "Magic"}}',
    "merge without token": json.dumps(
        json.loads(plain().to_str()) | {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}}
    ).encode(),
    "a panic": json.dumps(
        json.loads(plain().to_str()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    ).encode(),
}


@pytest.mark.parametrize("name", BAD_TOKENIZERS)
def test_bad_tokenizer(small, name):
    (small / "tokenizer.json").write_bytes(BAD_TOKENIZERS[name])
    refused(small, "tokenizer.json is no tokenizer")


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"chat_template": NaN}'])
def test_bad_tokenizer_config(small, text):
    (small / "tokenizer_config.json").write_bytes(text)
    refused(small, "tokenizer_config.json")


def test_panic_while_encoding(small):
    table = json.loads(plain().to_str()) | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    (small / "tokenizer.json").write_text(json.dumps(table))
    model = load(small)
    with pytest.raises(InputError, match="cannot read 'abc'"):
        model.tokenizer.encode("abc")


def test_half_a_character(small):
    plain().save(str(small / "tokenizer.json"))
    with pytest.raises(InputError, match="cannot read"):
        load(small).tokenizer.encode("a\ud800")


@pytest.mark.parametrize("number", [16, 4_000_000_000])
def test_tokenizer_of_a_larger_vocabulary(small, number):
    table = json.loads(plain().to_str()) | {"model": {"type": "BPE", "vocab": {"a": 0, "b": number}, "merges": []}}
    (small / "tokenizer.json").write_text(json.dumps(table))
    refused(small, f"ids up to {number}", "only up to 15", "tokenizer")


def test_tokenizer_from_another_directory(small, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    refused(small, "there is no tokenizer in", "tokenizer.json", tokenizer=other)
    (other / "tokenizer.json").write_text("{")
    refused(small, "tokenizer.json is no tokenizer", tokenizer=other)
    plain().save(str(other / "tokenizer.json"))
    assert load(small, tokenizer=other).tokenizer.encode("cab") == [2, 0, 1]
    refused(small, "there is no directory", tokenizer=tmp_path / "none")
    refused(small, "is a file", tokenizer=other / "tokenizer.json")


def test_padding_and_truncation_are_off(small):
    fast = plain()
    fast.enable_padding(length=9, pad_id=3)
    fast.enable_truncation(2)
    fast.save(str(small / "tokenizer.json"))
    assert load(small).tokenizer.encode("abcd") == [0, 1, 2, 3]


def test_ids_that_the_tokenizer_does_not_know(small):
    plain().save(str(small / "tokenizer.json"))
    assert load(small).tokenizer.decode([0, 15, 2**40, -1, 1]) in ("ab", "a b")


# Dream publishes no tokenizer.json: byte-level BPE with Qwen2's way of cutting, and added tokens in two places.

ALPHABET = sorted(pre_tokenizers.pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ċ Ċ", "Ġ Ġ", "' ll", "Ã ©"]
CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
SENTENCES = [
    "hello hello",
    "hell, he'll say HELLO; HE'LL!",
    "12 and 1212, 3.14",
    "  two  spaces \n\n and lines\r\n\t",
    "caf\u00e9 = cafe\u0301, na\u00efve",
    "日本語 ½ 🎉 ☂️",
    "<|im_start|>user\nhello<|im_end|><|mask|><|mask|>",
    "<|mask| >",
    "",
]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Dream with vocab.json, merges.txt, added_tokens.json and added_tokens_decoder."""
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, *(m.replace(" ", "") for m in MERGES)])}
    first = len(vocabulary)
    directory = write(tmp_path / "dream", DREAM | {"vocab_size": 300, "mask_token_id": None, "eos_token_id": None})
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    (directory / "added_tokens.json").write_text(json.dumps({SPECIALS[0]: first, SPECIALS[1]: first + 1}))
    table = {str(first + n): {"content": text, "special": True} for n, text in enumerate(SPECIALS) if n}
    settings = {"added_tokens_decoder": table, "mask_token": "<|mask|>", "eos_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture
def by_hand() -> Fast:
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, *(m.replace(" ", "") for m in MERGES)])}
    fast = Fast(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in MERGES]))
    fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CUT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return fast


@pytest.mark.parametrize("text", SENTENCES)
def test_tokenizer_from_parts(parts, by_hand, text):
    tokenizer = load(parts).tokenizer
    ids = by_hand.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == by_hand.decode(ids, skip_special_tokens=True)


def test_special_ids_from_parts(parts, by_hand):
    model = load(parts)
    mask, end, turn = (by_hand.token_to_id(text) for text in ("<|mask|>", "<|endoftext|>", "<|im_end|>"))
    assert (model.vocab.mask, model.vocab.eos) == (mask, (end, turn))
    assert model.tokenizer.encode("12") == by_hand.encode("1").ids + by_hand.encode("2").ids  # though "1 2" is a merge
    assert model.tokenizer.encode("e\u0301") == model.tokenizer.encode("\u00e9")


def test_tokenizer_json_comes_before_parts(parts):
    plain().save(str(parts / "tokenizer.json"))
    assert load(parts, mask_id=9).tokenizer.encode("cab") == [2, 0, 1]


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("vocab.json", "{", "vocab.json is no JSON"),
        ("vocab.json", "[]", "vocab.json holds a list"),
        ("vocab.json", "{}", "vocab.json with merges.txt is no tokenizer"),
        ("vocab.json", '{"a": "b"}', "vocab.json holds something else"),
        ("vocab.json", '{"a": -1}', "vocab.json holds something else"),
        ("vocab.json", '{"a": true}', "vocab.json holds something else"),
        ("vocab.json", '{"a": ' + "[" * 900 + "]" * 900 + "}", "vocab.json"),
        ("vocab.json", '{"a": 99999999999999999999}', "vocab.json with merges.txt is no tokenizer"),
        ("merges.txt", "x y\n", "vocab.json with merges.txt is no tokenizer"),
        ("merges.txt", "one\n", "vocab.json with merges.txt is no tokenizer"),
        ("added_tokens.json", '{"a": null}', "added_tokens.json holds something else"),
        ("added_tokens.json", '{"a": 300}', "ids up to 300"),
        ("special_tokens_map.json", "[]", "special_tokens_map.json holds a list"),
    ],
)
def test_bad_parts(parts, file, text, word):
    (parts / file).write_text(text)
    refused(parts, word)


@pytest.mark.parametrize(
    "table", [None, [], {"x": {}}, {"²": {"content": "a"}}, {"9" * 5000: {"content": "b"}}, {"1": {"content": []}}]
)
def test_odd_tables_of_added_tokens_are_left_out(parts, table):
    settings = {"added_tokens_decoder": table, "mask_token": "[", "eos_token": [], "chat_template": {"a": 1}}
    (parts / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load(parts).vocab.mask == ALPHABET.index("[")


def test_vocabulary_without_merges_is_no_tokenizer(parts):
    (parts / "merges.txt").unlink()
    assert isinstance(load(parts, mask_id=1).tokenizer, Numbers)


# --- chat templates --------------------------------------------------------------------------------------------------

SHORT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}"
USER = [{"role": "user", "content": "hi"}]


def chat(directory: Path, template: Any = None, **settings: Any) -> str:
    """The dialogue as a checkpoint with this template writes it."""
    plain().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} | settings))
    tokenizer = load(directory).tokenizer
    assert isinstance(tokenizer, Pieces)
    return tokenizer.chat(USER)


def test_chat_template_of_the_config(small):
    assert chat(small, SHORT, bos_token="<s>") == "<s>[user] hi\n"
    assert chat(small, SHORT, bos_token={"content": "<s>", "lstrip": False}) == "<s>[user] hi\n"
    assert chat(small, SHORT, bos_token=None) == "[user] hi\n"
    assert chat(small, SHORT + "{% if add_generation_prompt %}>{% endif %}") == "[user] hi\n>"


def test_chat_template_among_several(small):
    named = [{"name": "tool_use", "template": "no"}, {"name": ["odd"]}, 3, {"name": "default", "template": SHORT}]
    assert chat(small, named, bos_token="<s>") == "<s>[user] hi\n"
    with pytest.raises(InputError, match="no chat template"):
        chat(small, named[:-1])


def test_chat_template_in_a_file(small):
    (small / "chat_template.jinja").write_text(SHORT)
    (small / "special_tokens_map.json").write_text('{"bos_token": {"content": "<b>"}}')
    assert chat(small, "another") == "<b>[user] hi\n"
    assert chat(small, "another", bos_token="<s>") == "<s>[user] hi\n"


def test_no_chat_template(small):
    with pytest.raises(InputError, match="no chat template: leave chat out"):
        chat(small)


def test_chat_template_that_refuses(small):
    for message in ("roles must alternate", "", "two\nlines"):
        with pytest.raises(InputError, match="the chat template refuses these messages: ") as caught:
            chat(small, "{{ raise_exception(" + json.dumps(message) + ") }}")
        assert str(caught.value).isprintable() and message.split("\n")[0] in str(caught.value)


HOSTILE = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by filter": "{{ (''|attr('__class__')).mro() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "globals of a function": "{{ raise_exception.__globals__['json'].codecs.open('MARK', 'w') }}",
    "self": "{{ self._TemplateReference__context.environment.loader.x }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}{{ 1/0 }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "change": "{{ messages.append(messages) }}",
    "change in place": "{{ messages[0].update({'role': 'x'}) }}",
    "huge range": "{% for x in range(10**12) %}x{% endfor %}",
    "huge text": "{{ 'x' * 10**15 }}",
    "much output": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a ~ 'x' * 999 }}{% endfor %}{% endfor %}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for a in 'x' %}" * 50 + "{% endfor %}" * 50,
    "syntax": "{% for x in %}",
    "unknown tag": "{% exec 'x' %}",
    "division": "{{ 1 / 0 }}",
    "wrong kind": "{{ messages + 1 }}",
    "no such thing": "{{ nothing.here }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_chat_template(small, mark, name):
    peak = memory.host_peak()
    with pytest.raises(InputError, match="the chat template") as caught:
        chat(small, HOSTILE[name].replace("MARK", str(mark)))
    assert str(caught.value).isprintable() and caught.value.hint
    assert memory.host_peak() - peak < 256 * 2**20


# --- details that public tokenizers have -----------------------------------------------------------------------------


def test_templates_of_the_hub_find_what_they_expect(tmp_path):
    template = (
        "{% for m in messages[1:] %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m['content'] | trim }}{% endif %}{% if not loop.last %}{% continue %}{% endif %}{% endfor %}"
        "{% set ns = namespace(n=0) %}{% if tools is defined and tools %}tools{% endif %}"
        "{{ strftime_now('%Y') | length }}{{ messages | length | tojson }}{{ bos_token }}"
    )
    words = Pieces(None, template, {"bos_token": "<s>"})
    turns = [{"role": r, "content": c} for r, c in (("system", "s"), ("user", " u "), ("assistant", "a"))]
    assert words.chat(turns) == "ua43<s>"


def test_ordinary_added_tokens_stay_in_the_text_and_dropout_is_off(tmp_path):
    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    (tmp_path / "vocab.json").write_text(json.dumps({**letters, "ab": 256}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    added = {"257": {"content": "<tool_call>", "special": False}, "258": {"content": "<|end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    words = read_tokenizer(tmp_path)
    assert words.encode("ab<tool_call><|end|>") == [256, 257, 258]
    assert words.decode([256, 257, 258]) == "ab<tool_call>"
    made = json.loads(words.fast.to_str())
    made["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    again = read_tokenizer(tmp_path)
    assert {tuple(again.encode("abab")) for _ in range(20)} == {(256, 256)}
