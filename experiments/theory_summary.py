"""The figures of `unmask theory`, computed again from its kept rows: every number of docs/research/theory.md.

    python experiments/theory_summary.py results/rows/theory-sudoku.jsonl.xz

prints them as JSON, as theory.json has them, but for the entropy of token counts, which is not in the rows; --picture
draws them. Rows of a run that was cut (OUT/NAME.part/rows.jsonl) give the figures of the texts that are complete;
--model, --steps and --data-entropy stand for the head that such rows lack.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from unmask import Recipe, load
from unmask.core.entropy import BIT
from unmask.evaluate.theory.noised_states import States
from unmask.evaluate.theory.reference import ReferencePath
from unmask.evaluate.theory.report import Study, draw, summary

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--model", default="text")
    parser.add_argument("--data-entropy", type=float)
    parser.add_argument("--picture", type=Path, help="an SVG")
    args = parser.parse_args()
    rows = read(args.rows)
    head: Row = {"model": args.model, "recipe": {"steps": args.steps}, "data_entropy": args.data_entropy}
    if "kind" not in rows[0]:
        head = rows.pop(0)
    model = load(head["model"])
    width = model.head.width - len(model.head.absent)
    found = study(rows, head["recipe"]["steps"])
    if args.picture is not None:
        draw(found, width, None, args.picture)
    print(json.dumps(summary(found, width, None, head["data_entropy"]), indent=1))


def read(path: Path) -> list[Row]:
    content = path.read_bytes()
    return [json.loads(line) for line in (lzma.decompress(content) if path.suffix == ".xz" else content).splitlines()]


def study(rows: list[Row], steps: int) -> Study:
    """The study that wrote these rows; of each text, those that are complete."""
    kinds: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], {}).setdefault(row["text"], []).append(row)
    texts = sorted(kinds["generated"])  # written last of a text
    states = [kinds["state"][text] for text in texts]

    def column(name: str, unit: float = BIT) -> torch.Tensor:
        return torch.tensor([[row[name] for row in some] for some in states], dtype=torch.float64) * unit

    masked, open = column("masked", 1).long(), column("open", 1).long()[:, 0]
    noised = States(masked, open, column("entropy"), column("loss"), column("watched"), masked.numel())
    names = ("path_entropy", "state_entropy", "loss", "evaluations", "step_loss")
    true = [[ReferencePath(*(row[name] for name in names)) for row in kinds["reference"][text]] for text in texts]
    own = [kinds["generated"][text][0] for text in texts]
    decoded = [decode(row) for row in own]
    known = [kinds["data"][text][0]["bits"] for text in texts] if "data" in kinds else None
    return Study(Recipe("ancestral", steps=steps), noised, true, cast("Any", decoded), known)


def decode(row: Row) -> SimpleNamespace:
    """What a summary and a picture ask of a Result."""
    paths = [SimpleNamespace(path_entropy=one) for one in row.get("path_entropies", [row["path_entropy"]])]
    best = SimpleNamespace(state_entropy=row["state_entropy"])
    return SimpleNamespace(particles=paths, best=best, evaluations=row["evaluations"])


if __name__ == "__main__":
    main()
