"""Recipe <-> command line: one flag for each setting, with its help and the samplers or searches that take it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from unmask.decoding import background
from unmask.decoding.defaults import over
from unmask.decoding.named_recipes import settings_of
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import (
    ALIASES,
    Setting,
    defaults,
    explained,
    groups,
    known,
    parse,
    short,
    spelled,
    takers,
)
from unmask.errors import InputError, SettingError

BELOW = "what no flag says is decided by the model's own recipe, which `unmask models NAME` shows"
METAVARS = {int: "N", float: "X", str: "NAME", tuple: "IDS"}


def add(
    parser: argparse.ArgumentParser,
    only: Collection[str] | None = None,
    default: Mapping[str, Any] | None = None,
    help: Mapping[str, str] | None = None,
    below: bool = False,
) -> None:
    """A flag for every setting, or for `only` some, in groups; names of other projects are taken but not listed.

    `default` has the defaults of this command, `help` the help of those that mean something else here. `below`: flags
    are given over the recipe of a model, whose settings go before the defaults.
    """
    about = BELOW if below else None
    for title, rows in groups().items():
        some = [row for row in rows if only is None or row.name in only]
        group = parser.add_argument_group(title, about) if some else parser
        about = None if some else about  # once, above the first group
        for row in some:
            _add(group, row.name, row, (help or {}).get(row.name, _help(row, default or {}, below)))
            for alias in row.aliases:
                _add(parser, alias, row, argparse.SUPPRESS)


def _help(row: Setting, default: Mapping[str, Any], below: bool) -> str:
    if row.name in default:
        return f"{row.text()} [{short(default[row.name])}]"
    taken = defaults(row)
    if below and taken and not takers(row.name) and row.name != "seed":
        taken = f"the model's own, else {taken}"
    return explained(row) + (f" [{taken}]" if taken else "")


def _add(parser: argparse._ActionsContainer, name: str, row: Setting, text: str) -> None:
    option, text = spelled(name), text if text == argparse.SUPPRESS else text.replace("%", "%%")
    if row.kind is bool:
        parser.add_argument(option, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        action, metavar = "append" if row.kind is tuple else "store", row.metavar or METAVARS[row.kind]
        parser.add_argument(option, dest=name, action=action, metavar=metavar, help=text)


def to_recipe(args: argparse.Namespace, default: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe file, if there is one, else the `default` of this command, with the flags that were given over it."""
    try:
        return _readable(Recipe.from_dict(to_settings(args, default)))
    except SettingError as error:
        recipe = getattr(args, "recipe", None)
        if recipe is None or error.setting not in _canonical(settings_of(recipe)) - _canonical(given(args)):
            raise
        raise SettingError(f"the recipe {recipe!r}: {error.message}", error.hint, setting=error.setting) from None


def for_model(args: argparse.Namespace, default: Mapping[str, Any], model: str, canvas: bool = False) -> Recipe:
    """`to_recipe`, where without a recipe file the flags are given over the `default` recipe of this model."""
    if args.recipe is not None:
        return to_recipe(args)
    return _readable(over(given(args), default, model, canvas=canvas))


def _readable(recipe: Recipe) -> Recipe:
    """The recipe; a background file that cannot be read is refused before a model is loaded."""
    if recipe.background is not None:
        background.load(recipe.background)
    return recipe


def to_settings(args: argparse.Namespace, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The same as names and values, also those that are a Recipe's own defaults."""
    base = (default or {}) if getattr(args, "recipe", None) is None else settings_of(args.recipe)
    flags = given(args)
    replaced = _canonical(flags)
    return {name: value for name, value in base.items() if ALIASES.get(name, name) not in replaced} | flags


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, with their values."""
    found: dict[str, Any] = {}
    for flag in [*known(), *ALIASES]:
        value = getattr(args, flag, None)
        value = ",".join(value) if isinstance(value, list) else value
        if value is not None:
            found[flag] = parse(ALIASES.get(flag, flag), value) if isinstance(value, str) else value
    return found


def _canonical(names: Collection[str]) -> set[str]:
    return {ALIASES.get(name, name) for name in names}


def none(args: argparse.Namespace, where: str) -> None:
    """Refuse settings where nothing is decoded."""
    for flag in [*known(), *ALIASES, "recipe"]:
        if getattr(args, flag) is not None:
            raise InputError(f"{spelled(flag)} has no effect on {where}", "leave it out")
