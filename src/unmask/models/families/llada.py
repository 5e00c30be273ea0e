"""LLaDA-8B, LLaDA-1.5 and iLLaDA: configs of both layouts -> Blueprint."""

from __future__ import annotations

from unmask.models.families.blueprint import Blueprint, Config, Family, Names, slots
from unmask.models.families.llama import TINY as LLAMA_TINY
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


FULL = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_dropout": 0.0,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "vocab_size": 126464,
    "weight_tying": False,
}
TINY = FULL | {
    "d_model": 64,
    "embedding_size": 320,
    "vocab_size": 320,
    "eos_token_id": 301,
    "pad_token_id": 301,
    "mask_token_id": 318,
    "max_sequence_length": 256,
    "mlp_hidden_size": 128,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 2,
    "torch_dtype": "float32",
}
# A turn is a header with its role, its text and an end; a dialogue begins with the start token.
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SPECIALS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
LLADA = Family(
    name="llada",
    about="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5",
    types=("llada",),
    read=read,
    tiny=TINY,
    full=FULL,
    mask_tokens=("<|mdm_mask|>",),
    ends=("<|eot_id|>",),
    specials={
        "full": dict(zip(SPECIALS, (126080, 126081, 126336, 126346, 126347, 126348), strict=True)),
        "tiny": dict(zip(SPECIALS, (300, 301, 318, 302, 303, 304), strict=True)),
    },
    template=TEMPLATE,
    shard=2_900_000_000,  # six files, as published
)


# --- iLLaDA: the same rule, in the layout of Llama -------------------------------------------------------------------


def read_illada(config: Config) -> Blueprint:
    """Logit i belongs to token i."""
    config.expect(attention_bias=False, mlp_bias=False, layer_norm_eps=None)
    return read_llama(config, tied=True)


ILLADA_FULL = {
    "architectures": ["ILLaDAForCausalLM"],
    "model_type": "illada",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": None,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 155136,
}
ILLADA_SPECIALS = {"<[begin▁of▁sentence]>": 0, "<[PAD▁TOKEN]>": 1, "<[end▁of▁sentence]>": 2, "<[MASK]>": 5}
ILLADA = Family(
    name="illada",
    about="iLLaDA-8B-Base, iLLaDA-8B-Instruct",
    types=("illada",),
    read=read_illada,
    tiny=ILLADA_FULL | LLAMA_TINY,
    full=ILLADA_FULL,
    mask_tokens=("<[MASK]>",),
    specials={"full": ILLADA_SPECIALS, "tiny": ILLADA_SPECIALS},
)
