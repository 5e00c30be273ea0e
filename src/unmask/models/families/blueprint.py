"""A checkpoint's config -> Blueprint: the network's shape, where every tensor goes, and the family's special ids."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import ModelError
from unmask.models.experts import Experts
from unmask.models.network import Shape


@dataclass(frozen=True)
class Slot:
    """A place for one tensor of a checkpoint: `rows` rows of a parameter from `start` on; 0 rows: all of it."""

    parameter: str
    start: int = 0
    rows: int = 0
    expert: int | None = None  # whose rows, in a parameter [experts, rows, columns]
    axis: int = 0  # of the rows; 1: those of all experts

    def place(self, whole: Tensor) -> Tensor:
        """The part of the parameter that the tensor is written into."""
        mine = whole if self.expert is None else whole[self.expert]
        return mine.narrow(self.axis, self.start, self.rows or mine.shape[self.axis])

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of that part."""
        mine = list(whole) if self.expert is None else list(whole[1:])
        mine[self.axis] = self.rows or mine[self.axis]
        return tuple(mine)


@dataclass(frozen=True)
class Blueprint:
    """All that a config specifies. What it leaves open (None) comes from the tokenizer or the user."""

    shape: Shape
    slots: Mapping[str, Slot]  # tensor of the checkpoint -> place in the network
    merged: Mapping[str, Slot] = field(default_factory=dict)  # tensors of all experts, in the place of single ones
    limit: int | None = None
    mask: int | None = None
    last: int | None = None  # the mask, where neither config nor tokenizer names it
    eos: tuple[int, ...] = ()
    pad: int | None = None
    buffers: tuple[str, ...] = ()  # tensors that a checkpoint may have and that are not needed
    copies: Mapping[str, str] = field(default_factory=dict)  # like `buffers`, and equal to another tensor
    scales: Mapping[str, str] = field(default_factory=dict)  # matrix in 8 bits -> tensor with its scales
    group: int | None = None  # columns under one scale; None: all of a row
    shift: bool = False  # output i belongs to token i + 1
    subs: bool = False  # the mask is not part of the distribution
    blocks: int | None = None  # positions to a block, where it was trained with block-causal attention, too or only
    aligned: bool = False  # only: blocks are counted in columns from the start of the row
    noise: Callable[[Tensor], Tensor] | None = None  # diffusion time -> noise level

    def of(self, tensors: Iterable[str]) -> Blueprint:
        """The plan for a checkpoint with these tensors: experts are single or merged."""
        if not any(name in self.merged for name in tensors):
            return self
        single = {name: slot for name, slot in self.slots.items() if slot.expert is None}
        return replace(self, slots=single | dict(self.merged), merged={})


@dataclass(frozen=True)
class Published:
    """A family's files as published, for `unmask fabricate`; `tiny` is the same in a small size."""

    full: Mapping[str, Any]  # config.json
    tiny: Mapping[str, Any]
    specials: Mapping[str, Mapping[str, int]]  # size -> text of a special token -> its id
    template: str | None  # of chats
    shard: int  # bytes of a file, at most

    @classmethod
    def of(cls, family: str) -> Published:
        """From published.json, where `tiny` has only what differs."""
        path = Path(__file__).with_name("published.json")
        found = json.loads(path.read_text(encoding="utf-8"))[family]
        full, specials = found["full"], found.get("specials", {})
        return cls(full, full | found["tiny"], specials, found.get("template"), found.get("shard", 5 * 10**9))


@dataclass(frozen=True)
class Family:
    """One layout of checkpoints."""

    name: str
    about: str
    types: tuple[str, ...]  # values of model_type in config.json
    read: Callable[[Config], Blueprint]
    published: Published
    owns: Callable[[Mapping[str, Any]], bool] = lambda config: True  # of configs with such a model_type, which are its
    blockwise: bool = False  # attention is in blocks of columns, or can be: `load` takes their length
    mask_tokens: tuple[str, ...] = ()  # texts of the mask token, where neither config nor tokenizer names it
    ends: tuple[str, ...] | None = ()  # texts of tokens that end a turn, besides the EOS; None: nothing ends a text
    stops: bool = False  # generation_config.json may name more of them
    borrows: str | None = None  # hub id whose tokenizer it uses, where the checkpoint has none
    buffers: Callable[[Shape], dict[str, Tensor]] = lambda shape: {}  # published beside the weights
    recipe: Mapping[str, Any] = field(default_factory=dict)  # default settings: those of the published programs
    generation: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # generation_config.json -> the same


# --- reading a config ------------------------------------------------------------------------------------------------

MOST = {
    "layers": 1024,
    "heads": 4096,
    "width": 1 << 17,
    "vocabulary": 1 << 23,
    "length": 1 << 26,
    "experts": 4096,
}  # larger: damaged


@dataclass(frozen=True)
class Config:
    """The fields of a config.json, read strictly: a wrong kind or size is a ModelError that names the field."""

    values: Mapping[str, Any]

    def integer(self, name: str, kind: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to MOST[kind]; null or missing is the default."""
        value = self._get(name, default)
        if type(value) is not int or not least <= value <= MOST[kind]:
            raise self._wrong(name, f"it must be a whole number from {least} to {MOST[kind]}")
        return value

    def integers(self, name: str, most: int, count: int | None = None) -> list[int] | None:
        """A list of whole numbers from 0 to `most`, `count` of them; None where it is null or missing."""
        value = self._get(name, None)
        if value is None:
            return None
        right = isinstance(value, list) and all(type(one) is int and 0 <= one <= most for one in value)
        if not right or (count is not None and len(value) != count):
            some = "" if count is None else f"{count} "
            raise self._wrong(name, f"it must be a list of {some}whole numbers from 0 to {most}")
        return list(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise self._wrong(name, "it must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "it must be true or false")
        return value

    def expect(self, **wanted: Any) -> None:
        """Refuse a variant that this network does not compute; a missing field is the default variant."""
        for name, value in wanted.items():
            if self._get(name, value) != value:
                raise self._wrong(name, f"only {value!r} is supported")

    def token(self, name: str, vocabulary: int) -> int | None:
        """A token id, or None."""
        found = self.tokens(name, vocabulary)
        if len(found) > 1:
            raise self._wrong(name, "it must be one token id")
        return found[0] if found else None

    def tokens(self, name: str, vocabulary: int) -> tuple[int, ...]:
        """A token id or a list of them; nothing where it is null or missing."""
        value = self._get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < vocabulary for token in ids):
            raise self._wrong(name, f"token ids go from 0 to {vocabulary - 1}")
        return tuple(ids)

    def divided(self, what: str, total: int, parts: int) -> int:
        """total / parts, where that is whole."""
        if total % parts:
            raise ModelError(f"config.json: {what} do not divide: {total} by {parts}", "the config is damaged")
        return total // parts

    def _get(self, name: str, default: object) -> Any:
        """The value of a field; null or missing is the default."""
        value = self.values.get(name)
        return default if value is None else value

    def _wrong(self, name: str, way_out: str) -> ModelError:
        value = reprlib.repr(self.values[name]) if name in self.values else "missing"
        return ModelError(f"config.json: {name} is {value}", way_out)


# --- where tensors go ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """What a layout calls the tensors of a network with gated MLPs; `block` has {} for the number of the layer."""

    embed: str
    norm: str
    head: str
    block: str
    attention_norm: str
    mlp_norm: str
    qkv: tuple[str, ...]  # queries, keys and values, or one tensor with all of them in this order
    out: str
    gate: str
    up: str
    down: str
    qk_norm: tuple[str, str] = ("", "")  # of queries and of keys, where they have norms
    router: str = "mlp.gate"
    choice: str = "mlp.gate.expert_bias"  # the bias with which experts are chosen
    expert: str = "mlp.experts.{}"  # has {} for the number of the expert
    shared: str = "mlp.shared_experts"

    @property
    def parts(self) -> tuple[str, str, str]:
        """Gate, up and down inside an expert: the last words of what they are in a layer."""
        gate, up, down = (name.rpartition(".")[2] for name in (self.gate, self.up, self.down))
        return gate, up, down


def slots(shape: Shape, names: Names) -> dict[str, Slot]:
    """The place of every tensor: queries, keys and values share a parameter, and so do gate and up."""
    found = {names.embed: Slot("embed"), names.norm: Slot("norm")}
    stacked: dict[str, Slot] = {}
    if not shape.tied:
        found[names.head] = Slot("head")
    for layer in range(shape.layers):
        old, new = names.block.format(layer), f"blocks.{layer}"
        found[f"{old}.{names.attention_norm}"] = Slot(f"{new}.attention_norm")
        found[f"{old}.{names.mlp_norm}"] = Slot(f"{new}.mlp_norm")
        found[f"{old}.{names.out}"] = Slot(f"{new}.out")
        if shape.qk_norm:
            found |= {
                f"{old}.{part}": Slot(f"{new}.{kind}_norm") for kind, part in zip("qk", names.qk_norm, strict=True)
            }
        start, many = 0, (shape.heads, shape.kv, shape.kv) if len(names.qkv) > 1 else (shape.heads + 2 * shape.kv,)
        for part, heads in zip(names.qkv, many, strict=True):
            found[f"{old}.{part}"] = Slot(f"{new}.qkv", start, heads * shape.each)
            start += heads * shape.each
        if shape.experts is not None and layer in shape.experts.layers:
            found |= _router_slots(shape.experts, names, old, f"{new}.experts")
            stacked |= _expert_slots(shape.experts, names, old, f"{new}.experts")
        else:
            found |= _gated_slots((names.gate, names.up, names.down), old, f"{new}.", shape.inner)
    weights = {f"{name}.weight": replace(slot, parameter=f"{slot.parameter}.weight") for name, slot in found.items()}
    if not shape.qkv_bias:
        return weights | stacked
    biased = {name: slot for name, slot in found.items() if slot.parameter.endswith(".qkv")}
    biases = {f"{name}.bias": replace(slot, parameter=f"{slot.parameter}.bias") for name, slot in biased.items()}
    return weights | biases | stacked


def _gated_slots(parts: tuple[str, str, str], old: str, new: str, inner: int) -> dict[str, Slot]:
    """Gate, up and down of an MLP: the first two share the parameter {new}up, the last one is {new}down."""
    gate, up, down = (f"{old}.{part}" for part in parts)
    return {gate: Slot(f"{new}up", 0, inner), up: Slot(f"{new}up", inner, inner), down: Slot(f"{new}down")}


def _router_slots(experts: Experts, names: Names, old: str, new: str) -> dict[str, Slot]:
    """The router, and the MLP that every token passes."""
    found = {f"{old}.{names.router}": Slot(f"{new}.router")}
    if experts.shared:
        found |= _gated_slots(names.parts, f"{old}.{names.shared}", f"{new}.shared_", experts.shared)
    return found


def _expert_slots(experts: Experts, names: Names, old: str, new: str) -> dict[str, Slot]:
    """Tensors of single experts, and the bias with which they are chosen, all with their whole names."""
    found = {f"{old}.{names.choice}": Slot(f"{new}.bias")} if experts.bias else {}
    for expert in range(experts.count):
        mine = _gated_slots(names.parts, f"{old}.{names.expert.format(expert)}", f"{new}.", experts.inner)
        found |= {f"{name}.weight": replace(slot, expert=expert) for name, slot in mine.items()}
    return found


def merged_slots(experts: Experts, names: Names) -> dict[str, Slot]:
    """Tensors that hold the parts of all experts of a layer."""
    found: dict[str, Slot] = {}
    for layer in experts.layers:
        old = f"{names.block.format(layer)}.{names.expert.removesuffix('.{}')}"
        found |= _gated_slots(names.parts, old, f"blocks.{layer}.experts.", experts.inner)
    return {name: replace(slot, axis=1) for name, slot in found.items()}
