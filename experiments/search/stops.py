"""Recorded paths -> what choosing, looking, stopping and escalating would have given: a table for each rule.

    python experiments/search/stops.py runs/paths [--paths 16]

For every cell: the share solved, and the evaluations that it took, of E-BoN, of surprise, of likelihood, of the look
and of `auto` with eight paths, and of a perfect choice; then of `auto` that stops. Its threshold is found by conformal
risk control on one half of the puzzles and used on the other half, twenty times, without labels (the answer changes)
and with labels (a right answer becomes a wrong one). Differences have paired 95 % intervals over puzzles. Last,
escalation: the paths of one cell after those of another of the same puzzles, by the look alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

from unmask.decoding.recipe import Recipe
from unmask.evaluate.stats import wilson
from unmask.evaluate.stopping import Stop, stopped, threshold

Row = dict[str, Any]
WAVES = (1, 2, 4, 8, 16, 32)
ANSWERS, NOTHING = 4, 1e-6
SPLITS = 20
RECIPE = Recipe(search="auto")


def looked(row: Row, count: int) -> list[int]:
    """The paths that `auto` looks at among the first: one for each of the four distinct answers of least surprise."""
    first: dict[int, int] = {}
    for slot in sorted(range(count), key=lambda slot: row["surprise"][slot]):
        first.setdefault(row["answer"][slot], slot)
    return list(first.values())[:ANSWERS]


def both(row: Row, slot: int) -> float:
    return math.sqrt(row["surprise"][slot] * max(row["look"][slot], NOTHING))


def price(row: Row, slot: int) -> int:
    """Evaluations of a look at the answer of a path: they were counted at the first path that has it."""
    return max(row["looks"][other] for other, answer in enumerate(row["answer"]) if answer == row["answer"][slot])


def best(row: Row, count: int, rule: str) -> int:
    """The path that a rule chooses among the first."""
    slots = range(count)
    if rule == "both":
        return min(sorted(looked(row, count)), key=lambda slot: both(row, slot))
    if rule == "look":
        return min(sorted(looked(row, count)), key=lambda slot: max(row["look"][slot], NOTHING))
    sign = -1 if rule == "log_prob" else 1
    return min(slots, key=lambda slot: sign * row[rule][slot])


def spent(row: Row, count: int, looks: bool) -> int:
    paths = sum(row["evaluations"][:count])
    return paths + (sum(price(row, slot) for slot in looked(row, count)) if looks else 0)


def stops(row: Row, most: int, looks: bool, labels: bool) -> list[Stop]:
    """Where a prompt could stop, with the answers that were looked at on the way."""
    rule, found, paid = "both" if looks else "surprise", [], dict[int, int]()
    last = best(row, most, rule)
    for count in (wave for wave in WAVES if wave <= most):
        here = best(row, count, rule)
        if looks:
            paid |= {row["answer"][slot]: price(row, slot) for slot in looked(row, count)}
        cost = both(row, here) if looks else row["surprise"][here]
        changed = row["answer"][here] != row["answer"][last]
        loss = row["right"][last] and not row["right"][here] if labels else changed
        found.append(Stop(count, cost, int(loss), sum(row["evaluations"][:count]) + sum(paid.values())))
    return found


def paired(differences: list[float]) -> str:
    n = len(differences)
    mean = sum(differences) / n
    half = 1.96 * math.sqrt(sum((one - mean) ** 2 for one in differences) / max(1, n - 1) / n)
    return f"{100 * mean:+.1f} ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})"


def fixed(rows: list[Row], looks: bool, k: int = 8) -> list[str]:
    n = len(rows)
    base = [row["right"][best(row, k, "entropy")] for row in rows]
    cells = []
    for rule in ("entropy", "surprise", "log_prob", "look", "both"):
        right = [row["right"][best(row, k, rule)] for row in rows]
        difference = "" if rule == "entropy" else " " + paired([a - b for a, b in zip(right, base, strict=True)])
        cells.append(f"{100 * sum(right) / n:.1f}{difference}")
    one = sum(sum(row["right"][:k]) / k for row in rows) / n
    oracle = sum(any(row["right"][:k]) for row in rows) / n
    evaluations = sum(spent(row, k, False) for row in rows) / n
    more = sum(spent(row, k, True) for row in rows) / n
    return [f"{100 * one:.1f}", *cells, f"{100 * oracle:.1f}", f"{evaluations:.0f}", f"{more:.0f}"]


def stopping(rows: list[Row], most: int, looks: bool, labels: bool, epsilon: float) -> list[str]:
    """Over resplits: the threshold from one half, its figures on the other."""
    rng, found = random.Random(7), []
    for _ in range(SPLITS):
        order = list(range(len(rows)))
        rng.shuffle(order)
        half = len(order) // 2
        until = threshold([stops(rows[at], most, looks, labels) for at in order[:half]], epsilon, RECIPE).until
        for at in order[half:]:
            end = stopped(stops(rows[at], most, looks, labels), until)
            rule = "both" if looks else "surprise"
            right = rows[at]["right"][best(rows[at], end.paths, rule)]
            base = rows[at]["right"][best(rows[at], 8, "entropy")]
            found.append((right, end.evaluations, end.loss, end.paths, right - base, end.paths == most))
    n = len(found)
    mean = [sum(float(one[place]) for one in found) / n for place in range(6)]
    spread = sorted(one[1] for one in found)[int(0.95 * n)]
    full = sum(stops(row, most, looks, labels)[-1].evaluations for row in rows) / len(rows)
    return [
        f"{100 * mean[0]:.1f}",
        f"{100 * mean[4]:+.1f}",
        f"{mean[1]:.1f}",
        f"{spread}",
        f"{full:.0f}",
        f"{mean[3]:.2f}",
        f"{100 * mean[5]:.0f} %",
        f"{mean[2]:.3f}",
    ]


# --- escalation ------------------------------------------------------------------------------------------------------

PLANS = {
    "sudoku24": [("eb", 2), ("selected", 16)],
    "countdown4": [("eb", 8), ("selected", 8)],
    "cd4": [("eb", 8), ("selected", 8)],
    "problems": [("eb", 4), ("block", 8)],
}


def escalated(plan: list[tuple[Row, int]], labels: bool) -> tuple[list[Stop], list[int]]:
    """Where a prompt could stop on its way through several cells, and whether the answer there is right."""
    spent, best_look, right, named = 0, math.inf, 0, (0, -1)
    rights, names, ends = list[int](), list[tuple[int, int]](), list[tuple[int, float, int]]()
    for stage, (row, most) in enumerate(plan):
        paid: dict[int, int] = {}
        before = 0
        for count in (wave for wave in WAVES if wave <= most):
            spent += sum(row["evaluations"][before:count])
            new = {row["answer"][slot]: price(row, slot) for slot in range(before, count)}
            spent += sum(cost for answer, cost in new.items() if answer not in paid)
            paid |= new
            for slot in range(before, count):
                if max(row["look"][slot], NOTHING) < best_look:
                    best_look, right = max(row["look"][slot], NOTHING), row["right"][slot]
                    named = stage, row["answer"][slot]
            before = count
            ends.append((sum(cap for _, cap in plan[:stage]) + count, best_look, spent))
            rights.append(right)
            names.append(named)
    found = []
    for (paths, look, cost), here, name in zip(ends, rights, names, strict=True):
        loss = rights[-1] and not here if labels else name != names[-1]
        found.append(Stop(paths, look, int(loss), cost))
    return found, rights


def escalating(cells: dict[str, tuple[list[Row], bool]], task: str, labels: bool, epsilon: float) -> list[str] | None:
    parts = [(f"{task}-{order}", most) for order, most in PLANS[task]]
    if any(name not in cells for name, _ in parts):
        return None
    rows = [{row["number"]: row for row in cells[name][0]} for name, _ in parts]
    numbers = sorted(set.intersection(*(set(one) for one in rows)))
    made = [escalated([(one[at], most) for one, (_, most) in zip(rows, parts, strict=True)], labels) for at in numbers]
    rng, found = random.Random(7), []
    for _ in range(SPLITS):
        order = list(range(len(made)))
        rng.shuffle(order)
        half = len(order) // 2
        until = threshold([made[at][0] for at in order[:half]], epsilon, RECIPE).until
        for at in order[half:]:
            stop = stopped(made[at][0], until)
            found.append((made[at][1][made[at][0].index(stop)], stop.evaluations, stop.paths))
    n = len(found)
    told = ", then ".join(f"{order} ≤ {most}" for order, most in PLANS[task])
    means = [sum(float(one[place]) for one in found) / n for place in range(3)]
    spread = sorted(one[1] for one in found)[int(0.95 * n)]
    full = sum(one[1][-1] for one in made) / len(made)
    return [task, told, str(len(made)), f"{100 * means[0]:.1f}", f"{means[1]:.1f}", f"{spread}", f"{100 * full:.1f}"]


def table(heads: list[str], lines: list[list[str]]) -> None:
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--paths", type=int, default=16)
    parser.add_argument("--epsilon", type=float, default=0.05)
    args = parser.parse_args()
    cells: dict[str, tuple[list[Row], bool]] = {}
    for path in sorted(args.folder.glob("*.jsonl")):
        header, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if len(rows) >= 40:
            unplanned = header["recipe"]["sampler"] in ("eb", "fast-dllm", "sdar", "llada2", "fast-dllm-v2")
            cells[path.stem] = sorted(rows, key=lambda row: row["number"]), unplanned
    print("Eight paths; share solved in percent, difference from E-BoN in points.\n")
    heads = "cell|n|one path|E-BoN|surprise|likelihood|look|both|any of 8|evaluations|with looks".split("|")
    table(heads, [[name, str(len(rows)), *fixed(rows, looks)] for name, (rows, looks) in cells.items()])
    for labels in (False, True):
        how = "a right answer becomes a wrong one" if labels else "the answer changes"
        for most in (8, args.paths):
            print(f"Stop, at most {most} paths, epsilon {args.epsilon:g}: {how}.\n")
            heads = "cell|solved|less E-BoN-8|evaluations|95th centile|without stop|paths|at the cap|loss".split("|")
            lines = []
            for name, (rows, looks) in cells.items():
                lines.append([name, *stopping(rows, most, looks, labels, args.epsilon)])
            table(heads, lines)
        print(f"Escalation by the look, epsilon {args.epsilon:g}: {how}.\n")
        found = [escalating(cells, task, labels, args.epsilon) for task in PLANS]
        table("task|plan|n|solved|evaluations|95th centile|without stop".split("|"), [one for one in found if one])
    total = sum(len(rows) for rows, _ in cells.values())
    half = 50 * (wilson(40, 80)[1] - wilson(40, 80)[0])
    print(f"{total} prompts in {len(cells)} cells; the 95 % interval of a share of 80 is at most ± {half:.0f} points.")


if __name__ == "__main__":
    main()
