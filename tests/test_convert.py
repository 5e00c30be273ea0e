"""Lightning checkpoints of MDLM -> directories that load; nothing that a pickle names is imported or run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import zipfile
from collections import OrderedDict, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.errors import ModelError
from unmask.models import load
from unmask.models.files.convert import convert
from unmask.models.transformer import Transformer

TINY = Path(__file__).parent / "parity" / "models" / "mdlm"
FREQUENCIES = "backbone.rotary_emb.inv_freq"
BLOCK = (
    "norm1.weight attn_qkv.weight attn_out.weight norm2.weight mlp.0.weight mlp.0.bias mlp.2.weight mlp.2.bias "
    "adaLN_modulation.weight adaLN_modulation.bias"
).split()
NAMES = [  # of backbone.parameters(), in its order
    "vocab_embed.embedding",
    *(f"sigma_map.mlp.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")),
    *(f"blocks.{block}.{part}" for block in (0, 1) for part in BLOCK),
    "output_layer.norm_final.weight",
    *(f"output_layer.{part}.{kind}" for part in ("linear", "adaLN_modulation") for kind in ("weight", "bias")),
]


# --- checkpoints as Lightning writes them ----------------------------------------------------------------------------


def weights() -> OrderedDict[str, Tensor]:
    """The recorded tiny model, in the order of a state_dict: the buffer comes where its module does."""
    found = load_file(TINY / "model.safetensors")
    names = [*NAMES[:5], "rotary_emb.inv_freq", *NAMES[5:]]
    assert sorted(found) == sorted(f"backbone.{name}" for name in names)
    return OrderedDict((f"backbone.{name}", found[f"backbone.{name}"]) for name in names)


def averages(state: dict[str, Tensor]) -> list[Tensor]:
    """Every weight, a little elsewhere."""
    generator = torch.Generator().manual_seed(0)
    plain = [tensor for name, tensor in state.items() if not name.endswith("inv_freq")]
    return [tensor.float() + 0.05 * torch.randn(tensor.shape, generator=generator) for tensor in plain]


def lightning(state: dict[str, Tensor], **more: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "global_step": 10,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": state,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": Path("best.ckpt")}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"betas": (0.9, 0.999)}]}],
        "ema": {"decay": 0.9999, "num_updates": 10, "shadow_params": averages(state)},
        "sampler": {"random_state": {"epoch": 1, "counter": 2}},
        **more,
    }


@pytest.fixture
def strangers(monkeypatch):
    """Instances of classes that are gone when the file is read, with all the ways in which pickles build objects."""
    module = types.ModuleType("somewhere_else.config")
    source = """
class Config:
    def __init__(self): self.content, self.flags = {"length": 32}, {"a": None}
class Stateful:
    def __getstate__(self): return b"bytes"
    def __setstate__(self, state): raise RuntimeError("this ran")
class Made:
    def __new__(cls, *given): return super().__new__(cls)
    def __getnewargs__(self): return ("one", 2)
class Reduced:
    def __reduce__(self): return make, (1, "two"), {"three": 3}
class Slotted:
    __slots__ = ("x",)
    def __init__(self): self.x = 1
def make(*given): return Reduced()
"""
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "somewhere_else", types.ModuleType("somewhere_else"))
    monkeypatch.setitem(sys.modules, "somewhere_else.config", module)
    objects = [getattr(module, name)() for name in ("Config", "Stateful", "Made", "Reduced", "Slotted")]
    for one in vars(module).values():
        if callable(one):
            one.__module__ = "somewhere_else.config"
    hidden = {"kinds": [module.Config, dict, list, int], "defaults": defaultdict(list, {"a": [1]}), "objects": objects}

    def save(values: dict[str, Any], path: Path) -> Path:
        torch.save({**values, "hyper_parameters": {"config": hidden, "tokenizer": objects[1]}}, path)
        monkeypatch.delitem(sys.modules, "somewhere_else.config")
        monkeypatch.delitem(sys.modules, "somewhere_else")
        return path

    return save


@pytest.fixture
def saved(tmp_path):
    def save(values: object, name: str = "last.ckpt", **how: Any) -> Path:
        torch.save(values, tmp_path / name, **how)
        return tmp_path / name

    return save


def logits(model: Transformer) -> Tensor:
    tokens = torch.arange(12).view(2, 6) % 90
    hidden, _ = model.network(tokens, torch.arange(6).expand(2, 6))
    return torch.nn.functional.linear(hidden, model.head.weight, model.head.bias)


def refused(text: str, checkpoint: Path, directory: Path, **settings: Any) -> ModelError:
    """The error of a conversion that leaves nothing behind."""
    before = sorted(directory.iterdir()) if directory.is_dir() else directory.exists()
    with pytest.raises(ModelError, match=text) as caught:
        convert(checkpoint, directory, **settings)
    assert "\n" not in str(caught.value) and caught.value.hint
    assert before == (sorted(directory.iterdir()) if directory.is_dir() else directory.exists())
    return caught.value


# --- what comes out --------------------------------------------------------------------------------------------------


def test_converts_averages_and_plain_weights(strangers, tmp_path):
    state = weights()
    path = strangers(lightning(state), tmp_path / "last.ckpt")
    plain = convert(path, tmp_path / "plain", ema=False, length=32)
    smooth = convert(path, tmp_path / "deep" / "smooth", length=32)
    original = load(TINY)
    assert torch.equal(logits(load(tmp_path / "plain")), logits(original))
    difference = (logits(load(tmp_path / "deep" / "smooth")) - logits(original)).abs().max()
    assert difference > 0.1
    written = load_file(tmp_path / "deep" / "smooth" / "model.safetensors")
    assert len(written) == len(state)
    for name, average in zip(NAMES, averages(state), strict=True):
        assert torch.equal(written[f"backbone.{name}"], average)
    assert smooth.ema and not plain.ema
    assert smooth.parameters == plain.parameters == sum(tensor.numel() for tensor in averages(state))
    assert "somewhere_else.config.Config" in smooth.ignored and "pathlib.PosixPath" in smooth.ignored
    assert "somewhere_else" not in sys.modules


def test_writes_the_published_layout(saved, tmp_path):
    path = saved(lightning(weights()))
    result = convert(path, tmp_path / "out", length=32, time_conditioning=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    published = json.loads((TINY / "config.json").read_text()) | {"time_conditioning": True}
    assert config == result.config
    assert config == {key: value for key, value in published.items() if key not in ("auto_map", "transformers_version")}
    assert load(tmp_path / "out").timed
    written, recorded = load_file(tmp_path / "out" / "model.safetensors"), load_file(TINY / "model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == {n: t.shape for n, t in recorded.items()}
    assert all(tensor.dtype == torch.float32 for tensor in written.values())
    assert torch.allclose(written[FREQUENCIES], recorded[FREQUENCIES])
    modes = {(tmp_path / "out" / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_published_lengths_are_the_default(saved, tmp_path):
    assert convert(saved(lightning(weights())), tmp_path / "out").config["model_length"] == 1024
    assert load(tmp_path / "out").limit == 1024


def test_accepts_an_empty_directory_and_texts_as_paths(saved, tmp_path):
    (tmp_path / "out").mkdir()
    convert(str(saved(lightning(weights()))), str(tmp_path / "out"))
    assert load(tmp_path / "out").vocab.mask == 99


def test_names_of_compiled_networks(saved, tmp_path):
    state = OrderedDict((name.replace("backbone.", "backbone._orig_mod."), one) for name, one in weights().items())
    convert(saved(lightning(state)), tmp_path / "out", ema=False)
    assert torch.equal(logits(load(tmp_path / "out")), logits(load(TINY)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types(saved, tmp_path, dtype):
    state = OrderedDict((name, tensor.to(dtype)) for name, tensor in weights().items())
    path = saved(lightning(state))
    convert(path, tmp_path / "plain", ema=False)
    written = load_file(tmp_path / "plain" / "model.safetensors")
    for name in NAMES:
        assert torch.equal(written[f"backbone.{name}"], state[f"backbone.{name}"].float())
    convert(path, tmp_path / "smooth")
    assert load(tmp_path / "smooth").network.embed.weight.dtype == torch.float32


def test_other_parts_of_the_state_are_left_out(saved, tmp_path):
    state = weights() | {"noise.level": torch.ones(3), "metrics.count": torch.ones((), dtype=torch.int64)}
    values = lightning(weights(), state_dict=state)
    convert(saved(values), tmp_path / "out")
    assert sorted(load_file(tmp_path / "out" / "model.safetensors")) == sorted(weights())


def test_parameters_and_views(saved, tmp_path):
    """Parameters, transposed views and tensors that share one storage come out as they are."""
    state = weights()
    state["backbone.vocab_embed.embedding"] = torch.nn.Parameter(state["backbone.vocab_embed.embedding"])
    square = "backbone.blocks.0.attn_out.weight"
    state[square] = state[square].T.contiguous().T
    twice = torch.stack([state["backbone.blocks.0.norm1.weight"], state["backbone.blocks.0.norm2.weight"]])
    state["backbone.blocks.0.norm1.weight"], state["backbone.blocks.0.norm2.weight"] = twice
    convert(saved(lightning(state)), tmp_path / "out", ema=False)
    assert torch.equal(logits(load(tmp_path / "out")), logits(load(TINY)))


# --- nothing runs ----------------------------------------------------------------------------------------------------


class Call:
    """A pickle of it calls `function` with `given` when it is loaded."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.function, self.given = function, given

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.given


PLAIN, NESTED = ("exec", "eval", "open", "subprocess"), ("method", "rebuild")


def attack(kind: str, mark: Path) -> Call:
    """A pickle that makes a file, one way or another."""
    program = f"open({str(mark)!r}, 'w').close()"
    return {
        "exec": Call(exec, program),
        "eval": Call(eval, program),
        "open": Call(open, str(mark), "w"),
        "subprocess": Call(subprocess.check_call, ["touch", str(mark)]),
        "method": Call(Path.touch, mark),  # a call of what getattr gave
        "rebuild": Call(torch._tensor._rebuild_from_type_v2, exec, dict, (program,), {}),  # through a safe function
    }[kind]


@pytest.mark.parametrize("kind", PLAIN + NESTED)
def test_code_is_never_run(saved, tmp_path, kind):
    mark = tmp_path / "mark"
    path = saved(lightning(weights(), hyper_parameters={"config": attack(kind, mark)}))
    with suppress(AttributeError):
        torch.load(path, weights_only=False)
    assert mark.exists()  # as it would be elsewhere
    mark.unlink()
    if kind in PLAIN:
        assert convert(path, tmp_path / "out").ignored
    else:  # more than a stand-in can play
        refused("cannot be read", path, tmp_path / "out")
    assert not mark.exists()


@pytest.mark.parametrize(("function", "name"), [(os.system, "system"), (os.mkdir, "mkdir"), (sys.exit, "sys.exit")])
def test_modules_that_torch_blocks_are_refused(saved, tmp_path, function, name):
    path = saved(lightning(weights(), hyper_parameters=Call(function, f"touch {tmp_path / 'mark'}")))
    assert name in str(refused("blocked", path, tmp_path / "out"))
    assert not (tmp_path / "mark").exists() and not list(tmp_path.glob("touch*"))


def test_a_number_makes_no_room(saved, tmp_path):
    """torch calls bytearray; 40 bytes of a file took 2 GiB, as often as they were written."""
    for place in ({"epoch": Call(bytearray, 2**24)}, {"hyper_parameters": [bytearray(b"some")]}):
        refused("makes a bytearray", saved(lightning(weights(), **place)), tmp_path / "out")


def test_a_call_in_the_place_of_weights_is_refused(saved, tmp_path):
    state = weights() | {"backbone.vocab_embed.embedding": Call(exec, f"open({str(tmp_path / 'mark')!r}, 'w')")}
    path = saved({"state_dict": state})
    refused("embedding is a Nothing", path, tmp_path / "out")
    refused("no state_dict", saved({"state_dict": Call(exec, "1")}), tmp_path / "out")
    assert not (tmp_path / "mark").exists()


def test_stand_ins_are_gone_afterwards(saved, tmp_path):
    before = set(torch.serialization.get_safe_globals())
    path = saved(lightning(weights()))
    convert(path, tmp_path / "out")
    refused("exists already", path, tmp_path / "out")
    assert set(torch.serialization.get_safe_globals()) == before


# --- errors ----------------------------------------------------------------------------------------------------------


def test_files_that_are_no_checkpoints(saved, tmp_path):
    out = tmp_path / "out"
    refused("no file", tmp_path / "none.ckpt", out)
    refused("cannot read", tmp_path, out)
    for name, content in {"empty": b"", "text": b"hello, this is text", "torn": b"PK\x03\x04" + bytes(100)}.items():
        (tmp_path / name).write_bytes(content)
        refused("is not whole" if name == "torn" else "is not a checkpoint", tmp_path / name, out)
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("readme.txt", "a zip of something else")
    refused("cannot be read", tmp_path / "plain.zip", out)
    with zipfile.ZipFile(tmp_path / "broken.zip", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00X\xff\xff\xff\xffno")
        archive.writestr("archive/version", b"3\n")
    refused("cannot be read", tmp_path / "broken.zip", out)


def test_truncated_checkpoint(saved, tmp_path):
    path = saved(lightning(weights()))
    content = path.read_bytes()
    for part in (0.1, 0.5, 0.99):
        path.write_bytes(content[: int(part * len(content))])
        refused("not whole", path, tmp_path / "out")


def test_compressed_checkpoint(saved, tmp_path):
    path = saved(lightning(weights()))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "small", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused("compressed", tmp_path / "small", tmp_path / "out")


def test_old_format(saved, tmp_path):
    path = saved(lightning(weights()), _use_new_zipfile_serialization=False)
    refused("bare pickle", path, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_newer_pickle_protocol(saved, tmp_path):
    refused("cannot be read", saved(lightning(weights()), pickle_protocol=4), tmp_path / "out")


def test_checkpoints_without_a_state(saved, tmp_path):
    out = tmp_path / "out"
    refused("no state_dict", saved(weights()), out)
    refused("no state_dict", saved([1, 2]), out)
    refused("no state_dict", saved({"state_dict": [1]}), out)
    refused("no tensor backbone.vocab_embed", saved(lightning(OrderedDict())), out)
    for name in ("sigma_map.mlp.0.weight", "rotary_emb.inv_freq"):
        state = weights()
        del state[f"backbone.{name}"]
        refused(f"no tensor backbone.{name}", saved(lightning(state)), out)


def test_checkpoints_without_averages(saved, tmp_path):
    values = lightning(weights())
    for wrong in (None, {}, {"shadow_params": None}, [1]):
        error = refused("no running averages", saved({**values, "ema": wrong}), tmp_path / "out")
        assert "ema=False" in error.hint
    del values["ema"]
    path = saved(values)
    assert "ema=False" in refused("no running averages", path, tmp_path / "out").hint
    convert(path, tmp_path / "out", ema=False)


def test_averages_that_do_not_fit(saved, tmp_path):
    state, out = weights(), tmp_path / "out"
    good = averages(state)
    for wrong, text in (
        (good[:-1], "29 running averages for 30 tensors"),
        ([*good, good[-1]], "31 running averages"),
        ([good[1], good[0], *good[2:]], r"average of backbone.vocab_embed.embedding is 128 × 256, .* 100 × 64"),
        ([good[0].long(), *good[1:]], "not a dense tensor of floats"),
        ([3, *good[1:]], "is a int"),
        ([good[0] * torch.nan, *good[1:]], "embedding has values that are not finite"),
    ):
        refused(text, saved(lightning(state, ema={"shadow_params": wrong})), out)


def test_averages_without_names(saved, tmp_path):
    """A state in another order than MDLM's: two norms of one shape could change places unseen."""
    state = OrderedDict(sorted(weights().items()))
    path = saved(lightning(state))
    assert "ema=False" in refused("another order", path, tmp_path / "out").hint
    convert(path, tmp_path / "out", ema=False)


def changed(name: str, tensor: Any) -> dict[str, Any]:
    return {**weights(), f"backbone.{name}": tensor}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (changed("blocks.1.attn_qkv.weight", torch.ones(190, 64)), "attn_qkv.weight is 190 × 64, .* 192 × 64"),
        (changed("blocks.0.mlp.0.bias", torch.ones(255)), "mlp.0.bias is 255"),
        (changed("vocab_embed.embedding", torch.ones(100)), "do not fit"),
        (changed("vocab_embed.embedding", torch.ones(100, 60)), "do not fit"),
        (changed("vocab_embed.embedding", torch.ones(0, 64)), "vocab_size is 0"),
        (changed("sigma_map.mlp.0.weight", torch.ones(128)), "do not fit"),
        (changed("rotary_emb.inv_freq", torch.ones(0)), "do not fit"),
        (changed("rotary_emb.inv_freq", torch.ones(8)), "frequencies are not those"),
        (changed("rotary_emb.inv_freq", torch.ones(2, 4)), "frequencies are not those"),
        (changed("blocks.2.norm1.weight", torch.ones(64)), "tensors are missing: backbone.blocks.2"),
        (changed("blocks.0.attn_out.bias", torch.ones(64)), "unexpected: backbone.blocks.0.attn_out.bias"),
        (changed("lora.weight", torch.ones(64)), "unexpected: backbone.lora.weight"),
        (changed("vocab_embed.embedding", torch.ones(100, 64, dtype=torch.int64)), "not a dense tensor"),
        (changed("vocab_embed.embedding", torch.ones(100, 64).to(torch.float8_e4m3fn)), "not a dense tensor"),
        (changed("vocab_embed.embedding", torch.ones(100, 64).to_sparse()), "not a dense tensor"),
        (changed("vocab_embed.embedding", torch.ones(100, 64, device="meta")), "not a dense tensor"),
        (changed("vocab_embed.embedding", "text"), "is a str"),
        (changed("output_layer.linear.bias", torch.full((100,), torch.inf)), "not finite"),
        (changed("vocab_embed.embedding", torch.zeros(1).expand(1 << 22, 64)), "linear.weight is 100"),
    ],
)
def test_tensors_that_do_not_fit(saved, tmp_path, state, text):
    refused(text, saved({"state_dict": state}), tmp_path / "out", ema=False)


def test_tensors_larger_than_their_file(saved, tmp_path):
    """Strides of 0 make a few bytes look like any size."""
    state = weights()
    for name in ("vocab_embed.embedding", "output_layer.linear.weight"):
        state[f"backbone.{name}"] = torch.zeros(1).expand(1 << 22, 64)
    state["backbone.output_layer.linear.bias"] = torch.zeros(1).expand(1 << 22)
    refused("larger than their file", saved({"state_dict": state}), tmp_path / "out", ema=False)


def test_lengths_out_of_range(saved, tmp_path):
    path = saved(lightning(weights()))
    for length in (0, -1, 1 << 40):
        refused("model_length", path, tmp_path / "out", length=length)


def test_never_overwrites(saved, tmp_path):
    path, out = saved(lightning(weights())), tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refused("exists already", path, out)
    assert (out / "notes.txt").read_text() == "mine"
    refused("exists already", path, out / "notes.txt")
    refused("exists already", path, path)
    refused("cannot write", path, out / "notes.txt" / "below")


def test_a_failed_write_leaves_nothing(saved, tmp_path, monkeypatch):
    path, out = saved(lightning(weights())), tmp_path / "out"

    def full(tensors: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    def late(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        refused("No space left", path, out)
        out.mkdir()
        refused("No space left", path, out)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", late)
        with pytest.raises(KeyboardInterrupt):
            convert(path, out)
    assert not list(out.iterdir())
    convert(path, out)


def test_no_permission_to_write(saved, tmp_path):
    path, shut = saved(lightning(weights())), tmp_path / "shut"
    shut.mkdir()
    shut.chmod(0o555)
    if os.access(shut, os.W_OK):  # root may write anywhere, except where nothing can be
        shut = Path("/proc/self")
    if not shut.is_dir():
        pytest.skip("no directory here is closed to us")
    refused("cannot write", path, shut / "out")


def test_no_permission_to_read(saved, tmp_path):
    path = saved(lightning(weights()))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    refused("cannot read", path, tmp_path / "out")


def test_files_of_others_are_only_read(saved, tmp_path):
    path = saved(lightning(weights()))
    path.chmod(0o444)
    before = path.read_bytes()
    convert(path, tmp_path / "out")
    assert path.read_bytes() == before
