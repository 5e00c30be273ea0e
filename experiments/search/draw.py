"""Packed rows of the study -> a picture: what is solved by the paths of best-of-n with different choices.

python experiments/search/draw.py docs/rows/search-second.jsonl.xz docs/img/search.svg
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

MARKS = {
    "vote": ("v", "#999999"),
    "entropy": ("o", "#4477aa"),
    "surprise": ("D", "#cc3311"),
    "oracle": ("|", "#222222"),
}
NAMES = {"vote": "majority vote", "entropy": "E-BoN", "surprise": "auto", "oracle": "any of the 8 is right"}


def shares(path: Path, method: str = "best-of-n") -> dict[str, dict[str, float]]:
    """Per cell, the share that each choice solves, in percent."""
    found: dict[str, dict[str, list[int]]] = {}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if isinstance(line, dict):
                choices = line["columns"][-1].split() if line["method"] == method and line["k"] == 8 else []
                marks = found.setdefault(line["cell"], {choice: [] for choice in choices}) if choices else {}
            else:
                for choice, mark in zip(marks, line[-1] if isinstance(line[-1], str) else "", strict=False):
                    marks[choice].append(int(mark))
    return {cell: {one: 100 * sum(v) / len(v) for one, v in marks.items() if v} for cell, marks in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    cells = {cell: one for cell, one in shares(args.rows).items() if "oracle" in one}
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
    plt.rcParams["svg.hashsalt"] = "unmask"
    figure.savefig(args.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
