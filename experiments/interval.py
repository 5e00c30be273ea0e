"""Does a longer interval between resamplings raise the path entropy of E-SMC, as the paper's remark says?

    python experiments/interval.py TEXTS --model sudoku --steps 18 --every 1 3 6 9 --strength 5 100 -o rows.jsonl

TEXTS is a file as `unmask theory` reads it. For each strength and interval: the path entropy of the population of
particles, which the remark is about, and of the returned one, with the difference to the shortest interval, paired by
text. Uniform order, temperature 1, multinomial draws, the printed potential. Bits, 95 %.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from unmask import Recipe, load
from unmask.evaluate.header import origin
from unmask.evaluate.rows import parsed
from unmask.evaluate.stats import average, mean
from unmask.evaluate.theory.reference import generated
from unmask.evaluate.theory.texts import read

SAME = ("model", "steps", "particles", "n")


def entropies(results: list[Any]) -> dict[str, list[float]]:
    """Path entropies of the population, each a mean over particles, and of the returned paths."""
    population = [average([one.path_entropy for one in result.particles]) for result in results]
    return {"population": population, "chosen": [result.path_entropy for result in results]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts")
    parser.add_argument("--documents", action="store_true", help="TEXTS has documents: one in a row")
    parser.add_argument("--model", default="text")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 3, 6, 9])
    parser.add_argument("--strength", type=float, nargs="+", default=[5.0, 100.0])
    parser.add_argument("--particles", type=int, default=4)
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, help="begin no further row after so many")
    args = parser.parse_args()
    began = time.monotonic()
    model = load(args.model, args.device)
    texts, _ = read(model, args.texts, None, args.limit, args.documents)
    about: dict[str, Any] = {"model": args.model, "steps": args.steps, "particles": args.particles, "n": len(texts)}
    about |= origin(model.device)
    path = Path(args.output)
    lines = parsed(path.read_bytes()) if path.exists() else []
    kept = [line for line in lines if line is not None and all(line[name] == about[name] for name in SAME)]
    done = {(line["strength"], line["every"]): line for line in kept}
    with path.open("w", encoding="utf-8") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in kept))
        for strength in args.strength:
            shortest: dict[str, list[float]] = {}
            for every in args.every:
                if (
                    (strength, every) not in done
                    and args.seconds is not None
                    and time.monotonic() - began > args.seconds
                ):
                    return 75
                row = done.get((strength, every))
                if row is None:
                    recipe = Recipe("uniform", "smc", steps=args.steps, temperature=1.0, particles=args.particles)
                    row = {**about, "strength": strength, "every": every}
                    row |= entropies(generated(model, texts, recipe.replace(strength=strength, every=every)))
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                found = {name: row[name] for name in ("population", "chosen")}
                shortest = shortest or found
                for name, values in found.items():
                    change = mean([new - old for new, old in zip(values, shortest[name], strict=True)])
                    print(f"λ={strength:g} Δ={every} {name}: {mean(values)}, against the shortest {change}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
