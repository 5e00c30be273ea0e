"""Model × Recipe × canvas -> one decode, in parts that other work may be timed between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unmask.core.denoiser import Denoiser
from unmask.core.step import Moment
from unmask.core.walk import walk
from unmask.decoding.decode import prepare
from unmask.decoding.prompt import Canvas
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, SettingError
from unmask.evaluate.speed import clock
from unmask.evaluate.speed.baselines import COMPILED, EAGER
from unmask.evaluate.speed.blocks import uncached
from unmask.models.transformer import compiled

OnStep = Callable[[Moment], None]
EVERY = 0.3  # seconds of a decode, after which the others have their turn: as long as theirs on a GPU
LIKE = 48  # steps of a decode without a cache that are timed, where another one has a cache
TIMED = 2  # the first step that counts where all steps are alike


@dataclass(frozen=True)
class Walked:
    """What one decode took; times are seconds."""

    start: float  # until the first two steps were done: equal rows, compiling, recording
    step: float  # the mean of those that count
    whole: float
    steps: int
    calls: int
    evaluations: int
    cut: bool  # its end was not awaited


class Walking:
    """A decode as `decode_batch` does it, in parts: `go` runs it for a while, and no time counts in between.

    `timed` is the first step that counts. A `bare` one is without its cache, and ends after `LIKE` steps that count,
    since all of them are alike.
    """

    def __init__(
        self, model: Denoiser, recipe: Recipe, canvas: Canvas, timed: int = TIMED, *, bare: bool = False
    ) -> None:
        self.model, self.recipe, self.canvas, self.timed, self.bare = model, recipe, canvas, timed, bare
        self.cut = False
        self.moments: Iterator[Moment] | None = None
        self.last: Moment | None = None
        self.start = self.early = self.whole = 0.0

    def go(self, seconds: float, on_step: OnStep | None = None) -> bool:
        """Take steps for some seconds, the first time two steps; False at the end. `on_step` gets every step."""
        more, began = False, clock.now(self.model.device)
        if self.moments is None:
            made = prepare(self.model, [self.canvas], [self.recipe.seed], self.recipe)
            self.moments = walk(uncached(made[0]) if self.bare else made[0], *made[1:])
        for moment in self.moments:
            self.last, done = moment, moment.step + 1
            if on_step is not None:
                on_step(moment)
            if self.bare and done == self.timed + LIKE:
                self.cut = True
                break
            if done in (TIMED, self.timed) or (done > TIMED and time.perf_counter() - began > seconds):
                more = True
                break
        self.whole += clock.now(self.model.device) - began
        if more and done == TIMED:
            self.start = self.whole
        if more and done == self.timed:
            self.early = self.whole
        return more

    def done(self) -> Walked:
        """What it took, at the end."""
        if self.last is None or self.last.step < self.timed:
            raise InputError("the decode is too short", "take at least 3 steps: the first two are not timed")
        tally, steps = self.last.tally, self.last.step + 1
        step = (self.whole - self.early) / (steps - self.timed)
        calls, evaluations = int(tally.calls.sum()), int(tally.evaluations.sum())
        return Walked(self.start, step, self.whole, steps, calls, evaluations, self.cut)


def first_walk(
    model: Denoiser, recipe: Recipe, canvas: Canvas, on_step: OnStep | None = None
) -> tuple[Walked, list[int]]:
    """A whole decode, and the number of masked positions of all rows before each step."""
    masked: list[int] = []
    walking = Walking(model, recipe, canvas)

    def count(moment: Moment) -> None:
        masked.append(int((moment.before == model.vocab.mask).sum()))
        if on_step is not None:
            on_step(moment)

    while walking.go(EVERY, count):
        pass
    return walking.done(), masked


def own(model: Denoiser, compile: bool) -> tuple[Denoiser, str]:
    """The model as unmask decodes with it, and how its network runs then."""
    try:
        return (compiled(model), COMPILED) if compile else (model, EAGER)
    except SettingError:  # it cannot be
        return model, EAGER
