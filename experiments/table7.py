"""Table 7 on a checkpoint of MDLM's size: seconds of a decoding, cell by cell, until all are done or time is up.

    unmask fabricate mdlm DIR --size full
    python experiments/table7.py DIR ROWS.jsonl --device cuda --dtype bfloat16 --seconds 60

The cells are those of `unmask paper table7`, timed by the same function, in an order that leaves the longest (1,024
steps, one particle after another) to the end. Cells that ROWS.jsonl has are not timed again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from unmask import load
from unmask.decoding.decode import decode_batch
from unmask.evaluate.header import origin
from unmask.evaluate.paper import TABLES, cells
from unmask.models import fingerprint
from unmask.models.wrap import Chunked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--place", default="mdlm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--repeats", type=int, default=1, help="decodes, after one of two steps; the median counts")
    parser.add_argument("--seconds", type=float, help="begin no further cell after so many")
    parser.add_argument("--scale", type=float, default=1.0, help="of length, steps and intervals, for a trial")
    args = parser.parse_args()
    began = time.monotonic()
    experiment, cells.REPEATS = TABLES["table7"], args.repeats
    place = experiment.places[args.place]
    todo = [(cell, experiment.recipe(cell, place)) for cell in experiment.at(place)]
    todo.sort(key=lambda one: ((one[1].steps or 0) > 256 and one[0].how == "sequential", one[1].steps))
    left, done = 0, dict[str, dict[str, Any]]()  # by what is run: vanilla is one run for all configurations
    if args.rows.exists():
        done = {
            json.dumps([row["recipe"], row["how"]]): row for row in map(json.loads, args.rows.open(encoding="utf-8"))
        }
    model, weights = load(args.model, args.device, args.dtype), fingerprint(args.model)
    about = {"model": Path(args.model).name, "weights": weights, "dtype": args.dtype, **origin(model.device)}
    with args.rows.open("a", encoding="utf-8") as file:
        for cell, recipe in todo:
            if args.scale != 1:
                some = {name: getattr(recipe, name) for name in ("length", "steps", "every")}
                some = {name: max(1, round(args.scale * n)) for name, n in some.items() if n is not None}
                recipe = recipe.replace(**some)
            key = json.dumps([recipe.to_dict(), cell.how])
            if key in done:
                continue
            if args.seconds is not None and time.monotonic() - began > args.seconds:
                print(f"left: {cell.name}")
                left += 1
                continue
            asked = Chunked(model, 1) if cell.how == "sequential" else model
            decode_batch(asked, [place.prompt], recipe=recipe.replace(steps=2))  # warms up
            found = cells._timed(asked, place.prompt, recipe, lambda repeat, of: None)
            done[key] = {"cell": cell.name, "how": cell.how, "recipe": recipe.to_dict(), **found, **about}
            file.write(json.dumps(done[key]) + "\n")
            file.flush()
            print(f"{cell.name}: {found['seconds']:.3f} s, {found['calls']} calls", flush=True)
    return 75 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
