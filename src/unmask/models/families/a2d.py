"""Tiny-A2D, models converted by dllm: the layouts of Qwen2 and Qwen3 -> Blueprint."""

from __future__ import annotations

from dataclasses import replace

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama

QWEN3 = "a2d-qwen3"


def read(config: Config) -> Blueprint:
    """Logit i belongs to token i. Attention is full (mdlm); `block_size`, which no published config has, is bd3lm's.

    The two are alike in everything else, so that for bd3lm the user has to name the blocks.
    """
    if config.values.get("model_type") == QWEN3:
        config.expect(attention_bias=False)
        plan = read_llama(config, qk_norm=True, head_width=128)
    else:
        plan = read_llama(config, qkv_bias=True)
    if config.values.get("block_size") is None:
        return plan
    return replace(plan, blocks=config.integer("block_size", "length"), aligned=True)


# The defaults of MDLMSampler in github.com/ZHZisZZ/dllm: one block, most confident first, which is our default sampler.
RECIPE = {"length": 128, "temperature": 0.0}

A2D = Family(
    name="a2d",
    about="Tiny-A2D: Qwen3-0.6B-diffusion, Qwen2.5-Coder-0.5B-Instruct-diffusion, each mdlm or bd3lm",
    types=(QWEN3, "a2d-qwen2"),
    read=read,
    published=Published.of("a2d"),
    blockwise=True,
    mask_tokens=("<|mask|>", "<|MASK|>"),
    ends=("<|im_end|>",),
    recipe=RECIPE,
)
