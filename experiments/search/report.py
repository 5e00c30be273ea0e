"""Rows of the study -> tables: every method with every choice, against E-BoN."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from choices import Line, offered
from kept import cost, in_order, judged, readable, right, source
from methods import CELLS

from unmask.errors import InputError
from unmask.evaluate.stats import Difference as Gain
from unmask.evaluate.stats import bootstrap, paired, wilson

Way = tuple[str, str]  # a method and a choice
Gains = dict[str, dict[Way, Gain]]  # by cell


def report(args: argparse.Namespace) -> None:
    """A table for each cell and K: every method with every choice, against E-BoN."""
    if not any(source(args, name, k, "best-of-n").exists() for name in args.cells for k in args.particles):
        raise InputError(f"{str(args.out)!r} has no best-of-n of these cells to compare with", "run it first")
    for k in args.particles:
        gains: Gains = {}
        for name in args.cells:
            found = {method: in_order(args, name, k, method) for method in ("best-of-n", *args.methods)}
            whole = {method: kept for method, kept in found.items() if kept and len(kept) == len(found["best-of-n"])}
            if "best-of-n" in whole and CELLS[name].task == "text":
                told_texts(args, name, k, whole)
            elif "best-of-n" in whole:
                gains[name] = told_puzzles(args, name, k, whole)
        left_out(args, k, gains)


def left_out(args: argparse.Namespace, k: int, gains: Gains) -> None:
    """Leave one task out: what is best on the mean of the other's cells, and what it is worth here."""
    for task in {CELLS[name].task for name in gains}:
        others, mine = ([name for name in gains if (CELLS[name].task == task) == here] for here in (False, True))
        able = set.intersection(*(set(gains[name]) for name in gains)) if others else set()
        if able:
            best = max(sorted(able), key=lambda one: sum(gains[name][one].difference for name in others))
            worst = min((gains[name][best].low, name) for name in mine)
            mean = sum(gains[name][best].difference for name in mine) / len(mine)
            said = f"{100 * mean:+.1f} points on its {len(mine)} cells, lowest bound {100 * worst[0]:+.1f} ({worst[1]})"
            print(f"\n{args.side} K={k}, without {task} the best is {' by '.join(best)}: {said}")


def told_puzzles(args: argparse.Namespace, name: str, k: int, found: dict[str, list[Line]]) -> dict[Way, Gain]:
    gains = {}
    base, most = (right(found["best-of-n"], choice) for choice in ("entropy", "oracle"))
    said = f"E-BoN {100 * sum(base) / len(base):.1f}, its oracle {100 * sum(most) / len(most):.1f}, n={len(base)}"
    print(f"\n{args.side} {name} K={k}: {said}")
    for method, kept in found.items():
        for choice in offered(kept):
            mine = right(kept, choice)
            gains[method, choice] = paired(base, mine)
            said = against(mine, gains[method, choice])
            print(f"  {method:16} {choice:12} {said}  evaluations x{cost(kept, found['best-of-n']):.2f}")
    return gains


def told_texts(args: argparse.Namespace, name: str, k: int, found: dict[str, list[Line]]) -> None:
    first = judged(args, name, k, "best-of-n", found["best-of-n"], "entropy")
    said = f"ln PPL {first[0].mean():.3f}, diversity {first[1].mean():.3f}, n={len(first[0])}"
    print(f"\n{args.side} {name} K={k}: E-BoN {said}")
    for method, kept in found.items():
        for choice in readable(kept):
            mine = judged(args, name, k, method, kept, choice)
            less, alike = (spread(a - b) for a, b in zip(mine, first, strict=True))
            said = f"ln PPL {mine[0].mean():.3f} {less}  diversity {mine[1].mean():.3f} {alike}"
            print(f"  {method:16} {choice:12} {said}  evaluations x{cost(kept, found['best-of-n']):.2f}")


def spread(differences: Any) -> str:
    """A mean with the 95 % interval of a bootstrap."""
    found = bootstrap(lambda places: {"mean": float(differences[places].mean())}, range(len(differences)), 10_000)
    mean, low, high = (np.nan if one is None else one for one in found["mean"])
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def against(mine: Sequence[bool], found: Gain) -> str:
    """A share with its interval, and the paired difference with its own, in points."""
    low, high = wilson(sum(mine), len(mine))
    share = f"{100 * sum(mine) / len(mine):5.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return f"{share}  {100 * found.difference:+5.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
