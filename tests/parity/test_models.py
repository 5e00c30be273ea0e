"""Tiny checkpoints of the published layouts: the logits that the public code gave for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from unmask.core.state import begin
from unmask.models import load
from unmask.models.families.mdlm import LEFT
from unmask.models.transformer import Transformer

FAMILIES = ("llada", "dream", "open_dcoder", "mdlm")
MASKS = {"open_dcoder": 252}  # its config names none, and there is no tokenizer
CLOSE = 1e-4


@pytest.fixture(params=FAMILIES)
def recorded(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Tensor], Transformer]:
    folder = Path(request.config.getoption("--recordings")) / "models" / request.param
    model = load(folder, mask_id=MASKS.get(request.param))
    assert isinstance(model, Transformer)
    return folder, load_file(folder / "recording.safetensors"), model


def logits(model: Transformer, tokens: Tensor, attend: Tensor | None = None, time: Tensor | None = None) -> Tensor:
    """Logits of every position, the mask's column too."""
    attend = torch.ones_like(tokens, dtype=torch.bool) if attend is None else attend.bool()
    keys = torch.zeros(len(tokens), dtype=torch.int64)
    state = begin(tokens, (tokens == model.vocab.mask) & attend, attend, keys, model.vocab, 1)
    state = state if time is None else state.replace(time=time)
    hidden, _ = model.look(state, torch.arange(len(tokens)))
    return F.linear(hidden, model.head.weight, model.head.bias)


def raw(model: Transformer, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
    """Logits of the network itself, before any shift."""
    attend = torch.ones_like(tokens, dtype=torch.bool) if attend is None else attend.bool()
    hidden, _ = model.network(tokens, attend.long().cumsum(1) - 1, attend)
    return F.linear(hidden, model.head.weight, model.head.bias)


def test_model_logits(recorded):
    _, record, model = recorded
    assert (raw(model, record["input_ids"]) - record["logits"]).abs().max() < CLOSE
    aligned = record.get("aligned_logits", record["logits"])
    assert (logits(model, record["input_ids"]) - aligned).abs().max() < CLOSE


def test_model_logits_of_padded_rows(recorded):
    _, record, model = recorded
    if "padded_input_ids" not in record:
        pytest.skip("the public code of this family knows no padding")
    tokens, attend = record["padded_input_ids"], record["padded_attention_mask"]
    assert (attend == 0).any() and attend.any(1).all()
    real = attend.bool()
    assert (raw(model, tokens, attend) - record["padded_logits"])[real].abs().max() < CLOSE
    aligned = record.get("padded_aligned_logits", record["padded_logits"])
    valid = record.get("padded_aligned_valid", attend).bool()
    assert (logits(model, tokens, attend) - aligned)[valid].abs().max() < CLOSE


def test_model_logits_with_time(recorded, tmp_path):
    folder, record, model = recorded
    if "time_logits" not in record:
        pytest.skip("this family has no time input")
    assert not model.timed
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    config = (tmp_path / "config.json").read_text()
    assert '"time_conditioning": false' in config
    (tmp_path / "config.json").write_text(config.replace('"time_conditioning": false', '"time_conditioning": true'))
    timed = load(tmp_path)
    assert timed.timed
    time = -torch.expm1(-record["time_sigma"].double()) / (1 - LEFT)  # the schedule, turned round
    found = logits(timed, record["input_ids"], time=time)
    assert (found - record["time_logits"]).abs().max() < CLOSE
    assert (found - record["logits"]).abs().max() > 0.1  # time does matter
    _close_to_subs(timed, found, record["input_ids"], record["time_subs_log_probs"])


def test_model_subs_log_probabilities(recorded):
    _, record, model = recorded
    if "subs_log_probs" not in record:
        pytest.skip("this family leaves the mask in its distribution")
    _close_to_subs(model, logits(model, record["input_ids"]), record["input_ids"], record["subs_log_probs"])


def _close_to_subs(model: Transformer, found: Tensor, tokens: Tensor, recorded: Tensor) -> None:
    """At masked positions, outside the mask's column; decided positions are never asked about."""
    masked, mask = tokens == model.vocab.mask, model.vocab.mask
    assert masked.any() and model.head.absent == (mask,)
    ours = found.index_fill(2, torch.tensor([mask]), -torch.inf).log_softmax(2)[masked]
    others = torch.arange(ours.shape[1]) != mask
    assert (ours - recorded[masked])[:, others].abs().max() < CLOSE
    assert ours[:, mask].isneginf().all()
