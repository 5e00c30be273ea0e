"""Checkpoints with experts: variants against formulas, merged tensors, names and special ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask import load
from unmask.models.files.checkpoint import WEIGHTS

from .small import LLADA, LLADA2, LLADA_MOE, MICRO, logits, refused, weights, write

VARIANTS: dict[str, dict[str, Any]] = {
    "as published": LLADA2,
    "two dense layers first": LLADA2 | {"num_hidden_layers": 4, "first_k_dense_replace": 2},
    "no dense layer": LLADA2 | {"first_k_dense_replace": 0},
    "only dense layers": LLADA2 | {"first_k_dense_replace": 2},
    "two shared experts": LLADA2 | {"num_shared_experts": 2},
    "no shared expert": LLADA2 | {"num_shared_experts": 0},
    "one group of two": LLADA2 | {"num_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1},
    "one group": LLADA2 | {"n_group": 1, "topk_group": 1},
    "one expert a token": LLADA2 | {"num_experts_per_tok": 1},
    "all of a head is rotary": LLADA2 | {"partial_rotary_factor": 1.0},
    "a quarter of a head is rotary": LLADA2 | {"partial_rotary_factor": 0.25},
    "tied": LLADA2 | {"tie_word_embeddings": True},
    "moe": LLADA_MOE,
    "moe, experts first": LLADA_MOE | {"moe_layer_freq": [1, 0]},
    "moe everywhere": LLADA_MOE | {"moe_layer_freq": [1, 1], "dense_intermediate_size": None},
    "moe, no shared expert": LLADA_MOE | {"shared_expert_intermediate_size": -1},
    "moe, no norms": LLADA_MOE | {"qk_layernorm": False},
    "moe, fields that are not read": LLADA_MOE | {"norm_topk_prob": True, "routed_scaling_factor": 3.0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(tmp_path, name):
    config = VARIANTS[name]
    model = load(write(tmp_path / "made", config), dtype=torch.float64, mask_id=15)
    tensors = {key: tensor.double() for key, tensor in weights(config).items()}
    found = logits(model)
    assert (found - plain(config, tensors, [3, 15, 5, 15, 7, 2])).abs().max() < 1e-9 * max(1.0, float(found.std()))


def plain(config: dict[str, Any], w: dict[str, Tensor], tokens: list[int]) -> Tensor:  # [L, V]
    """Logits of tokens in one block, from the names of the tensors and the fields of the config."""
    second, width = "n_group" in config, config["hidden_size"]
    part, norms = ("attention", ("query_layernorm", "key_layernorm")) if second else ("self_attn", ("q_norm", "k_norm"))
    embed = w["model.word_embeddings.weight" if second else "model.embed_tokens.weight"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    each = config["head_dim"] if second else width // heads
    x = embed[tokens]

    def norm(y: Tensor, weight: Tensor) -> Tensor:
        return y / (y.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    def turned(y: Tensor) -> Tensor:  # [L, heads, each]
        many = int(each * config["partial_rotary_factor"])
        pace = config["rope_theta"] ** (-2 * torch.arange(many // 2).double() / many)
        angle = torch.arange(len(tokens))[:, None, None] * pace
        a, b, rest = y.split([many // 2, many // 2, each - many], 2)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest], 2)

    def mlp(y: Tensor, name: str) -> Tensor:
        gate, up, down = (w[f"{name}.{kind}_proj.weight"] for kind in ("gate", "up", "down"))
        return (F.silu(y @ gate.T) * (y @ up.T)) @ down.T

    for layer in range(config["num_hidden_layers"]):
        home = f"model.layers.{layer}"
        y = norm(x, w[f"{home}.input_layernorm.weight"])
        if second:
            whole = (y @ w[f"{home}.attention.query_key_value.weight"].T).view(len(tokens), -1, each)
            q, k, v = whole.split([heads, kv, kv], 1)
        else:
            q, k, v = ((y @ w[f"{home}.self_attn.{n}_proj.weight"].T).view(len(tokens), -1, each) for n in "qkv")
        if config.get("qk_layernorm", True):
            q, k = (norm(one, w[f"{home}.{part}.{n}.weight"]) for one, n in zip((q, k), norms, strict=True))
        q, k = turned(q), turned(k).repeat_interleave(heads // kv, 1)
        chance = (torch.einsum("ihd,jhd->hij", q, k) * each**-0.5).softmax(2)
        mixed = torch.einsum("hij,jhd->ihd", chance, v.repeat_interleave(heads // kv, 1)).flatten(1)
        x = x + mixed @ w[f"{home}.{part}.{'dense' if second else 'o_proj'}.weight"].T
        y = norm(x, w[f"{home}.post_attention_layernorm.weight"])
        sparse = layer >= config["first_k_dense_replace"] if second else config["moe_layer_freq"][layer]
        x = x + (torch.stack([routed(config, w, home, mlp, one) for one in y]) if sparse else mlp(y, f"{home}.mlp"))
    head = embed if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T


def routed(config: dict[str, Any], w: dict[str, Tensor], home: str, mlp: Any, y: Tensor) -> Tensor:
    """One token through its experts."""
    raw = w[f"{home}.mlp.gate.weight"] @ y
    if "n_group" not in config:
        chances = raw.softmax(0)
        best = chances.argsort(descending=True)[: config["num_experts_per_tok"]]
        return sum(chances[e] * mlp(y, f"{home}.mlp.experts.{e}") for e in best)
    scores = raw.sigmoid()
    ranks = scores + w[f"{home}.mlp.gate.expert_bias"]
    groups = ranks.view(config["n_group"], -1)
    value = groups.sort(1, descending=True).values[:, :2].sum(1)
    out = value.argsort(descending=True)[config["topk_group"] :]
    groups = groups.clone()
    groups[out] = -torch.inf
    best = groups.flatten().argsort(descending=True)[: config["num_experts_per_tok"]]
    total = scores[best].sum() if len(best) > 1 else 1.0
    mixed = sum(scores[e] / total * config["routed_scaling_factor"] * mlp(y, f"{home}.mlp.experts.{e}") for e in best)
    return mixed + mlp(y, f"{home}.mlp.shared_experts") if config["num_shared_experts"] else mixed


# --- merged experts --------------------------------------------------------------------------------------------------


def merge(directory) -> None:
    """The experts of a layer as one tensor for each of their parts, as dFactory writes them."""
    tensors = load_file(directory / WEIGHTS)
    for part in ("gate_proj", "up_proj", "down_proj"):
        home = "model.layers.1.mlp.experts"
        tensors[f"{home}.{part}"] = torch.stack([tensors.pop(f"{home}.{e}.{part}.weight") for e in range(4)])
    save_file(tensors, directory / WEIGHTS)


@pytest.mark.parametrize("kind", ["llada2_moe", "llada2_moe_veomni", "llada21_moe"])
def test_merged_experts_are_the_same(tmp_path, kind):
    directory = write(tmp_path / "made", LLADA2 | {"model_type": kind})
    single = logits(load(directory, mask_id=15))
    merge(directory)
    assert torch.equal(logits(load(directory, mask_id=15)), single)


def test_merged_experts_that_do_not_fit(tmp_path):
    directory = write(tmp_path / "made", LLADA2)
    merge(directory)
    tensors = load_file(directory / WEIGHTS)
    name = "model.layers.1.mlp.experts.up_proj"
    save_file(tensors | {name: tensors[name][:3].clone()}, directory / WEIGHTS)
    refused(directory, f"{name} is 3 × 6 × 8, by the config it must be 4 × 6 × 8", mask_id=15)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, directory / WEIGHTS)
    refused(directory, f"1 tensors are missing: {name}", mask_id=15)
    save_file(tensors | {"model.layers.1.mlp.experts.0.up_proj.weight": torch.zeros(6, 8)}, directory / WEIGHTS)
    refused(directory, "1 tensors are unexpected: model.layers.1.mlp.experts.0.up_proj.weight", mask_id=15)


# --- names and ids ---------------------------------------------------------------------------------------------------


def test_llada_with_experts_is_told_from_llada(tmp_path):
    for kind in ("llada", "lladamoe", "llada_moe"):
        model = load(write(tmp_path / kind, LLADA_MOE | {"model_type": kind}), mask_id=15)
        assert (model.family, model.block_causal) == ("llada-moe", False)
    assert load(write(tmp_path / "dense", LLADA | {"num_experts": None})).family == "llada"


@pytest.mark.parametrize("family", ["sdar", "sdar-moe"])
def test_ends_of_generation_config(tmp_path, family):
    config = MICRO[family] | {"eos_token_id": 13}
    directory = write(tmp_path / "made", config)
    assert load(directory).vocab.eos == (13,)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [12, 13], "top_k": 20}))
    model = load(directory)
    assert model.vocab.eos == (13, 12) and "top_k" not in model.recipe
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 99}))
    refused(directory, "eos_token_id is 99", "token ids go from 0 to 15")


def test_the_end_of_llada2_is_its_padding(tmp_path):
    config = {name: value for name, value in LLADA2.items() if name != "eos_token_id"}
    assert load(write(tmp_path / "pad", config), mask_id=15).vocab.eos == (14,)
    assert load(write(tmp_path / "named", config | {"eos_token_id": 13}), mask_id=15).vocab.eos == (13,)


def test_masks_that_only_the_program_names(tmp_path):
    for family, mask in (("llada-moe", 156895), ("llada2", 156895), ("fast-dllm-v2", 151665), ("sdar", 151669)):
        rows = {"vocab_size": mask + 5, "hidden_size": 8, "mask_token_id": None}
        model = load(write(tmp_path / family, MICRO[family] | rows))
        assert model.vocab.mask == mask and model.family == family
        refused(write(tmp_path / f"{family} small", MICRO[family] | {"mask_token_id": None}), "names a mask token")
    assert load(write(tmp_path / "coder", MICRO["stable-diffcoder"])).vocab.mask == 5
    refused(write(tmp_path / "a2d", MICRO["a2d"]), "names a mask token")
