"""A TOML file -> Experiment: its places (model and task) and its cells (settings, and what the paper printed there).

    title, where, claim   what it is, where the paper has it, what it should show
    kind                  cells: accuracy, or perplexity where a place has no task; runtime: seconds; paths: curves
    [all]                 settings of every cell
    [[axis]]              name, and values: each a label beside settings; the cells are all combinations of them
    [[cell]]              cells that are not a combination: labels and settings; `axes` says what the labels are
    tables                names of the tables and figures of the paper that it is, at the places with `theirs`
    [models]              where the paper has several: the label of each -> hub id
    [places.NAME]         model, task, n, `made` (how its puzzles are made), `all` (settings), `theirs`: a model of the
                          paper, `scale`: of all steps and intervals, where the canvas is shorter than the paper's,
                          `prompt`: how all texts begin, `judges`: of texts, where the paper names them
    [printed."WHAT"]      the paper's numbers: labels of a cell joined by " / " -> number; `on`: the places beside
                          which they stand, `of`: the model

A setting goes to those cells whose sampler or search takes it; `recipe` is the name of a recipe that holds all of them,
{place} in it the name of the place. A value with `only` is for the place of that name, and `how` of kind runtime is
`sequential` where one row at a time goes through the network.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any

from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import general, takes
from unmask.errors import InputError, unknown
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("cells", "runtime", "paths")
BESIDE = ("label", "labels", "how", "only")  # of a value, and no settings
ABOUT = ("on", "of")  # of printed numbers, and no cells
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One way of decoding in an experiment."""

    labels: tuple[str, ...]  # one for each axis
    settings: Settings
    how: str = ""
    only: str = ""  # the one place that it is for

    @property
    def name(self) -> str:
        return " / ".join(self.labels)


@dataclass(frozen=True)
class Place:
    """A model and its task."""

    name: str
    model: str
    task: str | None = None  # None: text from nothing, or after the prompt
    n: int | None = None  # questions or samples of a cell; None: all of the file
    made: Settings = field(default_factory=dict)  # how puzzles are made, for `unmask puzzles`
    settings: Settings = field(default_factory=dict)
    theirs: bool = False  # a model of the paper, which the user must have
    scale: float = 1.0  # of steps and intervals: as many positions a step as in the paper on a shorter canvas
    prompt: str = ""  # how all texts begin
    judges: tuple[str, ...] = ()  # of texts, where the paper names them

    @property
    def family(self) -> str | None:
        """The family of checkpoints that a model of the paper is of."""
        return next((one.family for one in RECIPES.values() if one.model == self.model), None)


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str
    title: str
    where: str
    kind: str
    claim: str
    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    places: Mapping[str, Place]
    printed: Mapping[str, Settings]  # what -> name of a cell -> the paper's number
    common: Settings = field(default_factory=dict)
    tables: tuple[str, ...] = ()  # of the paper
    models: Mapping[str, str] = field(default_factory=dict)  # label -> hub id, where the paper has several

    def measures(self, place: Place) -> str:
        """What is measured at a place: task, text, runtime or paths."""
        return self.kind if self.kind != "cells" else "task" if place.task else "text"

    def at(self, place: Place) -> tuple[Cell, ...]:
        """The cells of a place."""
        return tuple(cell for cell in self.cells if cell.only in ("", place.name))

    def recipe(self, cell: Cell, place: Place, background: str | None = None) -> Recipe:
        """How a cell is decoded at a place; `background` is for recipes of PC-Sampler that need a table."""
        if "recipe" in cell.settings:
            named = RECIPES[cell.settings["recipe"].format(place=place.name)]
            return Recipe.load(named.name, **({"background": _table(cell, background)} if named.needs else {}))
        whole = {**self.common, **place.settings, **cell.settings}
        if self.needs_table(cell, place):
            whole["background"] = _table(cell, background)
        whole |= {name: max(1, round(place.scale * whole[name])) for name in ("steps", "every") if name in whole}
        sampler, search = (whole.get(name, getattr(Recipe, name)) for name in ("sampler", "search"))
        taken = {*takes(SAMPLERS[sampler]), *takes(SEARCHES[search])}
        return Recipe.from_dict({name: value for name, value in whole.items() if name in taken or general(name)})

    def needs_table(self, cell: Cell, place: Place) -> bool:
        """Whether a cell needs a background table that the place does not name."""
        if "recipe" in cell.settings:
            return bool(RECIPES[cell.settings["recipe"].format(place=place.name)].needs)
        whole = {**self.common, **place.settings, **cell.settings}
        return whole.get("sampler") == "pc" and "background" not in whole

    def beside(self, place: Place, model: str | None = None) -> dict[str, Settings]:
        """The paper's numbers that stand beside those of a place; of another model all that it printed there."""
        label = next((label for label, name in self.models.items() if name == (model or place.model)), None)
        return {
            what: table
            for what, table in self.printed.items()
            if place.name in _several(table.get("on", place.name)) and label in (None, table.get("of", label))
        }

    def baseline(self, cell: Cell) -> Cell | None:
        """The cell that differs in the last label only and comes first; None for that one itself."""
        here = (other for other in self.cells if other.only in ("", cell.only))
        first = next(other for other in here if other.labels[:-1] == cell.labels[:-1])
        return None if first is cell else first

    def place(self, name: str | None) -> list[Place]:
        """The place of this name; by default all places with bundled models."""
        if name is None:
            mine = [place for place in self.places.values() if not place.theirs]
            if not mine:
                hint = f"choose with --on: {', '.join(self.places)}"
                hint += f"; or run all of them: unmask paper {self.tables[0]}" if self.tables else ""
                raise InputError(f"{self.name} is measured on models of the paper, which you must have", hint)
            return mine
        if name not in self.places:
            raise unknown("place", name, self.places)
        return [self.places[name]]


def read(name: str, text: str) -> Experiment:
    """The experiment of a file."""
    table = tomllib.loads(text)
    axes = table.get("axis", [])
    cells = [_cell(values) for values in product(*(axis["values"] for axis in axes))] if axes else []
    cells += [_cell(tuple({**one, "label": label} for label in one["labels"])) for one in table.get("cell", [])]
    if table["kind"] not in KINDS or len({(cell.name, cell.only) for cell in cells}) != len(cells) or not cells:
        raise InputError(
            f"{name}.toml is not an experiment", f"its kind must be {' or '.join(KINDS)}, its cells differ"
        )
    places = {key: _place(key, value) for key, value in table["places"].items()}
    known = {cell.name for cell in cells}
    for what, numbers in table.get("printed", {}).items():
        wrong = next((label for label in numbers if label not in known and label not in ABOUT), None)
        if wrong is not None:
            raise InputError(f"{name}.toml: {what} has {wrong!r}", f"its cells are {', '.join(sorted(known))}")
    labels = tuple(axis["name"] for axis in axes) or tuple(table["axes"])
    said = {key: table[key] for key in ("title", "where", "kind", "claim")}
    return Experiment(
        name,
        **said,
        axes=labels,
        cells=tuple(cells),
        places=places,
        printed=table.get("printed", {}),
        common=table.get("all", {}),
        tables=tuple(table.get("tables", ())),
        models=table.get("models", {}),
    )


def _table(cell: Cell, background: str | None) -> str:
    """The background table of a cell that needs one."""
    if background is None:
        hint = "make one with `unmask frequencies`, and give it with --background FILE"
        raise InputError(f"{cell.name} needs a table of background frequencies", hint)
    return background


def _several(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _cell(values: tuple[Settings, ...]) -> Cell:
    whole = {key: one for value in values for key, one in value.items()}
    given = {key: one for key, one in whole.items() if key not in BESIDE}
    return Cell(tuple(value["label"] for value in values), given, whole.get("how", ""), whole.get("only", ""))


def _place(name: str, table: Settings) -> Place:
    given: dict[str, Any] = {key: value for key, value in table.items() if key not in ("all", "judges")}
    return Place(name, settings=table.get("all", {}), judges=tuple(table.get("judges", ())), **given)


def _all() -> dict[str, Experiment]:
    folder = files("unmask").joinpath("evaluate/paper")
    found = {path.name[:-5]: path for path in folder.iterdir() if path.name.endswith(".toml")}
    return {name: read(name, found[name].read_text(encoding="utf-8")) for name in sorted(found)}


EXPERIMENTS: dict[str, Experiment] = _all()
TABLES = {table: one for one in EXPERIMENTS.values() for table in one.tables}  # name in the paper -> experiment
