"""Thousands of damaged checkpoints: each loads and answers in the right shape, or is refused in one line."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from unmask import load
from unmask.errors import UnmaskError
from unmask.models import memory
from unmask.models.files.bits import pack
from unmask.models.files.checkpoint import INDEX, WEIGHTS
from unmask.models.tokenizers import FileTokenizer, byte_level

from .small import LLADA, MICRO, RECORDED, logits, split, weights, write
from .test_tokens import MERGES, SPECIALS

CASES = int(os.environ.get("UNMASK_CASES", "320"))  # of each chunk; `make attack` takes more
SLOW, LARGE = 2.0, 128 * 2**20  # seconds and bytes that no case may take; a panic takes 50 MiB to say where it was
NUMBERS = (0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 255, 2**17, 2**23, 2**26, 2**31, 2**32, 2**63, 2**64, 10**12, 10**40)
FLOATS = (0.0, -0.0, 0.5, 8.0, -2.5, 1e-300, 1e300, 1e308)
TEXTS = (
    "",
    " ",
    "8",
    "true",
    "\n",
    "a\nb",
    "\x00",
    "\x1b[2J",
    "é",
    "e\u0301",
    "\ud800",
    "🎉",
    "\u2028",
    "../x",
    "x" * 5000,
)
WORDS = "llada Dream mdlm unmask bfloat16 float8 F32 rotary grid learned layer silu".split()
LISTS = ([], [1], [1, 2, 3], [[[[]]]], ["a"], [None])
TABLES = (
    {},
    {"a": 1},
    {"type": "linear"},
    {"rope_type": "default"},
    {"rope_theta": -1},
    {"content": "a"},
    {"content": 3},
)
STRANGE: list[Any] = [None, True, False, *NUMBERS, *FLOATS, *TEXTS, *WORDS, *LISTS, *TABLES]
FIELDS = (  # which some family reads
    "dtype torch_dtype rope_scaling rope_parameters rope_theta head_dim use_sliding_window mask_token_id eos_token_id "
    "pad_token_id position places limit norm tied condition head_width kv_heads weight_tying include_qkv_bias "
    "mlp_ratio scale_logits time_conditioning time_input absent_mask logit_scale embedding_size tie_word_embeddings "
    "rms_norm_eps bits block_size bd_size architectures num_experts moe_layer_freq "
    "n_group topk_group mlp_only_layers first_k_dense_replace num_shared_experts partial_rotary_factor"
).split()
EIGHT = {**MICRO["native"], "bits": 8}
Case = tuple[Path, dict[str, Any], str]  # a directory, options of load, what was done to it


# --- what is done to values and bytes --------------------------------------------------------------------------------


def strange(random: Random) -> Any:
    return copy.deepcopy(random.choice(STRANGE))


def bent(random: Random, value: Any) -> Any:
    """A value near to this one, or nothing like it."""
    if type(value) is int and random.random() < 0.5:
        return random.choice(
            [value + 1, value - 1, 2 * value, value // 2, -value, value * 10**6, float(value), str(value)]
        )
    if isinstance(value, float) and random.random() < 0.5:
        return random.choice([-value, value * 1e10, value * 1e-10, int(value) if abs(value) < 1e300 else 1, str(value)])
    return random.choice([strange(random), strange(random), [value], {"a": value}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value; of long lists and tables, only the first few."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in list(inner)[:40] for found in [(*path, key), *places(part, (*path, key))]]


def change_values(random: Random, value: Any) -> str:
    """Change one to three places of a JSON value where it is; what was done."""
    done = []
    for _ in range(random.randint(1, 3)):
        paths = places(value)
        if not paths:
            break
        path = random.choice(paths)
        home = value
        for key in path[:-1]:
            home = home[key]
        key, what = path[-1], random.choice(["bend", "bend", "bend", "delete", "swap", "rename", "double"])
        if what == "bend":
            home[key] = bent(random, home[key])
            done.append(f"{path} = {str(home[key])[:60]!a}")
            continue
        other = random.choice(list(home) if isinstance(home, dict) else range(len(home)))
        if what == "delete":
            del home[key]
        elif what == "swap":
            home[key], home[other] = home[other], home[key]
        elif what == "double":
            home[other] = copy.deepcopy(home[key])
        elif isinstance(home, dict):
            home[random.choice([f"{key}x", f"{key}\n", "", "\ud800", other])] = home.pop(key)
        done.append(f"{what} {path} {other!a}")
    return "; ".join(done)


def change_fields(random: Random, config: dict[str, Any], names: Sequence[str], share: float) -> str:
    """Give one of these fields a strange value in this share of cases, or change any places, or both; what was done."""
    done = ""
    if random.random() < share:
        name = random.choice(names)
        config[name] = strange(random)
        done = f"{name} = {str(config[name])[:60]!a}; "
    if not done or random.random() < 0.5:
        done += change_values(random, config)
    return done


def change_bytes(random: Random, data: bytes, end: int | None = None) -> tuple[bytes, str]:
    """Change a few of the first `end` bytes; what was done."""
    changed, done = bytearray(data), []
    for _ in range(random.choice([1, 1, 2, 8])):
        at = random.randrange(max(1, min(len(changed), end or len(changed))))
        what, length = random.choice(["flip", "set", "insert", "cut", "repeat"]), random.choice([1, 1, 2, 9])
        if what == "flip" and changed:
            changed[at] ^= 1 << random.randrange(8)
        elif what == "set" and changed:
            changed[at] = random.choice(b'\x00\xff{}[]",:0-9eE \n\\')
        elif what == "insert":
            changed[at:at] = random.randbytes(length)
        elif what == "cut":
            del changed[at : at + length]
        else:
            changed[at:at] = changed[at : at + length]
        done.append(f"{what} {length} at {at}")
    return bytes(changed), ", ".join(done)


# --- chunks: a base, and one case of it per random generator ---------------------------------------------------------


def configs(home: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Good checkpoints of every family, made and recorded, with their configs."""
    learned = MICRO["native"] | {
        "position": "learned",
        "limit": 9,
        "qk_norm": False,
        "gated": False,
        "head_bias": True,
        "norm": "layer",
    }
    made = {
        **MICRO,
        "learned": learned,
        "rotary": MICRO["native"] | {"position": "rotary", "tied": True, "kv_heads": 1},
    }
    found = [(write(home / name, config), dict(config)) for name, config in made.items()]
    found.append((write(home / "eight", EIGHT, pack(weights(MICRO["native"]))), dict(EIGHT)))
    for name in ("llada", "dream", "open_dcoder", "mdlm", "sdar", "fast_dllm_v2", "llada2", "llada_moe"):
        directory = home / f"recorded {name}"
        directory.mkdir()
        shutil.copy(RECORDED / name / WEIGHTS, directory)
        found.append((directory, json.loads((RECORDED / name / "config.json").read_text())))
    return found


def config_values(home: Path) -> Callable[[Random], Case]:
    bases = configs(home)

    def case(random: Random) -> Case:
        directory, config = copy.deepcopy(random.choice(bases))
        done = change_fields(random, config, FIELDS, 0.3)
        (directory / "config.json").write_text(json.dumps(config))
        return directory, {"mask_id": random.choice([None, 15, 15])}, f"{directory.name}: {done}"

    return case


def config_bytes(home: Path) -> Callable[[Random], Case]:
    bases = configs(home)

    def case(random: Random) -> Case:
        directory, config = random.choice(bases)
        text, done = change_bytes(random, json.dumps(config).encode())
        (directory / "config.json").write_bytes(text)
        return directory, {"mask_id": 15}, f"{directory.name}: {done}"

    return case


def header_values(home: Path) -> Callable[[Random], Case]:
    return headers(write(home / "llada"))


def header_values_of_8_bits(home: Path) -> Callable[[Random], Case]:
    return headers(write(home / "eight", EIGHT, pack(weights(MICRO["native"]))))


def headers(directory: Path) -> Callable[[Random], Case]:
    """The header of a file of weights, well formed but wrong."""
    data = (directory / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:end])

    def case(random: Random) -> Case:
        changed = copy.deepcopy(table)
        name = random.choice(list(changed))
        what = random.choice(["shape", "offsets", "dtype", "twice", "metadata", "any", "any"])
        if what == "shape":
            sizes = [0, 1, 2, 8, 16, 128, -1, 2**31, 2**32, 2**63, 2**64, "8", 8.0, None]
            changed[name]["shape"] = [random.choice(sizes) for _ in range(random.randint(0, 4))]
        elif what == "offsets":
            ends = changed[name]["data_offsets"]
            changed[name]["data_offsets"] = [random.choice([x, x + 4, x - 4, 0, -1, 2**40, 2**64, "0"]) for x in ends]
        elif what == "dtype":
            kinds = ["F64", "F16", "BF16", "I8", "U64", "BOOL", "F8_E4M3", "F4", "C64", "f32", "", None, 3]
            changed[name]["dtype"] = random.choice(kinds)
        elif what == "metadata":
            changed["__metadata__"] = random.choice([strange(random), {"format": "pt"}, {"a": 1}, {"a\n": "b"}])
        done = change_values(random, changed) if what == "any" else f"{what} of {name}: {str(changed.get(name))[:200]}"
        text = json.dumps(changed)
        if what == "twice":  # the same name twice, which no dict can say
            text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(changed[random.choice(list(changed))])}}}"
        head = text.encode() + b" " * random.choice([0, 0, 8])
        (directory / WEIGHTS).write_bytes(len(head).to_bytes(8, "little") + head + data[end:])
        return directory, {}, done

    return case


def file_bytes(home: Path) -> Callable[[Random], Case]:
    """Bytes of a file of weights, most of them in its length and header."""
    directory = write(home / "llada")
    data = (directory / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")

    def case(random: Random) -> Case:
        what = random.choice(["length", "header", "header", "all", "truncate", "append"])
        if what == "truncate":
            cut = random.randrange(len(data))
            changed, done = data[:cut], f"first {cut} bytes"
        elif what == "append":
            more = random.choice([1, 4, 8, 4096])
            changed, done = data + random.randbytes(more), f"{more} more bytes"
        elif what == "length":
            length = random.choice([random.getrandbits(64), random.getrandbits(28), end - 8 + random.randint(-9, 9)])
            changed, done = length.to_bytes(8, "little") + data[8:], f"length {length}"
        else:
            changed, done = change_bytes(random, data, end if what == "header" else None)
        (directory / WEIGHTS).write_bytes(changed)
        return directory, {}, done

    return case


def index(home: Path) -> Callable[[Random], Case]:
    directory = write(home / "llada")
    table = {"metadata": {"total_size": 1}, "weight_map": split(directory)}

    def case(random: Random) -> Case:
        changed = copy.deepcopy(table)
        done = change_values(random, changed)
        text = json.dumps(changed).encode()
        if random.random() < 0.4:
            text, more = change_bytes(random, text)
            done += f"; {more}"
        (directory / INDEX).write_bytes(text)
        return directory, {}, done

    return case


def tokenizers(home: Path) -> Callable[[Random], Case]:
    """One of the files of a tokenizer, as JSON or as bytes."""
    config = LLADA | {"vocab_size": 300, "embedding_size": 300}
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*alphabet, *(m.replace(" ", "") for m in MERGES)])}
    added = {text: len(vocabulary) + number for number, text in enumerate(SPECIALS)}
    decoder = {str(number): {"content": text, "special": True} for text, number in added.items()}
    settings = {
        "added_tokens_decoder": decoder,
        "bos_token": {"content": "<|im_start|>"},
        "mask_token": "<|mask|>",
        "chat_template": [{"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"}],
    }
    whole = byte_level(vocabulary, MERGES, added)
    beside = {"tokenizer_config.json": settings, "special_tokens_map.json": {"eos_token": "<|im_end|>"}}
    one = {"tokenizer.json": whole, **beside}
    many = {"vocab.json": vocabulary, "merges.txt": "\n".join(MERGES), "added_tokens.json": added, **beside}
    bases = []
    for name, files in {"one": one, "many": many}.items():
        directory = write(home / name, config | {"mask_token_id": None})
        bases.append(
            (directory, {file: text if isinstance(text, str) else json.dumps(text) for file, text in files.items()})
        )

    def case(random: Random) -> Case:
        directory, files = random.choice(bases)
        for file, text in files.items():
            (directory / file).write_text(text)
        file = random.choice([*files, next(iter(files))])
        if file == "merges.txt" or random.random() < 0.4:
            data, done = change_bytes(random, files[file].encode())
        else:
            table = json.loads(files[file])
            done = change_values(random, table)
            data = json.dumps(table).encode()
        (directory / file).write_bytes(data)
        return directory, {"mask_id": random.choice([None, 15])}, f"{file}: {done}"

    return case


# --- the law ---------------------------------------------------------------------------------------------------------

CHUNKS = [
    *((config_values, seed) for seed in range(3)),
    (config_bytes, 0),
    *((header_values, seed) for seed in range(2)),
    (header_values_of_8_bits, 0),
    (file_bytes, 0),
    (index, 0),
    *((tokenizers, seed) for seed in range(2)),
]


def use(directory: Path, options: dict[str, Any]) -> str | None:
    """Load, look, and speak with the tokenizer; what was refused, or None."""
    try:
        model = load(directory, **options)
        found = logits(model)
        assert found.shape[1] == model.head.width
        ids = model.tokenizer.encode("12 7")
        assert all(type(token) is int for token in ids) and isinstance(model.tokenizer.decode(ids), str)
        if isinstance(model.tokenizer, FileTokenizer) and model.tokenizer.template is not None:
            assert isinstance(model.tokenizer.chat([{"role": "user", "content": "hi"}]), str)
    except UnmaskError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("make", "seed"), CHUNKS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_every_case_loads_or_is_refused(make, seed, tmp_path, ring):
    held(make, seed, tmp_path, ring)


def held(
    make: Callable[[Path], Callable[[Random], Case]],
    seed: int,
    home: Path,
    ring: Callable[[], object],
    cases: int = CASES,
) -> None:
    """Every case of a chunk loads or is refused, soon and without taking memory."""
    case = make(home)
    refused = 0
    for number in range(cases):
        directory, options, done = case(Random(f"{make.__name__} {seed} {number}"))
        what = f"{make.__name__}, seed {seed}, case {number}: {done}"
        ring()
        peak, start = memory.host_peak(), time.process_time()
        try:
            said = use(directory, options)
        except BaseException as error:  # the tokenizers library panics with one that is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            pytest.fail(f"{what}\n{type(error).__name__}: {str(error)[:500]}")
        assert time.process_time() - start < SLOW, what
        assert memory.host_peak() - peak < LARGE, what
        assert said is None or (said.isprintable() and 10 < len(said) < 1000), f"{what}\n{said}"
        refused += said is not None
    assert refused > cases // 4, "too few of the mutations do anything"
