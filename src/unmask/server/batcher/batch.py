"""The choices that are decoded together, as they join and go, and the time that is theirs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from unmask.decoding.decode import in_waves
from unmask.server.batcher.choice import QueuedChoice

OWN = 0.1  # seconds that a batch runs before it gives way


@dataclass
class Clock:
    """The time of a batch: its own, and what it gave to smaller ones."""

    began: float = field(default_factory=time.monotonic)
    given: float = 0.0

    def own(self) -> float:
        return time.monotonic() - self.began - self.given

    def may_give(self) -> bool:
        """Whether it has had its share: half of the time."""
        return self.own() >= max(OWN, self.given)


class Batch:
    """Choices of one kind. Where their paths come in waves, others may join between two waves if it `refills`."""

    def __init__(self, choices: Sequence[QueuedChoice], refills: bool = False) -> None:
        self.first = choices[0]
        self.refills = refills
        self.clock = Clock()
        self.choices: list[QueuedChoice] = []
        self.most = 0  # choices at one time
        self.done = 0.0  # work of those that have a result
        self.add(choices)

    @property
    def in_waves(self) -> bool:
        """Whether the paths of its choices come in waves."""
        return in_waves(self.first.recipe)

    def add(self, choices: Sequence[QueuedChoice]) -> None:
        """These begin."""
        for choice in choices:
            choice.begin()
        self.choices += choices
        self.most = max(self.most, len(self.choices))
        for choice in self.choices:
            choice.together = max(choice.together, len(self.choices))

    def drop_closed(self) -> None:
        """Between two waves: those that were answered, or that nobody waits for any more."""
        self.choices = [choice for choice in self.choices if not choice.closed]

    @property
    def over(self) -> bool:
        return all(choice.closed for choice in self.choices)
