"""`unmask compare` and `join`: rows of several runs -> their differences with intervals and cost; or one file."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from unmask.cli import show
from unmask.cli.parser import flag
from unmask.evaluate import compare
from unmask.evaluate.join import join


def run_compare(args: Namespace) -> None:
    """Compare runs over the questions that they have in common."""
    found = compare.compare(args.files)
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)


def share(found: Mapping[str, Any], name: str) -> str:
    """A share and its interval."""
    return f"{found[name]:.3f} ({found[f'{name}_low']:.3f}–{found[f'{name}_high']:.3f})"


def _show(found: Mapping[str, Any]) -> None:
    """Runs over the same questions, one below the other."""
    columns = "rows", "solved", "difference", "p", "as published", "evaluations", "seconds", "AUROC", "of surprise"
    made = show.grid(*columns, right=columns[1:])
    for run in found["runs"]:
        over, sure = run["against"], [_known(run[name]) for name in ("auroc", "auroc_surprise")]
        gap = "" if over is None else f"{over['strict']['difference']:+.3f} ({_interval(over['strict'])})"
        p = "" if over is None else f"{over['strict']['p']:.2g}"
        costs = [_ratio(run, name, digits) for name, digits in (("evaluations", 0), ("seconds", 1))]
        made.add_row(run["file"], share(run, "strict"), gap, p, f"{run['as_published']:.3f}", *costs, *sure)
    show.console().print(made)
    common = show.many(found["n"], "question")
    print(f"{common} of {found['task']} that all runs have; differences are to the first of them")
    for run in found["runs"]:
        if run["left_out"] or run["unfinished"]:
            lacks = f", {show.many(run['unfinished'], 'is', 'are')} still to come" if run["unfinished"] else ""
            print(f"{run['file']}: {show.many(run['left_out'], 'question')} not common{lacks}")


def _known(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(found: Mapping[str, Any]) -> str:
    return f"{found['low']:+.3f} to {found['high']:+.3f}"


def _ratio(run: Mapping[str, Any], name: str, digits: int) -> str:
    times = None if run["against"] is None else run["against"][f"{name}_ratio"]
    return f"{run[name]:.{digits}f}" + ("" if times is None else f" (×{times:.2f})")


def add_compare(parser: ArgumentParser) -> None:
    about = "what `unmask eval TASK --rows FILE` wrote; all are compared with the first"
    parser.add_argument("files", nargs="+", metavar="ROWS", help=about)
    flag(parser, "--json", "print one JSON object")


def run_join(args: Namespace) -> None:
    """Write the rows of all shards of a run to one file."""
    count = join(args.files, args.output)
    show.note(f"{args.output}: {show.many(count, 'row')} of {show.many(len(args.files), 'shard')}")


def add_join(parser: ArgumentParser) -> None:
    about = "what `unmask eval` or `generate --prompts` with --shard I/N wrote, all N of them"
    parser.add_argument("files", nargs="+", metavar="ROWS", help=about)
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="a new file for all rows")
