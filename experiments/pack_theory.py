"""What `experiments/theory.sh` made -> rows and pictures for the repository.

    python experiments/pack_theory.py OUT results

writes rows/NAME.jsonl.xz for every part: a line with its recipe, model, data, machine, date and commit, then its rows,
with four digits of each number; and figures/NAME.svg, for intervals that of path entropy over the strength. The stories
are not kept: their seed gives them again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import interval

from unmask.evaluate.theory.report import draw_calibration

SUMMARY = {"bins", "integrals", "ends", "context", "divergence", "law", "step_loss", "several_at_once", "kl_at_least"}
SUMMARY |= {"reference", "curve", "noise", "seconds"}  # all but the last can be made again of the rows
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("made", type=Path)
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    for part in sorted(args.made.iterdir()):
        name = part.name
        if part.is_dir() and part.suffix != ".part":
            lines = [head(part), *read(part / "rows.jsonl")]
            picture = next(part.glob("*.svg"))
            kind = "theory-" if name.startswith("calibrate") else ""
            shutil.copyfile(picture, args.results / "figures" / f"{kind}{name}.svg")
        elif name.startswith("interval") and part.suffix == ".jsonl":
            lines, name = read(part), part.stem
            picture = args.results / "figures" / f"{name.replace('interval', 'theory-calibrate')}.svg"
            draw_calibration(interval.calibration(lines), picture)
        else:
            continue
        target = args.results / "rows" / f"{name}.jsonl.xz"
        with lzma.open(target, "wt", preset=9, encoding="utf-8") as file:
            file.writelines(json.dumps(short(line), separators=(",", ":")) + "\n" for line in lines)
        print(f"{target}: {len(lines)} lines, {target.stat().st_size:,} bytes")


def head(part: Path) -> Row:
    """What the part was and where it ran."""
    found: Row = json.loads(next(part.glob("*.json")).read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if name not in SUMMARY}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def short(value: Any) -> Any:
    """Floats with four digits, at any depth."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
