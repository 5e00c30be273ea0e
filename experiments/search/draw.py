"""Packed rows of the study -> pictures: what is solved by the paths of best-of-n with different choices.

draw=experiments/search/draw.py rows=results/rows/search-held.jsonl.xz
python $draw $rows docs/img/search.svg
python $draw $rows docs/img/search-particles.svg --particles 2 4 8 16 32
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from pack import there

MARKS = {
    "vote": ("v", "#999999"),
    "entropy": ("o", "#4477aa"),
    "surprise": ("D", "#cc3311"),
    "oracle": ("|", "#222222"),
}
NAMES = {"vote": "majority vote", "entropy": "E-BoN", "surprise": "auto", "oracle": "any path is right"}
LEAST = 6.0  # points that a panel shows at least, so that nothing looks like much
Shares = dict[str, dict[str, float]]  # per cell, what each choice solves, in percent


def shares(path: Path, k: int) -> Shares:
    """What the choices among K paths of best-of-n solve."""
    found: Shares = {}
    for (cell, many, method), (head, *lines) in there(path).items():
        choices = json.loads(head)["columns"][-1].split()
        if (many, method) == (k, "best-of-n") and "oracle" in choices:
            marks = zip(*(json.loads(line)[-1] for line in lines), strict=True)  # a digit for each choice
            found[cell] = {
                choice: 100 * sum(map(int, one)) / len(one) for choice, one in zip(choices, marks, strict=True)
            }
    return found


def by_cell(cells: Shares) -> Figure:
    """One line for each cell, one mark for each choice."""
    figure, axes = plt.subplots(figsize=(7.2, 0.34 * len(cells) + 1.1), constrained_layout=True)
    for place, one in enumerate(cells.values()):
        axes.plot([one["entropy"], one["oracle"]], [place, place], color="#dddddd", zorder=0)
        for choice, (mark, colour) in MARKS.items():
            axes.scatter(
                one[choice], place, marker=mark, color=colour, s=34, label=NAMES[choice] if not place else None
            )
    axes.set_yticks(range(len(cells)), list(cells))
    axes.invert_yaxis()
    axes.set_xlabel("solved, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def by_particles(found: dict[int, Shares]) -> Figure:
    """One panel for each cell: what more paths bring."""
    cells = list(found[min(found)])
    across = min(5, len(cells))
    down = -(-len(cells) // across)
    figure, grid = plt.subplots(down, across, figsize=(2.0 * across, 1.7 * down + 0.5), constrained_layout=True)
    panels = list(grid.flat) if len(cells) > 1 else [grid]
    for spare in panels[len(cells) :]:
        spare.set_axis_off()
    for axes, cell in zip(panels, cells, strict=False):
        for choice, (_, colour) in MARKS.items():
            axes.plot(
                list(found),
                [each[cell][choice] for each in found.values()],
                color=colour,
                linestyle="--" if choice == "oracle" else "-",
                marker="" if choice == "oracle" else ".",
                label=NAMES[choice] if cell == cells[0] else None,
            )
        low, high = axes.get_ylim()
        if high - low < LEAST:
            axes.set_ylim(min(low, 100.5 - LEAST), max(high, min(low, 100.5 - LEAST) + LEAST))
        axes.set_title(cell, fontsize=8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(found), [str(k) for k in found])
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("particles", fontsize=9)
    figure.supylabel("solved, %", fontsize=9)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--particles", nargs="+", type=int, default=[8], help="several: a panel for each cell")
    args = parser.parse_args()
    found = {k: shares(args.rows, k) for k in args.particles}
    for k in (k for k, cells in found.items() if not cells):
        sys.exit(f"draw: {args.rows} has no best-of-n with {k} particles")
    plt.rcParams.update({"svg.hashsalt": "unmask", "svg.fonttype": "none"})
    figure = by_particles(found) if len(found) > 1 else by_cell(found[args.particles[0]])
    figure.savefig(args.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
