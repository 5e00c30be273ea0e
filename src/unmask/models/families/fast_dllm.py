"""Fast-dLLM v2: the Qwen2 layout with attention in blocks and a one-token shift -> Blueprint."""

from __future__ import annotations

from dataclasses import replace

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama

BLOCK = 32
MASK = 151665  # the default argument of its modeling.py; config.json has none


def read(config: Config) -> Blueprint:
    """Output i belongs to token i + 1, across blocks too."""
    plan = read_llama(config, qkv_bias=True, shift=True)
    return replace(plan, last=MASK, blocks=config.integer("bd_size", "length", BLOCK), aligned=True)


# The model card's: threshold 0.9 and 512 tokens; sub-blocks of 8 are the default of its generate.
RECIPE = {"sampler": "fast-dllm-v2", "threshold": 0.9, "sub_block": 8, "length": 512, "temperature": 0.0}

FAST_DLLM = Family(
    name="fast-dllm-v2",
    about="Fast-dLLM v2 1.5B and 7B",
    types=("Fast_dLLM_Qwen",),
    read=read,
    published=Published.of("fast-dllm-v2"),
    blockwise=True,
    mask_tokens=("|<MASK>|",),
    ends=("<|im_end|>",),
    recipe=RECIPE,
)
