"""A family and a size -> a directory with a random checkpoint in the family's published layout.

For tests, benchmarks and bug reports: config, shards with their index, and a tokenizer that knows bytes and the
family's special tokens under their published ids. What a model of it writes makes no sense.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from unmask.errors import InputError, unknown
from unmask.models.checkpoint import INDEX, NAMES, WEIGHTS, Progress, tensor_shapes
from unmask.models.family import Config, Family
from unmask.models.pretrained import FAMILIES
from unmask.models.tokens import QWEN2, byte_level

SIZES = ("tiny", "full")
PIECE = 1 << 24  # random numbers drawn at a time


def fabricate(
    family: str, directory: Path, size: str = "tiny", seed: int = 0, progress: Progress | None = None
) -> list[Path]:
    """Write the checkpoint; the files, in the order in which they were written. Equal seeds give equal files."""
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{str(directory)!r} is not empty", "give a directory that does not exist yet")
    kind, config = FAMILIES[family], dict(FAMILIES[family].tiny if size == "tiny" else FAMILIES[family].full)
    plan = kind.read(Config(config))
    dtype = NAMES[config["torch_dtype"]]
    shapes = tensor_shapes(plan)
    extra = kind.buffers(plan.shape)
    shards = _shards({**shapes, **{name: tuple(x.shape) for name, x in extra.items()}}, dtype.itemsize, kind.shard)
    directory.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    written: list[Path] = []
    total, done = sum(map(_count, shapes.values())) * dtype.itemsize, 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for number, names in enumerate(shards, 1):
            file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            made = dict(zip(names, pool.map(_maker(shapes, extra, dtype, seed), names), strict=True))
            save_file(made, directory / file, metadata={"format": "pt"})
            (directory / file).chmod(0o644)  # the library leaves it to the owner alone
            written.append(directory / file)
            places |= dict.fromkeys(names, file)
            done += sum(tensor.nbytes for tensor in made.values())
            if progress is not None:
                progress(min(done, total), total)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        written.append(_write(directory / INDEX, index))
    if kind.specials:
        written += _tokenizer(directory, kind, size)
    written.append(_write(directory / "config.json", config))  # last: without it nothing is a checkpoint
    return written


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _shards(shapes: dict[str, tuple[int, ...]], item: int, most: int) -> list[list[str]]:
    """Names in files of at most so many bytes, in order."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        more = _count(shape) * item
        if shards[-1] and size + more > most:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += more
    return shards


def _maker(
    shapes: dict[str, tuple[int, ...]], extra: dict[str, Tensor], dtype: torch.dtype, seed: int
) -> Callable[[str], Tensor]:
    """name -> tensor: a pure function of name and seed, so that threads and shards change nothing."""

    def make(name: str) -> Tensor:
        if name in extra:
            return extra[name]
        shape = shapes[name]
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))  # it takes 32 bits
        made = torch.empty(shape, dtype=dtype)
        flat = made.view(-1)
        one, scale = (1.0, 0.1) if len(shape) == 1 and "bias" not in name else (0.0, _scale(shape))
        for begin in range(0, len(flat), PIECE):
            some = flat[begin : begin + PIECE]
            some.copy_(torch.randn(len(some), generator=generator) * scale + one)
        return made

    return make


def _scale(shape: tuple[int, ...]) -> float:
    """Keeps the size of activations through a layer; biases are small."""
    return shape[1] ** -0.5 if len(shape) > 1 else 0.02


def _tokenizer(directory: Path, family: Family, size: str) -> Iterator[Path]:
    special = dict(family.specials[size])
    taken, free = set(special.values()), iter(range(1 << 20))
    ids = (number for number in free if number not in taken)
    letters = {letter: next(ids) for letter in sorted(ByteLevel.alphabet())}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    first = next(iter(special))
    settings |= {"bos_token": first, "chat_template": family.template}
    yield _write(directory / "tokenizer.json", byte_level(letters, [], special, QWEN2))
    yield _write(directory / "tokenizer_config.json", {k: v for k, v in settings.items() if v is not None})


def _write(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
