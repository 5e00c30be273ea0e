"""Tiny checkpoints of families with attention in blocks, or with experts: the logits that the public code gave."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from unmask.core.state import State, begin
from unmask.models import load
from unmask.models.cache import BlockCache
from unmask.models.transformer import Transformer

from .test_models import CLOSE, logits

FOLDERS = ("sdar", "fast_dllm_v2", "llada2", "llada2.1", "llada_moe")
CACHED = 1e-5  # cached against full, as a share of the largest logit: the rounding of float32
LENGTH, MASKS = "block_length", ("mask_token_id", "mask_id")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each set of recorded tensors: the plain one of a folder, and those with other blocks."""
    root = Path(metafunc.config.getoption("--recordings")) / "models"
    cases = {}
    for folder in (root / name for name in FOLDERS if (root / name).is_dir()):
        with safe_open(folder / "recording.safetensors", "pt") as file:
            sets = [name.removesuffix("input_ids") for name in file.keys() if name.endswith("input_ids")]  # noqa: SIM118
        cases |= {f"{folder.name}-{name.strip('_') or 'plain'}": (folder, name) for name in sorted(sets)}
    metafunc.parametrize(("folder", "prefix"), list(cases.values()), ids=list(cases))


@pytest.fixture
def record(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "recording.safetensors")


@pytest.fixture
def model(folder: Path, prefix: str) -> Transformer:
    with safe_open(folder / "recording.safetensors", "pt") as file:
        said = file.metadata()
    length = said.get(prefix + LENGTH)
    mask = next(int(said[name]) for name in MASKS if name in said)
    found = load(folder, mask_id=mask, blocks=None if length is None else int(length))
    assert isinstance(found, Transformer)
    assert found.aligned == found.block_causal == (length is not None)
    return found


def test_block_model_logits(model: Transformer, record: dict[str, Tensor], prefix: str) -> None:
    tokens, attend = record[f"{prefix}input_ids"], record.get(f"{prefix}attention_mask")
    real = tokens >= 0 if attend is None else attend.bool()
    found = logits(replace(model, shift=False), tokens, attend)
    assert (found - record[f"{prefix}logits"])[real].abs().max() < CLOSE
    assert real.any(1).all() and (attend is None or not real.all())


def test_block_model_logits_of_their_own_tokens(model: Transformer, record: dict[str, Tensor], prefix: str) -> None:
    if not model.shift:
        pytest.skip("output i predicts token i: the test above")
    found = logits(model, record[f"{prefix}input_ids"])
    assert (found[:, 1:] - record[f"{prefix}logits"][:, :-1]).abs().max() < CLOSE
    aligned = record.get(f"{prefix}aligned_cached_logits")
    if aligned is not None:  # of the last block, whose first token is never asked about
        last = aligned.shape[1]
        assert (found[:, -last + 1 :] - aligned[:, 1:]).abs().max() < CLOSE


def test_block_model_cached_logits(model: Transformer, record: dict[str, Tensor], prefix: str) -> None:
    """The last block against kept keys and values of the earlier ones, which hold no mask."""
    recorded = record.get(f"{prefix}cached_logits")
    if recorded is None:
        pytest.skip("the public code of this family keeps nothing")
    tokens = record[f"{prefix}input_ids"]
    last = recorded.shape[1]
    state = masked_state(model, tokens, last)
    rows, kept = torch.arange(len(tokens)), BlockCache(model)
    finer = replace(model, network=deepcopy(model.network).double())
    exact, close = finer.look(state, rows)[0][:, -last:], BlockCache(finer).look(state, rows)[0][:, -last:]
    assert (exact - close).abs().max() < 1e-12 * exact.abs().max()
    first, cache = kept.look(state, rows)
    again, _ = kept.look(state.replace(cache=cache), rows)
    whole = logits(model, tokens)[:, -last:]
    for hidden in (first, again):
        found = F.linear(hidden[:, -last:], model.head.weight, model.head.bias)
        assert (found - whole).abs().max() < CACHED * whole.abs().max()
        shifted = found[:, 1:] - recorded[:, :-1] if model.shift else found - recorded
        assert shifted.abs().max() < CLOSE
    assert cache.given[0][0].shape[2] == tokens.shape[1] - last and not cache.own


def masked_state(model: Transformer, tokens: Tensor, last: int) -> State:
    """Rows of which the last block is open, whatever it holds."""
    writable = (torch.arange(tokens.shape[1]) >= tokens.shape[1] - last).expand_as(tokens)
    attend, keys = torch.ones_like(writable), torch.zeros(len(tokens), dtype=torch.int64)
    return begin(tokens, writable, attend, keys, model.vocab, 1, blocks=model.attention)
