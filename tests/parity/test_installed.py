"""Networks of the installed transformers under a block-causal mask: their random checkpoints, loaded here, agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.models import load
from unmask.models.transformer import Transformer

from .test_models import CLOSE, logits

transformers = pytest.importorskip("transformers")

MASK, LENGTH = 58, 23
SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 57,
    "pad_token_id": 57,
    "bos_token_id": 56,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 10}
# family, class of transformers, its config, what the published config has besides, blocks
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int | None]] = {
    "sdar": ("Qwen3", {"head_dim": 10}, {"model_type": "sdar", "block_size": 4}, 4),
    "sdar tied": ("Qwen3", {"head_dim": 6, "tie_word_embeddings": True}, {"model_type": "sdar", "block_size": 3}, 3),
    "sdar-moe": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": True}, {"model_type": "sdar_moe", "block_size": 4}, 4),
    "sdar-moe plain": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": False}, {"model_type": "sdar_moe"}, 4),
    "sdar-moe dense layer": ("Qwen3Moe", EXPERTS | {"mlp_only_layers": [1]}, {"model_type": "sdar_moe"}, 4),
    "sdar-moe sparse step": ("Qwen3Moe", EXPERTS | {"decoder_sparse_step": 2}, {"model_type": "sdar_moe"}, 4),
    "fast-dllm-v2": ("Qwen2", {}, {"model_type": "Fast_dLLM_Qwen", "bd_size": 8}, 8),
    "fast-dllm-v2 tied": ("Qwen2", {"tie_word_embeddings": True}, {"model_type": "Fast_dLLM_Qwen", "bd_size": 4}, 4),
    "stable-diffcoder": ("Llama", {}, {"architectures": ["StableDiffcoderForCausalLM"]}, 4),
    "a2d": ("Qwen3", {"head_dim": 10, "tie_word_embeddings": True}, {"model_type": "a2d-qwen3"}, None),
    "a2d bd3lm": ("Qwen3", {"head_dim": 10}, {"model_type": "a2d-qwen3", "block_size": 5}, 5),
    "a2d qwen2": ("Qwen2", {}, {"model_type": "a2d-qwen2"}, None),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Transformer, int | None]:
    """A model of transformers with random weights, and the same checkpoint loaded here."""
    kind, sizes, changes, blocks = CASES[request.param]
    config = getattr(transformers, f"{kind}Config")(**SIZES | sizes)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    dice = torch.Generator().manual_seed(11)
    for parameter in theirs.parameters():
        noise = torch.randn(parameter.shape, generator=dice)
        parameter.data.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    published = {"dtype": "float32", **sizes, **changes}  # newer versions of transformers rename some fields
    path.write_text(json.dumps(json.loads(path.read_text()) | published))
    ours = load(tmp_path, mask_id=MASK)
    assert isinstance(ours, Transformer) and ours.family == request.param.split()[0]
    assert (ours.blocks, ours.aligned, ours.block_causal) == (blocks, blocks is not None, blocks is not None)
    return theirs, ours, blocks


def expected(theirs: Any, tokens: Tensor, blocks: int | None, first: int = 0) -> Tensor:
    """Logits of transformers; columns before `first` are padding."""
    place = torch.arange(tokens.shape[1]) - first
    seen = place[None] // (blocks or 1000) <= place[:, None] // (blocks or 1000)
    seen = (seen & (place >= 0)[None]) | torch.eye(len(place), dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        out = theirs(
            input_ids=tokens,
            attention_mask=mask.expand(len(tokens), -1, -1, -1),
            position_ids=place.clamp(min=0)[None].expand(len(tokens), -1),
            use_cache=False,
        )
    return torch.as_tensor(out.logits)


def rows() -> Tensor:
    tokens = torch.randint(0, 55, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    tokens[:, -2:], tokens[1, -2] = MASK, 7
    return tokens


def test_logits_of_installed_networks(case: tuple[Any, Transformer, int | None]) -> None:
    theirs, ours, blocks = case
    tokens = rows()
    right = expected(theirs, tokens, blocks)
    found = logits(ours, tokens)
    assert right.std() > 0.1
    if ours.shift:
        right, found = right[:, :-1], found[:, 1:]
    assert (found - right).abs().max() < CLOSE


def test_padded_logits_of_installed_networks(case: tuple[Any, Transformer, int | None]) -> None:
    theirs, ours, blocks = case
    tokens, attend = rows(), torch.ones(2, LENGTH, dtype=torch.bool)
    attend[1, :6] = False
    right = torch.cat([expected(theirs, tokens[:1], blocks), expected(theirs, tokens[1:], blocks, 6)])
    found = logits(ours, tokens, attend)
    if ours.shift:
        right, found, attend = right[:, :-1], found[:, 1:], attend[:, :-1]
    assert (found - right)[attend].abs().max() < CLOSE
