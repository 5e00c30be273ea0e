"""A family and a size -> a directory with a random checkpoint in the family's published layout.

For tests, benchmarks and bug reports: config, shards with their index, and a tokenizer of single bytes and the
family's special tokens under their published ids. Such a model writes nonsense.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from unmask.errors import unknown
from unmask.models.families.blueprint import Config, Published
from unmask.models.files import checkpoint
from unmask.models.files.directory import FAMILIES
from unmask.models.tokenizers import byte_level

SIZES = ("tiny", "full")
PIECE = 1 << 24  # random numbers drawn at a time


def fabricate(
    family: str, directory: Path, size: str = "tiny", seed: int = 0, progress: checkpoint.Progress | None = None
) -> list[Path]:
    """Write the checkpoint; the files in the order of writing. Equal seeds give equal files."""
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    kind, published = FAMILIES[family], FAMILIES[family].published
    config = published.tiny if size == "tiny" else published.full
    plan = kind.read(Config(config))
    dtype = checkpoint.DTYPES[config["torch_dtype"]]
    shapes = checkpoint.tensor_shapes(plan)
    extra = kind.buffers(plan.shape)
    sizes = shapes | {name: tuple(tensor.shape) for name, tensor in extra.items()}
    shards = _shards(sizes, dtype.itemsize, published.shard)
    places: dict[str, str] = {}
    total, done = sum(map(_count, shapes.values())) * dtype.itemsize, 0
    with checkpoint.new_checkpoint(directory) as written:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for number, names in enumerate(shards, 1):
                name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
                file = name if len(shards) > 1 else checkpoint.WEIGHTS
                made = dict(zip(names, pool.map(_maker(shapes, extra, dtype, seed), names), strict=True))
                checkpoint.write_weights(directory / file, made, written)
                places |= dict.fromkeys(names, file)
                done += sum(tensor.nbytes for tensor in made.values())
                if progress is not None:
                    progress(min(done, total), total)
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            checkpoint.write_json(directory / checkpoint.INDEX, index, written)
        if published.specials:
            for name, table in _tokenizer(published, size).items():
                checkpoint.write_json(directory / name, table, written)
        checkpoint.write_json(directory / "config.json", config, written)  # last: without it nothing is a checkpoint
    return written


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _shards(shapes: dict[str, tuple[int, ...]], item: int, most: int) -> list[list[str]]:
    """Names in files of at most `most` bytes, in order."""
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
    """A scale that keeps activations at their size through a layer; biases are small."""
    return shape[1] ** -0.5 if len(shape) > 1 else 0.02


def _tokenizer(published: Published, size: str) -> dict[str, dict[str, Any]]:
    """Files of a tokenizer of single bytes and the special tokens."""
    special = dict(published.specials[size])
    ids = (number for number in itertools.count() if number not in special.values())
    letters = {letter: next(ids) for letter in sorted(ByteLevel.alphabet())}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": next(iter(special))}
    settings |= {} if published.template is None else {"chat_template": published.template}
    return {"tokenizer.json": byte_level(letters, [], special), "tokenizer_config.json": settings}
