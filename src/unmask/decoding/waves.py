"""Prompts whose paths come in waves -> which of them go through the network next, until one path is sure enough.

A prompt's paths are those that best-of-n would decode, in the order of their slots: 1, 1, 2, 4, … of them. After each
wave its best path is taken if that costs less than `until`. A run that stopped is the beginning of the full one.
Between waves other prompts take the rows that became free, so that a batch stays full. All prompts are there at the
beginning (`rounds`), or some come while others are decoded (`turns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.core.resampling import Search, least
from unmask.decoding.prompt import Canvas
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle, Result
from unmask.decoding.settings import ALIASES, SAMPLER, SAMPLER_ALIASES, SETTINGS, parse
from unmask.decoding.trace import Event, OnEvent
from unmask.errors import SettingError
from unmask.search.look import ANSWERS

Verify = Callable[[str], bool]
One = TypeVar("One", bound="Attempt")
MOST = 16  # samplers that a recipe escalates to
PATIENCE = 3  # waves of others that an attempt waits for at most, but for those that have waited longer


def paths_of(search: Search) -> int:
    """The paths of all waves of one sampler."""
    return search.particles if search.most is None else search.most


@lru_cache(maxsize=64)
def stages(recipe: Recipe) -> tuple[Recipe, ...]:
    """The recipe, and that of each sampler that it escalates to."""
    search = recipe.build_search()
    return (recipe, *(_stage(recipe, *parts) for parts in escalation(search.escalate or "")))


def escalation(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The samplers that a text escalates to: the words, name and settings of each; nothing is built of them yet."""
    parts = [part for part in text.split(";", MOST) if part.strip()]
    if len(parts) > MOST:
        raise SettingError(f"escalate names more than {MOST} samplers", "name fewer", setting="escalate")
    return [_named(part) for part in parts]


def _named(text: str) -> tuple[str, str, dict[str, Any]]:
    name, *parts = text.split()
    own: dict[str, Any] = {}
    for part in parts:
        key, sign, value = part.partition("=")
        if not sign:
            raise SettingError(f"escalate holds {part!r}", "write SAMPLER name=value …; SAMPLER …", setting="escalate")
        key = ALIASES.get(key, key)
        own[key] = parse(key, value)
    return text.strip(), SAMPLER_ALIASES.get(name, name), own


def _stage(recipe: Recipe, words: str, name: str, own: dict[str, Any]) -> Recipe:
    """A recipe with another sampler: its own settings, and those of the first one that do not belong to a sampler."""
    kept = {key: value for key, value in recipe.to_dict().items() if SETTINGS[key].group != SAMPLER}
    try:
        return Recipe(**{**kept, **own, "sampler": name})
    except SettingError as error:
        raise SettingError(f"escalate to {words!r}: {error.message}", error.hint, setting="escalate") from None


def most_paths(recipe: Recipe) -> int:
    """The paths of all waves of all samplers."""
    return sum(paths_of(stage.build_search()) for stage in stages(recipe))


def width(done: int, most: int) -> int:
    """Paths of the next wave: as many as there are already, at least one."""
    return min(max(1, done), most - done)


@dataclass
class Attempt:
    """One prompt, and the paths that it has so far."""

    place: int  # among the prompts
    canvas: Canvas
    recipe: Recipe
    key: int
    verify: Verify | None = None
    particles: list[Particle] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)  # by which one is chosen; NaN is the highest
    right: list[bool] = field(default_factory=list)  # what `verify` said
    spent: dict[int, int] = field(default_factory=dict)  # number of paths -> evaluations up to there, looks included
    calls: int = 0
    evaluations: int = 0
    rows: int = 0
    seconds: float = 0.0  # of the batches that it was in
    share: float = 0.0  # its part of them
    waited: int = 0  # waves of others since its last one

    @property
    def most(self) -> int:
        return most_paths(self.recipe)

    @property
    def stage(self) -> int:
        """The number of the sampler of its next wave."""
        return min(len(self.particles) // paths_of(self.recipe.build_search()), len(stages(self.recipe)) - 1)

    @property
    def first(self) -> int:
        """The slot of the first path of its next wave, among the paths of that sampler."""
        return len(self.particles) - self.stage * paths_of(self.recipe.build_search())

    @property
    def width(self) -> int:
        """Paths of its next wave."""
        return width(self.first, paths_of(self.recipe.build_search()))

    @property
    def kind(self) -> tuple[int, int]:
        """Waves of one kind go through the network together."""
        return self.stage, self.width

    @property
    def done(self) -> bool:
        """Whether the best path so far is sure enough, or verified, or there are no more."""
        if len(self.particles) >= self.most:
            return True
        return bool((self.compared < self.recipe.build_search().until).any()) or any(self.right)

    @property
    def chosen(self) -> int:
        """The first path of least cost, of those that are verified if any is."""
        costs = self.compared
        if any(self.right):
            costs = costs.nan_to_num(1e300).masked_fill(~torch.tensor(self.right), torch.inf)
        return int(least(costs, len(costs)))

    @property
    def compared(self) -> Tensor:  # [K] float64
        """The costs of its paths. After looks, of those alone that all of them together would have been looked at."""
        costs = torch.tensor(self.costs, dtype=torch.float64)
        if not self.looks or len(stages(self.recipe)) > 1:  # of several samplers every look counts
            return costs
        ranked = sorted(self.particles, key=lambda one: one.surprise)  # stable, as the look's own order
        seen = list(dict.fromkeys(tuple(one.tokens) for one in ranked))[:ANSWERS]
        return costs.masked_fill(torch.tensor([tuple(one.tokens) not in seen for one in self.particles]), torch.nan)

    @property
    def looks(self) -> dict[tuple[int, ...], float]:
        """The looks at its answers so far."""
        return {tuple(one.tokens): one.look for one in self.particles if one.look is not None}

    def result(self) -> Result:
        """What came of it; `seconds` are those of all batches that it was in."""
        about = (self.particles, self.chosen, self.recipe, self.key, self.calls, self.evaluations)
        spent = (0.0, self.seconds, self.place, self.share, self.rows)
        return Result(*about, *spent, prompt=self.canvas.source, given=self.canvas.given)


def rounds(attempts: Sequence[Attempt], room: int, wave: Callable[[list[Attempt]], None]) -> Iterator[list[Attempt]]:
    """Run waves of at most `room` paths together, until all attempts are done; those that are done, round by round.

    All paths of a round belong to waves of one sampler and width. Late waves go first as soon as they fill a round.
    """
    fresh, going = list(attempts)[::-1], dict[tuple[int, int], list[Attempt]]()
    while fresh or going:
        full = [kind for kind in going if kind[1] * len(going[kind]) >= room]
        kind = max(full) if full else (0, 1) if fresh else max(going)
        some = going.pop(kind, [])
        count = max(1, room // kind[1])
        while kind == (0, 1) and fresh and len(some) < count:
            some.append(fresh.pop())
        some, rest = some[:count], some[count:]
        if rest:
            going[kind] = rest
        wave(some)
        for one in some:
            if not one.done:
                going.setdefault(one.kind, []).append(one)
        if ended := [one for one in some if one.done]:
            yield ended


def turns(
    renewed: Callable[[list[One]], list[One]], particles: int, wave: Callable[[list[One]], None]
) -> Iterator[list[One]]:
    """Run waves until no attempt is open; those that are done, wave by wave. Attempts come and go in between.

    Before each wave `renewed` takes the open attempts in the order in which they wait, and returns those that stay, and
    then those that join. The kind with most rows goes next, so that waves are full; but whoever has waited for PATIENCE
    waves goes first, whoever joins. A wave has at most `particles` rows for each attempt, of the most that were open.
    """
    due: list[One] = []
    room = 0
    while due := renewed(due):
        room = max(room, particles * len(due))
        kinds = [one.kind for one in due]
        full = {kind: min(room, kind[1] * count) for kind, count in Counter(kinds).items()}  # rows of its next wave
        kind = kinds[0] if due[0].waited >= PATIENCE else max(full, key=full.__getitem__)
        places = [place for place, one in enumerate(kinds) if one == kind][: max(1, room // kind[1])]
        some = [due[place] for place in places]
        due = [one for place, one in enumerate(due) if place not in places]
        wave(some)
        for one in due:
            one.waited += 1
        for one in some:
            one.waited = 0
        due += [one for one in some if not one.done]
        if ended := [one for one in some if one.done]:
            yield ended


class Events:
    """The events of waves -> those of one walk with all paths: a path that has not begun is all masks."""

    def __init__(self, prompts: int, particles: int, record: OnEvent) -> None:
        self.particles, self.record, self.step = particles, record, 0
        self.steps = [0] * (prompts * particles)
        self.calls, self.evaluations, self.rows = ([0] * prompts for _ in range(3))

    def of(self, some: Sequence[Attempt]) -> OnEvent:
        """A callback for the steps of one wave of these attempts."""
        each = some[0].width
        rows = [one.place * self.particles + len(one.particles) + slot for one in some for slot in range(each)]
        before = [(one.calls, one.evaluations, one.rows) for one in some]

        def on_event(event: Event) -> None:
            h: list[float | None] = [None] * len(self.steps)
            for row, value, steps in zip(rows, event["h"], event["steps"], strict=True):
                h[row], self.steps[row] = value, steps
            for number, (one, spent) in enumerate(zip(some, before, strict=True)):
                for own, name, start in zip(
                    (self.calls, self.evaluations, self.rows), ("calls", "evaluations", "rows"), spent, strict=True
                ):
                    own[one.place] = start + event[name][number]
            changes = [[rows[row], *change] for row, *change in event["changes"]]
            about = {"step": self.step, "h": h, "changes": changes, "steps": list(self.steps)}
            about |= {"calls": list(self.calls), "evaluations": list(self.evaluations), "rows": list(self.rows)}
            self.step += 1
            self.record({**event, **about})

        return on_event
