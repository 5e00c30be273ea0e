"""`unmask samplers`, `searches` and `recipes`: registries -> tables, or all about one entry."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from unmask.cli import show
from unmask.cli.parser import flag
from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.settings import describe
from unmask.errors import unknown
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES


def run_samplers(args: Namespace) -> None:
    """List the samplers, or describe one."""
    show.listed("sampler", [describe(name, build) for name, build in SAMPLERS.items()], args)


def run_searches(args: Namespace) -> None:
    """List the searches, or describe one."""
    show.listed("search", [describe(name, build) for name, build in SEARCHES.items()], args)


def run_recipes(args: Namespace) -> None:
    """List the bundled recipes, or describe one."""
    if args.name is not None and args.name not in RECIPES:
        raise unknown("recipe", args.name, RECIPES, "`unmask recipes` lists them")
    chosen = list(RECIPES.values()) if args.name is None else [RECIPES[args.name]]
    if args.json:
        found = [{**vars(one), "command": one.command()} for one in chosen]
        print(json.dumps(found if args.name is None else found[0]))
    elif args.name is None:
        show.console().print(show.recipes(chosen))
    else:
        show.recipe(chosen[0])


def add_samplers(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    flag(parser, "--json", "print JSON")


add_searches = add_recipes = add_samplers
