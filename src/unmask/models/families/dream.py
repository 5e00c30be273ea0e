"""Dream-7B, Dream-Coder, DiffuCoder and Open-dCoder: the Qwen2 layout with a one-token shift -> Blueprint."""

from __future__ import annotations

from unmask.models.families.blueprint import Blueprint, Config, Family
from unmask.models.families.llama import TINY, read_llama


def read(config: Config) -> Blueprint:
    """Output i belongs to token i + 1: the habit of the autoregressive model that it was trained from."""
    return read_llama(config, qkv_bias=True, shift=True)


FULL = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
SMALL = TINY | {"bos_token_id": 256, "eos_token_id": 256}
# ChatML: every turn between <|im_start|> and <|im_end|>, and a system turn first.
TEMPLATE = (
    "{% if not messages or messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>")
DREAM = Family(
    name="dream",
    about="Dream-7B, Dream-Coder-7B, DiffuCoder-7B",
    types=("Dream",),
    read=read,
    tiny=FULL | SMALL | {"mask_token_id": 260, "pad_token_id": 256},
    full=FULL,
    mask_tokens=("<|mask|>",),
    ends=("<|im_end|>",),
    specials={
        "full": dict(zip(SPECIALS, (151643, 151644, 151645, 151665, 151666), strict=True)),
        "tiny": dict(zip(SPECIALS, range(256, 261), strict=True)),
    },
    template=TEMPLATE,
)


# --- Open-dCoder: a Qwen2.5-Coder-0.5B, tied, whose mask only the tokenizer knows ------------------------------------

CODER_FULL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
CODER_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<M>")
OPEN_DCODER = Family(
    name="open-dcoder",
    about="Open-dCoder-0.5B",
    types=("qwen2",),
    read=read,
    tiny=CODER_FULL | SMALL,
    full=CODER_FULL,
    mask_tokens=("<M>", "[MASK]"),
    ends=("<|im_end|>",),
    specials={
        "full": dict(zip(CODER_SPECIALS, (151643, 151644, 151645, 151665), strict=True)),
        "tiny": dict(zip(CODER_SPECIALS, range(256, 260), strict=True)),
    },
    template=TEMPLATE,
)
