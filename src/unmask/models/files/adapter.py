"""A directory of PEFT with a LoRA adapter -> what it adds to the matrices of a checkpoint, before they are packed.

A matrix [N, K] gets B [N, r] @ A [r, K], scaled. The files are data, and everything in them must have its place.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ModelError, printable
from unmask.models.families.blueprint import Config
from unmask.models.files.checkpoint import PICKLES, TYPES, Tensors, as_text, headers, inside, label, read, read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
MOST = 1 << 16  # of a rank
EMPTY = (
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
)
OWN_BASE = "only true, false and gaussian are read: others change the weights of the checkpoint too"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: two tensors for each matrix that it changes."""

    scale: float
    pairs: Mapping[str, tuple[str, str]]  # tensor of the checkpoint -> A and B
    tensors: Tensors

    def added(self, name: str, begin: int, end: int) -> Tensor | None:
        """What some rows of a tensor get, in float32; None: nothing."""
        if name not in self.pairs:
            return None
        down, up = (read(self.tensors, part).float() for part in self.pairs[name])
        return up[begin:end] @ down * self.scale

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse an adapter of another model than one with these tensors."""
        for name, (down, up) in self.pairs.items():
            shape = shapes.get(name)
            if shape is None or len(shape) != 2:
                raise ModelError(
                    f"the adapter changes {_some([name])}, which is no matrix of the model", "take its own model"
                )
            (rank, columns), (rows, other) = self.tensors.shapes[down], self.tensors.shapes[up]
            if (rows, columns) != shape or rank != other:
                found = f"{as_text((rows, other))} by {as_text((rank, columns))}"
                raise ModelError(
                    f"the adapter's {_some([name])} is {found}, the model's {as_text(shape)}", "take its own model"
                )


def read_adapter(directory: Path) -> Adapter:
    """The adapter in a directory, if it is plain LoRA."""
    config = read_json(directory, CONFIG)
    if config is None:
        raise ModelError(
            f"{str(directory)!r} has no {CONFIG}", "give the directory of a LoRA adapter, as PEFT saves it"
        )
    rank, scale = _scale(config)
    if inside(directory, WEIGHTS) is None:
        pickled = any(path.suffix in PICKLES for path in directory.iterdir())
        hint = "a pickle can run code: save it as safetensors" if pickled else "download the adapter again"
        raise ModelError(f"{label(directory)} has no {WEIGHTS}", hint)
    tensors = headers(directory, [WEIGHTS])
    pairs: dict[str, dict[str, str]] = {}
    for full, shape in tensors.shapes.items():
        found = NAME.fullmatch(full)
        if found is None:
            raise ModelError(f"the adapter has {_some([full])}", "only LoRA of matrices is merged")
        if len(shape) != 2 or shape[0 if found[2] == "A" else 1] != rank:
            raise ModelError(f"{_some([full])} is {as_text(shape)}, its rank must be {rank}", "the adapter is damaged")
        if tensors.types[full] not in TYPES:
            raise ModelError(
                f"{_some([full])} has the type {tensors.types[full]}", f"only {', '.join(TYPES)} are loaded"
            )
        pairs.setdefault(f"{found[1]}.weight", {})[found[2]] = full
    lone = [name for name, parts in pairs.items() if len(parts) < 2]
    if lone or not pairs:
        raise ModelError(f"the adapter has no A and B for {_some(lone) or 'any matrix'}", "it is damaged")
    _check_targets(config, pairs)
    return Adapter(scale, {name: (parts["A"], parts["B"]) for name, parts in pairs.items()}, tensors)


def _scale(config: Mapping[str, Any]) -> tuple[int, float]:
    """The rank and the factor of the product.

    fan_in_fan_out has no effect: it is about layers with transposed weights, which none of our families has.
    """
    fields = _Fields(config)
    fields.expect(peft_type="LORA", use_dora=False, lora_bias=False, use_qalora=False, bias="none")
    for name in EMPTY:
        if config.get(name):
            raise ModelError(f"{CONFIG}: {name} is {reprlib.repr(config[name])}", "only plain LoRA is merged")
    for name in ("use_rslora", "fan_in_fan_out"):
        fields.flag(name)
    begun = config.get("init_lora_weights")
    if not (begun is None or isinstance(begun, bool) or begun == "gaussian"):
        raise ModelError(f"{CONFIG}: init_lora_weights is {reprlib.repr(begun)}", OWN_BASE)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 0 < rank <= MOST:
        raise ModelError(f"{CONFIG}: r is {reprlib.repr(rank)}", f"it must be a whole number from 1 to {MOST}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e9:
        raise ModelError(f"{CONFIG}: lora_alpha is {reprlib.repr(alpha)}", "it must be a number")
    return rank, alpha / (rank**0.5 if config.get("use_rslora") else rank)


class _Fields(Config):
    """Fields of adapter_config.json."""

    def _wrong(self, name: str, way_out: str) -> ModelError:
        return ModelError(f"{CONFIG}: {name} is {reprlib.repr(self.values.get(name))}", way_out)


def _check_targets(config: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse tensors that target_modules does not name, and names without tensors; a pattern is not looked at."""
    targets = config.get("target_modules")
    if targets is None or isinstance(targets, str):
        return
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise ModelError(f"{CONFIG}: target_modules is {reprlib.repr(targets)}", "it must be a list of names")
    ends = {name: set(_ends(name.removesuffix(".weight"))) for name in names}
    known, meant = set().union(*ends.values()), set(targets)
    for what, found in (
        ("names no", [name.removesuffix(".weight") for name in names if not ends[name] & meant]),
        ("has no tensors for", [one for one in targets if one not in known]),
    ):
        if found:
            raise ModelError(f"the adapter {what} {_some(found)}", "it is damaged")


def _ends(name: str, most: int = 16) -> Iterator[str]:
    """a.b.c, b.c and c of a.b.c: the names by which a module may be meant."""
    parts = name.split(".")
    for begin in range(max(0, len(parts) - most), len(parts)):
        yield ".".join(parts[begin:])


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = [printable(name[:80]) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def add(numbers: Tensor, more: Tensor | None) -> Tensor:
    """Both together, in float32 at least."""
    return numbers if more is None else numbers.to(torch.promote_types(numbers.dtype, torch.float32)) + more
