"""A Judge -> a directory of config, tokenizer and safetensors in small parts, and back: to carry it elsewhere.

16 bits are float16, in the layout that transformers reads by itself. 8 bits are int8 with one scale for each row of a
matrix (`models/bits.py`), half the size, and only unmask reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.errors import InputError, ModelError
from unmask.evaluate.judge.judge import Judge
from unmask.models.files.bits import pack, unpack
from unmask.models.files.checkpoint import new_checkpoint, write_json, write_weights

INDEX = "model.safetensors.index.json"
PACKED = "packed.json"  # its presence says that the weights are in 8 bits
BITS = (16, 8)


def export(judge: Judge, directory: str | Path, bits: int = 16, part: int = 60) -> list[Path]:
    """Write a judge in files of at most `part` MiB each; the files."""
    if bits not in BITS:
        raise InputError(f"bits is {bits}", "choose 16 or 8")
    if part < 1:
        raise InputError(f"part is {part}", "it must be at least 1 MiB")
    weights = _weights(judge)
    tensors = pack(weights) if bits == 8 else {name: weight.half() for name, weight in weights.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point()):
        raise ModelError(f"weights of {judge.name} have no float16", "export with 8 bits")
    shares = _shares(tensors, part * 2**20)
    path = Path(directory)
    with new_checkpoint(path) as begun:
        _write_words(judge, path, begun)
        names: dict[str, str] = {}
        for number, share in enumerate(shares, 1):
            kind = "packed" if bits == 8 else "model"
            file = path / f"{kind}-{number:05}-of-{len(shares):05}.safetensors"
            write_weights(file, share, begun)
            names |= dict.fromkeys(share, file.name)
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": names}
        write_json(path / (PACKED if bits == 8 else INDEX), index, begun)
        write_json(path / "config.json", _config(judge, bits), begun)
    return begun


def _weights(judge: Judge) -> dict[str, Tensor]:
    """The weights by name, on the CPU; of tensors that share memory, the first."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, weight in judge.model.state_dict().items():
        if weight.data_ptr() not in seen:
            found[name] = weight.detach().cpu().contiguous()
        seen.add(weight.data_ptr())
    return found


def _shares(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """The tensors in order, in shares of at most `most` bytes with room for a header."""
    room = most - 64 * 2**10
    shares: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > room:
            need = -(-(tensor.nbytes + 64 * 2**10) // 2**20)
            raise InputError(f"{name} alone has {need} MiB", f"give --part {need} or more, or 8 bits")
        if size + tensor.nbytes > room:
            shares.append({})
            size = 0
        shares[-1][name] = tensor
        size += tensor.nbytes
    return shares


def _config(judge: Judge, bits: int) -> dict[str, Any]:
    """The model's own config, without the entries about its source file."""
    config: dict[str, Any] = json.loads(judge.model.config.to_json_string(use_diff=False))
    for gone in ("quantization_config", "_name_or_path", "_model_name_or_path", "torch_dtype"):
        config.pop(gone, None)
    return config | {"architectures": [type(judge.model).__name__], "dtype": "float16" if bits == 16 else "float32"}


def _write_words(judge: Judge, path: Path, begun: list[Path]) -> None:
    """The tokenizer, whose library writes several files at once."""
    before = set(path.iterdir())
    try:
        judge.words.save_pretrained(str(path))
    finally:
        begun.extend(sorted(set(path.iterdir()) - before))


def is_packed(path: Path) -> bool:
    """Whether a directory holds a judge in 8 bits."""
    return (path / PACKED).is_file()


def unpacked(path: Path, transformers: Any, dtype: torch.dtype) -> Any:
    """The model of a directory in 8 bits."""
    try:
        files = sorted(set(json.loads((path / PACKED).read_text(encoding="utf-8"))["weight_map"].values()))
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= load_file(path / Path(file).name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelError(
            f"the parts in {str(path)!r} cannot be read", str(error)[:120] or "export them again"
        ) from None
    config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing, unexpected = model.load_state_dict(unpack(tensors), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    lost = [name for name in missing if name not in tied]
    if lost or unexpected:
        raise ModelError(
            f"the parts in {str(path)!r} do not fit their config",
            f"look at {[*lost, *unexpected][0]!r}",
        )
    model.tie_weights()
    return model
