"""Weights in 8 bits: how far off they are, that `load` and `take` give exactly them, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints.small import LLADA, NATIVE, logits, refused, split, weights, write
from unmask import load
from unmask.cli import main
from unmask.errors import ModelError, SettingError
from unmask.models.files.bits import SCALE, pack, unpack
from unmask.models.files.checkpoint import WEIGHTS
from unmask.models.laws import check
from unmask.models.made.fabricate import fabricate
from unmask.train.initial import fresh, merge, save, take

EIGHT = {**NATIVE, "bits": 8}
MATRIX, VECTOR = "blocks.0.qkv.weight", "norm.weight"
SCALES = MATRIX + SCALE


def tensors():
    """What a small 8-bit checkpoint holds."""
    return pack(weights(NATIVE))


@pytest.fixture
def small(tmp_path):
    """A good one."""
    return write(tmp_path / "small", EIGHT, tensors())


# --- numbers ---------------------------------------------------------------------------------------------------------


def matrix(seed=0, rows=64, columns=300):
    generator = torch.Generator().manual_seed(seed)
    size = torch.logspace(-20, 20, rows)[:, None]
    return torch.randn(rows, columns, generator=generator) * size


def test_no_weight_is_off_by_more_than_half_a_scale():
    exact = matrix()
    packed = pack({"a": exact})
    assert packed["a"].dtype == torch.int8 and packed["a" + SCALE].dtype == torch.float32
    half = packed["a" + SCALE].double()[:, None] / 2
    off = (unpack(packed)["a"].double() - exact.double()).abs()
    assert (off <= half * (1 + 1e-4)).all()  # float32 rounds, too
    assert (packed["a"].int().abs().amax(1) == 127).all()  # and no scale is larger than it must be


def test_whole_numbers_come_back_exactly():
    exact = torch.arange(-127, 128).float().repeat(3, 1) * torch.tensor([[1.0], [0.25], [1024.0]])
    assert torch.equal(unpack(pack({"a": exact}))["a"], exact)


def test_zeros_and_the_smallest_numbers():
    exact = torch.zeros(4, 5)
    exact[1, 2], exact[2, 3], exact[3, 0] = 1e-45, -1e-38, 1e-30
    packed = pack({"a": exact})
    found = unpack(packed)["a"]
    assert not found[:2].any() and found.isfinite().all()
    assert ((found - exact).abs() <= packed["a" + SCALE][:, None] / 2).all()
    assert found[3, 0] == pytest.approx(1e-30)


def test_huge_rows():
    exact = torch.tensor([[3e38, -1e38, 0.0], [1.0, 2.0, 3.0], [7e6, -65504.0, 9e6]])  # beyond float16, even as scales
    found = unpack(pack({"a": exact}))["a"]
    assert torch.allclose(found, exact, rtol=0.01, atol=1e36) and found.isfinite().all()
    assert torch.allclose(found[1:], exact[1:], rtol=0.3)  # a row knows nothing of the others


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3.4028e38])
def test_weights_that_8_bits_cannot_hold(bad):
    exact = torch.ones(2, 3)
    exact[1, 1] = bad
    with pytest.raises(ModelError, match="scales of 'a' are not all finite"):
        pack({"a": exact})


def test_only_matrices_are_packed():
    across, vector = torch.tensor([[127.0, 0.0], [2.0, 254.0]], dtype=torch.float64).t(), torch.tensor([0.1, 1e6])
    packed = pack({"a": across, "b": vector})
    assert set(packed) == {"a", "a" + SCALE, "b"} and torch.equal(packed["b"], vector)
    assert all(tensor.is_contiguous() for tensor in packed.values())  # else they cannot be saved
    weights = unpack(packed)
    assert (
        set(weights) == {"a", "b"} and torch.equal(weights["b"], vector) and torch.equal(weights["a"], across.float())
    )


# --- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_load_gives_exactly_what_was_packed(small, dtype):
    model = load(small, dtype=dtype)
    packed = tensors()
    for name, parameter in model.network.named_parameters():
        assert parameter.dtype == dtype
        exact = packed[name].to(dtype)
        if name + SCALE in packed:
            exact = (packed[name].to(torch.promote_types(dtype, torch.float32)) * packed[name + SCALE][:, None]).to(
                dtype
            )
        assert torch.equal(parameter, exact), name


def test_in_float32_it_is_what_unpack_gives_and_close_to_the_original(small, tmp_path):
    eight = load(small)
    expected = unpack(tensors())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in eight.network.named_parameters())
    whole = load(write(tmp_path / "whole", NATIVE, weights(NATIVE)))
    found, wanted = (logits(model)[:, :15] for model in (eight, whole))  # the mask is outside
    assert 0 < (found - wanted).norm() < 0.03 * wanted.norm()
    assert [verdict for verdict in check(eight) if verdict.held is False] == []


def test_scales_may_be_in_another_file_and_in_float16(tmp_path):
    halved = {name: tensor.half() if name.endswith(SCALE) else tensor for name, tensor in tensors().items()}
    directory = write(tmp_path / "shards", EIGHT, halved)
    places = split(directory)
    assert places[MATRIX] != places[SCALES]
    seen = []
    model = load(directory, progress=lambda done, total: seen.append((done, total)))
    expected = unpack(halved)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.network.named_parameters())
    size = sum(tensor.nbytes for name, tensor in halved.items() if not name.endswith(SCALE))
    assert seen[-1] == (size, size)


def test_sixteen_bits_may_be_said(tmp_path):
    expected = weights(NATIVE)
    model = load(write(tmp_path / "said", {**NATIVE, "bits": 16}, expected))
    assert torch.equal(model.network.embed.weight, expected["embed.weight"])


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 0, -8, 8.0, True, "8", [8], 10**30])
def test_other_numbers_of_bits(small, bits):
    write(small, {**NATIVE, "bits": bits}, tensors())
    refused(small, "config.json: bits is", "choose from 8, 16")


def test_missing_scale(small):
    write(small, EIGHT, {name: tensor for name, tensor in tensors().items() if name != SCALES})
    refused(small, "1 tensors are missing", SCALES)


def test_scale_of_a_vector(small):
    write(small, EIGHT, tensors() | {VECTOR + SCALE: torch.ones(8)})
    refused(small, "1 tensors are unexpected", VECTOR + SCALE)


@pytest.mark.parametrize("shape", [(), (1,), (23,), (24, 1), (1, 24), (8,), (0,)])
def test_misshapen_scale(small, shape):
    write(small, EIGHT, tensors() | {SCALES: torch.ones(shape)})
    refused(small, SCALES, "by the config it must be 24")


def test_misshapen_matrix(small):
    write(small, EIGHT, tensors() | {MATRIX: torch.ones(24, 7, dtype=torch.int8)})
    refused(small, f"{MATRIX} is 24 × 7", "by the config it must be 24 × 8")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 3.3e38])
def test_scale_that_is_not_finite(small, bad):
    changed = tensors()
    changed[SCALES][5] = bad
    write(small, EIGHT, changed)
    refused(small, f"the scales of '{MATRIX}' are not all finite")


def test_scale_that_overflows_its_type(small):
    changed = tensors()
    write(small, EIGHT, changed | {SCALES: (changed[SCALES] * 1e9).half()})
    refused(small, f"the scales of '{MATRIX}' are not all finite")
    write(small, EIGHT, changed | {SCALES: changed[SCALES].double() * 1e300})
    refused(small, f"the scales of '{MATRIX}' are not all finite")


@pytest.mark.parametrize("name", [SCALES, VECTOR])
def test_whole_numbers_where_floats_belong(small, name):
    changed = tensors()
    write(small, EIGHT, changed | {name: changed[name].to(torch.int8)})
    refused(small, f"{name} has the type I8", "only F64, F32, F16, BF16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int16, torch.float8_e4m3fn])
def test_other_types_than_int8(small, dtype):
    write(small, EIGHT, tensors() | {MATRIX: torch.ones(24, 8).to(dtype)})
    refused(small, f"{MATRIX} has the type", "only I8")


def test_the_config_and_the_file_disagree(small):
    write(small, NATIVE, tensors())
    refused(small, "tensors are unexpected", SCALE)
    whole = tensors()
    write(small, NATIVE, {name: tensor for name, tensor in whole.items() if not name.endswith(SCALE)})
    refused(small, "has the type I8", "only F64, F32, F16, BF16")
    write(small, EIGHT, weights(NATIVE))
    refused(small, "tensors are missing", SCALE)


def test_other_layouts_know_no_8_bits(small):
    write(small, LLADA | {"bits": 8}, pack(weights(LLADA)))
    refused(small, "tensors are unexpected", SCALE)


# --- saving, training on and quantizing ------------------------------------------------------------------------------


def network_of(config=NATIVE, seed=1):
    return fresh(config, "cpu", seed)


def test_save_and_take(tmp_path):
    network = network_of()
    for bits in (8, 16):
        (tmp_path / str(bits)).mkdir()
        save(tmp_path / str(bits), EIGHT if bits == 16 else NATIVE, network, bits)  # the argument counts
    eight, half = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("8", "16"))
    assert eight == EIGHT and half == NATIVE
    kept = load_file(tmp_path / "16" / WEIGHTS)
    assert {tensor.dtype for tensor in kept.values()} == {torch.float16} and len(kept) == len(
        list(network.parameters())
    )
    other, expected = network_of(seed=2), unpack(pack(dict(network.named_parameters())))
    take(other, tmp_path / "8" / WEIGHTS)
    loaded = load(tmp_path / "8").network
    for (name, taken), there in zip(other.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(taken, expected[name]) and torch.equal(taken, there), name


def test_save_in_4_bits(tmp_path):
    with pytest.raises(SettingError, match="unknown number of bits 4"):
        save(tmp_path, NATIVE, network_of(), 4)
    assert not list(tmp_path.iterdir())


BAD = {
    "no scale": lambda good: {name: tensor for name, tensor in good.items() if name != SCALES},
    "a short scale": lambda good: good | {SCALES: torch.ones(23)},
    "a scale of one number": lambda good: good | {SCALES: torch.ones(1)},
    "scales that do not divide its columns": lambda good: good | {SCALES: torch.ones(24, 3)},
    "a scale of whole numbers": lambda good: good | {SCALES: torch.ones(24, dtype=torch.int8)},
    "a vector of whole numbers": lambda good: (
        good | {VECTOR: torch.ones(8, dtype=torch.int8), VECTOR + SCALE: torch.ones(8)}
    ),
    "a number": lambda good: good | {"x\ny": torch.tensor(1, dtype=torch.int8), "x\ny.scale": torch.tensor(1.0)},
}


@pytest.mark.parametrize("name", BAD)
def test_take_refuses_what_is_damaged(tmp_path, name):
    save_file(BAD[name](tensors()), tmp_path / WEIGHTS)
    network, before = network_of(), network_of()
    with pytest.raises(ModelError, match="in 8 bits without a scale for each row") as caught:
        take(network, tmp_path / WEIGHTS)
    assert str(caught.value).isprintable()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before.parameters(), strict=True))


def test_take_refuses_scales_that_are_not_finite(tmp_path):
    changed = tensors()
    changed[SCALES][0] = float("inf")
    save_file(changed, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match="not all finite"):
        take(network_of(), tmp_path / WEIGHTS)


def test_merge_takes_the_tokenizer_along(tmp_path):
    fabricate("native", tmp_path / "old")
    split(tmp_path / "old")
    old = load(tmp_path / "old")
    merge([tmp_path / "old"], tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "config.json",
        WEIGHTS,
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    new, expected = load(tmp_path / "new"), unpack(pack(dict(old.network.named_parameters())))
    assert all(torch.equal(parameter, expected[name]) for name, parameter in new.network.named_parameters())
    assert new.tokenizer.encode("a tree") == old.tokenizer.encode("a tree") and new.vocab == old.vocab
    config = json.loads((tmp_path / "old/config.json").read_text())
    assert json.loads((tmp_path / "new/config.json").read_text()) == {**config, "bits": 8}


def test_merge_refuses(tmp_path):
    fabricate("native", tmp_path / "good")
    fabricate("llada", tmp_path / "llada")
    damaged = write(tmp_path / "damaged", NATIVE, weights(NATIVE) | {MATRIX: torch.full((24, 8), float("nan"))})
    for source, said in {"llada": "unmask's own layout", "nowhere": "own layout", "damaged": "not all finite"}.items():
        with pytest.raises(ModelError, match=said):
            merge([tmp_path / source], tmp_path / "new")
        assert not (tmp_path / "new").exists(), source
    with pytest.raises(ModelError, match="exists already"):
        merge([tmp_path / "good"], damaged)


def test_merge_takes_back_what_it_could_not_finish(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    fabricate("native", tmp_path / "good")
    monkeypatch.setattr("unmask.models.files.checkpoint.write_json", full)
    (tmp_path / "there").mkdir()
    for name in ("new", "new/deep/er", "there/new"):
        with pytest.raises(ModelError, match="no space left"):
            merge([tmp_path / "good"], tmp_path / name)
        assert not (tmp_path / "new").exists() and not list((tmp_path / "there").iterdir())


def test_a_new_directory_with_those_above_it(tmp_path, capsys, monkeypatch):
    fabricate("native", tmp_path / "one")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["merge", str(tmp_path / "one"), "--out", "~/new/deep"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'new' / 'deep'}: 1 model in 16 bits")
    assert load(tmp_path / "new" / "deep")
    (tmp_path / "file").write_text("")
    assert main(["merge", str(tmp_path / "one"), "--out", str(tmp_path / "file" / "new")]) == 2
    assert capsys.readouterr().err.endswith("file/new': Not a directory\n")


# --- groups and means ------------------------------------------------------------------------------------------------


def test_a_scale_for_every_group_of_columns():
    exact = matrix(rows=20, columns=96)
    packed = pack({"a": exact, "b": exact[:, :90]}, group=32)
    assert packed["a" + SCALE].shape == (20, 3) and packed["b" + SCALE].shape == (20, 1)  # 90 columns: one group
    parts = exact.view(20, 3, 32).double()
    off = (unpack(packed)["a"].view(20, 3, 32).double() - parts).abs()
    assert (off <= packed["a" + SCALE].double()[..., None] / 2 * (1 + 1e-4)).all()
    rows = (unpack(pack({"a": exact}))["a"].double() - exact.double()).abs()
    assert (off.flatten(1).sum(1) / rows.sum(1)).mean() < 0.9  # finer than one scale a row


def test_groups_are_loaded_as_they_were_packed(tmp_path):
    packed = pack(weights(NATIVE), group=4)
    model = load(write(tmp_path / "grouped", {**EIGHT, "group": 4}, packed))
    expected = unpack(packed)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.network.named_parameters())
    write(tmp_path / "other", {**EIGHT, "group": 2}, packed)
    refused(tmp_path / "other", SCALE, "by the config it must be")
    for bad in (0, -4, 1.5, "4", True):
        write(tmp_path / "bad", {**EIGHT, "group": bad}, packed)
        refused(tmp_path / "bad", "config.json: group is")


def test_the_mean_of_two(tmp_path):
    one, two = network_of(seed=1), network_of(seed=2)
    for name, network in {"one": one, "two": two}.items():
        (tmp_path / name).mkdir()
        save(tmp_path / name, NATIVE, network)
    assert main(["merge", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "mean")]) == 0
    kept = load_file(tmp_path / "mean" / WEIGHTS)
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(kept[name], ((a.half().float() + b.half().float()) / 2).half()), name
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "small", 8, 4)
    expected = unpack(
        pack({name: weight.float() for name, weight in load_file(tmp_path / "mean" / WEIGHTS).items()}, 4)
    )
    found = dict(load(tmp_path / "small").network.named_parameters())
    assert all(torch.allclose(found[name], expected[name], rtol=0.02, atol=2e-3) for name in found)


def test_merge_refuses_another_network(tmp_path, capsys):
    fabricate("native", tmp_path / "one")
    (tmp_path / "two").mkdir()
    save(tmp_path / "two", NATIVE, network_of())
    out = str(tmp_path / "mean")
    assert main(["merge", str(tmp_path / "one"), str(tmp_path / "two"), "--out", out]) != 0
    assert "is of another network" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "one"), "--out", out, "--group", "4"]) != 0
    assert "add --bits 8" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "nowhere"), "--out", out]) != 0
    assert not (tmp_path / "mean").exists()
