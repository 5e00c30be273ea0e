"""Prompts, perhaps with verdicts -> the threshold `until` at which few of them would get another answer.

All paths of every prompt are decoded. For a threshold, each prompt has a loss: 1 if the path that it stops at has
another answer than the path that all of them lead to (with verdicts: if that one is right and this one is wrong). Made
to grow with the threshold, the loss is bounded by conformal risk control (Angelopoulos and others, 2022): for prompts
drawn like these, the expected loss at the threshold is at most epsilon. Nothing else about the model is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from unmask.core.denoiser import Denoiser
from unmask.decoding.decode import calibrated_for, layout, run_wave
from unmask.decoding.finish import Reading
from unmask.decoding.prompt import Text
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle
from unmask.decoding.waves import Attempt, rounds
from unmask.errors import InputError

NEVER = 1e-300  # no path costs less
Answer = Callable[[int, Particle], Hashable]  # number of a prompt, a path -> what is compared
Right = Callable[[int, Particle], bool]


@dataclass(frozen=True)
class Stop:
    """Where a prompt stands after a wave."""

    paths: int
    cost: float  # of the best path so far; infinite where none has a cost
    loss: int  # of stopping here
    evaluations: int


@dataclass(frozen=True)
class Threshold:
    """What came out."""

    until: float  # 0: no threshold keeps the promise
    epsilon: float
    n: int
    lost: int  # prompts of these that it costs their answer
    evaluations: float  # of a prompt, on average
    all_evaluations: float  # with all paths
    paths: float
    recipe: Recipe  # with the threshold, and what it was found for

    @property
    def bound(self) -> float:
        """The bound of the expected loss."""
        return (self.lost + 1) / (self.n + 1)


def decoded(
    model: Denoiser,
    prompts: Sequence[Text] | None,
    recipe: Recipe,
    *,
    canvases: Sequence[Text] | None = None,
    batch: int = 8,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Attempt]:
    """All paths of every prompt, with the costs that a stop goes by."""
    full = recipe.replace(until=NEVER, calibrated=None)
    rows, done = layout(model, prompts, canvases, full), 0
    made = [Attempt(place, row, full, full.seed + place) for place, row in enumerate(rows)]
    room = batch * full.build_search().particles
    for ended in rounds(made, room, lambda some: run_wave(model, some, full, Reading(rows))):
        done += len(ended)
        on_progress(done, len(made))
    return made


def stops(attempt: Attempt, answer: Answer, right: Right | None = None) -> list[Stop]:
    """Where a prompt could stop: after each of its waves."""
    number, found = attempt.place, []
    last = _best(attempt)
    for count in sorted(attempt.spent):
        here = replace(attempt, particles=attempt.particles[:count], costs=attempt.costs[:count])
        best, costs = _best(here), [cost for cost in here.compared.tolist() if not math.isnan(cost)]
        if right is not None:
            loss = right(number, last) and not right(number, best)
        else:
            loss = answer(number, best) != answer(number, last)
        found.append(Stop(count, min(costs, default=math.inf), int(loss), attempt.spent[count]))
    return found


def _best(attempt: Attempt) -> Particle:
    return attempt.particles[attempt.chosen]


def stopped(found: Sequence[Stop], until: float) -> Stop:
    """Where a prompt stops with this threshold."""
    return next((one for one in found if one.cost < until), found[-1])


def threshold(prompts: Sequence[Sequence[Stop]], epsilon: float, recipe: Recipe) -> Threshold:
    """The largest threshold whose bound is at most epsilon."""
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon is {epsilon:g}", "give a share between 0 and 1")
    n = len(prompts)
    if (n + 1) * epsilon < 1:
        needed = math.ceil(1 / epsilon) - 1
        raise InputError(f"{n} prompts are too few for epsilon {epsilon:g}", f"give at least {needed}")
    costs = {one.cost for found in prompts for one in found if math.isfinite(one.cost)}
    tried = sorted(math.nextafter(cost, math.inf) for cost in costs)
    losing, until = [False] * n, 0.0
    for value in tried:  # a loss, once met, stays: it grows with the threshold
        losing = [was or bool(stopped(found, value).loss) for was, found in zip(losing, prompts, strict=True)]
        if (sum(losing) + 1) / (n + 1) > epsilon:
            break
        until = value
    ends = [stopped(found, until) for found in prompts]
    return Threshold(
        until,
        epsilon,
        n,
        sum(one.loss for one in ends),
        sum(one.evaluations for one in ends) / n,
        sum(found[-1].evaluations for found in prompts) / n,
        sum(one.paths for one in ends) / n,
        recipe,
    )


def calibrate(
    model: Denoiser,
    prompts: Sequence[Text] | None,
    recipe: Recipe,
    *,
    epsilon: float = 0.05,
    canvases: Sequence[Text] | None = None,
    answer: Answer = lambda number, one: one.text,
    right: Right | None = None,
    batch: int = 8,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Threshold:
    """The threshold of `until` for a recipe, its settings included, from prompts like those to come."""
    made = decoded(model, prompts, recipe, canvases=canvases, batch=batch, on_progress=on_progress)
    found = threshold([stops(one, answer, right) for one in made], epsilon, recipe)
    final = recipe.replace(until=found.until, calibrated=calibrated_for(model, recipe)) if found.until else recipe
    return replace(found, recipe=final)
