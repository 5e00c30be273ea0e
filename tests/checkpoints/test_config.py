"""config.json: everything that it may say wrong."""

from __future__ import annotations

import json

import pytest

from unmask import load
from unmask.models.files.checkpoint import INDEX

from .small import (
    EMBED,
    LLADA,
    MICRO,
    NATIVE,
    complaint,
    refused,
    write,
)

# --- config.json: its text -------------------------------------------------------------------------------------------

TEXTS = {
    "empty": (b"", "not JSON"),
    "cut": (b'{"model_type": "llada", ', "not JSON"),
    "bytes": (b"\xff\xfe\x00\x01", "not JSON"),
    "UTF-16": ('{"model_type": "llada"}'.encode("utf-16"), "not JSON"),
    "NaN": (b'{"model_type": "llada", "rope_theta": NaN}', "NaN is not a number"),
    "infinity": (b'{"model_type": "llada", "rope_theta": -Infinity}', "-Infinity is not a number"),
    "a long number": (b'{"model_type": ' + b"9" * 100_000 + b"}", "not JSON"),
    "nested lists": (b"[" * 100_000 + b"]" * 100_000, "not JSON"),
    "nested objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not JSON"),
    "list": (b"[]", "holds a list"),
    "text": (b'"llada"', "holds a str"),
    "number": (b"7", "holds a int"),
    "null": (b"null", "holds a NoneType"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_config_that_is_no_object(small, name):
    text, word = TEXTS[name]
    (small / "config.json").write_bytes(text)
    refused(small, "config.json", word)


@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_huge_text(small, name):
    with (small / name).open("wb") as file:
        file.truncate(300 * 2**20)
    refused(small, name, "bytes", "at most")


# --- config.json: its values -----------------------------------------------------------------------------------------

WRONG = (0, -1, 10**12, 2**70, True, "8", 8.0, 1e400, [8], {"a": 8}, None)
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "embedding_size", "max_sequence_length")
MAY_BE_NULL = ("n_kv_heads", "embedding_size", "mlp_hidden_size")


@pytest.mark.parametrize("field", [*SIZES, "mlp_hidden_size"])
def test_sizes_of_a_wrong_kind(small, field):
    for value in WRONG:
        if value is not None or field not in MAY_BE_NULL:
            (small / "config.json").write_text(json.dumps(LLADA | {field: value}).replace("Infinity", "1e400"))
            refused(small, f"config.json: {field} is", "a whole number from 1 to")


@pytest.mark.parametrize("family", MICRO)
def test_every_required_field_is_asked_for(tmp_path, family):
    """Without any one field, the checkpoint loads as before, or the field is named."""
    config = MICRO[family]
    directory = write(tmp_path / family, config)
    named = 0
    for field in config:
        (directory / "config.json").write_text(json.dumps({f: value for f, value in config.items() if f != field}))
        said = complaint(directory, mask_id=15)
        assert not said or field in said or said.startswith(MISSING[family, field])
        named += bool(said)
    assert named >= 6


# Fields whose usual value is another one: what is then wrong.
MISSING = {
    ("llada", "mlp_hidden_size"): "model.transformer.blocks.0.ff_proj.weight is 16 × 8",
    ("dream", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("open-dcoder", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("open-dcoder", "tie_word_embeddings"): "1 tensors are missing: lm_head.weight",
    ("illada", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("sdar", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 6 × 8",
    ("sdar", "head_dim"): "model.layers.0.self_attn.",
    ("sdar-moe", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 6 × 8",
    ("sdar-moe", "head_dim"): "model.layers.0.self_attn.",
    ("llada-moe", "num_experts"): "config.json: ",  # then it is LLaDA
    ("llada-moe", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("llada-moe", "moe_layer_freq"): "13 tensors are missing: model.layers.0.mlp.gate.weight",
    ("llada2", "num_key_value_heads"): "model.layers.0.attention.query_key_value.weight is 32 × 8",
    ("llada2", "head_dim"): "model.layers.0.attention.",
    ("llada2", "first_k_dense_replace"): "17 tensors are missing: ",
    ("llada2", "num_shared_experts"): "3 tensors are unexpected: ",
    ("fast-dllm-v2", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("stable-diffcoder", "architectures"): "config.json: model_type is 'llama', and the architectures None are of no",
    ("stable-diffcoder", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 4 × 8",
    ("a2d", "num_key_value_heads"): "model.layers.0.self_attn.k_proj.weight is 6 × 8",
    ("a2d", "head_dim"): "model.layers.0.self_attn.",
    ("a2d", "tie_word_embeddings"): "1 tensors are missing: lm_head.weight",
    ("native", "condition"): "8 tensors are unexpected: ",
    ("native", "position"): "3 tensors are unexpected: ",
    ("native", "qk_norm"): "2 tensors are unexpected: ",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_heads": 3, "n_kv_heads": 3}, ["d_model", "n_heads", "do not divide: 8 by 6"]),
        ({"n_kv_heads": 3}, ["heads", "do not divide"]),
        ({"d_model": 10}, ["d_model", "do not divide: 10 by 4"]),  # heads of odd width
        ({"vocab_size": 17, "embedding_size": 17}, [EMBED, "16 × 8", "17 × 8"]),
        ({"embedding_size": 15, "mask_token_id": 13}, [EMBED, "16 × 8", "15 × 8"]),
        ({"n_layers": 2}, ["9 tensors are missing", "blocks.1."]),
        ({"n_layers": 1024}, ["9207 tensors are missing"]),
        ({"vocab_size": 2**23, "embedding_size": 2**23, "d_model": 2**17}, ["8388608 × 131072"]),
        ({"mlp_ratio": 2**17, "mlp_hidden_size": None, "d_model": 2**17}, ["mlp_hidden_size", "from 1 to"]),
        ({"weight_tying": True}, ["unexpected", "model.transformer.ff_out.weight"]),
        ({"weight_tying": "yes"}, ["weight_tying is 'yes'", "true or false"]),
        ({"include_qkv_bias": True}, ["missing", "q_proj.bias"]),
        ({"rope_theta": 0}, ["rope_theta is 0", "positive number"]),
        ({"rope_theta": 1e400}, ["rope_theta is inf", "positive number"]),
        ({"rms_norm_eps": -1e-5}, ["rms_norm_eps", "positive number"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps", "positive number"]),
        ({"rms_norm_eps": True}, ["rms_norm_eps is True"]),
        ({"rope_theta": 10**4000}, ["rope_theta is 1000", "positive number"]),
    ],
)
def test_sizes_that_do_not_fit(small, changes, words):
    (small / "config.json").write_text(json.dumps(LLADA | changes).replace("Infinity", "1e400"))
    refused(small, *words)


@pytest.mark.parametrize("field", ["mask_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", [16, -1, True, "1", 1.0, [1, 99], {"id": 1}, 10**30])
def test_token_ids_out_of_range(small, field, value):
    (small / "config.json").write_text(json.dumps(LLADA | {field: value}))
    refused(small, f"config.json: {field} is", "token ids go from 0 to 15")


def test_several_masks(small):
    (small / "config.json").write_text(json.dumps(LLADA | {"mask_token_id": [1, 2]}))
    refused(small, "mask_token_id is [1, 2]", "one token id")


def test_several_ends(small):
    (small / "config.json").write_text(json.dumps(LLADA | {"eos_token_id": [3, 4], "pad_token_id": None}))
    assert (load(small).vocab.eos, load(small).vocab.pad) == ((3, 4), 3)


@pytest.mark.parametrize("kind", ["bert", None, 7, ["llada"], "LLADA", "llada\n", "x" * 10_000])
def test_unknown_model_type(small, kind):
    (small / "config.json").write_text(json.dumps(LLADA | {"model_type": kind}))
    refused(small, "config.json: model_type is", "llada, illada, Dream, qwen2", "trust_remote_code")


SCALED = {"type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("llada", "alibi", True),
        ("llada", "rope", False),
        ("llada", "layer_norm_type", "default"),
        ("llada", "activation_type", "gelu"),
        ("llada", "block_type", "sequential"),
        ("llada", "include_bias", True),
        ("llada", "attention_layer_norm", True),
        ("llada", "multi_query_attention", True),
        ("llada", "rope_scaling", SCALED),
        ("dream", "rope_scaling", SCALED),
        ("dream", "rope_scaling", "linear\nscaling"),
        ("dream", "rope_parameters", YARN),
        ("dream", "use_sliding_window", True),
        ("dream", "hidden_act", "gelu"),
        ("dream", "head_dim", 6),
        ("dream", "layer_types", ["sliding_attention"]),
        ("dream", "layer_types", 0.5),
        ("open-dcoder", "use_sliding_window", True),
        ("illada", "attention_bias", True),
        ("illada", "mlp_bias", True),
        ("sdar", "attention_bias", True),
        ("sdar", "rope_scaling", SCALED),
        ("sdar", "use_sliding_window", True),
        ("sdar", "block_size", 0),
        ("sdar", "block_size", "4"),
        ("sdar-moe", "num_experts_per_tok", 5),
        ("sdar-moe", "num_experts", 0),
        ("sdar-moe", "mlp_only_layers", [0, "1"]),
        ("sdar-moe", "mlp_only_layers", 3),
        ("sdar-moe", "decoder_sparse_step", 0),
        ("sdar-moe", "norm_topk_prob", 1),
        ("llada-moe", "moe_layer_freq", [1]),
        ("llada-moe", "moe_layer_freq", [1, 2]),
        ("llada-moe", "moe_layer_freq", 1),
        ("llada-moe", "moe_router_enable_expert_bias", True),
        ("llada-moe", "moe_router_score_function", "sigmoid"),
        ("llada-moe", "shared_expert_intermediate_size", 6),
        ("llada-moe", "clip_qkv", 8.0),
        ("llada-moe", "partial_rotary_factor", 0.5),
        ("llada-moe", "num_experts", 10**6),
        ("llada2", "use_qkv_bias", True),
        ("llada2", "use_bias", True),
        ("llada2", "use_qk_norm", False),
        ("llada2", "first_k_dense_replace", -1),
        ("llada2", "num_shared_experts", -1),
        ("llada2", "n_group", 0),
        ("llada2", "topk_group", 0),
        ("llada2", "num_experts_per_tok", 3),  # a token may use one group of two
        ("llada2", "routed_scaling_factor", 0),
        ("llada2", "partial_rotary_factor", None),
        ("llada2", "block_size", 0),
        ("fast-dllm-v2", "bd_size", -1),
        ("fast-dllm-v2", "head_dim", 6),
        ("stable-diffcoder", "mlp_bias", True),
        ("a2d", "attention_bias", True),
        ("a2d", "block_size", 1.5),
        ("native", "norm", "batch"),
        ("native", "position", ["rotary"]),
        ("native", "places", 8),  # no square number, so no boxes
        ("native", "limit", 82),
    ],
)
def test_unsupported_variant(tmp_path, family, field, value):
    directory = write(tmp_path / family, MICRO[family])
    (directory / "config.json").write_text(json.dumps(MICRO[family] | {field: value}))
    refused(directory, f"config.json: {field} is", mask_id=15)


def test_a_llama_that_is_no_diffusion_model(tmp_path):
    directory = write(tmp_path / "llama", MICRO["stable-diffcoder"])
    for named in (["LlamaForCausalLM"], [], None, "StableDiffcoderForCausalLM", [7]):
        (directory / "config.json").write_text(json.dumps(MICRO["stable-diffcoder"] | {"architectures": named}))
        refused(directory, "model_type is 'llama', and the architectures", "of no known family")


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("sdar", {"head_dim": 7}, "7 of 7 dimensions of a head are rotary: it must be an even number"),
        ("llada2", {"partial_rotary_factor": 0.125}, "1 of 8 dimensions of a head are rotary"),
        ("llada2", {"partial_rotary_factor": 0.01}, "0 of 8 dimensions of a head are rotary"),
        ("llada2", {"partial_rotary_factor": 2}, "16 of 8 dimensions of a head are rotary"),
        ("llada2", {"n_group": 3}, "num_experts and groups do not divide: 4 by 3"),
        ("llada2", {"num_experts": 8}, "12 tensors are missing: model.layers.1.mlp.experts.4."),
        ("llada2", {"moe_intermediate_size": 7}, "by the config it must be 7 × 8"),
        ("llada2", {"num_experts": 4096, "num_hidden_layers": 1024}, "in 1023 layers, at most 32 make sense"),
        ("sdar-moe", {"num_experts": 4096, "num_hidden_layers": 8}, "98355 tensors are missing"),
        ("llada-moe", {"num_experts": 2, "num_experts_per_tok": 1}, "6 tensors are unexpected: "),
    ],
)
def test_experts_and_positions_that_do_not_fit(tmp_path, family, changes, said):
    directory = write(tmp_path / family, MICRO[family])
    (directory / "config.json").write_text(json.dumps(MICRO[family] | changes))
    refused(directory, said, mask_id=15)


def test_more_groups_used_than_there_are_is_all(tmp_path):
    directory = write(tmp_path / "llada2", MICRO["llada2"] | {"topk_group": 9})
    assert load(directory, mask_id=15).network.shape.experts.used_groups == 2


def test_rotary_positions_of_odd_width(tmp_path):
    config = NATIVE | {"position": "rotary", "head_width": 3}
    directory = write(tmp_path / "native", NATIVE)
    (directory / "config.json").write_text(json.dumps(config))
    refused(directory, "head_width is 3", "an even one")
