"""Recorded paths -> what choosing, looking, stopping and escalating would have given: a table for each rule.

    python experiments/search/stops.py runs/paths [--paths 16]
    python experiments/search/stops.py results/rows/search-paths.jsonl.xz runs/paths.jsonl.xz

For every cell: the share solved, and the evaluations that it took, of E-BoN, of surprise, of likelihood, of the look
and of `auto` with eight paths, and of a perfect choice; then of `auto` that stops. Its threshold is found by conformal
risk control on one half of the puzzles and used on the other half, twenty times, without labels (the answer changes)
and with labels (a right answer becomes a wrong one). Differences have Tango's 95 % intervals. Then the means over
cells, escalation (the paths of one cell after those of another of the same puzzles, by the look alone), and the
searches that `paths.py search` has decoded.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.decoding.recipe import Recipe
from unmask.evaluate.stats import paired
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


def difference(first: list[int], second: list[int]) -> str:
    """The second less the first in points, with its interval, and McNemar's p where it is under 0.05."""
    found = paired([bool(one) for one in first], [bool(one) for one in second])
    sure = f", p {found.p:.2g}" if found.p < 0.05 else ""
    return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f}{sure})"


def fixed(rows: list[Row], looks: bool, k: int = 8) -> list[str]:
    n = len(rows)
    base = [row["right"][best(row, k, "entropy")] for row in rows]
    cells = []
    for rule in ("entropy", "surprise", "log_prob", "look", "both"):
        right = [row["right"][best(row, k, rule)] for row in rows]
        cells.append(f"{100 * sum(right) / n:.1f}{'' if rule == 'entropy' else ' ' + difference(base, right)}")
    one = sum(sum(row["right"][:k]) / k for row in rows) / n
    oracle = sum(any(row["right"][:k]) for row in rows) / n
    evaluations = sum(spent(row, k, False) for row in rows) / n
    more = sum(spent(row, k, True) for row in rows) / n
    return [f"{100 * one:.1f}", *cells, f"{100 * oracle:.1f}", f"{evaluations:.0f}", f"{more:.0f}"]


@dataclass
class Stopped:
    """A stop in one cell, over resplits."""

    right: float
    evaluations: float
    centile: int  # 95th, of the evaluations
    full: float  # evaluations without a stop
    paths: float
    capped: float  # share of prompts that had all paths
    losses: list[float]  # of each split

    def line(self, base: float) -> list[str]:
        kept = sum(self.losses) / len(self.losses)
        return [
            f"{100 * self.right:.1f}",
            f"{100 * (self.right - base):+.1f}",
            f"{self.evaluations:.1f}",
            f"{self.centile}",
            f"{self.full:.0f}",
            f"{self.paths:.2f}",
            f"{100 * self.capped:.0f} %",
            f"{kept:.3f}",
        ]


def stopping(rows: list[Row], most: int, looks: bool, labels: bool, epsilon: float) -> Stopped:
    """Over resplits: the threshold from one half, its figures on the other."""
    rng, found, losses = random.Random(7), [], []
    rule = "both" if looks else "surprise"
    each = [stops(row, most, looks, labels) for row in rows]
    for _ in range(SPLITS):
        order = list(range(len(rows)))
        rng.shuffle(order)
        half = len(order) // 2
        until = threshold([each[at] for at in order[:half]], epsilon, RECIPE).until
        ends = [(at, stopped(each[at], until)) for at in order[half:]]
        losses.append(sum(end.loss for _, end in ends) / len(ends))
        for at, end in ends:
            right = rows[at]["right"][best(rows[at], end.paths, rule)]
            found.append((right, end.evaluations, end.paths, end.paths == most))
    n = len(found)
    right, evaluations, paths, capped = (sum(float(one[place]) for one in found) / n for place in range(4))
    spread = sorted(one[1] for one in found)[int(0.95 * n)]
    full = sum(one[-1].evaluations for one in each) / len(rows)
    return Stopped(right, evaluations, spread, full, paths, capped, losses)


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


Cells = dict[str, tuple[list[Row], bool]]  # rows, and whether a step may write many


def runs(where: Path | list[Path]) -> list[tuple[Row, list[Row]]]:
    """Each recorded run: its header and rows, from the files of a folder or from packed files."""
    if isinstance(where, list):  # of a cell that is in several, the one with most prompts
        return [one for part in where for one in runs(part)]
    if where.is_dir():
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(where.glob("*.jsonl")))
    else:
        text = lzma.decompress(where.read_bytes()).decode()
    found: list[tuple[Row, list[Row]]] = []
    for line in map(json.loads, filter(None, text.splitlines())):
        if "cell" in line:
            found.append((line, []))
        elif "number" in line:
            found[-1][1].append(line)
        elif "resumed" in line:  # by another commit, or on another machine
            found[-1][0].setdefault("resumed", []).append(line["resumed"])
    return found


def read(where: Path | list[Path]) -> Cells:
    cells: Cells = {}
    for header, rows in runs(where):
        if len(rows) >= 40 and "method" not in header and len(rows) > len(cells.get(header["cell"], ([], False))[0]):
            unplanned = header["recipe"]["sampler"] in ("eb", "fast-dllm", "sdar", "llada2", "fast-dllm-v2")
            cells[header["cell"]] = sorted(rows, key=lambda row: row["number"]), unplanned
    return {name: cells[name] for name in sorted(cells)}


def pack(where: list[Path], into: Path) -> None:
    """All runs in one file."""
    lines = [json.dumps(line, separators=(",", ":")) for header, rows in runs(where) for line in (header, *rows)]
    into.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))


def means(cells: Cells, most: int, epsilon: float) -> None:
    """Over the cells: solved, and evaluations as a share of those of E-BoN with eight paths."""
    told: dict[str, list[tuple[float, float]]] = {}
    for name, (rows, looks) in cells.items():
        n, eight = len(rows), sum(spent(row, 8, False) for row in rows) / len(rows)
        auto = "both" if looks else "surprise"

        def keep(what: str, right: float, evaluations: float, eight: float = eight) -> None:
            told.setdefault(what, []).append((right, evaluations / eight))

        keep("one path", sum(sum(row["right"][:8]) / 8 for row in rows) / n, eight / 8)
        keep("E-BoN, 8", sum(row["right"][best(row, 8, "entropy")] for row in rows) / n, eight)
        keep("likelihood, 8", sum(row["right"][best(row, 8, "log_prob")] for row in rows) / n, eight)
        keep("surprise, 8", sum(row["right"][best(row, 8, "surprise")] for row in rows) / n, eight)
        cost = sum(spent(row, 8, looks) for row in rows) / n
        keep("auto, 8", sum(row["right"][best(row, 8, auto)] for row in rows) / n, cost)
        keep("any of 8", sum(any(row["right"][:8]) for row in rows) / n, eight)
        for cap in sorted({8, min(most, len(rows[0]["right"]))}):
            found = stopping(rows, cap, looks, False, epsilon)
            keep(f"auto, stopped, at most {8 if cap == 8 else most}", found.right, found.evaluations)
            if cap == min(most, len(rows[0]["right"])) == 8:
                keep(f"auto, stopped, at most {most}", found.right, found.evaluations)
        del name
    lines = []
    for what, values in told.items():
        right, share = (sum(one[place] for one in values) / len(values) for place in range(2))
        lines.append([what, f"{100 * right:.1f}", f"{share:.2f}", f"{max(one[1] for one in values):.2f}"])
    print(f"Means of {len(cells)} cells; evaluations as a share of E-BoN's with eight paths.\n")
    table(["", "solved", "evaluations", "largest of a cell"], lines)


def methods(folder: list[Path], cells: Cells) -> None:
    """Searches that resample, against E-BoN and auto with eight paths of the same prompts."""
    lines = []
    for header, rows in runs(folder):
        if header["cell"] in cells and "method" in header:
            known, looks = cells[header["cell"]]
            paths = {row["number"]: row for row in known}
            both_have = [row for row in rows if row["number"] in paths]
            if len(both_have) < 40:
                continue
            mine = [row["right"] for row in both_have]
            entropy = [paths[row["number"]]["right"][best(paths[row["number"]], 8, "entropy")] for row in both_have]
            rule = "both" if looks else "surprise"
            auto = [paths[row["number"]]["right"][best(paths[row["number"]], 8, rule)] for row in both_have]
            n = max(1, len(both_have))
            share = f"{100 * sum(mine) / n:.1f}", f"{100 * sum(row['any'] for row in both_have) / n:.1f}"
            cost = f"{sum(row['evaluations'] for row in both_have) / n:.0f}"
            lines.append([header["cell"], header["method"], str(n), *share, cost])
            lines[-1] += [difference(entropy, mine), difference(auto, mine)]
    if lines:
        table("cell|method|n|solved|any path|evaluations|less E-BoN|less auto".split("|"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="of recorded paths, or packed files of them")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write them all to this .jsonl.xz, and nothing else")
    parser.add_argument("--paths", type=int, default=16)
    parser.add_argument("--epsilon", type=float, default=0.05)
    args = parser.parse_args()
    if args.pack is not None:
        pack(args.folder, args.pack)
        return
    cells = read(args.folder)
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
                base = sum(row["right"][best(row, 8, "entropy")] for row in rows) / len(rows)
                found = stopping(rows, min(most, len(rows[0]["right"])), looks, labels, args.epsilon)
                lines.append([name, *found.line(base)])
            table(heads, lines)
        print(f"Escalation by the look, epsilon {args.epsilon:g}: {how}.\n")
        found = [escalating(cells, task, labels, args.epsilon) for task in PLANS]
        table("task|plan|n|solved|evaluations|95th centile|without stop".split("|"), [one for one in found if one])
    means(cells, args.paths, args.epsilon)
    methods(args.folder, cells)
    print(f"{sum(len(rows) for rows, _ in cells.values())} prompts in {len(cells)} cells")


if __name__ == "__main__":
    main()
