"""Does a longer interval between resamplings raise the path entropy of E-SMC, as the paper's remark says?

    python experiments/interval.py TEXTS --model sudoku --steps 18 --every 1 3 9 --strength 100 5 0 -o rows.jsonl
    python experiments/interval.py results/rows/interval-sudoku.jsonl.xz    # the tables of the page

TEXTS is a file as `unmask theory` reads it. For each strength and interval: the path entropy of the population of
particles, which the remark is about, and of the returned one, with the difference to the shortest interval, paired by
text. Uniform order, temperature 1, multinomial draws, the printed potential. Bits, 95 %.

With --paths there are reference paths too: each gap to them, and for each interval the strength at which the gap is 0,
as `unmask calibrate` has it, between the strengths given. Rows that rows.jsonl has are kept and not measured again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask import Recipe, load
from unmask.core.denoiser import Denoiser
from unmask.evaluate.header import origin
from unmask.evaluate.rows import parsed
from unmask.evaluate.stats import Figure, Mean, Places, average, bootstrap, mean
from unmask.evaluate.theory.calibrate import BOOTSTRAPS, OF, Calibration, Point, crossing
from unmask.evaluate.theory.reference import Known, generated, reference
from unmask.evaluate.theory.texts import read

Row = dict[str, Any]
NAMES = ("population", "returned")  # what the page calls population and chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts")
    parser.add_argument("--documents", action="store_true", help="TEXTS has documents: one in a row")
    parser.add_argument("--model", default="text")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 3, 9])
    parser.add_argument("--strength", type=float, nargs="+", default=[100.0, 5.0, 0.0])
    parser.add_argument("--particles", type=int, default=4)
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--paths", type=int, default=0, help="reference paths of each text")
    parser.add_argument("-o", "--output", type=Path, help="without it TEXTS are kept rows")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further row after so many")
    args = parser.parse_args()
    began = time.monotonic()
    if args.output is None:
        print("\n".join(tables(kept(Path(args.texts)))))
        return 0
    model = load(args.model, args.device)
    texts, _ = read(model, args.texts, None, args.limit, args.documents)
    about: Row = {"model": args.model, "steps": args.steps, "particles": args.particles, "n": len(texts)}
    whole = measure(model, texts, about, args, began + args.seconds)
    print("\n".join(tables(kept(args.output))))
    return 0 if whole else 75


def measure(model: Denoiser, texts: Sequence[Known], about: Row, args: argparse.Namespace, end: float) -> bool:
    """Add the rows that are not there, none after `end`; whether all are there then."""
    there = kept(args.output) if args.output.exists() else []
    if any(about[name] != row[name] for row in there for name in about):
        raise SystemExit(f"{args.output} has rows of something else than {about}")
    done = {(row.get("strength"), row.get("every")) for row in there}
    args.output.write_text("".join(f"{json.dumps(row)}\n" for row in there), encoding="utf-8")  # without a torn line
    recipe = Recipe("uniform", "smc", steps=args.steps, temperature=1.0, particles=args.particles)
    with args.output.open("a", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps({**about, **origin(model.device), **row}) + "\n")
            file.flush()

        if args.paths and (None, None) not in done:
            found = reference(model, texts, recipe, args.paths)
            write({"paths": args.paths, "reference": [average([one.path_entropy for one in some]) for some in found]})
        for strength in args.strength:
            for every in args.every:
                if (strength, every) in done:
                    continue
                if time.monotonic() > end:
                    return False
                results = generated(model, texts, recipe.replace(strength=strength, every=every))
                population = [average([one.path_entropy for one in result.particles]) for result in results]
                chosen = [result.path_entropy for result in results]
                write({"strength": strength, "every": every, "population": population, "chosen": chosen})
                print(f"λ={strength:g} Δ={every} population: {mean(population)}, returned: {mean(chosen)}", flush=True)
    return True


# --- figures of the rows ---------------------------------------------------------------------------------------------


def kept(path: Path) -> list[Row]:
    content = path.read_bytes()
    content = lzma.decompress(content) if path.suffix == ".xz" else content
    return [row for row in parsed(content) if row is not None]


def changes(rows: list[Row], of: str) -> dict[tuple[float, int], tuple[Mean, Mean, Mean]]:
    """(strength, interval) -> path entropy, less that of the shortest interval, less the reference; paired by text."""
    true = next((row["reference"] for row in rows if "reference" in row), None)
    found = {(row["strength"], row["every"]): row[of] for row in rows if of in row}
    shortest = {strength: min(every for some, every in found if some == strength) for strength, _ in found}
    return {
        (strength, every): (
            mean(values),
            mean(less(values, found[strength, shortest[strength]])),
            mean(less(values, true or values)),
        )
        for (strength, every), values in sorted(found.items())
    }


def meeting(rows: list[Row], of: str, every: int) -> Figure:
    """The strength at which the gap to the reference is 0, with a bootstrap interval over texts."""
    true = next(row["reference"] for row in rows if "reference" in row)
    found = sorted((row["strength"], less(row[of], true)) for row in rows if row.get("every") == every)
    strengths, gaps = [strength for strength, _ in found], np.array([gap for _, gap in found])

    def measure(places: Places) -> dict[str, float]:
        return {"strength": crossing(strengths, gaps[:, places].mean(1).tolist())}

    dice = np.random.default_rng([0, len(true)])
    return bootstrap(measure, range(len(true)), BOOTSTRAPS, dice, "lower")["strength"]


def less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(values, others, strict=True)]


def spelled(found: Mean) -> str:
    """A mean as the page has it: with a digit more than elsewhere, and no sign before a zero."""
    if found.low is None or found.high is None:  # of one text
        return f"{found.value:.4f}"
    value, low, high = (f"{one:.4f}" for one in (found.value, found.low, found.high))
    return f"{value} ({low}{'–' if low[0] != '-' else ' to '}{high})".replace("-0.0000", "0.0000")


def strength(found: Figure) -> str:
    """A strength and its interval as the page has them."""
    value, low, high = ("beyond" if one is None or math.isinf(one) else f"{one:.3g}" for one in found)
    return f"{value} ({low} to {high})"


def tables(rows: list[Row]) -> list[str]:
    """Markdown: path entropy over the interval; with a reference also over the strength, and what meets it."""
    sides = {name: changes(rows, of) for name, of in zip(NAMES, OF, strict=True)}
    cells = sorted(sides[NAMES[0]])
    if not cells:
        return []
    strengths, intervals = sorted({at for at, _ in cells}), sorted({every for _, every in cells})
    first, last = intervals[0], intervals[-1]
    lines = ["| | " + " | ".join(f"Δ = {every}" for every in intervals) + f" | {last} less {first} |"]
    lines.append("|---" * (len(intervals) + 2) + "|")
    for name, found in sides.items():
        for at in strengths:
            if (at, last) in found:
                here = [spelled(found[at, every][0]) if (at, every) in found else "–" for every in intervals]
                lines.append(f"| {name}, λ = {at:g} | " + " | ".join(here) + f" | {spelled(found[at, last][1])} |")
    true = next((row["reference"] for row in rows if "reference" in row), None)
    if true is None:
        return lines
    head = " | ".join(f"{name} | less the reference" for name in NAMES)
    lines += ["", f"| λ, Δ = {first}, reference {spelled(mean(true))} | {head} |", "|---|---|---|---|---|"]
    for at in strengths:
        if (at, first) in cells:
            both = [sides[name][at, first] for name in NAMES]
            lines.append(
                f"| {at:g} | " + " | ".join(f"{spelled(here)} | {spelled(gap)}" for here, _, gap in both) + " |"
            )
    lines += ["", "| λ* at | " + " | ".join(NAMES) + " |", "|---|---|---|"]
    for every in intervals:
        if (0.0, every) not in cells or sum(some == every for _, some in cells) < 2:  # no range
            continue
        lines.append(f"| Δ = {every} | " + " | ".join(strength(meeting(rows, of, every)) for of in OF) + " |")
    return lines


def calibration(rows: list[Row]) -> Calibration:
    """Strengths at the shortest interval, of which a picture can be drawn."""
    true = next(row["reference"] for row in rows if "reference" in row)
    every = min(row["every"] for row in rows if "every" in row)
    found = sorted((row for row in rows if row.get("every") == every), key=lambda row: row["strength"])
    points = [Point(row["strength"], row["population"], row["chosen"], 0) for row in found]
    return Calibration(Recipe("uniform", "smc"), OF[0], true, points, None, None, None, None, 0)


if __name__ == "__main__":
    raise SystemExit(main())
