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
    """List the bundled recipes, those whose names begin so, or describe one."""
    whole = args.name in RECIPES
    chosen = [
        one for name, one in RECIPES.items() if (name == args.name if whole else name.startswith(args.name or ""))
    ]
    if not chosen:
        raise unknown("recipe", args.name, RECIPES, "`unmask recipes` lists them")
    if args.json:
        found = [{**vars(one), "command": one.command(), "evaluation": one.evaluation()} for one in chosen]
        print(json.dumps(found[0] if whole else found))
    elif not whole:
        show.console().print(show.recipes(chosen))
    else:
        show.recipe(chosen[0])


def add_samplers(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    flag(parser, "--json", "print JSON")


def add_recipes(parser: ArgumentParser) -> None:
    about = "only this one, in detail; else those whose names begin so"
    parser.add_argument("name", nargs="?", metavar="NAME", help=about)
    flag(parser, "--json", "print JSON")


add_searches = add_samplers
