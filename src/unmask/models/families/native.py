"""unmask's own layout: the switches of the shared network in config.json, but no experts; tensors named as there."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from typing import Any

from unmask.errors import ModelError
from unmask.models.families.blueprint import MOST, Blueprint, Config, Family, Published, Slot
from unmask.models.families.mdlm import log_linear
from unmask.models.files.bits import SCALE
from unmask.models.network import ROTARY, Shape, parameter_shapes

SIZES = {"vocabulary": "vocabulary", "width": "width", "layers": "layers", "heads": "heads", "inner": "width"}
CHOICES = {"norm": ("rms", "layer"), "position": ("rotary", "learned", "both", "grid")}
FLAGS = ("qkv_bias", "bias", "qk_norm", "gated", "mlp_bias", "tied", "head_bias")
BITS = (8, 16)  # of a matrix's weights: whole numbers with scales, or floats of any type


def read(config: Config) -> Blueprint:
    """Fields of Shape by their names, special ids, `limit`, `blocks`, `time_input`, `absent_mask`, `bits`, `group`."""
    default: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Shape)}
    given: dict[str, Any] = {name: config.integer(name, kind) for name, kind in SIZES.items()}
    given |= {name: config.flag(name, bool(default[name])) for name in FLAGS}
    given |= {name: config.number(name, default[name]) for name in ("eps", "base", "logit_scale")}
    given["kv_heads"] = config.integer("kv_heads", "heads", given["heads"])
    given["head_width"] = config.integer("head_width", "width", max(1, given["width"] // given["heads"]))
    given["condition"] = 0 if not config.values.get("condition") else config.integer("condition", "width")
    for name, choices in CHOICES.items():
        given[name] = default[name] if config.values.get(name) is None else config.values[name]
        if given[name] not in choices:
            raise ModelError(f"config.json: {name} is {reprlib.repr(given[name])}", f"choose from {', '.join(choices)}")
    if given["position"] != "rotary":
        given["places"] = config.integer("places", "length")
        if given["position"] == "grid" and math.isqrt(given["places"]) ** 2 != given["places"]:
            raise ModelError(f"config.json: places is {given['places']}", "the side of a grid must be a square number")
    if given["position"] in ROTARY and given["head_width"] % 2:
        raise ModelError(f"config.json: head_width is {given['head_width']}", "rotary positions need an even one")
    config.divided("heads and kv_heads", given["heads"], given["kv_heads"])
    shape = Shape(**given)
    longest = {"rotary": MOST["length"], "grid": shape.places**2}.get(shape.position, shape.places)
    limit = config.integer("limit", "length", longest)
    if limit > longest:
        raise ModelError(f"config.json: limit is {limit}", f"it has positions for {longest}")
    bits = 16 if config.values.get("bits") is None else config.values["bits"]
    if type(bits) is not int or bits not in BITS:
        raise ModelError(f"config.json: bits is {reprlib.repr(bits)}", f"choose from {', '.join(map(str, BITS))}")
    group = None if config.values.get("group") is None else config.integer("group", "width")
    blocks = None if config.values.get("blocks") is None else config.integer("blocks", "length")
    shapes = parameter_shapes(shape)
    return Blueprint(
        shape,
        {name: Slot(name) for name in shapes},
        limit=limit,
        mask=config.token("mask_token_id", shape.vocabulary),
        eos=config.tokens("eos_token_id", shape.vocabulary),
        pad=config.token("pad_token_id", shape.vocabulary),
        scales={name: name + SCALE for name, size in shapes.items() if len(size) == 2} if bits == 8 else {},
        group=group,
        subs=config.flag("absent_mask", True),
        blocks=blocks,
        noise=log_linear if shape.condition and config.flag("time_input") else None,
    )


NATIVE = Family(
    name="native",
    about="unmask's own layout: grids, learned positions, q/k norms and the other switches of the network",
    types=("unmask",),
    read=read,
    published=Published.of("native"),
)
