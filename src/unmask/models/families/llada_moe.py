"""LLaDA-MoE and LLaDA2: networks with experts -> Blueprint. The former has full attention, the latter blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.models.families.blueprint import Blueprint, Config, Family, Published, merged_slots
from unmask.models.families.llada import RECIPE
from unmask.models.families.llama import TENSORS, read_experts, read_llama

MASK = 156895  # of both, the default argument of their programs; config.json has none

# --- LLaDA-MoE -------------------------------------------------------------------------------------------------------


def read_moe(config: Config) -> Blueprint:
    """Logit i belongs to token i. The weights of a token's experts are not divided by their sum."""
    config.expect(attention_bias=False, clip_qkv=None, moe_router_score_function="softmax")
    config.expect(moe_router_enable_expert_bias=False)
    if config.values.get("shared_expert_intermediate_size") not in (0, -1):  # which mean none, too
        config.expect(shared_expert_intermediate_size=None)
    layers = config.integer("num_hidden_layers", "layers")
    sparse = config.integers("moe_layer_freq", 1, layers) or [1] * layers
    experts = read_experts(config, (at for at in range(layers) if sparse[at]), "expert_intermediate_size")
    dense = len(experts.layers) < layers
    inner = config.integer("dense_intermediate_size", "width") if dense else experts.inner
    norms = config.flag("qk_layernorm", True)
    return replace(read_llama(config, qk_norm=norms, inner=inner, experts=experts), last=MASK)


def has_experts(config: Mapping[str, Any]) -> bool:
    """What tells LLaDA-MoE from LLaDA: both call themselves llada."""
    return config.get("num_experts") is not None


LLADA_MOE = Family(
    name="llada-moe",
    about="LLaDA-MoE-7B-A1B-Base, LLaDA-MoE-7B-A1B-Instruct",
    types=("llada", "lladamoe", "llada_moe"),
    read=read_moe,
    published=Published.of("llada-moe"),
    owns=has_experts,
    mask_tokens=("<|mask|>",),
    ends=("<|role_end|>",),
    recipe=RECIPE,  # the model has no program of its own: it is decoded by that of LLaDA
)

# --- LLaDA2 ----------------------------------------------------------------------------------------------------------

BLOCK = 32  # the default of its generate; config.json has none
LLADA2_TENSORS = replace(
    TENSORS,
    embed="model.word_embeddings",
    qkv=("attention.query_key_value",),
    out="attention.dense",
    qk_norm=("attention.query_layernorm", "attention.key_layernorm"),
)


def read(config: Config) -> Blueprint:
    """Logit i belongs to token i. The first layers are dense; the end of text is the padding where it has no name."""
    config.expect(use_qkv_bias=False, use_bias=False, use_qk_norm=True)
    layers, width = config.integer("num_hidden_layers", "layers"), config.integer("hidden_size", "width")
    groups, used = config.integer("n_group", "experts"), config.integer("topk_group", "experts")
    dense = config.integer("first_k_dense_replace", "layers", 0, least=0)
    experts = read_experts(config, range(dense, layers), "moe_intermediate_size", groups, min(used, groups))
    shared = config.integer("num_shared_experts", "experts", 0, least=0)
    experts = replace(
        experts,
        score="sigmoid",
        bias=True,
        normed=experts.used > 1,
        scale=config.number("routed_scaling_factor"),
        shared=shared * experts.inner,
    )
    each = max(1, width // config.integer("num_attention_heads", "heads"))
    plan = read_llama(config, LLADA2_TENSORS, qk_norm=True, head_width=each, partial=True, experts=experts)
    ends = plan.eos or (() if plan.pad is None else (plan.pad,))
    blocks = config.integer("block_size", "length", BLOCK)
    merged = merged_slots(experts, LLADA2_TENSORS)  # as dFactory writes them
    return replace(plan, merged=merged, last=MASK, eos=ends, blocks=blocks, aligned=True)


# Defaults of its generate. LLaDA2.1 also edits what it has written: edit_threshold 0.9 (0.5 for quality). Nothing in
# its config tells it from 2.0, so that this is left to the user.
LLADA2_RECIPE = {"sampler": "llada2", "threshold": 0.95, "length": 2048, "temperature": 0.0}

LLADA2 = Family(
    name="llada2",
    about="LLaDA2.0-mini and flash, LLaDA2.1-mini and flash",
    types=("llada2_moe", "llada21_moe", "llada2_moe_veomni"),
    read=read,
    published=Published.of("llada2"),
    blockwise=True,
    mask_tokens=("<|mask|>",),
    ends=("<|role_end|>",),
    recipe=LLADA2_RECIPE,
)
