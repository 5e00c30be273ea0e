"""Known texts × model × E-SMC Recipe -> the strength λ* at which decoded paths have the entropy of reference paths.

The theorem of the paper: the expected path entropy μ̂(λ) of E-SMC falls as the strength λ grows, so where the reference
lies between μ̂(0) and μ̂(∞) there is one λ* that meets it. Its proof is about one resampling; over a whole path the fall
is measured here, not assumed: points that rise are pooled, and can be seen in the curve. All strengths share their dice
and texts, so that they differ by the strength and by what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser
from unmask.decoding.recipe import Recipe
from unmask.errors import SettingError
from unmask.evaluate.stats import Mean, Places, average, bootstrap, mean
from unmask.evaluate.theory.reference import Known, generated, reference

MOST = 1000.0  # the largest strength tried; at log2 V = 13, two particles that differ by 0.1 bit weigh 1 : 2,200
CLOSE = 0.02  # strengths within two percent are one: no measurement tells them apart
BOOTSTRAPS = 2000
OF = ("population", "chosen")
Progress = Callable[[str, int, int], None]  # what is measured, texts done, texts in all


@dataclass(frozen=True)
class Point:
    """One strength: path entropies in bits, one for each text."""

    strength: float
    population: list[float]  # mean over the particles of a text
    chosen: list[float]  # of the particle that is returned
    evaluations: int


@dataclass(frozen=True)
class Calibration:
    """The result. `strength` is None where the reference is out of reach, below ("low") or above ("high") the range."""

    recipe: Recipe
    of: str  # population or chosen: whose path entropy meets the reference
    reference: list[float]  # bits, one for each text
    points: list[Point]  # by strength
    strength: float | None
    low: float | None  # 95 %; None: not known
    high: float | None  # infinite: some resampled sets of texts do not reach the reference
    end: str | None
    evaluations: int

    def curve(self) -> list[tuple[float, Mean]]:
        """(strength, path entropy)."""
        return [(point.strength, mean(self._each(point))) for point in self.points]

    def gaps(self) -> list[Mean]:
        """Decoded less reference path entropy at each strength, paired by text."""
        return [mean(row) for row in self.paired()]

    def paired(self) -> Tensor:  # [points, N] float64
        rows = torch.tensor([self._each(point) for point in self.points], dtype=torch.float64)
        return rows - torch.tensor(self.reference, dtype=torch.float64)

    def _each(self, point: Point) -> list[float]:
        return point.population if self.of == "population" else point.chosen


def calibrate(
    model: Denoiser,
    texts: Sequence[Known],
    recipe: Recipe,
    *,
    draws: int = 4,
    most: float = MOST,
    points: int = 8,
    budget: int | None = None,  # evaluations, at most
    of: str = "population",
    on_progress: Progress = lambda what, done, total: None,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Calibration:
    """Bisect between strength 0 and `most`, at most `points` strengths; `on_row` gets each row as it is measured."""
    _check(recipe, most, points, of)
    paths = reference(model, texts, recipe, draws, lambda done, total: on_progress("reference", done, total))
    spent = sum(path.evaluations for some in paths for path in some)
    true = [sum(path.path_entropy for path in some) / len(some) for some in paths]
    on_row({"kind": "reference", "path_entropy": true, "evaluations": spent})
    found: list[Point] = []

    def gap(strength: float) -> float:
        nonlocal spent
        point = _point(model, texts, recipe.replace(strength=strength), on_progress)
        found.append(point)
        on_row({"kind": "generated", **vars(point)})
        spent += point.evaluations
        return average(point.population if of == "population" else point.chosen) - average(true)

    def affordable() -> bool:
        return budget is None or spent + max((point.evaluations for point in found), default=0) <= budget

    low, high, end = 0.0, most, None
    if gap(low) <= 0:
        end = "low"
    elif affordable() and gap(high) > 0:
        end = "high"
    while end is None and len(found) < points and affordable() and _apart(low, high) > CLOSE:
        middle = math.expm1((math.log1p(low) + math.log1p(high)) / 2)
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    if budget is not None and len(found) == 1 and end is None:
        cost = spent - found[0].evaluations + 3 * found[0].evaluations
        raise SettingError(f"a budget of {budget} evaluations ends before a second strength", f"give at least {cost}")
    return _solved(Calibration(recipe, of, true, sorted(found, key=lambda p: p.strength), None, None, None, end, spent))


def _check(recipe: Recipe, most: float, points: int, of: str) -> None:
    if recipe.search != "smc" or recipe.target is not None:
        raise SettingError("calibrate finds the strength of search smc", "use search smc, without a target")
    if of not in OF:
        raise SettingError(f"of is {of!r}", f"choose from {', '.join(OF)}")
    if not 0 < most <= 1e6:
        raise SettingError(f"the largest strength is {most:g}", "it must be above 0 and at most 1000000")
    if points < 3:
        raise SettingError(f"points is {points}", "it must be at least 3: two ends and one between")


def _apart(low: float, high: float) -> float:
    return math.log1p(high) - math.log1p(low)


def _point(model: Denoiser, texts: Sequence[Known], recipe: Recipe, on_progress: Progress) -> Point:
    strength = recipe.strength or 0.0
    results = generated(model, texts, recipe, lambda done, total: on_progress(f"strength {strength:.3g}", done, total))
    return Point(
        strength,
        [average([particle.path_entropy for particle in result.particles]) for result in results],
        [result.path_entropy for result in results],
        sum(result.evaluations for result in results),
    )


# --- from points to a strength ---------------------------------------------------------------------------------------


def _solved(found: Calibration) -> Calibration:
    """Add the strength where the points cross 0, with a bootstrap interval over texts."""
    if found.end is not None:
        return found
    strengths, gaps = [point.strength for point in found.points], found.paired().numpy()
    dice = np.random.default_rng([found.recipe.seed % 2**63, len(found.reference)])

    def measure(places: Places) -> dict[str, float]:
        return {"strength": crossing(strengths, gaps[:, places].mean(1).tolist())}

    _, low, high = bootstrap(measure, range(gaps.shape[1]), BOOTSTRAPS, dice, "lower")["strength"]
    return replace(found, strength=crossing(strengths, gaps.mean(1).tolist()), low=low, high=high)


def crossing(strengths: Sequence[float], gaps: Sequence[float]) -> float:
    """Where gaps that fall with the strength reach 0, between points on a logarithmic scale; infinite: nowhere."""
    level = falling(gaps)
    if level[0] <= 0:
        return strengths[0]
    for place in range(1, len(level)):
        if level[place] <= 0:
            low, high = (math.log1p(strengths[place + by]) for by in (-1, 0))
            share = level[place - 1] / (level[place - 1] - level[place])
            return math.expm1(low + share * (high - low))
    return math.inf


def falling(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never rises, in least squares: neighbours that rise are pooled."""
    pools: list[tuple[float, int]] = []  # mean, how many
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for value, many in pools for _ in range(many)]
