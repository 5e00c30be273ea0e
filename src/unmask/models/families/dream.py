"""Dream-7B, Dream-Coder, DiffuCoder and Open-dCoder: the Qwen2 layout with a one-token shift -> Blueprint."""

from __future__ import annotations

from unmask.models.families.blueprint import Blueprint, Config, Family, Published
from unmask.models.families.llama import read_llama


def read(config: Config) -> Blueprint:
    """Output i belongs to token i + 1: it was trained from an autoregressive model."""
    return read_llama(config, qkv_bias=True, shift=True)


DREAM = Family(
    name="dream",
    about="Dream-7B, Dream-Coder-7B, DiffuCoder-7B",
    types=("Dream",),
    read=read,
    published=Published.of("dream"),
    mask_tokens=("<|mask|>",),
    ends=("<|im_end|>",),
)
OPEN_DCODER = Family(  # a Qwen2.5-Coder-0.5B, tied, whose mask only the tokenizer names
    name="open-dcoder",
    about="Open-dCoder-0.5B",
    types=("qwen2",),
    read=read,
    published=Published.of("open-dcoder"),
    mask_tokens=("<M>", "[MASK]"),
    ends=("<|im_end|>",),
)
