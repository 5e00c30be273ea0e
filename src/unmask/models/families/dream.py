"""Dream-7B, Dream-Coder, DiffuCoder and Open-dCoder: the Qwen2 layout with a one-token shift -> Blueprint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama


def read(config: Config) -> Blueprint:
    """Output i belongs to token i + 1: it was trained from an autoregressive model."""
    return read_llama(config, qkv_bias=True, shift=True)


# As the README of github.com/DreamLM/Dream decodes. Its 512 steps are one for each position, which is our default too.
DREAM_RECIPE = {"sampler": "dream", "rule": "entropy", "length": 512, "temperature": 0.2, "top_p": 0.95}
# As sample.py of github.com/pengzhangzhi/Open-dLLM decodes; its alg_temp has no effect on p2.
CODER_RECIPE = {"sampler": "p2", "rule": "fresh-draw", "length": 128, "temperature": 0.5, "top_k": 200}
# field of generation_config.json -> setting; the names are those of Dream's own diffusion_generate
GENERATION = {
    "max_new_tokens": "length",
    "steps": "steps",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "eps": "eps",
    "alg_temp": "select_temperature",
}


def generation(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a generation_config.json; alg origin is the sampler ancestral, which has no rule."""
    found = {name: values[field] for field, name in GENERATION.items() if values.get(field) is not None}
    rule = values.get("alg")
    if rule == "origin":
        found |= {"sampler": "ancestral", "eps": found.get("eps", 1e-3), "rule": None, "select_temperature": None}
    elif rule is not None:
        found |= {"sampler": "dream", "rule": rule}
    return found


DREAM = Family(
    name="dream",
    about="Dream-7B, Dream-Coder-7B, DiffuCoder-7B",
    types=("Dream",),
    read=read,
    published=Published.of("dream"),
    mask_tokens=("<|mask|>",),
    ends=("<|im_end|>",),
    recipe=DREAM_RECIPE,
    generation=generation,
)
OPEN_DCODER = Family(  # a Qwen2.5-Coder-0.5B, tied, whose mask only the tokenizer names
    name="open-dcoder",
    about="Open-dCoder-0.5B",
    types=("qwen2",),
    read=read,
    published=Published.of("open-dcoder"),
    mask_tokens=("<M>", "[MASK]"),
    ends=("<|im_end|>",),
    recipe=CODER_RECIPE,
)
