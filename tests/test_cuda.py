"""On a GPU: the same dice, the same tokens and the same entropies as on the CPU."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from unmask import SAMPLERS, SEARCHES, Recipe, decode_batch, load
from unmask.core.denoiser import traits
from unmask.core.dice import Purpose, uniform
from unmask.core.state import begin
from unmask.decoding.background import count
from unmask.errors import SettingError
from unmask.models import FAMILIES
from unmask.models.laws import check
from unmask.models.made.fabricate import fabricate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_dice_have_the_same_bits() -> None:
    key, slot, column = torch.tensor([[3], [-7]]), torch.tensor([[0], [5]]), torch.arange(1000)
    here = uniform(key, slot, 17, column, Purpose.TOKEN)
    there = uniform(key.cuda(), slot.cuda(), 17, column.cuda(), Purpose.TOKEN)
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("guidance", [0.0, 1.5])
def test_same_paths_as_on_the_cpu(sampler: str, search: str, guidance: float, tmp_path: Path) -> None:
    background = {}
    if sampler == "pc":
        count(["the cat sat on the mat"], load("random").tokenizer.encode).save(tmp_path / "table.json")
        background = {"background": str(tmp_path / "table.json")}
    recipe = Recipe(
        sampler,
        search,
        length=12,
        temperature=0.8,
        top_k=20,
        top_p=0.95,
        guidance=guidance,
        late=("eos",),
        **background,
    )
    prompts = ["a cat", "what is this, a dog"]
    here = decode_batch(load("random", dtype=torch.float64), prompts, recipe=recipe)
    there = decode_batch(load("random", "cuda", torch.float64), prompts, recipe=recipe)
    for cpu, cuda in zip(here, there, strict=True):
        assert [p.tokens for p in cpu.particles] == [p.tokens for p in cuda.particles]
        assert cpu.chosen == cuda.chosen
        assert cpu.evaluations == cuda.evaluations
        assert cpu.path_entropy == pytest.approx(cuda.path_entropy, abs=1e-9)


# --- families --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"guidance": 0.5}, {"cache_block": 4}, {"guidance": 0.5, "cache_block": 4}], ids=str
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_to_the_same_tokens(family, changes, tmp_path) -> None:
    fabricate(family, tmp_path / family, seed=3)
    recipe = Recipe("semi-ar", "smc", length=16, block_length=4, particles=3, every=3, temperature=0.8, **changes)
    prompts = ["a cat", "what is this, a dog"]
    models = [load(tmp_path / family, device, torch.float64) for device in ("cpu", "cuda")]
    if "cache_block" in changes and traits(models[0]).attention is not None:  # their blocks are kept as they are
        for model in models:
            with pytest.raises(SettingError, match="cache_block"):
                decode_batch(model, prompts, recipe=recipe)
        return
    here, there = (decode_batch(model, prompts, recipe=recipe) for model in models)
    for cpu, cuda in zip(here, there, strict=True):
        assert [p.tokens for p in cpu.particles] == [p.tokens for p in cuda.particles]
        assert cpu.path_entropy == pytest.approx(cuda.path_entropy, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_laws(family, dtype, tmp_path) -> None:
    fabricate(family, tmp_path / family, seed=3)
    assert [verdict for verdict in check(load(tmp_path / family, "cuda", dtype)) if verdict.held is False] == []


@pytest.mark.parametrize("family", ["llada", "dream", "open_dcoder", "mdlm"])
def test_recorded_logits(family) -> None:
    folder = Path(__file__).parent / "parity" / "models" / family
    record = load_file(folder / "recording.safetensors", device="cuda")
    model = load(folder, "cuda", mask_id=252 if family == "open_dcoder" else None)
    tokens = record["input_ids"]
    attend = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, tokens == model.vocab.mask, attend, torch.zeros(len(tokens)).long().cuda(), model.vocab, 1)
    hidden, _ = model.look(state, torch.arange(len(tokens)).cuda())
    logits = torch.nn.functional.linear(hidden, model.head.weight, model.head.bias)
    assert (logits - record.get("aligned_logits", record["logits"])).abs().max() < 1e-4


@pytest.mark.parametrize("rest", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("family", ["llada", "sdar", "sdar-moe", "fast-dllm-v2", "mdlm"])
@pytest.mark.parametrize("changes", [{}, {"search": "smc", "particles": 3, "every": 2}, {"cache_block": 4}], ids=str)
def test_layers_on_two_devices(rest, family, changes, tmp_path):
    """Tokens are those of the CPU. On a machine with one GPU, it is both devices, or the CPU is the second one."""
    if rest == "cuda:1" and torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    fabricate(family, tmp_path / family)
    here = load(tmp_path / family, "cpu", torch.float64)
    if "cache_block" in changes and here.attention is not None:
        pytest.skip("its blocks are kept as they are")
    layers = here.network.shape.layers
    there = load(tmp_path / family, f"cuda:0=1,{rest}={layers - 1}", torch.float64)
    assert [one.type for one in there.devices] == ["cuda", rest.partition(":")[0]]
    length = 4 * (here.blocks or 3)
    given = {**here.recipe, "length": length, "steps": None, "temperature": 1.0, "seed": 3, **changes}
    recipe = Recipe(**given | ({"block_length": 4, "sampler": "semi-ar"} if "cache_block" in changes else {}))
    prompts = [[5, 6, 7, 8, 9], [11, 12]]
    for one, two in zip(*(decode_batch(model, prompts, recipe=recipe) for model in (here, there)), strict=True):
        assert [p.tokens for p in one.particles] == [p.tokens for p in two.particles]
        assert one.path_entropy == pytest.approx(two.path_entropy, abs=1e-7)


def test_layers_by_free_memory():
    assert load("text", "cuda:0,cpu").devices == (torch.device("cuda:0"),)  # the GPU has room for all of them
    assert load("text", "cuda:0,cuda:0").devices == (torch.device("cuda:0"), torch.device("cuda:0"))
    assert str(load("text", "auto").device) in ("cuda", "cuda:0")
