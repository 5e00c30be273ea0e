"""Recipe: one way of decoding as one frozen value; to and from keywords, text, TOML and JSON."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.core.beliefs import DrawRule, Penalty
from unmask.core.state import Vocab
from unmask.core.step import Rules
from unmask.decoding import settings as table
from unmask.decoding.recipe_files import from_json, from_toml, read_settings
from unmask.decoding.settings import ALIASES, SETTINGS, Build, Registry, ours, parse
from unmask.errors import SettingError, unknown
from unmask.samplers import Sampler
from unmask.search import Search

# how the parts of a search get settings of their own
BIND: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "potential": lambda one, own: dataclasses.replace(one, score=partial(one.score, **own)),
    "scheme": lambda one, own: partial(one, **own),
    "choose": lambda one, own: dataclasses.replace(one, pick=partial(one.pick, **own)),
}


REMOVED = ("after", "temper", "islands", "weight")  # settings of 0.1


class _ReadOnly(dict[str, Any]):
    """A dict that refuses changes."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError("the settings of a Recipe are read-only: use replace")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse  # type: ignore

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReadOnly, (dict(self),)


@dataclass(frozen=True)
class Recipe:
    """None means the default of the chosen sampler or search; a setting that has no effect on them is an error.

    `sampler` and `search` are names in the registries, or functions like those in the registries. `settings` holds the
    settings without a field: of such functions, or of one sampler alone. They may also be given by name.
    """

    sampler: str | Callable[..., Sampler] = "confidence"
    search: str | Callable[..., Search] = "vanilla"
    # what is decoded
    length: int | None = None  # positions to generate after a prompt
    seed: int = 0
    # how tokens are drawn
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    guidance: float = 0.0
    attention: str | None = None  # what a position sees
    cache_block: int | None = None
    ban: tuple[int | str, ...] = ()
    late: tuple[int | str, ...] = ()
    end_penalty: float = 0.0
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
    # settings of samplers, searches, potentials and choosers that have no field here
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    if not TYPE_CHECKING:  # type checkers know the fields; any other name of a setting may be given, too

        def __init__(self, *placed: Any, **values: Any) -> None:
            own = values.pop("settings", {})
            if not isinstance(own, Mapping):
                raise SettingError(f"settings is {own!r}", "give names and values", setting="settings")
            names = [one.name for one in fields(Recipe)[:-1]]
            if len(placed) > len(names):
                raise TypeError(f"a Recipe takes at most {len(names)} positional arguments, {len(placed)} were given")
            found: dict[str, Any] = {}
            inherited = isinstance(own, _ReadOnly)  # of another Recipe, in `dataclasses.replace`: what is given wins
            for given, value in [
                *zip(names, placed, strict=False),
                *values.items(),
                *({} if inherited else own).items(),
            ]:
                name = ALIASES.get(given, given)
                if name in found:
                    raise SettingError(f"{name} is given twice", "leave one out", setting=name)
                found[name] = ours(name, value)
            found = {**own, **found} if inherited else found
            for one in fields(Recipe):
                object.__setattr__(self, one.name, found.pop(one.name, one.default))
            object.__setattr__(self, "settings", {name: value for name, value in found.items() if value is not None})
            self._check_values()
            self._check_together()

    def _check_values(self) -> None:
        """Give every setting its exact type; refuse one that is unknown, out of range or without effect."""
        for kind in ("sampler", "search"):
            entry, names = getattr(self, kind), table.registries()[kind].table
            if callable(entry):  # a registered function goes by its name
                object.__setattr__(self, kind, next((name for name in names if names[name] is entry), entry))
            elif dataclasses.is_dataclass(entry):  # a sampler or search, made already
                what = f"{kind} is a {type(entry).__name__}"
                raise SettingError(what, f"give a name, or a function that returns it: {kind}=lambda: …", setting=kind)
            elif str(entry) not in names:
                raise unknown(kind, entry, names, setting=kind)
        own: dict[str, Any] = dict(self.settings)
        taken: dict[str, table.Setting] = {}
        for kind, part in self._parts.items():
            taken |= table.rows_of(*part, self.name(kind))
        given = {name: value for name, value in self.to_dict().items() if name not in ("sampler", "search")}
        rows = SETTINGS if given.keys() <= SETTINGS.keys() else {**table.known(), **taken}
        for name, value in given.items():
            if name in REMOVED:
                raise SettingError(
                    f"{name} was removed in 0.2", "leave it out: it did not help, see docs/research/search.md"
                )
            if name not in rows and name in table.ELSEWHERE:
                raise SettingError(f"unknown setting {name!r}", f"use {table.ELSEWHERE[name][0]}", setting=name)
            if name not in rows:
                raise unknown("setting", name, [*rows, *ALIASES], setting=name)
            checked = rows[name].check(value)
            if name in own:
                own[name] = checked
            else:
                object.__setattr__(self, name, checked)
        object.__setattr__(self, "settings", _ReadOnly(own))
        for name in given:
            if not rows[name].general and name not in taken:
                who = " or ".join(sorted(table.takers(name), key="auto".__ne__))  # auto first, as we advise
                what = f"{name} has no effect on sampler {self.name('sampler')} with search {self.name('search')}"
                raise SettingError(what, f"leave it out, or use {who}", setting=name)

    def _check_together(self) -> None:
        """Refuse settings that exclude each other."""
        sampler, name = self.build_sampler(), self.name("sampler")
        if self.scope == "block" and sampler.block_length is None:
            raise SettingError("scope block needs blocks", "give a block_length, or use scope region", setting="scope")
        if self.temperature == 0 and not sampler.filters and (self.top_k is not None or self.top_p is not None):
            what = f"top_k and top_p have no effect on sampler {name} at temperature 0"
            raise SettingError(what, "give a temperature", setting="top_k" if self.top_p is None else "top_p")
        if self.fill_tail and sampler.revises:
            what = f"fill_tail has no effect on sampler {name}, which may reopen an EOS"
            raise SettingError(what, "leave it out", setting="fill_tail")
        if self.reopen and (not sampler.scheduled or sampler.revises):
            why = "revises by itself" if sampler.revises else "plans no steps"
            what = f"reopen does not go with sampler {name}, which {why}"
            raise SettingError(what, "leave it out", setting="reopen")
        if self.fill_tail and self.reopen:
            what = "fill_tail does not go with reopen, which may reopen an EOS"
            raise SettingError(what, "leave one out", setting="fill_tail")
        self._check_cache_settings()
        if self.attention == "block":
            self.check_blocks()
        self.build_search()

    @property
    def caches(self) -> bool:
        """Whether an approximate cache is asked for."""
        return bool(self.get("cache")) or self.cache_block is not None

    def _check_cache_settings(self) -> None:
        """Refuse settings of a cache that is not asked for, and a cache without blocks."""
        for name in ("cache_before", "cache_after", "cache_every"):
            if self.get(name) is not None and not self.caches:
                raise SettingError(f"{name} has no effect without a cache", "give cache, too", setting=name)
        if self.get("cache") and self.cache_block is None and self.build_sampler().block_length is None:
            what = f"cache needs blocks, which sampler {self.name('sampler')} has not"
            raise SettingError(what, "give block_length or cache_block, or use semi-ar", setting="cache")
        if self.caches and self.attention != "block":
            self.check_cache()

    def check_blocks(self) -> None:
        """Refuse what does not decide block after block from left to right."""
        if "block_length" not in table.takes(self._parts["sampler"][0]):
            what = f"attention block does not go with sampler {self.name('sampler')}, which knows no blocks"
            raise SettingError(what, "choose semi-ar, confidence or uniform, for example", setting="attention")
        if self.reopen:
            what = "attention block does not go with reopen, which masks positions of earlier blocks"
            raise SettingError(what, "leave one out", setting="reopen")
        for name in ("cache_before", "cache_after", "cache_every"):
            if self.get(name) is not None:
                what = f"{name} has no effect on attention in blocks"
                raise SettingError(what, "leave it out: its cache is exact", setting=name)

    def check_cache(self) -> None:
        """Refuse an approximate cache where masks could come back into the part that is not computed."""
        if self.build_sampler().revises or self.reopen:
            who = "reopen" if self.reopen else f"sampler {self.name('sampler')}"
            what = f"an approximate cache does not go with {who}, which may mask positions before the block"
            hint = "state entropy would leave them out; leave one of them out"
            raise SettingError(what, hint, setting="cache_block")

    # --- what it builds ---

    def name(self, kind: str) -> str:
        """The name of the sampler or of the search, also where that is a function of a user's own."""
        entry = getattr(self, kind)
        return str(getattr(entry, "__name__", entry))

    def get(self, name: str) -> Any:
        """The value of a setting, also of one that has no field; None where it is the sampler's or search's default."""
        return self.settings[name] if name in self.settings else vars(self).get(name)

    def build_sampler(self) -> Sampler:
        """The sampler with its settings; made once."""
        return self._sampler

    def build_search(self) -> Search:
        """The search with its settings; made once."""
        return self._search

    @cached_property
    def _sampler(self) -> Sampler:
        made: Sampler = self._parts["sampler"][0](**self._given("sampler"))
        return made

    @cached_property
    def _search(self) -> Search:
        made: Search = self._parts["search"][0](**self._given("search"))
        for kind, bind in BIND.items():
            if kind in self._parts and (own := self._given(kind)):
                made = dataclasses.replace(made, **{kind: bind(getattr(made, kind), own)})
        return made

    @cached_property
    def _parts(self) -> dict[str, tuple[Build, Registry]]:
        """Its sampler and search, and what that search is made of: all that takes settings."""
        found: dict[str, tuple[Build, Registry]] = {}
        for kind, registry in table.registries().items():
            entry = getattr(self, kind)
            if kind not in ("sampler", "search"):  # of the search: its own default where no other is given
                default = table.parameters(found["search"][0]).get(kind)
                entry = default.default if default is not None and entry is None else entry
            function = entry if callable(entry) else registry.table.get(str(entry))
            if function is not None:
                found[kind] = function, registry
        return found

    def _given(self, kind: str) -> dict[str, Any]:
        """The settings that a part takes, as far as they differ from its defaults."""
        (build, registry), given = self._parts[kind], {}
        for name, one in table.parameters(build, registry.fixed).items():
            if self.get(name) is not None:
                given[name] = self.get(name)
            elif one.default is Parameter.empty:
                raise SettingError(f"{kind} {self.name(kind)} needs {name}", "give it", setting=name)
        return given

    def build_rules(self, vocab: Vocab, width: int) -> Rules:
        """The rest, with token names resolved and ids checked against the model's vocabulary."""
        ends = [name for name in ("fill_tail", "skip_tail", "end_penalty") if getattr(self, name)]
        if ends and not vocab.eos:
            raise SettingError("this model has no EOS token", f"leave {' and '.join(ends)} out", setting=ends[0])
        ban, late = (_ids(name, getattr(self, name), vocab, width) for name in ("ban", "late"))
        if len(set(ban) - {vocab.mask}) >= width - (vocab.mask < width):
            raise SettingError("every token is banned", "leave at least one", setting="ban")
        penalty = Penalty(vocab.eos, self.end_penalty) if self.end_penalty else None
        draw = DrawRule(self.temperature, self.top_k, self.top_p, ban, penalty)
        entropy = bool(self.get("constrained_entropy"))
        return Rules(draw, late, self.fill_tail, self.skip_tail, self.scope, constrained_entropy=entropy)

    # --- to and from the outside ---

    def __getattr__(self, name: str) -> Any:
        """A setting that has no field, by its name."""
        name = ALIASES.get(name, name)
        if name in SETTINGS and "settings" in vars(self):
            return self.get(name)
        raise AttributeError(f"a Recipe has no setting {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """The fields, without what was built from them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From a pickle, also of 0.1."""
        Recipe.__init__(
            self, **{name: value for name, value in state.items() if not (value is None or name in REMOVED)}
        )

    def replace(self, **changes: Any) -> Recipe:
        """A new Recipe with these settings."""
        changes = {ALIASES.get(name, name): value for name, value in changes.items()}
        names = {one.name for one in fields(self)}
        own = {name: value for name, value in changes.items() if name not in names}
        kept = {name: value for name, value in changes.items() if name in names}
        return dataclasses.replace(self, **{"settings": {**self.settings, **own}, **kept})

    def to_dict(self) -> dict[str, Any]:
        """The settings that differ from the defaults, and always sampler and search."""
        found: dict[str, Any] = {kind: self.name(kind) for kind in ("sampler", "search")}
        for one in fields(self)[2:-1]:
            if getattr(self, one.name) != one.default:
                found[one.name] = getattr(self, one.name)
        return {**found, **self.settings}

    def to_text(self) -> str:
        """`sampler=eb search=smc bound=0.1`: one line that `from_text` reads back."""
        return " ".join(f"{name}={shlex.quote(_spelled(value))}" for name, value in self.to_dict().items())

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_toml(self) -> str:
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.to_dict().items())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """From names and values; names of other projects are understood, an unknown one is an error."""
        return cls(**values)

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
                raise SettingError(f"{name!r} is not a setting", "write name=value")
            if name in values:
                raise SettingError(f"{name} is given twice", "leave one out", setting=name)
            values[name] = parse(ALIASES.get(name, name), value)
        return cls.from_dict(values)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return cls.from_dict(from_json(text))

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        return cls.from_dict(from_toml(text))

    @classmethod
    def load(cls, path: str | Path, **changes: Any) -> Recipe:
        """From a .toml or .json file, or by a name of `unmask recipes`, with these changes."""
        from unmask.decoding.named_recipes import settings_of  # a hundred of them, read when one is wanted

        found = settings_of(path) if isinstance(path, str) else read_settings(path)
        changes = {ALIASES.get(name, name): value for name, value in changes.items()}
        return cls.from_dict({name: v for name, v in found.items() if ALIASES.get(name, name) not in changes} | changes)


SHOWN = [
    Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type) for one in fields(Recipe)
]
SHOWN[-1] = Parameter("settings", Parameter.VAR_KEYWORD)
Recipe.__signature__ = Signature(SHOWN)  # type: ignore[attr-defined]  # help() and notebooks show the fields
Recipe.__doc__ = f"{Recipe.__doc__}\n" + "".join(f"    {one.name}: {SETTINGS[one.name].help}\n" for one in SHOWN[:-1])


def _spelled(value: Any) -> str:
    """A value as `from_text` reads it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ids(name: str, tokens: tuple[int | str, ...], vocab: Vocab, width: int) -> tuple[int, ...]:
    """Token ids from ids and the name `eos`."""
    found: list[int] = []
    for token in tokens:
        if token == "eos":
            if not vocab.eos:
                raise SettingError(f"{name} names eos, but this model has no EOS token", "give ids", setting=name)
            found.extend(vocab.eos)
        elif isinstance(token, int) and 0 <= token < width:
            found.append(token)
        else:
            raise SettingError(f"{name} holds {token!r}", f"give ids from 0 to {width - 1}, or eos", setting=name)
    return tuple(found)
