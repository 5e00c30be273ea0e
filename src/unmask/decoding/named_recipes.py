"""recipes.toml, the paper's configurations -> RECIPES: name -> NamedRecipe: settings, model, place in the paper."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

from unmask.decoding.recipe_files import read_settings
from unmask.decoding.settings import SETTINGS
from unmask.errors import InputError, SettingError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = Mapping[str, Any]
NONE = "none"  # names the empty recipe: with it nothing of a model's default is used
NEEDS = {"pc": ("background",)}  # sampler -> settings that depend on a file of the user's
LETTERS = {"particles": "K", "every": "Δ", "candidates": "c", "beams": "s"}  # the paper's, by which it tells rows apart


@dataclass(frozen=True)
class NamedRecipe:
    """One way of decoding that the paper reports; `Recipe.load(name)` makes the Recipe."""

    name: str
    about: str  # task, row and table of the paper
    model: str  # hub id
    chat: bool  # whether prompts went through the model's chat template
    needs: tuple[str, ...]  # settings that the user must give
    settings: dict[str, Any]  # all others
    prompted: bool = True  # False: text from nothing
    family: str = ""  # of checkpoints
    tasks: tuple[str, ...] = ()  # of `unmask eval`; none where texts are judged
    tables: tuple[str, ...] = ()  # of `unmask paper` that it is a row of
    beyond: str = ""  # what the paper does not print, and where it is from

    def command(self) -> str:
        """The command line that runs it; PROMPT and FILE stand for what the user gives."""
        words = ["unmask", "generate", *(["PROMPT"] if self.prompted else []), "--recipe", self.name]
        words += ["--model", self.model, "--device", "cuda", *(["--chat"] if self.chat else [])]
        for need in self.needs:
            words += [f"--{need.replace('_', '-')}", "FILE"]
        return shlex.join(words)

    def evaluation(self) -> str | None:
        """The command line that evaluates it as the paper does; None where the paper judges texts."""
        if not self.tasks:
            return None
        words = ["unmask", "eval", self.tasks[0], "--recipe", self.name, "--model", self.model, "--device", "cuda"]
        return shlex.join([*words, "--data-dir", "FOLDER"])

    def check(self, task: str, family: str | None) -> None:
        """Refuse another task than its own, or a model of another family; None: the family is not known."""
        insist = "or add --any-recipe"
        if task not in self.tasks:
            own = " or ".join(self.tasks) or "texts from nothing"
            near = [one.name for one in RECIPES.values() if task in one.tasks and one.family == self.family]
            others = f"`unmask recipes {_begun(near)}` lists those of {task}" if near else "take one of this task"
            raise InputError(f"the recipe {self.name} is for {own}, not for {task}", f"{others}, {insist}")
        if family is not None and family != self.family:
            problem = f"the recipe {self.name} is for models of the family {self.family}, not of {family}"
            raise InputError(problem, f"give --model {self.model}, {insist}")


def _begun(names: list[str]) -> str:
    """What all of these names begin with."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike).rstrip("-")


def settings_of(name: object) -> dict[str, Any]:
    """The settings of a named recipe, or of a file; `none` is a recipe without settings."""
    if name == NONE:
        return {}
    if isinstance(name, str) and name in RECIPES:
        return RECIPES[name].settings
    if not isinstance(name, str) or not (Path(name).suffix or Path(name).exists()):
        begun = [one for one in RECIPES if one.startswith(str(name))]
        if begun:
            few = ", ".join(begun) if len(begun) < 4 else f"`unmask recipes {name}` lists {len(begun)} that begin so"
            raise SettingError(f"unknown recipe {name!r}", few, setting="recipe")
        raise unknown("recipe", name, RECIPES, "`unmask recipes` lists them")
    return read_settings(name)


def _read(text: str) -> dict[str, NamedRecipe]:
    """All combinations of all models."""
    made = [one for model, table in tomllib.loads(text).items() for one in _combine(model, table)]
    return {one.name: one for one in made}


def _combine(model: str, table: Table) -> Iterator[NamedRecipe]:
    """Tasks × rows × (no search and each search), where they go together."""
    searches = {"": {}, **table.get("searches", {})}
    for task in _columns(table.get("tasks", {})):
        for row, how in table["rows"].items():
            for search, over in searches.items():
                parts = (how, over)
                if not _fits(row, over.get("rows")) or not all(_fits(task["name"], one.get("tasks")) for one in parts):
                    continue
                names = filter(None, (model, task["name"], row, search))
                yield _named("-".join(names), model, table, task, parts)


def _named(name: str, model: str, table: Table, task: Table, parts: tuple[Table, Table]) -> NamedRecipe:
    """Settings of the model, then of the task, then of the row, then of the search."""
    takes = " ".join(one.get("takes", "") for one in (table, *parts)).split()
    settings = {**table.get("all", {}), **{key: task[key] for key in takes}}
    settings |= {key: value for one in parts for key, value in one.items() if key in SETTINGS}
    return NamedRecipe(
        name,
        _about(table, task, parts, settings),
        table["model"],
        chat=task.get("chat", False),
        needs=NEEDS.get(settings["sampler"], ()),
        settings={key: settings[key] for key in SETTINGS if key in settings},
        prompted=table.get("prompted", True),
        family=model,
        tasks=tuple(task.get("task", table.get("task", "")).split()),
        tables=tuple(f"table{number}" for number in _tables(table, task, parts)),
        beyond="; ".join(_beyond(table, parts, settings)),
    )


def _about(table: Table, task: Table, parts: tuple[Table, Table], settings: Table) -> str:
    """`GSM8K, PC-Sampler w/ E-SMC (K=5, Δ=64): Table 2, settings in Table 3`."""
    row = " w/ ".join(one["row"] for one in parts if one)
    sizes = ", ".join(f"{letter}={settings[key]}" for key, letter in LETTERS.items() if key in settings)
    where = [one["table"] for one in (table, task, *parts) if "table" in one][-1]
    place = f"Table {where}" if isinstance(where, int) else where
    more = f", settings in Table {table['settings']}" if "settings" in table else ""
    return f"{task.get('about', table.get('about'))}, {row}{f' ({sizes})' if sizes else ''}: {place}{more}"


def _beyond(table: Table, parts: tuple[Table, Table], settings: Table) -> Iterator[str]:
    """Settings that the paper does not print, each with its origin."""
    yield from (one["beyond"] for one in (table, *parts) if "beyond" in one)
    if "strength" in settings and "strength" not in table.get("tasks", {}) and "settings" not in table:
        yield "strength is that of the other models"


def _tables(table: Table, task: Table, parts: tuple[Table, Table]) -> list[int]:
    """The tables that it is in: the last of the numbers that are given, as in `_about`."""
    where = [one["table"] for one in (table, task, *parts) if "table" in one][-1]
    return [where] if isinstance(where, int) else []


def _columns(tasks: Table) -> list[dict[str, Any]]:
    """A table of columns -> one table for each task; one task without a name where there are none."""
    if not tasks:
        return [{"name": ""}]
    return [dict(zip(tasks, values, strict=True)) for values in zip(*tasks.values(), strict=True)]


def _fits(name: str, only: str | None) -> bool:
    return only is None or name in only.split()


RECIPES: dict[str, NamedRecipe] = _read(files("unmask").joinpath("decoding/recipes.toml").read_text(encoding="utf-8"))
