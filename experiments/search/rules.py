"""Recorded paths -> what `stops.py` leaves out: stops and escalation on a budget, promises kept, means with intervals.

    python experiments/search/rules.py results/rows/search-paths.jsonl.xz [MORE] [--only provenance budget]

- `provenance`: which run each cell is of, and how many prompts of a cell that two runs have got equal paths in both.
- `budget`: a stop without labels or promise: `until` is the least threshold at which prompts of the other half (even or
  odd numbers) spend on average no more than a share of the evaluations of E-BoN with eight paths. *Growing*: the
  threshold is `until` times the number of paths so far, so that few paths must be surer than many. Differences against
  E-BoN and `auto` with eight paths; those of means over cells have bootstrap intervals over the puzzles.
- `escalate`: plans (paths of one cell, then of another of the same puzzles) to a budget of evaluations: by the look, as
  the package does, or the first cell by surprise × look and the second by surprise. Plan and thresholds are chosen on
  one half of the prompts, with their labels, and used on the other.
- `promise`: over resplits, the mean loss of the stop by conformal risk control, and how many splits are above epsilon.
- `way`: word problems; how much of the way from one path to any of eight each choice takes, the vote included.

The growing threshold, at most 32 paths, was chosen on eight cells of search-paths.jsonl.xz (of powers -1 to 3 and of 8,
16 and 32 paths at most). What tests it are cells and prompts that are not in that file: --unseen.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stops import (
    NOTHING,
    SPLITS,
    WAVES,
    Cells,
    Row,
    best,
    both,
    difference,
    looked,
    price,
    read,
    runs,
    spent,
    stopping,
    table,
)

from unmask.evaluate.stats import bootstrap

Ends = NDArray[np.float64]  # [prompts, waves, 3]: cost of the best path so far, whether it is right, evaluations


def auto_rule(looks: bool) -> str:
    return "both" if looks else "surprise"


def sure(row: Row, slot: int, looks: bool) -> float:
    return both(row, slot) if looks else row["surprise"][slot]


def ends(rows: list[Row], most: int, looks: bool, growing: float) -> Ends:
    """Where prompts could stop."""
    waves = [wave for wave in WAVES if wave <= most]
    found = np.zeros((len(rows), len(waves), 3))
    for place, row in enumerate(rows):
        paid: dict[int, int] = {}
        for at, count in enumerate(waves):
            here = best(row, count, auto_rule(looks))
            if looks:
                paid |= {row["answer"][slot]: price(row, slot) for slot in looked(row, count)}
            cost = sure(row, here, looks) / count**growing
            found[place, at] = cost, row["right"][here], sum(row["evaluations"][:count]) + sum(paid.values())
    return found


def taken(found: Ends, until: float) -> NDArray[np.int64]:
    """The wave at which each prompt stops."""
    hit = found[:, :, 0] < until
    hit[:, -1] = True
    first: NDArray[np.int64] = hit.argmax(1)
    return first


def within(found: Ends, budget: float) -> float:
    """The least threshold at which these prompts spend no more on average."""

    def spends(until: float) -> float:
        return float(found[np.arange(len(found)), taken(found, until), 2].mean())

    if spends(0.0) <= budget:
        return 0.0
    costs = np.unique(found[:, :, 0])
    low, high = 0, len(costs) - 1
    while low < high:
        middle = (low + high) // 2
        enough = spends(float(np.nextafter(costs[middle], np.inf))) <= budget
        low, high = (low, middle) if enough else (middle + 1, high)
    return float(np.nextafter(costs[low], np.inf))


def crossed(found: Ends, budget: NDArray[np.float64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The wave of each prompt, by a threshold of the other half's budget."""
    chosen = np.zeros(len(found), dtype=np.int64)
    for half in (0, 1):
        mine = numbers % 2 == half
        chosen[mine] = taken(found[mine], within(found[~mine], float(budget[~mine].mean())))
    return chosen


def budgets(cells: Cells, share: float, growing: float, most: int) -> None:
    lines, kept = [], []
    for name, (rows, looks) in cells.items():
        numbers = np.array([row["number"] for row in rows])
        eight = np.array([spent(row, 8, False) for row in rows], dtype=float)
        found = ends(rows, min(most, len(rows[0]["right"])), looks, growing)
        waves = crossed(found, share * eight, numbers)
        each = np.arange(len(rows))
        right, cost = found[each, waves, 1].astype(int).tolist(), found[each, waves, 2]
        entropy = [row["right"][best(row, 8, "entropy")] for row in rows]
        auto = [row["right"][best(row, 8, auto_rule(looks))] for row in rows]
        oracle = [int(any(row["right"][:8])) for row in rows]
        n = len(rows)
        lines.append([name, str(n), *(f"{100 * sum(one) / n:.1f}" for one in (entropy, auto, oracle, right))])
        lines[-1] += [difference(entropy, right), difference(auto, right), f"{cost.mean():.1f}"]
        lines[-1] += [f"{cost.mean() / eight.mean():.2f}", f"{np.sort(cost)[int(0.95 * n)]:.0f}"]
        lines[-1] += [f"{100 * (waves == found.shape[1] - 1).mean():.0f} %"]
        task = name.split("-")[0]
        kept += [
            (name, (task, row["number"]), *some)
            for row, *some in zip(rows, right, entropy, auto, oracle, cost / eight.mean(), strict=True)
        ]
    how = f"the threshold grows with the paths to the power {growing:g}" if growing else "one threshold"
    print(f"Stop at {share:g} of the evaluations of E-BoN with eight paths, at most {most} paths; {how}.\n")
    heads = "cell|n|E-BoN|auto|any of 8|stopped|less E-BoN|less auto|evaluations|of E-BoN's|95th centile|at the cap"
    table(heads.split("|"), lines)
    over_cells(kept)


def over_cells(kept: list[tuple[Any, ...]]) -> None:
    """Means over cells, with intervals over puzzles."""
    names = {name: at for at, name in enumerate(dict.fromkeys(one[0] for one in kept))}
    cell = np.array([names[one[0]] for one in kept])
    values = np.array([one[2:] for one in kept], dtype=float)  # right, entropy, auto, oracle, share

    def measure(places: NDArray[np.int64]) -> dict[str, float]:
        counts = np.bincount(cell[places], minlength=len(names))
        means = [
            (np.bincount(cell[places], values[places, at], minlength=len(names)) / np.maximum(counts, 1))[counts > 0]
            for at in range(5)
        ]
        right, entropy, auto, oracle, share = (float(one.mean()) for one in means)
        solved = {"stopped": right, "E-BoN": entropy, "auto": auto, "any of 8": oracle, "evaluations": share}
        less = {"less E-BoN": right - entropy, "less auto": right - auto, "less any of 8": right - oracle}
        return {**solved, **less}

    said = []
    for name, (value, low, high) in bootstrap(measure, [one[1] for one in kept], draws=300).items():
        scale = 1 if name == "evaluations" else 100
        assert value is not None and low is not None and high is not None
        digits = 2 if name == "evaluations" else 1
        said.append(f"{name} {scale * value:.{digits}f} ({scale * low:.{digits}f} to {scale * high:.{digits}f})")
    print(f"Means of {len(names)} cells: {', '.join(said)}\n")


# --- escalation ------------------------------------------------------------------------------------------------------

BUDGETS = {"sudoku24": 30, "sudoku28": 30, "cd4": 110, "countdown4": 125, "cd3": 50, "cd5": 200, "problems": 60}
FIRST = {"eb": (1, 2, 4, 8, 16), "fast-dllm": (2, 4, 8)}
LAST = {
    "": (0,),
    "selected": (4, 8, 16),
    "confidence": (4, 8, 16),
    "uniform": (8, 16),
    "block": (4, 8),
    "entropy": (8, 16),
}


def plans(task: str, cells: Cells) -> list[list[tuple[str, int]]]:
    found = []
    for (a, firsts), (b, lasts) in product(FIRST.items(), LAST.items()):
        if f"{task}-{a}" in cells and (not b or f"{task}-{b}" in cells):
            for one, other in product(firsts, lasts):
                found.append([(f"{task}-{a}", one), *([(f"{task}-{b}", other)] if b else [])])
    return found


def way_through(rows: list[Row], caps: list[int]) -> list[tuple[float, int, int]]:
    """A prompt's ends on its way through several cells, by the look alone, as the package escalates."""
    found, least, right, cost = [], np.inf, 0, 0
    for row, most in zip(rows, caps, strict=True):
        paid, before = set[int](), 0
        for count in (wave for wave in WAVES if wave <= most):
            for slot in range(before, count):
                cost += row["evaluations"][slot]
                if row["answer"][slot] not in paid:
                    paid.add(row["answer"][slot])
                    cost += price(row, slot)
                if max(row["look"][slot], NOTHING) < least:
                    least, right = max(row["look"][slot], NOTHING), row["right"][slot]
            before = count
            found.append((least, right, cost))
    return found


def by_look(plan: list[tuple[str, int]], by: dict[str, dict[int, Row]], numbers: list[int]) -> list[tuple[str, Ends]]:
    caps = [cap for _, cap in plan]
    made = [way_through([by[name][at] for name, _ in plan], caps) for at in numbers]
    return [("by the look", np.array(made, dtype=float))]


def mixed(plan: list[tuple[str, int]], by: dict[str, dict[int, Row]], numbers: list[int]) -> list[tuple[str, Ends]]:
    """The first cell stops by surprise × look under each of some thresholds; what is left, by the second's surprise."""
    if len(plan) < 2:
        return []
    (one, few), (other, most) = plan
    first = ends([by[one][at] for at in numbers], few, True, 0.0)
    second = ends([by[other][at] for at in numbers], most, False, 0.0)
    made = []
    for until in np.quantile(first[:, -1, 0], np.linspace(0.3, 0.95, 14)):
        waves, each = taken(first, float(until)), np.arange(len(numbers))
        stopped = first[each, waves]
        found = second.copy()
        found[:, :, 2] += first[:, -1, 2][:, None]
        sure_ones = stopped[:, 0] < until
        found[sure_ones] = stopped[sure_ones][:, None]
        found[sure_ones, :, 0] = -1.0
        made.append((f"by surprise × look < {until:.2g}, then surprise", found))
    return made


def escalate(cells: Cells, task: str, budget: float, how: Callable[..., list[tuple[str, Ends]]]) -> list[str] | None:
    """Solved on both halves, each by the plan and the threshold of the other."""
    tried = plans(task, cells)
    if not tried:
        return None
    by = {name: {row["number"]: row for row in cells[name][0]} for plan in tried for name, _ in plan}
    numbers = sorted(set.intersection(*map(set, by.values())))
    made = [(plan, *one) for plan in tried for one in how(plan, by, numbers)]
    if not made:
        return None
    odd = np.array(numbers) % 2 == 1
    right, cost, told = np.zeros(len(numbers)), np.zeros(len(numbers)), []
    for half in (odd, ~odd):
        scores = []
        for _, _, found in made:
            known = found[~half]
            until = within(known, budget)
            waves, each = taken(known, until), np.arange(len(known))
            over = float(known[each, waves, 2].mean()) > budget
            scores.append((-1.0 if over else float(known[each, waves, 1].mean()), until))
        which = int(np.argmax([score for score, _ in scores]))
        plan, words, found = made[which]
        mine = found[half]
        waves, each = taken(mine, scores[which][1]), np.arange(int(half.sum()))
        right[half], cost[half] = mine[each, waves, 1], mine[each, waves, 2]
        told.append(" then ".join(f"{name.split('-', 1)[1]} ≤ {cap}" for name, cap in plan) + f", {words}")
    n = len(numbers)
    low, high = wilson_of(int(right.sum()), n)
    solved, spread = f"{100 * right.mean():.1f} ({low:.1f} to {high:.1f})", np.sort(cost)[int(0.95 * n)]
    return [task, str(n), f"{budget:g}", " / ".join(told), solved, f"{cost.mean():.1f}", f"{spread:.0f}"]


def wilson_of(right: int, n: int) -> tuple[float, float]:
    from unmask.evaluate.stats import wilson

    low, high = wilson(right, n)
    return 100 * low, 100 * high


# --- the others ------------------------------------------------------------------------------------------------------


def provenance(where: list[Path]) -> None:
    lines, seen = [], dict[str, dict[int, Row]]()
    for header, rows in sorted(runs(where), key=lambda one: (one[0]["cell"], one[0].get("method", ""))):
        origin = [header, *header.get("resumed", [])]
        commits = ", ".join(dict.fromkeys(str(one["commit"])[:7] for one in origin))
        machines = ", ".join(dict.fromkeys(str(one["machine"]).split(",")[0] for one in origin))
        equal = ""
        if "method" not in header:
            before = seen.setdefault(header["cell"], {})
            common = [(row, before[row["number"]]) for row in rows if row["number"] in before]
            same = [min(len(a["answer"]), len(b["answer"])) for a, b in common]
            alike = sum(
                a["answer"][:k] == b["answer"][:k] and a["evaluations"][:k] == b["evaluations"][:k]
                for (a, b), k in zip(common, same, strict=True)
            )
            equal = f"{alike} of {len(common)}" if common else ""
            before |= {row["number"]: row for row in rows}
        paths = "" if not rows or "answer" not in rows[0] else str(len(rows[0]["answer"]))
        weights = str(header["weights"])[:6]
        lines.append([header["cell"], header.get("method", ""), str(len(rows)), paths, machines, commits])
        lines[-1] += [weights, equal]
    table("cell|method|n|paths|machine|commit|weights|prompts with equal paths in the run before".split("|"), lines)


def promise(cells: Cells, epsilon: float) -> None:
    for labels, most in product((False, True), (8, 16)):
        lines, every = [], list[float]()
        for name, (rows, looks) in cells.items():
            found = stopping(rows, min(most, len(rows[0]["right"])), looks, labels, epsilon)
            above = sum(one > epsilon for one in found.losses)
            mean = float(np.mean(found.losses))
            every.append(mean)
            lines.append([name, f"{mean:.4f}", f"{max(found.losses):.4f}", f"{above} of {SPLITS}"])
            lines[-1] += [f"{100 * found.right:.1f}", f"{found.evaluations:.1f}"]
        print(f"At most {most} paths, epsilon {epsilon:g}, {'with' if labels else 'without'} labels.\n")
        table("cell|mean loss|largest|splits above epsilon|solved|evaluations".split("|"), lines)
        kept = sum(one <= epsilon for one in every)
        print(f"Mean loss {np.mean(every):.4f}; at most epsilon in {kept} of {len(every)} cells.\n")


def vote(row: Row, k: int) -> float:
    """Whether the most frequent stated answer of k paths is right; a tie goes to the first."""
    said = [one for one in row["said"][:k] if one >= 0]
    if not said:
        return 0.0
    most = Counter(said).most_common(1)[0][0]
    return float(row["right"][row["said"].index(most)])


def way(cells: Cells, k: int = 8) -> None:
    lines = []
    for name, (rows, looks) in cells.items():
        if not name.startswith("problems"):
            continue
        one = np.mean([np.mean(row["right"][:k]) for row in rows])
        oracle = np.mean([any(row["right"][:k]) for row in rows])
        rules: dict[str, Callable[[Row], float]] = {
            rule: partial(lambda row, rule: row["right"][best(row, k, rule)], rule=rule)
            for rule in ("entropy", "log_prob", "surprise", "look", "both")
        }
        if "said" in rows[0]:
            rules["vote"] = lambda row: vote(row, k)
        shares = {rule: float(np.mean([take(row) for row in rows])) for rule, take in rules.items()}
        said = [f"{100 * share:.1f} ({(share - one) / (oracle - one):+.2f})" for share in shares.values()]
        line = [name, str(len(rows)), f"{100 * one:.1f}", *said, *([""] if "vote" not in rules else [])]
        mine = [int(rules[auto_rule(looks)](row)) for row in rows]
        against = {rule: [int(take(row)) for row in rows] for rule, take in rules.items()}
        others = [rule for rule in ("entropy", "log_prob", "vote") if rule in rules]
        less = "; ".join(f"{rule} {difference(against[rule], mine)}" for rule in others)
        lines.append([*line, f"{100 * oracle:.1f}", less])
    if lines:
        print("Word problems, eight paths: solved, and of the way from one path to any of eight.\n")
        heads = "cell|n|one path|entropy|likelihood|surprise|look|both|vote|any of 8|auto less"
        table(heads.split("|"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="folders of recorded paths, or packed files of them")
    parser.add_argument("--only", nargs="+", default=["provenance", "budget", "escalate", "promise", "way"])
    parser.add_argument("--cells", nargs="+", default=[], help="beginnings of the names of the cells that count")
    parser.add_argument("--least", type=int, default=40, help="prompts of a cell that counts")
    parser.add_argument("--begin", type=int, default=0, help="the first prompt that counts")
    parser.add_argument("--unseen", type=Path, metavar="FILE", help="leave out the prompts that these rows have")
    parser.add_argument("--epsilon", type=float, default=0.05)
    args = parser.parse_args()
    if "provenance" in args.only:
        provenance(args.rows)
    cells, seen = dict[str, tuple[list[Row], bool]](), set[tuple[str, int]]()
    if args.unseen is not None:
        seen = {(header["cell"], row["number"]) for header, rows in runs(args.unseen) for row in rows}
    for name, (some, looks) in read(args.rows).items():
        cells[name] = [row for row in some if row["number"] >= args.begin and (name, row["number"]) not in seen], looks
    mine = [name for name in cells if not args.cells or name.startswith(tuple(args.cells))]
    cells = {name: cells[name] for name in mine if len(cells[name][0]) >= args.least}
    if not cells:
        print(f"no cell has {args.least} prompts that count")
        return
    if "budget" in args.only:
        for share, (growing, most) in product((1.0, 0.5, 0.25), ((0.0, 16), (1.0, 16), (0.0, 32), (1.0, 32))):
            budgets(cells, share, growing, most)
    if "escalate" in args.only:
        found = [escalate(cells, task, budget, how) for task, budget in BUDGETS.items() for how in (by_look, mixed)]
        heads = "task|n|budget|plan of either half|solved|evaluations|95th centile"
        table(heads.split("|"), [one for one in found if one])
    if "promise" in args.only:
        promise(cells, args.epsilon)
    if "way" in args.only:
        way(cells)


if __name__ == "__main__":
    main()
