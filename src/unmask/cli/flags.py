"""Recipe <-> command line: one flag for each setting, with its help and the samplers or searches that take it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.recipe import ALIASES, CHOICES, KINDS, Recipe, parse, read_settings, takers
from unmask.errors import InputError, SettingError, unknown
from unmask.samplers import DREAM_RULES, P2_RULES, SAMPLERS
from unmask.search import CHOOSERS, POTENTIALS, SCHEMES, SEARCHES


def _or(names: Mapping[str, Any] | tuple[str, ...]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"


HELP: dict[str, str] = {
    "sampler": "in which order positions are decided, and how many in a step; listed by `unmask samplers`",
    "search": "how low-uncertainty paths are found; listed by `unmask searches`",
    "length": "positions to generate after the prompt; by default as many as the model allows, at most 64",
    "seed": "equal seeds give equal tokens; of several prompts or questions, each takes the next one",
    "temperature": "of the tokens; 0 takes the most probable one",
    "top_k": "draw only from this many most probable tokens",
    "top_p": "draw only from the most probable tokens that reach this probability together",
    "guidance": "scale of classifier-free guidance; 0 is off, more doubles the evaluations",
    "cache_block": "approximate: keep keys and values before the block of the first mask; open positions to a block",
    "ban": "token ids, or eos, that are never drawn; with commas, or the flag several times",
    "late": "token ids, or eos, that may only be decided when nothing else is left; given like --ban",
    "fill_tail": "fill all that follows a decided EOS at once",
    "skip_tail": "leave all that follows a decided EOS out of the state entropy",
    "scope": f"the masks that make up the state entropy: of the whole {_or(CHOICES['scope'])}",
    "steps": "planned steps; by default one for each open position (fast-dllm: as few as its threshold allows)",
    "block_length": "open positions to a block; blocks are decided from left to right",
    "select_temperature": "pick positions at random by their score at this temperature; 0 takes the best",
    "bound": "entropy, in nats, that the positions decided in one step may add up to",
    "threshold": "decide every position of at least this confidence; by default 0.9, where it is in use",
    "factor": "decide n positions at once as long as the n-th confidence is at least 1 - factor/(n + 1)",
    "background": "sudoku, countdown, text, or a file of token counts; `unmask frequencies` makes one",
    "decay": "how much earlier positions are preferred",
    "cap": "upper limit of the confidence after calibration",
    "eta": "remasking strength: above 1 reopens more eagerly, 0 never",
    "rule": f"how positions are ranked: {_or(P2_RULES)} for p2; {_or(DREAM_RULES)} for dream",
    "draft": "share of the positions that is drafted before refining",
    "reveal": "positions that are decided, or masked again, in a step",
    "loops": "how often the least certain positions are decided anew",
    "eps": "diffusion time at the end of the schedule; dream: by default 0.001",
    "particles": "paths that are decoded side by side",
    "every": "steps between two resamplings; smc: by default a quarter of the planned steps, 4 without a plan",
    "strength": "how much low state entropy is favoured; smc: by default 5",
    "potential": f"what a particle is weighed by: {_or(POTENTIALS)}",
    "scheme": f"how copies are drawn from the weights: {_or(SCHEMES)}",
    "target": "solve the strength for this effective sample size, a share of the particles",
    "below": "resample only where the effective sample size is under this share of the particles",
    "reopen": "a copy masks this share of what it has decided again, drawn by how unlikely the tokens were",
    "choose": f"which particle is returned, by {_or(CHOOSERS)}",
    "beams": "paths that go on after each resampling",
    "candidates": "paths that each beam grows into",
}

GENERAL: dict[str, tuple[str, ...]] = {
    "what is decoded": ("length", "seed"),
    "how tokens are drawn": (
        "temperature",
        "top_k",
        "top_p",
        "guidance",
        "cache_block",
        "ban",
        "late",
        "fill_tail",
    ),
    "path entropy": ("scope", "skip_tail"),
}


def groups() -> dict[str, list[str]]:
    """Headings and the settings under them, every setting once."""
    samplers = [name for name in KINDS if takers(name, SAMPLERS)]
    searches = [name for name in KINDS if takers(name, SEARCHES) and name not in samplers]
    general = {title: list(names) for title, names in GENERAL.items()}
    return {**general, "sampler settings": ["sampler", *samplers], "search settings": ["search", *searches]}


def add(
    parser: argparse.ArgumentParser,
    only: Collection[str] = tuple(KINDS),
    usual: Mapping[str, Any] | None = None,
    said: Mapping[str, str] | None = None,
) -> None:
    """A flag for every setting, or for some, in groups, with what is `usual` here; the community's names, unlisted.

    `said` has the help of those that read otherwise here.
    """
    here = usual or {}
    for title, names in groups().items():
        some = [name for name in names if name in only]
        group = parser.add_argument_group(title) if some else parser
        for name in some:
            text = f"{HELP[name].split('; ')[0]} [{_plain(here[name])}]" if name in here else HELP[name] + _taken(name)
            _add(group, name, name, (said or {}).get(name, text))
    for alias, name in ALIASES.items():
        if name in only:
            _add(parser, alias, name, argparse.SUPPRESS)


def _add(parser: argparse._ActionsContainer, flag: str, name: str, text: str) -> None:
    option, text = spelled(flag), text if text == argparse.SUPPRESS else text.replace("%", "%%")
    kind = KINDS[name].split(" ")[0].split("[")[0]
    if kind == "bool":
        parser.add_argument(option, dest=flag, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif kind == "tuple":
        parser.add_argument(option, dest=flag, action="append", metavar="IDS", help=text)
    else:
        metavar = {"int": "N", "float": "X"}.get(kind, "FILE" if name == "background" else "NAME")
        parser.add_argument(option, dest=flag, metavar=metavar, help=text)


def _taken(name: str) -> str:
    """Who takes a setting and its defaults there, or its one default, in brackets."""
    who = {**takers(name, SAMPLERS), **takers(name, SEARCHES)}
    defaults = list(who.values())
    if len(who) > 1 and defaults[0] is not None and defaults == defaults[:1] * len(who):
        return f" [{', '.join(who)}: {_plain(defaults[0])}]"
    if who:
        return f" [{', '.join(_with(taker, default) for taker, default in who.items())}]"
    default = next(field.default for field in fields(Recipe) if field.name == name)
    return "" if default is None or default is False or default == () else f" [{_plain(default)}]"


def _with(taker: str, default: Any) -> str:
    return taker if default is None else f"{taker} {_plain(default)}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def spelled(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _settings(name: str) -> dict[str, Any]:
    """Of a shipped recipe, or of a file."""
    if name in RECIPES:
        return RECIPES[name].settings
    if not Path(name).suffix and not Path(name).exists():
        raise unknown("recipe", name, RECIPES, "`unmask recipes` lists them")
    return read_settings(name)


def to_recipe(args: argparse.Namespace, usual: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe file, if there is one, else what is `usual`, with the flags that were given over it."""
    try:
        return Recipe.from_dict(to_settings(args, usual))
    except SettingError as error:
        if getattr(args, "recipe", None) is None:
            raise
        raise _blamed(error, args) from None


def _blamed(error: SettingError, args: argparse.Namespace) -> SettingError:
    """The error, with the recipe that the setting comes from, if it comes from there."""
    first, second = [*error.message.split(" "), ""][:2]
    name = second if first == "unknown" else first
    there = {ALIASES.get(name, name) for name in _settings(args.recipe)} | {"setting"}  # no flag has an unknown one
    flags = [name, *(alias for alias, meant in ALIASES.items() if meant == name)]
    if name not in there or any(getattr(args, flag, None) is not None for flag in flags):
        return error
    if first == "unknown":
        return SettingError(f"{error.message} in the recipe {args.recipe!r}", error.hint)
    if second not in ("is", "has"):
        return error
    return SettingError(f"{name} of the recipe {args.recipe!r}{error.message[len(name) :]}", error.hint)


def to_settings(args: argparse.Namespace, usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The same as names and values, also those that are a Recipe's own defaults."""
    given: dict[str, Any] = {}
    for flag in [*KINDS, *ALIASES]:
        value = getattr(args, flag, None)
        if isinstance(value, list):
            value = ",".join(value)
        if value is not None:
            given[flag] = parse(ALIASES.get(flag, flag), value) if isinstance(value, str) else value
    replaced = {ALIASES.get(flag, flag) for flag in given}
    base = (usual or {}) if getattr(args, "recipe", None) is None else _settings(args.recipe)
    kept = {name: value for name, value in base.items() if ALIASES.get(name, name) not in replaced}
    return {**kept, **given}


def none(args: argparse.Namespace, where: str) -> None:
    """Refuse settings where nothing is decoded."""
    for flag in [*KINDS, *ALIASES, "recipe"]:
        if getattr(args, flag) is not None:
            raise InputError(f"{spelled(flag)} has no effect on {where}", "leave it out")
