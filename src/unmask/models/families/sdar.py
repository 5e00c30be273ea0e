"""SDAR, TraDo, TDAR and DiRL: the Qwen3 layout with attention in blocks -> Blueprint."""

from __future__ import annotations

from dataclasses import replace

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama

BLOCK = 4  # where the config names none; variants were trained with 8 to 64
MASK = 151669  # the default of generate.py in github.com/JetAstra/SDAR


def read(config: Config) -> Blueprint:
    """Logit i belongs to token i. A head's width is free; without head_dim it is Qwen3's."""
    config.expect(attention_bias=False)
    plan = read_llama(config, qk_norm=True, head_width=128)
    return replace(plan, last=MASK, blocks=config.integer("block_size", "length", BLOCK), aligned=True)


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
)
