"""Judged rows -> means, corpus perplexities and correlations, each with a 95 % bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]  # of rows
Figure = tuple[float | None, float | None, float | None]  # the value and the ends of its interval
DRAWS = 1000
MEANS = ("ln_ppl", "path_entropy", "diversity", "distinct_1", "distinct_2", "distinct_3")
RATIOS = {"ppl": ("nats", "judge_tokens"), "mdlm_ppl": ("mdlm_nats", "mdlm_tokens")}  # exp(all nats / all tokens)


def figures(rows: Sequence[dict[str, Any]], group: str | None = None) -> dict[str, Any]:
    """The figures of judged rows; rows with the same `group` are drawn together, being no independent samples.

    Without a name the field is `group`, else `seed`, where every row has it. A figure is there if all rows have what it
    is made of: `pearson` and `spearman` are of path entropy with ln PPL, and `ceiling` is the most that a correlation
    with ln PPL could be.
    """
    names = [group] if group else [name for name in ("group", "seed") if all(name in row for row in rows)]
    keys: list[Hashable] = [str(row.get(names[0])) if names else place for place, row in enumerate(rows)]
    needed = {*MEANS, "even", "odd", *(name for pair in RATIOS.values() for name in pair)}
    table = {
        name: np.array([row[name] for row in rows], dtype=np.float64) for name in sorted(needed) if _all(rows, name)
    }
    found = bootstrap(lambda places: _measured({name: column[places] for name, column in table.items()}), keys)
    said = {name: dict(zip(("mean", "low", "high"), figure, strict=True)) for name, figure in found.items()}
    return {"n": len(rows), "groups": len(set(keys)), **said}


def _all(rows: Sequence[dict[str, Any]], name: str) -> bool:
    kinds = [row.get(name) for row in rows]
    return all(isinstance(value, int | float) and math.isfinite(value) for value in kinds)


def _measured(table: dict[str, Floats]) -> dict[str, float]:
    found = {name: float(table[name].mean()) for name in MEANS if name in table}
    for name, (nats, tokens) in RATIOS.items():
        if nats in table and tokens in table:
            total = float(table[tokens].sum())
            found[name] = math.exp(min(700.0, float(table[nats].sum()) / total)) if total else math.nan
    if "path_entropy" in table and "ln_ppl" in table:
        found["pearson"] = pearson(table["path_entropy"], table["ln_ppl"])
        found["spearman"] = spearman(table["path_entropy"], table["ln_ppl"])
    if "even" in table and "odd" in table:
        found["ceiling"] = ceiling(table["even"], table["odd"])
    return found


def bootstrap(
    measure: Callable[[Places], dict[str, float]], keys: Sequence[Hashable], draws: int = DRAWS, seed: int = 0
) -> dict[str, Figure]:
    """Each figure of all rows, with the interval that drawing groups of rows (those of equal keys) again gives.

    One group gives no interval; a figure that is no number is None.
    """
    members: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    groups = [np.array(places) for places in members.values()]
    whole = measure(np.arange(len(keys)))
    if len(groups) < 2:
        return {name: (_finite(value), None, None) for name, value in whole.items()}
    dice = np.random.default_rng(seed)
    again = []
    for _ in range(draws):
        drawn = dice.integers(0, len(groups), len(groups))
        again.append(measure(np.concatenate([groups[one] for one in drawn])))
    return {name: (_finite(value), *_ends([one[name] for one in again])) for name, value in whole.items()}


def _ends(values: list[float]) -> tuple[float | None, float | None]:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None, None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def pearson(left: Floats, right: Floats) -> float:
    """The linear correlation; no number where one of them does not vary."""
    if len(left) < 3:
        return math.nan
    a, b = left - left.mean(), right - right.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return max(-1.0, min(1.0, float(a @ b) / scale)) if scale > 0 else math.nan


def spearman(left: Floats, right: Floats) -> float:
    """The correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(left), _ranks(right))


def _ranks(values: Floats) -> Floats:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2.0)[which]
    return ranks


def ceiling(even: Floats, odd: Floats) -> float:
    """The most that anything could correlate with a mean over all tokens, from the means over either half of them.

    Spearman and Brown: from the agreement r of the halves the whole has the reliability 2r / (1 + r); its root bounds
    the correlation with a quantity that knows the true mean and nothing of the noise.
    """
    agree = pearson(even, odd)
    return math.sqrt(max(0.0, 2 * agree / (1 + agree))) if agree > -1 else 0.0
