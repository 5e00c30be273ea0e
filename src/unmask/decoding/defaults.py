"""A model's default recipe × the settings that a user gives -> the Recipe that is used.

The user's settings hold over the default's. With another sampler the settings of the default's sampler are dropped,
with another search those of its search: they were chosen for that one. A default that the user's settings exclude is
dropped, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.denoiser import Denoiser, traits
from unmask.decoding import settings as table
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import ALIASES, SAMPLER, SEARCH, ours
from unmask.errors import SettingError

Settings = Mapping[str, Any]
KINDS = {"sampler": SAMPLER, "search": SEARCH}  # setting -> the group of the settings that go with it


def default_of(model: Denoiser) -> Recipe:
    """The model's default recipe; Recipe() of a model that brings none."""
    recipe = checked(traits(model).recipe, model.name)
    try:
        recipe.build_rules(model.vocab, model.head.width)
    except SettingError as error:
        raise _wrong(model.name, error) from None
    return recipe


def resolve(model: Denoiser, given: Settings, *, canvas: bool = False) -> Recipe:
    """The settings that are `given` over the model's default; on a canvas the default's length is dropped."""
    return over(given, traits(model).recipe, model.name, canvas=canvas)


def over(given: Settings, default: Settings, name: str, *, canvas: bool = False) -> Recipe:
    """`resolve`, where only the default settings of the model of this `name` are known."""
    own = canonical({setting: value for setting, value in given.items() if value is not None})
    kept = below(canonical(given), default, name)
    if canvas:
        kept.pop("length", None)
    while True:
        try:
            return Recipe.from_dict({**kept, **own})
        except SettingError as error:
            if error.setting not in kept:
                raise
            del kept[error.setting]


def below(given: Settings, default: Settings, name: str) -> dict[str, Any]:
    """The default's settings that stay beside those `given`, under their own names."""
    recipe = checked(default, name)
    kept = {setting: value for setting, value in canonical(default).items() if setting not in given}
    for kind, group in KINDS.items():
        names, chosen = table.registries()[kind].table, given.get(kind)
        if chosen is None or recipe.name(kind) == chosen or names.get(recipe.name(kind)) is chosen:
            continue
        rows = table.known()
        kept = {setting: value for setting, value in kept.items() if rows[setting].group != group}
    return kept


def checked(default: Settings, name: str) -> Recipe:
    """The default settings of a model as a Recipe."""
    try:
        return Recipe.from_dict(default)
    except SettingError as error:
        raise _wrong(name, error) from None


def canonical(given: Settings) -> dict[str, Any]:
    """The same under our own names; a setting that is given twice is refused."""
    found: dict[str, Any] = {}
    for alias, value in given.items():
        setting = ALIASES.get(alias, alias)
        if setting in found:
            raise SettingError(f"{setting} is given twice", "leave one out", setting=setting)
        found[setting] = ours(setting, value)
    return found


def _wrong(name: str, error: SettingError) -> SettingError:
    way_out = f"{error.hint}; give a whole recipe, or mend the model's recipe.json"
    return SettingError(f"the default recipe of {name}: {error.message}", way_out)
