"""SDAR, TraDo, TDAR and DiRL: the layouts of Qwen3 and Qwen3-MoE with attention in blocks -> Blueprint."""

from __future__ import annotations

from dataclasses import replace

from unmask.models.experts import Experts
from unmask.models.families.blueprint import MOST, Blueprint, Config, Family, Published
from unmask.models.families.llama import read_experts, read_llama

BLOCK = 4  # where the config names none; variants were trained with 8 to 64
MASK = 151669  # the default of generate.py in github.com/JetAstra/SDAR


def read(config: Config) -> Blueprint:
    """Logit i belongs to token i. A head's width is free; without head_dim it is Qwen3's."""
    return _read(config, None)


def read_moe(config: Config) -> Blueprint:
    """The same with experts, in every layer or in every decoder_sparse_step-th one, but not in mlp_only_layers."""
    layers = range(config.integer("num_hidden_layers", "layers"))
    step = config.integer("decoder_sparse_step", "layers", 1)
    dense = config.integers("mlp_only_layers", MOST["layers"]) or []
    sparse = [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]
    experts = read_experts(config, sparse, "moe_intermediate_size")
    return _read(config, replace(experts, normed=config.flag("norm_topk_prob")))


def _read(config: Config, experts: Experts | None) -> Blueprint:
    config.expect(attention_bias=False)
    plan = read_llama(config, qk_norm=True, head_width=128, experts=experts)
    return replace(plan, last=MASK, blocks=config.integer("block_size", "length", BLOCK), aligned=True)


# generate.py of github.com/JetAstra/SDAR: dynamic, 0.85, a position for each round. It draws at temperature 1; the
# most probable token is what its public evaluation takes. A text ends long before this length.
RECIPE = {"sampler": "sdar", "rule": "dynamic", "threshold": 0.85, "length": 2048, "temperature": 0.0}

SDAR = Family(
    name="sdar",
    about="SDAR-1.7B, 4B and 8B-Chat, TraDo, TDAR, DiRL",
    types=("sdar",),
    read=read,
    published=Published.of("sdar"),
    blockwise=True,
    mask_tokens=("<|MASK|>", "<MASK>"),
    ends=("<|im_end|>",),
    stops=True,
    recipe=RECIPE,
)
SDAR_MOE = replace(
    SDAR,
    name="sdar-moe",
    about="SDAR-30B-A3B-Chat, SDAR-30B-A3B-Sci",
    types=("sdar_moe",),
    read=read_moe,
    published=Published.of("sdar-moe"),
)
