"""Stable-DiffCoder: the Llama layout with attention in blocks -> Blueprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama

BLOCK, MASK = 4, 5  # defaults of its generate; config.json has neither
CLASS = "StableDiffcoder"  # of its architectures: model_type is that of any Llama


def read(config: Config) -> Blueprint:
    """Logit i belongs to token i."""
    config.expect(attention_bias=False, mlp_bias=False)
    plan = read_llama(config)
    return replace(plan, last=MASK, blocks=config.integer("block_size", "length", BLOCK), aligned=True)


def owns(config: Mapping[str, Any]) -> bool:
    """Whether the config of a Llama is one of Stable-DiffCoder."""
    named = config.get("architectures")
    return isinstance(named, list) and any(isinstance(one, str) and one.startswith(CLASS) for one in named)


# Its generate, as the model card calls it: 512 tokens in as many steps, the most confident of a block first.
RECIPE = {"sampler": "sdar", "rule": "static", "length": 512, "temperature": 0.0}

STABLE_DIFFCODER = Family(
    name="stable-diffcoder",
    about="Stable-DiffCoder-8B-Base, Stable-DiffCoder-8B-Instruct",
    types=("llama",),
    read=read,
    published=Published.of("stable-diffcoder"),
    owns=owns,
    blockwise=True,
    mask_tokens=("<[MASK_TOKEN]>",),
    recipe=RECIPE,
)
