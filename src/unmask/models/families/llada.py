"""LLaDA-8B, LLaDA-1.5 and iLLaDA: configs of both layouts -> Blueprint."""

from __future__ import annotations

from unmask.models.families.blueprint import Blueprint, Config, Family, Names, Published, slots
from unmask.models.families.llama import read_llama
from unmask.models.network import Shape

TENSORS = Names(
    embed="model.transformer.wte",
    norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
    block="model.transformer.blocks.{}",
    attention_norm="attn_norm",
    mlp_norm="ff_norm",
    qkv=("q_proj", "k_proj", "v_proj"),
    out="attn_out",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
)


def read(config: Config) -> Blueprint:
    """LLaDA's own layout, `model.transformer.*`. Logit i belongs to token i."""
    config.expect(block_type="llama", layer_norm_type="rms", activation_type="silu", rope=True, alibi=False)
    config.expect(include_bias=False, bias_for_layer_norm=False, attention_layer_norm=False, input_emb_norm=False)
    config.expect(multi_query_attention=False, layer_norm_with_affine=True, rope_scaling=None, clip_qkv=None)
    rows = config.integer("embedding_size", "vocabulary", config.integer("vocab_size", "vocabulary"))
    width, heads = config.integer("d_model", "width"), config.integer("n_heads", "heads")
    kv = config.integer("n_kv_heads", "heads", heads)
    config.divided("heads and n_kv_heads", heads, kv)
    config.divided("d_model and twice n_heads", width, 2 * heads)
    inner = config.integer("mlp_hidden_size", "width", config.integer("mlp_ratio", "width", 4) * width)
    shape = Shape(
        vocabulary=rows,
        width=width,
        layers=config.integer("n_layers", "layers"),
        heads=heads,
        kv_heads=kv,
        inner=inner,
        eps=config.number("rms_norm_eps", 1e-5),
        base=config.number("rope_theta", 10_000.0),
        qkv_bias=config.flag("include_qkv_bias"),
        tied=config.flag("weight_tying"),
        logit_scale=width**-0.5 if config.flag("scale_logits") else 1.0,
    )
    return Blueprint(
        shape,
        slots(shape, TENSORS),
        limit=config.integer("max_sequence_length", "length"),
        mask=config.token("mask_token_id", rows),
        eos=config.tokens("eos_token_id", rows),
        pad=config.token("pad_token_id", rows),
    )


# Both programs of github.com/ML-GSAI/LLaDA, generate.py and chat.py, decode so. Their `steps` are one for each
# position, which is our default too, whatever the length.
RECIPE = {"sampler": "semi-ar", "block_length": 32, "length": 128, "temperature": 0.0}

LLADA = Family(
    name="llada",
    about="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5",
    types=("llada",),
    read=read,
    published=Published.of("llada"),
    owns=lambda config: config.get("num_experts") is None,  # LLaDA-MoE calls itself llada too
    mask_tokens=("<|mdm_mask|>",),
    ends=("<|eot_id|>",),
    recipe=RECIPE,
)


# --- iLLaDA: the same in the layout of Llama -------------------------------------------------------------------------


def read_illada(config: Config) -> Blueprint:
    """Logit i belongs to token i."""
    config.expect(attention_bias=False, mlp_bias=False, layer_norm_eps=None)
    return read_llama(config, tied=True)


ILLADA = Family(
    name="illada",
    about="iLLaDA-8B-Base, iLLaDA-8B-Instruct",
    types=("illada",),
    read=read_illada,
    published=Published.of("illada"),
    mask_tokens=("<[MASK]>",),
    recipe=RECIPE,
)
