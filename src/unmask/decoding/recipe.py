"""Recipe: one way of decoding as one frozen value; to and from keywords, text, TOML and JSON."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from unmask.core.beliefs import Draw
from unmask.core.state import Vocab
from unmask.core.step import Rules
from unmask.errors import SettingError, unknown
from unmask.samplers import SAMPLERS, Sampler
from unmask.search import SEARCHES, Search

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Recipe:
    """None means the default of the chosen sampler or search; a setting that has no effect on them is an error."""

    sampler: str = "confidence"
    search: str = "vanilla"
    # what is decoded
    length: int | None = None  # positions to generate after a prompt
    seed: int = 0
    # how tokens are drawn
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    guidance: float = 0.0
    cache_block: int | None = None
    ban: tuple[int | str, ...] = ()
    late: tuple[int | str, ...] = ()
    fill_tail: bool = False
    skip_tail: bool = False
    # how path entropy is measured
    scope: str = "region"
    # settings of samplers
    steps: int | None = None
    block_length: int | None = None
    select_temperature: float | None = None
    bound: float | None = None
    threshold: float | None = None
    factor: float | None = None
    background: str | None = None
    decay: float | None = None
    cap: float | None = None
    eta: float | None = None
    rule: str | None = None
    draft: float | None = None
    reveal: int | None = None
    loops: int | None = None
    eps: float | None = None
    # settings of searches
    particles: int | None = None
    every: int | None = None
    strength: float | None = None
    potential: str | None = None
    scheme: str | None = None
    target: float | None = None
    below: float | None = None
    reopen: float | None = None
    choose: str | None = None
    beams: int | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        if str(self.sampler) not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        if str(self.search) not in SEARCHES:
            raise unknown("search", self.search, SEARCHES)
        for name, value in self.to_dict().items():
            object.__setattr__(self, name, _checked(name, value))
        for name in self.to_dict():
            if name in SPECIFIC and name not in [*settings(SAMPLERS[self.sampler]), *settings(SEARCHES[self.search])]:
                who = " or ".join(other for registry in (SAMPLERS, SEARCHES) for other in takers(name, registry))
                what = f"{name} has no effect on sampler {self.sampler} with search {self.search}"
                raise SettingError(what, f"leave it out, or use {who}")
        sampler = self.build_sampler()
        if self.scope == "block" and sampler.block_length is None:
            raise SettingError("scope block needs blocks", "give a block_length, or use scope region")
        if self.temperature == 0 and not sampler.filters and (self.top_k is not None or self.top_p is not None):
            what = f"top_k and top_p have no effect on sampler {self.sampler} at temperature 0"
            raise SettingError(what, "give a temperature")
        if self.fill_tail and sampler.revises:
            raise SettingError(
                f"fill_tail has no effect on sampler {self.sampler}, which may reopen an EOS", "leave it out"
            )
        if self.reopen and (not sampler.scheduled or sampler.revises):
            why = "revises by itself" if sampler.revises else "plans no steps"
            raise SettingError(f"reopen does not go with sampler {self.sampler}, which {why}", "leave it out")
        if self.fill_tail and self.reopen:
            raise SettingError("fill_tail does not go with reopen, which may reopen an EOS", "leave one out")
        if self.cache_block is not None:
            self.check_cache()
        self.build_search()

    def check_cache(self) -> None:
        """Refuse a prefix cache where masks could come back into the part that is not computed."""
        if self.build_sampler().revises or self.reopen:
            who = "reopen" if self.reopen else f"sampler {self.sampler}"
            raise SettingError(
                f"a prefix cache does not go with {who}, which may mask positions before the block",
                "state entropy would leave them out; leave one of them out",
            )

    # --- what it stands for ---

    def build_sampler(self) -> Sampler:
        """The sampler with its settings."""
        return SAMPLERS[self.sampler](**self._given(SAMPLERS[self.sampler]))

    def build_search(self) -> Search:
        """The search with its settings."""
        return SEARCHES[self.search](**self._given(SEARCHES[self.search]))

    def build_rules(self, vocab: Vocab, width: int) -> Rules:
        """The rest, with token names resolved and ids checked against the model's vocabulary."""
        if (self.fill_tail or self.skip_tail) and not vocab.eos:
            raise SettingError("this model has no EOS token", "leave fill_tail and skip_tail out")
        ban, late = (_ids(name, getattr(self, name), vocab, width) for name in ("ban", "late"))
        if len(set(ban) - {vocab.mask}) >= width - (vocab.mask < width):
            raise SettingError("every token is banned", "leave at least one")
        draw = Draw(self.temperature, self.top_k, self.top_p, ban)
        return Rules(draw, late, self.fill_tail, self.skip_tail, self.scope)

    def _given(self, build: Callable[..., Any]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in settings(build) if getattr(self, name) is not None}

    # --- to and from the outside ---

    def replace(self, **changes: Any) -> Recipe:
        """A new Recipe with these settings."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The settings that differ from the defaults, and always sampler and search."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in ("sampler", "search") or getattr(self, field.name) != field.default
        }

    def to_text(self) -> str:
        """`sampler=eb search=smc bound=0.1`: one line that `from_text` reads back."""
        return " ".join(f"{name}={shlex.quote(_plain(value))}" for name, value in self.to_dict().items())

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_toml(self) -> str:
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.to_dict().items())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """From names and values; the community's names are understood, an unknown one is an error."""
        found: dict[str, Any] = {}
        for given, value in values.items():
            name = ALIASES.get(given, given)
            if name not in KINDS:
                raise unknown("setting", given, [*KINDS, *ALIASES])
            if name in found:
                raise SettingError(f"{name} is given twice", "leave one out")
            found[name] = SAMPLER_ALIASES.get(str(value), value) if name == "sampler" else value
        return cls(**found)

    @classmethod
    def from_text(cls, text: str) -> Recipe:
        """From `name=value` pairs between spaces; lists have commas, and quotes work as in a shell."""
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise SettingError(f"the recipe {text!r} cannot be read", str(error)) from None
        values: dict[str, Any] = {}
        for name, sign, value in (part.partition("=") for part in parts):
            if not sign:
                raise SettingError(f"{name!r} is no setting", "write name=value")
            if name in values:
                raise SettingError(f"{name} is given twice", "leave one out")
            values[name] = parse(ALIASES.get(name, name), value)
        return cls.from_dict(values)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return cls.from_dict(_table(json.loads, text, "JSON"))

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        return cls.from_dict(_table(tomllib.loads, text, "TOML"))

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """From a .toml or .json file."""
        return cls.from_dict(read_settings(path))


# --- what the settings may be ----------------------------------------------------------------------------------------

KINDS: dict[str, str] = {field.name: str(field.type) for field in fields(Recipe)}

ALIASES = {
    "max_new_tokens": "length",
    "gen_length": "length",
    "cfg_scale": "guidance",
    "remasking": "sampler",
    "alg": "rule",
    "alg_temp": "select_temperature",
    "num_particles": "particles",
}
SAMPLER_ALIASES = {"low_confidence": "confidence", "random": "uniform"}

CHOICES = {"scope": ("region", "block")}

# name: (lowest, highest, whether the lowest itself is allowed)
RANGES: dict[str, tuple[float, float, bool]] = {
    **dict.fromkeys(("length", "steps", "block_length", "cache_block", "reveal", "top_k"), (1, 2**31, True)),
    "loops": (0, 2**31, True),
    **dict.fromkeys(("particles", "every", "beams", "candidates"), (1, 2**31, True)),
    **dict.fromkeys(("temperature", "select_temperature", "guidance"), (0, 1e9, True)),  # 1e9: flat
    **dict.fromkeys(("bound", "decay", "eta"), (0, math.inf, True)),
    "strength": (0, 1e100, True),  # beyond it weights overflow
    **dict.fromkeys(("factor", "cap"), (0, math.inf, False)),
    **dict.fromkeys(("threshold", "draft", "reopen"), (0, 1, True)),
    **dict.fromkeys(("top_p", "target", "below"), (0, 1, False)),
    "eps": (0, 0.5, False),
    "seed": (-(2**63), 2**63 - 1, True),
}


def settings(build: Callable[..., Any]) -> list[str]:
    """The names that a sampler or search takes."""
    return list(inspect.signature(build).parameters)


SPECIFIC = {name for build in [*SAMPLERS.values(), *SEARCHES.values()] for name in settings(build)}


def takers(name: str, registry: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """The samplers or searches that take this setting, each with its default."""
    return {
        who: inspect.signature(build).parameters[name].default
        for who, build in registry.items()
        if name in settings(build)
    }


def read_settings(path: str | Path) -> dict[str, Any]:
    """The names and values of a .toml or .json file, before they are a Recipe."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise SettingError(f"cannot read the recipe {str(path)!r}", str(reason)) from None
    return _table(json.loads, text, "JSON") if Path(path).suffix == ".json" else _table(tomllib.loads, text, "TOML")


def _table(read: Callable[[str], Any], text: str, layout: str) -> dict[str, Any]:
    try:
        values = read(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the recipe is no {layout}", str(error).splitlines()[0]) from None
    if not isinstance(values, dict):
        raise SettingError("a recipe is a table of names and values", f"this {layout} is a {type(values).__name__}")
    return values


def parse(name: str, text: str) -> Any:
    """A value of the setting `name` from text."""
    kind = KINDS.get(name, "str")
    try:
        if kind.startswith("tuple"):
            return tuple(part for part in text.split(",") if part)
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text.lower()]
        return int(text) if kind.startswith("int") else float(text) if kind.startswith("float") else text
    except (ValueError, KeyError):
        kind = kind.split(" ")[0]
        way_out = {"int": "give a whole number", "float": "give a number", "bool": "give true or false"}
        raise SettingError(f"{name}={text} is no {kind}", way_out[kind]) from None


def _checked(name: str, value: Any) -> Any:
    """The value with its exact type, or an error that says what is allowed."""
    kind = KINDS[name].split(" ")[0].split("[")[0]
    if kind == "tuple":
        values = (value,) if isinstance(value, int | str) else value
        if not isinstance(values, tuple | list) or not all(type(v) in (int, str) for v in values):
            raise SettingError(f"{name} is {value!r}", "give token ids, or eos")
        return tuple(int(v) if re.fullmatch(r"-?[0-9]{1,18}", str(v)) else v for v in values)
    if kind == "float" and type(value) is int and abs(value) <= 2**63:
        value = float(value)
    if type(value).__name__ != kind:
        raise SettingError(f"{name} is {value!r}", f"give {'an' if kind == 'int' else 'a'} {kind}")
    if name in CHOICES and value not in CHOICES[name]:
        raise unknown(name, value, CHOICES[name])
    if name in RANGES:
        low, high, closed = RANGES[name]
        what = f"{name} is {value:{'d' if kind == 'int' else 'g'}}"
        if not (value >= low if closed else value > low):
            raise SettingError(what, f"it must be {'at least' if closed else 'above'} {low}")
        if value > high or value == math.inf:
            most = high if isinstance(high, int) else f"{high:.15g}"
            raise SettingError(what, f"it must be {'finite' if high == math.inf else f'at most {most}'}")
    return value


def _plain(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _ids(name: str, tokens: tuple[int | str, ...], vocab: Vocab, width: int) -> tuple[int, ...]:
    """Token ids from ids and the name `eos`."""
    found: list[int] = []
    for token in tokens:
        if token == "eos":
            if not vocab.eos:
                raise SettingError(f"{name} names eos, but this model has no EOS token", "give ids")
            found.extend(vocab.eos)
        elif isinstance(token, int) and 0 <= token < width:
            found.append(token)
        else:
            raise SettingError(f"{name} holds {token!r}", f"give ids from 0 to {width - 1}, or eos")
    return tuple(found)
