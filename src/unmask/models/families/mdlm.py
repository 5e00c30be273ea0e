"""MDLM: config -> Blueprint. Time goes in through adaptive norms; the mask is not part of its distribution (SUBS)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unmask.models.families.blueprint import Blueprint, Config, Family, Published, Slot
from unmask.models.network import Shape

LEFT = 1e-3  # probability that a token is unmasked at t = 1, so that the noise level is finite


def log_linear(time: Tensor) -> Tensor:
    """Noise level of the log-linear schedule: a token is masked with probability (1 - LEFT) t."""
    return -torch.log1p(-(1 - LEFT) * time)


def read(config: Config) -> Blueprint:
    """The last id is the mask unless config or tokenizer name another; without a time input the noise level is 0."""
    rows, width = config.integer("vocab_size", "vocabulary"), config.integer("hidden_dim", "width")
    heads = config.integer("n_heads", "heads")
    config.divided("hidden_dim and twice n_heads", width, 2 * heads)
    shape = Shape(
        vocabulary=rows,
        width=width,
        layers=config.integer("n_blocks", "layers"),
        heads=heads,
        inner=4 * width,
        norm="layer",
        eps=1e-5,
        gated=False,
        mlp_bias=True,
        head_bias=True,
        condition=config.integer("cond_dim", "width"),
    )
    return Blueprint(
        shape,
        _slots(shape),
        limit=config.integer("model_length", "length"),
        mask=config.token("mask_token_id", rows),
        last=rows - 1,
        eos=config.tokens("eos_token_id", rows),
        pad=config.token("pad_token_id", rows),
        buffers=("backbone.rotary_emb.inv_freq",),
        subs=True,
        noise=log_linear if config.flag("time_conditioning") else None,
    )


def _slots(shape: Shape) -> dict[str, Slot]:
    """Every tensor, in the order of backbone.parameters(), the only key of a training's running averages."""
    names = {"vocab_embed.embedding": "embed.weight"}
    names |= _linear({"sigma_map.mlp.0": "time.0", "sigma_map.mlp.2": "time.1"})
    for layer in range(shape.layers):
        block = f"blocks.{layer}."
        for old, new in {"norm1": "attention_norm", "attn_qkv": "qkv", "attn_out": "out", "norm2": "mlp_norm"}.items():
            names[f"{block}{old}.weight"] = f"{block}{new}.weight"  # queries, keys and values are in our order too
        names |= _linear({"mlp.0": "up", "mlp.2": "down", "adaLN_modulation": "modulate"}, block)
    names["output_layer.norm_final.weight"] = "norm.weight"
    names |= _linear({"output_layer.linear": "head", "output_layer.adaLN_modulation": "modulate"})
    return {f"backbone.{old}": Slot(new) for old, new in names.items()}


def _linear(names: Mapping[str, str], block: str = "") -> dict[str, str]:
    """Weights and biases of these layers."""
    return {f"{block}{a}.{kind}": f"{block}{b}.{kind}" for a, b in names.items() for kind in ("weight", "bias")}


def buffers(shape: Shape) -> dict[str, Tensor]:
    """The rotary frequencies, which published files hold too."""
    pairs = shape.each // 2
    return {"backbone.rotary_emb.inv_freq": shape.base ** -(torch.arange(pairs) / pairs)}


# Its sampler with the defaults of github.com/kuleshov-group/mdlm: 128 steps over a canvas of 1024.
RECIPE = {"sampler": "ancestral", "steps": 128, "length": 1024, "temperature": 1.0}

MDLM = Family(
    name="mdlm",
    about="mdlm-owt, mdlm-no_flashattn-fp32-owt",
    types=("mdlm",),
    read=read,
    published=Published.of("mdlm"),
    ends=None,  # <|endoftext|> stands between documents, and often first: it ends nothing
    borrows="openai-community/gpt2",
    buffers=buffers,
    recipe=RECIPE,
)
