"""The command line's half for benchmarks: flags -> figures of a step's cost -> a table, JSON, a plot."""

from __future__ import annotations

import json
import math
import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from functools import partial
from pathlib import Path

from unmask._version import __version__
from unmask.cli import flags, models, show
from unmask.cli.parser import flag, refuse
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import takes
from unmask.errors import InputError, unknown
from unmask.evaluate.speed import measure
from unmask.evaluate.speed.measure import Figures
from unmask.models import Denoiser, on_device
from unmask.models.files.checkpoint import DTYPES
from unmask.models.made.random_sizes import SIZES, make
from unmask.report import chart
from unmask.report.chart import Curve
from unmask.search import SEARCHES

Sweep = tuple[str, list[int]]  # a setting and its values
BENCHES = ("speed",)
DEFAULT = "sudoku"
DEFAULTS = {"sampler": "uniform", "temperature": 1.0, "search": "smc"}
PARTICLES = 8  # where neither flags nor a recipe say it, and the search has any
LONGEST = 256  # positions to decode where neither flags, size nor model say it
SWEPT = {"particles": 1, "length": 2, "steps": 1}  # name -> the power of it that cost may grow with
LINES = {  # name of a figure -> of its line in tables and plots
    "step_ms": "unmask",
    "floor_ms": "floor",
    "public_compiled_ms": "public, compiled",
    "public_eager_ms": "public, eager",
    "public_cached_ms": "public, cached",
    "public_cached_row_ms": "public, cached, one row",
}
RATES = {"tokens_per_second": "of the answer", "particle_tokens_per_second": "of all particles"}


def run_bench(args: Namespace) -> None:
    """Measure what a step costs."""
    if args.what not in BENCHES:
        raise unknown("benchmark", args.what, BENCHES)
    if args.size is not None and args.model is not None:
        raise InputError("--size and --model exclude each other", "give one of them")
    if args.size is not None and args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    sweeps = [_sweep(text) for text in args.sweep or []]
    _check_plot(args.plot, sweeps)
    recipe = _recipe(args)
    model = _model(args)
    prompt, recipe = _lengths(args, model, recipe)
    recipes = {name: [recipe.replace(**{name: value}) for value in values] for name, values in sweeps}
    points = [one for some in recipes.values() for one in some if one != recipe]
    for one in points:
        _check_steps(one)
        measure.canvas(model, one, prompt)
    with show.progress() as bar:
        task = bar.add_task("", total=(1 + len(points)) * measure.stages(args.repeat))

        def measured(recipe: Recipe) -> Figures:
            def on_stage(stage: str) -> None:
                bar.update(task, advance=1, description=f"{show.many(recipe.length or 0, 'position')}: {stage}")

            options = {"compile": args.compile, "uncompiled": args.uncompiled}
            options |= {"repeat": args.repeat, "against": args.against}
            return measure.measure(model, recipe, prompt, on_stage=on_stage, **options)

        found = measured(recipe)
        curves = {name: [found if one == recipe else measured(one) for one in some] for name, some in recipes.items()}
    found["versions"]["unmask"] = __version__
    if sweeps:
        found = {**found, "sweep": curves, "growth": {name: _growth(name, rows) for name, rows in curves.items()}}
    if args.plot is not None:
        _plot(Path(args.plot), found)
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)


# --- what is measured ------------------------------------------------------------------------------------------------


def _recipe(args: Namespace) -> Recipe:
    """The flags over a recipe, or over the defaults here."""
    search = args.search or DEFAULTS["search"]
    some = "particles" in takes(SEARCHES[search]) if search in SEARCHES else False
    recipe = flags.to_recipe(args, DEFAULTS | ({"particles": PARTICLES} if some else {}))
    _check_steps(recipe)
    return recipe


def _check_steps(recipe: Recipe) -> None:
    if recipe.steps in (1, 2):
        raise InputError(f"steps is {recipe.steps}", "take at least 3: the first two are not timed")


def _model(args: Namespace) -> Denoiser:
    if args.size is None:
        return models.load_model(args, args.model or DEFAULT)
    refuse(args, ("adapter", "mask_id", "tokenizer", "revision", "blocks", "trust_remote_code", "shift"), "--size")
    if args.dtype is not None and args.dtype not in DTYPES:
        raise unknown("dtype", args.dtype, DTYPES)
    place = on_device(args.size, args.device)
    return make(args.size, place, DTYPES.get(args.dtype), weights=args.weights)


def _lengths(args: Namespace, model: Denoiser, recipe: Recipe) -> tuple[int, Recipe]:
    """Given positions, and the recipe with how many are generated."""
    size = SIZES.get(args.size or "")
    prompt = args.prompt if args.prompt is not None else 0 if size is None else size.prompt
    if recipe.length is not None:
        return prompt, recipe
    room = LONGEST if model.limit is None else max(1, model.limit - max(0, prompt))
    return prompt, recipe.replace(length=min(room, LONGEST if size is None else size.length))


def _sweep(text: str) -> Sweep:
    """particles=1,2,4 -> a name and its values, in order."""
    name, _, listed = text.partition("=")
    if name not in SWEPT:
        raise unknown("sweep", name, SWEPT)
    parts = listed.split(",") if listed else []
    like = f"write it like --sweep {name}=8,16,32"
    for part in parts:
        if not (part.strip().isdecimal() and 0 < int(part) < 2**31):
            raise InputError(f"--sweep {text!r} has the value {part!r}", f"give whole numbers from 1; {like}")
    values = sorted({int(part) for part in parts})
    if len(values) < 2:
        only = f"only the value {values[0]}" if values else "no values"
        raise InputError(f"--sweep {text!r} has {only}", f"give at least two; {like}")
    return name, values


def _growth(name: str, rows: list[Figures]) -> float:
    """The power of the setting that the cost grows with: of a step, or, along the steps, of the decode."""
    curve = _curve(name, rows, "decode_seconds" if name == "steps" else "step_ms")
    (x, y), (right, top) = curve[0], curve[-1]
    return math.log(top / y) / math.log(right / x)


def _curve(name: str, rows: list[Figures], figure: str) -> Curve:
    # Positions, not those generated alone: all of them go through the network.
    points = [(row[name] + (row["prompt"] if name == "length" else 0), _figure(row, figure)) for row in rows]
    return [(x, y) for x, y in points if y]


def _figure(found: Figures, name: str) -> float | None:
    """One figure, also of those with a cache."""
    value: float | None = found[name] if name in found else (found["cached"] or {}).get(name)
    return value


# --- what is shown ---------------------------------------------------------------------------------------------------


def _check_plot(path: str | None, sweeps: list[Sweep]) -> None:
    """Refuse a plot that cannot be drawn, before the long work."""
    if path is None:
        return
    if not sweeps:
        raise InputError("--plot has nothing to draw", "add --sweep particles=1,2,4,8 or --sweep length=64,128,256")
    file = Path(path)
    if file.suffix != ".svg":
        raise InputError(f"cannot draw {path!r}", "give a name that ends in .svg")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"cannot write {path!r}", "give a file in a directory that is there and may be written")


def _plot(path: Path, found: Figures) -> None:
    """Cost against each swept setting, with the line that it may not rise faster than."""
    panels = []
    for name, rows in found["sweep"].items():
        if name == "steps":
            curves, what = {"unmask": _curve(name, rows, "decode_seconds")}, "seconds a decode"
        else:
            curves, what = {line: _curve(name, rows, figure) for figure, line in LINES.items()}, "milliseconds a step"
        curves = {line: curve for line, curve in curves.items() if curve}
        (x, y), power = curves["unmask"][0], SWEPT[name]
        curves["linear" if power == 1 else "quadratic"] = [(at, y * (at / x) ** power) for at, _ in curves["unmask"]]
        title = f"{what}, by {'positions' if name == 'length' else name}"
        panels.append(partial(chart.panel, title=title, curves=curves, pale=("linear", "quadratic"), log=True))
        if name == "particles":
            curves = {line: _curve(name, rows, figure) for figure, line in RATES.items()}
            panels.append(partial(chart.panel, title="tokens a second, by particles", curves=curves, log=True))
    chart.save(path, panels)


def _show(found: Figures) -> None:
    """A table of a step's cost, the other figures in lines, and one line for each value of a sweep."""
    made = show.grid("a step", "ms", "of the floor", "unmask is", right=("ms", "of the floor", "unmask is"))
    for figure, line in _lines(found).items():
        value = _figure(found, figure)
        if value is not None:
            ratio, faster = value / found["floor_ms"], value / found["step_ms"]
            compared = f"{faster:.2f} × as fast" if figure.startswith(("public", "against")) else ""
            made.add_row(line, f"{value:.3f}", f"{ratio:.3f} ×", compared)
    show.console().print(made)
    for line in _rest(found):
        print(line)
    for name, rows in found.get("sweep", {}).items():
        figures = ["step_ms", "floor_ms", "ratio_to_floor", "times_faster", "decode_seconds", "tokens_per_second"]
        made = show.grid(name, *figures, right=(name, *figures))
        for row in rows:
            made.add_row(str(row[name]), *("" if row[f] is None else f"{row[f]:.3f}" for f in figures))
        show.console().print(made)
        power = f"{found['growth'][name]:.2f} ({'linear is 1' if SWEPT[name] == 1 else 'quadratic is 2'})"
        print(f"cost grows with {'positions' if name == 'length' else name} to the power {power}")


def _lines(found: Figures) -> dict[str, str]:
    """Figures and how the table names them."""
    more = {"against_ms": f"unmask, {found['against']}"} if found["against"] else {}
    return {
        "step_ms": f"unmask, {found['recipe']['search']}",
        **more,
        "floor_ms": "floor",
        "backbone_ms": f"  network, {found['backbone']}",
        **_parts(found["cached"]),
        "head_ms": f"  head at {found['head_rows']:.0f} masks",
        "public_compiled_ms": "public style, network compiled",
        "public_eager_ms": "public style, network eager",
        "public_cached_ms": "public style with a cache, eager",
        "public_cached_row_ms": "  one row",
    }


def _parts(cached: Figures | None) -> dict[str, str]:
    """The parts of the network's time with a cache."""
    if cached is None:
        return {}
    wide = "all" if cached["refresh_columns"] is None else cached["refresh_columns"]
    return {
        "inner_ms": f"    {show.many(cached['inner_columns'], 'column')}, {cached['inner_kept']} kept",
        "refresh_ms": f"    {wide} columns, in {cached['refresh_share']:.1%} of the steps",
    }


def _rest(found: Figures) -> list[str]:
    """One line each: size, cost, memory, machine, notes."""
    given = f"{found['prompt']} + " if found["prompt"] else ""
    nouns = ("particle", "position", "step", "call", "evaluation")
    figures = (found["length" if noun == "position" else f"{noun}s"] for noun in nouns)
    counts = list(map(show.many, figures, nouns))
    lines = [
        f"{found['model']} ({found['dtype']}) · {counts[0]} · {given}{' · '.join(counts[1:])}",
        f"{found['tokens_per_second']:.1f} tokens of the answer a second · start {found['warm_start_seconds']:.3f} s, "
        f"the first time {found['start_seconds']:.3f} s",
    ]
    if found["peak_mib"] is not None:
        transient = ", ".join(
            f"{name} {found[figure]:,.0f} MiB"
            for name, figure in (("unmask", "transient_mib"), ("public style", "public_transient_mib"))
            if found[figure] is not None
        )
        lines.append(
            f"peak above the weights {found['peak_mib']:,.0f} MiB · beyond the network's "
            f"{found['backbone_mib']:,.0f} MiB: {transient}"
        )
    if found["cached"] and found["cached"]["kept"]:
        lines.append(_kept(found["cached"]["kept"]))
    versions = found["versions"]
    lines.append(f"{found['device']} · torch {versions['torch']} · {found['date'][:10]}")
    return lines + [f"note: {note}" for note in found["notes"]]


def _kept(kept: Figures) -> str:
    """Keys and values as they are in memory, and as many as there should be."""
    own = f"{show.many(kept['rows'], 'row')} of {kept['row_positions']} positions {_mib(kept['rows_bytes'])}"
    once = f"prompt of {show.many(kept['prompt_positions'], 'position')} once {_mib(kept['prompt_bytes'])}, "
    parts = (once if kept["prompt_positions"] else "") + own
    return f"kept: {parts} · at {kept['position_bytes']:,} bytes a position that is {_mib(kept['expected_bytes'])}"


def _mib(size: int) -> str:
    return f"{size / measure.MIB:,.2f} MiB"


def add_bench(parser: ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help=" or ".join(BENCHES))
    flag(parser, "--size NAME", f"random weights instead of a model: {', '.join(SIZES)}")
    flag(parser, "--prompt N", "given positions, of random tokens [0; tiny: 8; other sizes but mdlm: 256]")
    about = "compile the network, unmask's and what it is compared with, where that can be done [yes]"
    parser.add_argument("--compile", action=BooleanOptionalAction, default=True, help=about)
    about = "unmask itself decodes without compiling: only what it is compared with is compiled"
    parser.add_argument("--uncompiled", action="store_true", help=about)
    flag(parser, "--repeat N", "rounds, of which the median counts [3]", 3)
    about = "another search to time beside it, with as many particles; or exact: the same without a cache"
    flag(parser, "--against SEARCH", about)
    about = "measure along these values too, like particles=1,2,4 or length=64,128 or steps=8,16; several times"
    parser.add_argument("--sweep", action="append", metavar="NAME=LIST", help=about)
    flag(parser, "--plot FILE", "draw the sweeps as SVG")
    flag(parser, "--recipe NAME", "settings from `unmask recipes`, or a .toml or .json file")
    flag(parser, "--json", "print one JSON object")
    models.add_model(parser, DEFAULT)
    flags.add(parser)
