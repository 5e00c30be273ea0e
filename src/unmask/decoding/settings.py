"""SETTINGS: name -> Setting, the one table of all that a recipe may hold; text and values -> checked values.

Recipe, flags, the HTTP schema, the catalogue, lm-eval's arguments and the reference page read it. Who takes a setting,
and with which default, is read from the signatures of the registries. A parameter that has no row gets one from its
annotation, so that a sampler, search, potential or chooser of a user's own brings settings of its own.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from unmask.errors import SettingError, unknown

Build = Callable[..., Any]
DEFAULT_LENGTH = 64  # positions to generate where neither the user nor the model sets a limit: a few lines of text
SAMPLER, SEARCH = "sampler settings", "search settings"
WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of token ids, or eos",
}


class Range(NamedTuple):
    """The numbers that are allowed."""

    low: float = -math.inf
    high: float = math.inf
    closed: bool = True  # whether `low` itself is allowed

    def __str__(self) -> str:
        low = "" if self.low <= -1e9 else f"{'at least' if self.closed else 'above'} {self.low:g}"
        return ", ".join(filter(None, (low, "" if self.high >= 1e9 else f"at most {self.high:g}")))


ANY = Range()
COUNT = Range(1, 2**31)
HEAT = Range(0, 1e9)  # beyond it every distribution is flat
NATS = Range(0, 1000)  # e^-1000 is 0
AMOUNT = Range(0)
POSITIVE = Range(0, closed=False)
SHARE = Range(0, 1)
PART = Range(0, 1, closed=False)


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    kind: type  # int, float, bool, str or tuple
    help: str
    range: Range = ANY
    unset: str = ""  # what leaving it out means, where that is not "off"
    default: Any = None  # of a Recipe; None: that of the sampler or search
    choices: Callable[[], Mapping[str, Collection[str]]] | None = None  # taker -> names; "" holds for every taker
    aliases: tuple[str, ...] = ()  # names of other projects
    metavar: str = ""  # what stands for the value in the help of its flag
    group: str = ""  # the heading under which it is listed

    @property
    def flag(self) -> str:
        return spelled(self.name)

    @property
    def general(self) -> bool:
        """Whether it has an effect on every sampler and search."""
        return self.group not in (SAMPLER, SEARCH)

    def names(self, taker: str = "") -> list[str] | None:
        """Its choices, for this taker or for any; None if every value of its kind is allowed."""
        if self.choices is None:
            return None
        found = self.choices()
        return list(found.get(taker, [name for names in found.values() for name in names]))

    def text(self) -> str:
        """The help, with the choices."""
        if self.choices is None or self.name in ("sampler", "search"):
            return self.help
        parts = [_listed(names) + (f" for {taker}" if taker else "") for taker, names in self.choices().items()]
        return f"{self.help}: {'; '.join(parts)}"

    def parse(self, text: str) -> Any:
        """A value from text; its range is not checked."""
        try:
            if self.kind is tuple:
                return tuple(part for part in text.split(",") if part)
            return {"true": True, "false": False}[text.lower()] if self.kind is bool else self.kind(text)
        except (ValueError, KeyError):
            raise SettingError(f"{self.name} is {text!r}", f"give {WORDS[self.kind]}", setting=self.name) from None

    def check(self, value: Any) -> Any:
        """The value with its exact type, or an error that says what is allowed."""
        if self.kind is tuple:
            return self._ids(value)
        if self.kind is float and type(value) is int and abs(value) <= 2**63:
            value = float(value)
        if type(value) is not self.kind:
            raise SettingError(f"{self.name} is {value!r}", f"give {WORDS[self.kind]}", setting=self.name)
        names = None if self.choices is None else self.choices().get("")
        if names is not None and value not in names:
            raise unknown(self.name, value, names, setting=self.name)
        if self.range is not ANY:
            self._check_range(value)
        return value

    def _ids(self, value: Any) -> tuple[int | str, ...]:
        values = (value,) if isinstance(value, int | str) else value
        if not isinstance(values, tuple | list) or not all(type(v) in (int, str) for v in values):
            raise SettingError(f"{self.name} is {value!r}", "give token ids, or eos", setting=self.name)
        return tuple(int(v) if re.fullmatch(r"-?[0-9]{1,18}", str(v)) else v for v in values)

    def _check_range(self, value: Any) -> None:
        low, high, closed = self.range
        what = f"{self.name} is {value:{'d' if self.kind is int else 'g'}}"
        if not (value >= low if closed else value > low):
            hint = f"it must be {'at least' if closed else 'above'} {low}"
            raise SettingError(what, hint, setting=self.name)
        if value > high or value == math.inf:
            most = high if isinstance(high, int) else f"{high:.15g}"
            hint = f"it must be {'finite' if high == math.inf else f'at most {most}'}"
            raise SettingError(what, hint, setting=self.name)


def spelled(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


# --- the registries, loaded when they are first asked for: the names of the settings need no torch --------------------


class Registry(NamedTuple):
    """A table of functions whose parameters are settings, apart from the `fixed` first ones."""

    table: Mapping[str, Build]
    fixed: int
    group: str


def registries() -> dict[str, Registry]:
    """Setting -> the functions that it names."""
    from unmask.samplers import SAMPLERS
    from unmask.search import CHOOSERS, POTENTIALS, SCHEMES, SEARCHES

    return {
        "sampler": Registry(SAMPLERS, 0, SAMPLER),
        "search": Registry(SEARCHES, 0, SEARCH),
        "potential": Registry({name: one.score for name, one in POTENTIALS.items()}, 2, SEARCH),
        "scheme": Registry(SCHEMES, 3, SEARCH),
        "choose": Registry({name: one.pick for name, one in CHOOSERS.items()}, 2, SEARCH),
    }


def _names_of(kind: str) -> Callable[[], Mapping[str, Collection[str]]]:
    return lambda: {"": registries()[kind].table}


def _rules() -> Mapping[str, Collection[str]]:
    from unmask.samplers import DREAM_RULES, P2_RULES, SDAR_RULES

    return {"p2": P2_RULES, "dream": DREAM_RULES, "sdar": SDAR_RULES}


def _noises() -> Mapping[str, Collection[str]]:
    from unmask.samplers import NOISES

    return {"": NOISES}


def _products() -> Mapping[str, Collection[str]]:
    from unmask.samplers import PRODUCTS

    return {"": PRODUCTS}


# --- the table -------------------------------------------------------------------------------------------------------

# fmt: off
_TABLE: dict[str, tuple[Setting, ...]] = {
    "sampler and search": (
        Setting("sampler", str, "in which order positions are decided, and how many in a step; `unmask samplers`",
                default="confidence", choices=_names_of("sampler"), aliases=("remasking",)),
        Setting("search", str, "how low-uncertainty paths are found; `unmask searches`",
                default="vanilla", choices=_names_of("search")),
    ),
    "what is decoded": (
        Setting("length", int, "positions to generate after the prompt", COUNT,
                f"the model's default, or as many as it allows, at most {DEFAULT_LENGTH}",
                aliases=("max_new_tokens", "gen_length")),
        Setting("seed", int, "equal seeds give equal tokens; of several prompts or questions, each takes the next one",
                Range(-(2**63), 2**63 - 1), default=0),
    ),
    "how tokens are drawn": (
        Setting("temperature", float, "of the tokens; 0 takes the most probable one", HEAT, default=0.0),
        Setting("top_k", int, "draw only from this many most probable tokens", COUNT),
        Setting("top_p", float, "draw only from the most probable tokens that reach this probability together", PART),
        Setting("guidance", float, "scale of classifier-free guidance; 0 is off, more doubles the evaluations", HEAT,
                default=0.0, aliases=("cfg_scale",)),
        Setting("attention", str, "what a position sees: everything, or (block) what is given and the blocks up to its "
                "own, for models trained so; entropies are then those of the current block",
                unset="the model's own: full, or block for families that know nothing else",
                choices=lambda: {"": ("full", "block")}),
        Setting("cache", bool, "approximate, under full attention: between full passes at the beginning of each block "
                "compute only a window around it; attention in blocks has an exact cache by itself", default=False),
        Setting("cache_block", int, "approximate, like cache: open positions to a block of the cache; under attention "
                "in blocks, positions to a part that is computed alone", COUNT, "block_length, where cache is on"),
        Setting("cache_before", int, "columns of the window before the block; fewer than 32 cost answers or entropies",
                Range(0, 2**31), "32, where it is used"),
        Setting("cache_after", int, "columns of the window after the block; entropies of masks beyond it are old",
                Range(0, 2**31), "all that follow"),
        Setting("cache_every", int, "steps from one full pass to the next, at most", COUNT,
                "only where a block begins"),
        Setting("ban", tuple, "token ids, or eos, that are never drawn; with commas, or the flag several times",
                default=()),
        Setting("late", tuple, "token ids, or eos, that are decided only when nothing else is left; given like --ban",
                default=()),
        Setting("end_penalty", float, "subtracted from the logits of EOS where tokens are proposed and positions "
                "ranked, not in the entropies; 0 is off", NATS, default=0.0),
        Setting("fill_tail", bool, "fill all that follows a decided EOS at once", default=False),
    ),
    "path entropy": (
        Setting("skip_tail", bool, "leave all that follows a decided EOS out of the state entropy", default=False),
        Setting("scope", str, "whose masks make up the state entropy",
                default="region", choices=lambda: {"": ("region", "block")}),
        Setting("constrained_entropy", bool, "measure entropies and confidences among the tokens that a constraint "
                "allows, not among all", default=False),
    ),
    SAMPLER: (
        Setting("steps", int, "planned steps", COUNT,
                "one for each open position (fast-dllm: as few as its threshold allows)"),
        Setting("block_length", int, "open positions to a block; blocks are decided from left to right", COUNT),
        Setting("select_temperature", float, "pick positions at random by their score at this temperature; 0 takes "
                "the best", HEAT, aliases=("alg_temp",)),
        Setting("bound", float, "entropy, in nats, that the positions decided in one step may add up to", AMOUNT),
        Setting("threshold", float, "decide every position of at least this confidence", SHARE,
                "0.9, where it is in use"),
        Setting("factor", float, "decide n positions at once as long as the n-th confidence is at least "
                "1 - factor/(n + 1)", POSITIVE),
        Setting("background", str, "sudoku, countdown, text, or a file of token counts; `unmask frequencies` makes one",
                metavar="FILE"),
        Setting("decay", float, "how much earlier positions are preferred", AMOUNT),
        Setting("cap", float, "upper limit of the confidence after calibration", POSITIVE),
        Setting("product", str, "how confidence and place are multiplied; float32, as published, is 0 far from the "
                "start, where positions are then decided from the left", choices=_products),
        Setting("eta", float, "remasking strength: above 1 reopens more eagerly, 0 never", AMOUNT),
        Setting("rule", str, "how positions are ranked", choices=_rules, aliases=("alg",)),
        Setting("draft", float, "share of the positions that is drafted before refining", SHARE),
        Setting("reveal", int, "positions that are decided, or masked again, in a step", COUNT),
        Setting("loops", int, "how often the least certain positions are decided anew", Range(0, 2**31)),
        Setting("rounds", int, "rounds that share the positions of a block evenly", COUNT, "one position each"),
        Setting("sub_block", int, "positions to a part of a block; parts are decided from left to right", COUNT),
        Setting("edit_threshold", float, "replace a token of the current block where another one is above this "
                "confidence", SHARE, "nothing is replaced"),
        Setting("edit_rounds", int, "rounds of replacing after the last mask of a block, at most", Range(0, 2**31),
                "16, where it is in use"),
        Setting("early_stop", bool, "end a text as soon as an EOS is written that no mask comes before"),
        Setting("eps", float, "diffusion time at the end of the schedule", Range(0, 0.5, closed=False),
                "0.001 for dream"),
        Setting("noise", str, "of the draw; float32 is MDLM's own, a defect: rare tokens are never drawn, as if the "
                "temperature were lower", choices=_noises),
    ),
    SEARCH: (
        Setting("particles", int, "paths that are decoded side by side", COUNT, aliases=("num_particles",)),
        Setting("every", int, "steps between two resamplings", COUNT,
                "a quarter of the planned steps, 4 without a plan (smc)"),
        Setting("strength", float, "how much low state entropy is favoured", Range(0, 1e100),  # weights overflow there
                "5 (smc)"),
        Setting("potential", str, "what a particle is weighed by", choices=_names_of("potential")),
        Setting("scheme", str, "how copies are drawn from the weights", choices=_names_of("scheme")),
        Setting("target", float, "solve the strength for this effective sample size, a share of the particles", PART),
        Setting("below", float, "resample only where the effective sample size is under this share of the particles",
                PART),
        Setting("reopen", float, "a copy masks this share of what it has decided again, drawn by how unlikely the "
                "tokens were", SHARE),
        Setting("choose", str, "what the returned particle is chosen by", choices=_names_of("choose")),
        Setting("until", float, "stop at a path whose cost, what particles are chosen by, is under this; paths come in "
                "waves of 1, 1, 2, 4, …; 0: all at once; `unmask calibrate stop` finds a value", AMOUNT),
        Setting("most", int, "with until: paths in all its waves, at most", COUNT, "as many as particles"),
        Setting("escalate", str, "with until: samplers for prompts that no path so far answers well enough, cheap ones "
                "first, each with its settings: `confidence steps=29; uniform`; the look decides between them"),
        Setting("calibrated", str, "what until was found for: model, precision and settings; refused elsewhere; "
                "`unmask calibrate stop` writes it"),
        Setting("beams", int, "paths that are kept after each resampling", COUNT),
        Setting("candidates", int, "paths that each beam grows into", COUNT),
    ),
}
# fmt: on
SETTINGS: dict[str, Setting] = {row.name: replace(row, group=group) for group, rows in _TABLE.items() for row in rows}
ALIASES = {alias: row.name for row in SETTINGS.values() for alias in row.aliases}
SAMPLER_ALIASES = {"low_confidence": "confidence", "random": "uniform"}
SEARCH_ALIASES = {"bon": "best-of-n", "e-bon": "best-of-n", "e-smc": "smc"}
# names of other libraries that are not settings -> the way here, in Python and as flags
ELSEWHERE = {
    "max_tokens": ("length", "--length"),
    "do_sample": ("temperature", "--temperature"),
    "n": ("decode_batch(model, prompts, n=…)", "--n"),
    "num_samples": ("decode_batch(model, prompts, n=…)", "--n"),
    "num_return_sequences": ("decode_batch(model, prompts, n=…)", "--n"),
    "stop_strings": ("stop", "--stop"),
    "gpu": ("load(name, device='cuda')", "--device cuda"),
}
NAMED = {"sampler": SAMPLER_ALIASES, "search": SEARCH_ALIASES}


def ours(setting: str, value: Any) -> Any:
    """The value of a setting, under our own name for it."""
    return NAMED[setting].get(value, value) if setting in NAMED and isinstance(value, str) else value


# --- who takes what --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def parameters(build: Build, fixed: int = 0) -> dict[str, inspect.Parameter]:
    """The settings that a function takes: its parameters after the `fixed` first ones."""
    try:
        found = inspect.signature(build, eval_str=True)
    except NameError:  # an annotation that only a type checker can read
        found = inspect.signature(build)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in list(found.parameters.items())[fixed:] if one.kind in named}


def takes(build: Build) -> list[str]:
    """The names that a sampler or search takes."""
    return list(parameters(build))


def _entries() -> Iterator[tuple[str, Build, Registry]]:
    """Every function of every registry, with the name by which people know it."""
    for kind, registry in registries().items():
        for name, build in registry.table.items():
            yield name if registry.fixed == 0 else f"{kind} {name}", build, registry


def takers(name: str) -> dict[str, Any]:
    """The samplers, searches and so on that take this setting, each with its default."""
    found = [(who, parameters(build, registry.fixed).get(name)) for who, build, registry in _entries()]
    return {who: one.default for who, one in found if one is not None}


def general(name: str) -> bool:
    """Whether a setting has an effect on every sampler and search; an unknown one is left to Recipe."""
    return name not in known() or known()[name].general


def known() -> dict[str, Setting]:
    """The table, and the rows of what registered functions of a user's own take besides."""
    found = dict(SETTINGS)
    for who, build, registry in _entries():
        for row in rows_of(build, registry, who).values():
            found.setdefault(row.name, row)
    return found


def rows_of(build: Build, registry: Registry, who: str) -> dict[str, Setting]:
    """The rows of all that a function takes."""
    return {name: row_of(one, who, registry.group) for name, one in parameters(build, registry.fixed).items()}


def row_of(one: inspect.Parameter, who: str, group: str) -> Setting:
    """The row of a parameter: that of the table, else one from its annotation or its default."""
    if one.name in SETTINGS:
        return SETTINGS[one.name]
    hint = type(one.default) if one.annotation is one.empty else one.annotation
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [typing.get_origin(part) or part for part in parts if part is not type(None)]
    if len(kinds) != 1 or kinds[0] not in WORDS:
        way_out = "annotate it as int, float, bool, str or a tuple of them"
        raise SettingError(f"{one.name} of {who} has no kind that a setting can have", way_out, setting=one.name)
    return Setting(one.name, kinds[0], f"a setting of {who}", group=group)


def parse(name: str, text: str) -> Any:
    """A value of the setting `name` from text; that of an unknown one stays text."""
    rows = SETTINGS if name in SETTINGS else known()
    return rows[name].parse(text) if name in rows else text


# --- for people ------------------------------------------------------------------------------------------------------


def describe(name: str, build: Build, helps: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An entry of a registry for JSON: its name, its docstring and its settings, explained by the table or `helps`."""
    words = inspect.cleandoc(build.__doc__ or "").split("\n\n")
    helps = {row.name: explained(row) for row in known().values()} if helps is None else helps
    return {
        "name": name,
        "summary": " ".join(words[0].split()),
        "more": " ".join(" ".join(words[1:]).split()),
        "settings": [
            {"name": one.name, "default": _json(one.default), "help": helps.get(one.name, "")}
            for one in parameters(build).values()
        ],
    }


def _json(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return None
    return default if default is None or isinstance(default, int | float | str) else str(default)


def explained(row: Setting) -> str:
    """The help, with the choices and what leaving it out means."""
    return row.text() + (f"; by default {row.unset}" if row.unset else "")


def defaults(row: Setting) -> str:
    """Who takes a setting, with the defaults there: `eb 0.01`; of a general one, its default."""
    who = takers(row.name)
    if not who:
        return "" if row.default is None or row.default is False or row.default == () else short(row.default)
    values = list(who.values())
    if len(who) > 1 and values[0] is not None and values == values[:1] * len(who):
        return f"{', '.join(who)}: {short(values[0])}"
    nothing = (None, inspect.Parameter.empty)
    return ", ".join(taker if value in nothing else f"{taker} {short(value)}" for taker, value in who.items())


def short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def groups() -> dict[str, list[Setting]]:
    """Headings and the rows under them, every setting once."""
    found: dict[str, list[Setting]] = {}
    for row in known().values():
        found.setdefault(row.group, []).append(row)
    return found


def reference() -> str:
    """Every setting as Markdown: a table for each group, then the names of other projects."""
    lines: list[str] = []
    for title, rows in groups().items():
        lines += [f"## {title[0].upper()}{title[1:]}", "", *_grid("setting flag kind values default meaning".split())]
        lines += [_cells(f"`{row.name}`", f"`{row.flag}`", *_described(row)) for row in rows] + [""]
    lines += ["## Names of other projects", "", *_grid(["name", "is"])]
    lines += [_cells(f"`{alias}`", f"`{name}`") for alias, name in ALIASES.items()]
    lines += [_cells(f"sampler `{alias}`", f"sampler `{name}`") for alias, name in SAMPLER_ALIASES.items()]
    lines += [_cells(f"search `{alias}`", f"search `{name}`") for alias, name in SEARCH_ALIASES.items()]
    return "\n".join(lines) + "\n"


def _described(row: Setting) -> tuple[str, ...]:
    values = "" if row.choices is None else ", ".join(f"`{name}`" for name in dict.fromkeys(row.names() or ()))
    kind = "list" if row.kind is tuple else row.kind.__name__
    default = "; ".join(filter(None, (row.unset, defaults(row))))
    return kind, values or str(row.range), default, row.help


def _grid(heads: list[str]) -> list[str]:
    return [_cells(*heads), _cells(*["---"] * len(heads))]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
