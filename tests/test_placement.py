"""The layers of one model on several devices: where each is, tokens as on one, and nothing on the wrong device."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Recipe, decode_batch, load
from unmask.core.denoiser import traits
from unmask.errors import ModelError, SettingError
from unmask.models import experts
from unmask.models import network as networks
from unmask.models.cache import block_cached, cached
from unmask.models.cache.kept import taken, written
from unmask.models.devices import Devices, on_device, on_devices, placed
from unmask.models.made.fabricate import fabricate
from unmask.models.network import Past, Shape, _Alike, _Sites
from unmask.models.seams import carried
from unmask.models.transformer import block_causal, compiled

GIB = 2**30
META, CPU, ONE, TWO = (torch.device(name) for name in ("meta", "cpu", "cuda:0", "cuda:1"))
BLOCKS = {"sampler": "semi-ar", "block_length": 4}
WINDOW = BLOCKS | {"cache_block": 4, "cache_after": 0, "cache_before": 0}
SMC = {"search": "smc", "particles": 3, "every": 2}
HOW: dict[str, tuple[str, dict[str, Any]]] = {  # a family and a recipe
    "plain": ("llada", {"sampler": "confidence"}),
    "smc": ("llada", {"sampler": "uniform"} | SMC),
    "guided": ("llada", BLOCKS | {"guidance": 0.5}),
    "window": ("llada", WINDOW),
    "window, smc": ("llada", WINDOW | SMC),
    "time": ("mdlm", {"sampler": "ancestral", "steps": 6}),
    "exact cache": ("sdar", {}),
    "exact cache, smc": ("sdar", SMC),
    "experts": ("sdar-moe", {}),
    "parts of a block": ("fast-dllm-v2", {}),
    "another first layer": ("llada2", {}),
    "packed": ("llada", {"sampler": "confidence"}),
}
PROMPTS = [[5, 6, 7, 8, 9], [11, 12]]


def loaded(how: str, folder: Path, device: str = "cpu") -> tuple[Any, Recipe]:
    family, given = HOW[how]
    if not folder.exists():
        fabricate(family, folder)
    model = load(folder, device, weights="int8" if how == "packed" else None)
    length = 4 * (model.blocks or 3)
    return model, Recipe(**{**model.recipe, "length": length, "steps": None, "temperature": 1.0, "seed": 3, **given})


@pytest.mark.parametrize("how", HOW)
def test_tokens_are_those_of_one_device(how: str, tmp_path: Path) -> None:
    one, recipe = loaded(how, tmp_path / "model")
    layers = one.network.shape.layers
    two, _ = loaded(how, tmp_path / "model", f"cpu=1,cpu={layers - 1}")
    assert two.network.seams == {1: CPU} and two.devices == (CPU, CPU) and two.device == CPU
    for here, there in zip(*(decode_batch(model, PROMPTS, recipe=recipe) for model in (one, two)), strict=True):
        assert [p.tokens for p in here.particles] == [p.tokens for p in there.particles]
        assert [p.state_entropy for p in here.particles] == [p.state_entropy for p in there.particles]
        assert (here.chosen, here.evaluations) == (there.chosen, there.evaluations)


# --- nothing on the wrong device --------------------------------------------------------------------------------------


def apart(model: Any, seam: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The layers from the seam on are on the device meta, which computes shapes and refuses tensors of others."""
    for block in model.network.blocks[seam:]:
        for module in block.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, torch.nn.Parameter(parameter.to(META), requires_grad=False))
    model.network.seams = {seam: META}

    def crossing(value: Any, device: torch.device) -> Any:
        if device != CPU:
            return carried(value, device)
        x, (_, factor), condition = value  # there are no numbers to bring home
        factor, condition = (
            None if one is None else torch.zeros(one.shape, dtype=x.dtype) for one in (factor, condition)
        )
        return torch.zeros(x.shape, dtype=x.dtype), (torch.zeros(x.shape, dtype=x.dtype), factor), condition

    monkeypatch.setattr(networks, "carried", crossing)
    monkeypatch.setattr(experts, "waits", lambda x: False)  # shapes alone do not say who chose which expert
    return model


@pytest.mark.parametrize("how", HOW)
def test_nothing_meets_on_the_wrong_device(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recipe = loaded(how, tmp_path / "model")
    assert len(decode_batch(apart(model, 1, monkeypatch), PROMPTS, recipe=recipe)) == 2


def test_a_seam_carries_everything_but_what_is_kept() -> None:
    one, pair = torch.ones(2, 3), (torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
    past = Past((pair,), **{name.name: one for name in fields(Past)[1:-1]}, gap=(one, one))
    sites = _Sites(one, one, one, (past,), [_Alike(one, (None,), (3,))], [one])
    (x, added, found, nothing) = carried((one, (one, None), sites, None), META)
    assert x.device == added[0].device == META and added[1] is None and nothing is None
    assert {found.cos.device, found.sin.device, found.seen.device, found.spans[0].device} == {META}
    assert found.alike[0].rows.device == META and found.alike[0].counts == (3,)
    (there,) = found.past
    assert there.layers is past.layers
    assert {getattr(there, name.name).device for name in fields(Past)[1:-1]} == {META} == {g.device for g in there.gap}


def test_kept_layers_stay_where_they_are() -> None:
    layers = tuple((torch.ones(3, 1, 4, 2, device=one), torch.ones(3, 1, 4, 2, device=one)) for one in (CPU, META))
    rows = torch.tensor([2, 0])
    for found in (taken(layers, rows), written(layers, 3, rows, torch.tensor([[1], [5]]), taken(layers, rows), 6)):
        assert [keys.device for keys, _ in found] == [values.device for _, values in found] == [CPU, META]


# --- which layer is where ---------------------------------------------------------------------------------------------


def counts(shape: Shape, devices: Devices, *free: float) -> list[int]:
    room = dict(zip(map(str, devices.all), free, strict=True))
    return placed("it", shape, devices, torch.bfloat16, None, lambda device: int(room[str(device)] * GIB))


EIGHT = Shape(126_464, 4096, 32, 32, 12_288)  # LLaDA-8B: 14.9 GiB in bfloat16, 0.4 GiB a layer


def test_layers_are_placed_by_free_memory() -> None:
    assert sum(counts(EIGHT, Devices((ONE, TWO)), 80, 80)) == 32
    even, uneven = counts(EIGHT, Devices((ONE, TWO)), 80, 80), counts(EIGHT, Devices((ONE, TWO)), 20, 80)
    assert even[0] in (12, 13, 14) and uneven[0] < 6  # the first one has the embedding and the head, too: 1.9 GiB
    assert counts(EIGHT, Devices((ONE, TWO, CPU)), 12, 12, 100)[2] == 0  # a CPU only takes what the others cannot
    assert 10 < counts(EIGHT, Devices((ONE, CPU)), 8, 100)[0] < 16
    assert counts(EIGHT, Devices((ONE, TWO), few=True), 80, 80) == [32, 0]
    assert counts(EIGHT, Devices((ONE, TWO), (20, 12)), 1, 1) == [20, 12]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"it needs \d.* GiB on cuda:1, and 3.6 can be used: add a device, or take weights"
    ):
        counts(EIGHT, Devices((ONE, TWO)), 8, 4)
    with pytest.raises(ModelError, match="it has 32: name all of them"):
        counts(EIGHT, Devices((ONE, TWO), (20, 10)), 80, 80)
    with pytest.raises(ModelError, match="the first device for at least one"):
        counts(EIGHT, Devices((ONE, TWO), (0, 32)), 80, 80)


@pytest.mark.parametrize(
    ("name", "built", "gpus", "expected"),
    [
        ("cuda", False, 0, "cuda: this PyTorch is built without CUDA: give cpu, or install PyTorch with CUDA"),
        ("cuda:3,cpu", True, 0, "cuda:3: PyTorch finds no GPU: give cpu, or look at what nvidia-smi prints"),
        ("cuda:3", True, 2, "cuda:3: there are 2 GPUs: give cuda:0, or cpu"),
        ("cuda", True, 1, "cuda: no luck: give cpu"),
        ("xpu", True, 1, "xpu: this PyTorch has no xpu here: give cpu"),
    ],
)
def test_a_device_that_is_not_there(monkeypatch, name, built, gpus, expected) -> None:
    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("no luck. Many words of torch")

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ModelError) as found:
        on_devices("it", name)
    assert str(found.value) == f"cannot load it on {expected}"


def test_names_of_several_devices() -> None:
    assert on_devices("it", "cpu") == on_device("it", "cpu,cpu") == CPU
    assert on_devices("it", "cpu=1,cpu=2") == Devices((CPU, CPU), (1, 2))
    assert str(on_devices("it", ["cpu", CPU])) == "cpu,cpu" and str(Devices((ONE, CPU), (3, 4))) == "cuda:0=3,cpu=4"
    with pytest.raises(ModelError, match="give all of them, or none"):
        on_devices("it", "cpu=1,cpu")
    for name in ("random", "table"):
        with pytest.raises(ModelError, match="on one device, not on cpu,cpu"):
            load(name, "cpu,cpu")


def test_one_device_is_as_before_and_a_copy_on_one_is_whole() -> None:
    one, two = load("text"), load("text", ["cpu=6", "cpu=4"])
    assert one.network.seams == {} and traits(one).recordable and not traits(two).recordable
    assert two.to("cpu").network.seams == {} and two.to(None, torch.float64).network.seams == {6: CPU}
    with pytest.raises(SettingError, match="on several devices, and is compiled for one"):
        compiled(two)
    assert not any(traits(made).recordable for made in (cached(two, 8), block_cached(block_causal(two))))
    assert traits(cached(one, 8)).recordable and traits(block_cached(block_causal(one))).recordable
