"""On a GPU: the same dice, the same tokens and the same entropies as on the CPU."""

from pathlib import Path

import pytest
import torch

from unmask import SAMPLERS, SEARCHES, Recipe, decode_batch, load
from unmask.background import count
from unmask.dice import Purpose, uniform

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
