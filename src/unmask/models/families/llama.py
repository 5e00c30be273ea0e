"""The layout of Llama, Qwen2 and Qwen3, which most families share: config -> Blueprint."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

from unmask.errors import ModelError
from unmask.models.experts import Experts
from unmask.models.families.blueprint import Blueprint, Config, Names, slots
from unmask.models.network import Shape

TENSORS = Names(
    embed="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    block="model.layers.{}",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
)
MOST_EXPERTS = 1 << 15  # of all layers; more: damaged


def read_llama(
    config: Config,
    names: Names = TENSORS,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    head_width: int | None = None,
    partial: bool = False,
    inner: int | None = None,
    experts: Experts | None = None,
    tied: bool = False,
    shift: bool = False,
) -> Blueprint:
    """Sizes, names and special ids; `tied` is what a config without tie_word_embeddings means.

    With a `head_width`, head_dim is free, and this is its value where the config has none. With `partial`, so is
    partial_rotary_factor. `inner` is the width of the MLP where that is not intermediate_size.
    """
    config.expect(hidden_act="silu", use_sliding_window=False, use_mrope=False)
    kinds = config.values.get("layer_types") or []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        Config({"layer_types": kind}).expect(layer_types="full_attention")
    rows = config.integer("vocab_size", "vocabulary")
    width, heads = config.integer("hidden_size", "width"), config.integer("num_attention_heads", "heads")
    kv = config.integer("num_key_value_heads", "heads", heads)
    config.divided("num_attention_heads and num_key_value_heads", heads, kv)
    each = head_width and config.integer("head_dim", "width", head_width)
    if each is None:
        each = config.divided("hidden_size and twice num_attention_heads", width, 2 * heads) * 2
        config.expect(head_dim=each)
    shape = Shape(
        vocabulary=rows,
        width=width,
        layers=config.integer("num_hidden_layers", "layers"),
        heads=heads,
        kv_heads=kv,
        inner=config.integer("intermediate_size", "width") if inner is None else inner,
        head_width=each,
        eps=config.number("rms_norm_eps", 1e-6),
        base=_rotary_base(config),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied=config.flag("tie_word_embeddings", tied),
        rotary=_rotary_width(config, each, partial),
        experts=experts,
    )
    return Blueprint(
        shape,
        slots(shape, names),
        limit=config.integer("max_position_embeddings", "length"),
        mask=config.token("mask_token_id", rows),
        eos=config.tokens("eos_token_id", rows),
        pad=config.token("pad_token_id", rows),
        copies={f"{names.head}.weight": f"{names.embed}.weight"} if shape.tied else {},
        shift=shift,
    )


def read_experts(config: Config, layers: Iterable[int], inner: str, groups: int = 1, used_groups: int = 1) -> Experts:
    """How many experts these layers have, how many of them a token uses, and their width, the field `inner`."""
    sparse = tuple(layers)
    count, used = config.integer("num_experts", "experts"), config.integer("num_experts_per_tok", "experts")
    most = config.divided("num_experts and groups", count, groups) * used_groups
    if used > most:
        raise ModelError(f"config.json: num_experts_per_tok is {used}", f"a token can use {most} of {count} experts")
    if count * len(sparse) > MOST_EXPERTS:
        way_out = f"in {len(sparse)} layers, at most {MOST_EXPERTS // len(sparse)} make sense"
        raise ModelError(f"config.json: num_experts is {count}", way_out)
    return Experts(sparse, count, used, config.integer(inner, "width"), groups=groups, used_groups=used_groups)


def _rotary_width(config: Config, each: int, partial: bool) -> int:
    """The dimensions of a head that are turned."""
    if not partial:
        config.expect(partial_rotary_factor=1.0)
    turned = int(each * config.number("partial_rotary_factor", None if partial else 1.0))
    if not 0 < turned <= each or turned % 2:
        raise ModelError(
            f"config.json: {turned} of {each} dimensions of a head are rotary", "it must be an even number"
        )
    return turned


def _rotary_base(config: Config) -> float:
    """`rope_theta`, which newer files keep in `rope_parameters`; scaled positions are refused."""
    for name in ("rope_scaling", "rope_parameters"):
        table: Any = config.values.get(name)
        if table is None:
            continue
        kind = table.get("rope_type", table.get("type", "default")) if isinstance(table, dict) else None
        if kind != "default" or table.get("factor", 1.0) != 1:
            raise ModelError(
                f"config.json: {name} is {reprlib.repr(table)}", "scaled rotary positions are not supported"
            )
        if "rope_theta" in table:
            return Config(table).number("rope_theta")
    return config.number("rope_theta", 10_000.0)
