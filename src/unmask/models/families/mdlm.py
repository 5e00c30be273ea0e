"""MDLM: config -> Blueprint. Time goes in through adaptive norms; the mask is no part of its distribution (SUBS)."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.models.families.blueprint import Blueprint, Config, Family, Slot
from unmask.models.network import Shape

LEFT = 1e-3  # share of a token that is still there at t = 1, so that the noise level is finite


def log_linear(time: Tensor) -> Tensor:
    """Noise level of the log-linear schedule: a token is masked with probability (1 - LEFT) t."""
    return -torch.log1p(-(1 - LEFT) * time)


def read(config: Config) -> Blueprint:
    """The last id is the mask unless config or tokenizer say otherwise; without a time input the noise level is 0."""
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
    slots = {
        "backbone.vocab_embed.embedding": Slot("embed.weight"),
        "backbone.output_layer.norm_final.weight": Slot("norm.weight"),
    }
    linear = {"sigma_map.mlp.0": "time.0", "sigma_map.mlp.2": "time.1"}
    linear |= {"output_layer.linear": "head", "output_layer.adaLN_modulation": "modulate"}
    for layer in range(shape.layers):
        old, new = f"blocks.{layer}", f"blocks.{layer}"
        slots[f"backbone.{old}.norm1.weight"] = Slot(f"{new}.attention_norm.weight")
        slots[f"backbone.{old}.norm2.weight"] = Slot(f"{new}.mlp_norm.weight")
        slots[f"backbone.{old}.attn_qkv.weight"] = Slot(f"{new}.qkv.weight")  # queries, keys, values: our order too
        slots[f"backbone.{old}.attn_out.weight"] = Slot(f"{new}.out.weight")
        linear |= {f"{old}.mlp.0": f"{new}.up", f"{old}.mlp.2": f"{new}.down"}
        linear |= {f"{old}.adaLN_modulation": f"{new}.modulate"}
    for old, new in linear.items():
        for kind in ("weight", "bias"):
            slots[f"backbone.{old}.{kind}"] = Slot(f"{new}.{kind}")
    return slots


def buffers(shape: Shape) -> dict[str, Tensor]:
    """The rotary frequencies, which published files carry along."""
    pairs = shape.each // 2
    return {"backbone.rotary_emb.inv_freq": shape.base ** -(torch.arange(pairs) / pairs)}


FULL = {
    "architectures": ["MDLM"],
    "model_type": "mdlm",
    "cond_dim": 128,
    "dropout": 0.1,
    "hidden_dim": 768,
    "model_length": 1024,
    "n_blocks": 12,
    "n_heads": 12,
    "return_dict": False,
    "time_conditioning": False,
    "torch_dtype": "float32",
    "vocab_size": 50258,
}
MDLM = Family(
    name="mdlm",
    about="mdlm-owt, mdlm-no_flashattn-fp32-owt",
    types=("mdlm",),
    read=read,
    tiny=FULL | {"hidden_dim": 64, "model_length": 64, "n_blocks": 2, "n_heads": 4, "vocab_size": 258},
    full=FULL,
    ends=None,  # <|endoftext|> stands between documents, and often first: it ends nothing
    specials={"full": {"<|endoftext|>": 50256}, "tiny": {"<|endoftext|>": 256}},
    borrows="openai-community/gpt2",
    buffers=buffers,
)
