"""Parts × workers that come and go -> which part a worker does next, and which parts are hopeless.

Lost parts go to the front. At the end, an idle worker also does a part that another one has had for too long; whichever
result comes first is kept.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.evaluate.parts import Part

AHEAD = 2  # parts that a worker has at most: the next one is there when it has done one
LATE = 3.0  # times the median


@dataclass
class Held:
    """A part that a worker has."""

    part: Part
    since: float


class Queue:
    """The parts that are still to be done, and who has which."""

    def __init__(self, parts: Sequence[Part], tries: int = 3, patience: float = 30.0) -> None:
        self.waiting, self.total = deque(parts), len(parts)
        self.tries, self.patience = tries, patience
        self.held: dict[str, list[Held]] = defaultdict(list)
        self.done: set[int] = set()
        self.lost: Counter[int] = Counter()  # number of a part -> how often a worker was lost that was doing it
        self.seconds: list[float] = []
        self.given_up: list[Part] = []
        self.again = 0  # parts that were begun more than once

    @property
    def left(self) -> int:
        """Parts that are neither done nor given up."""
        return self.total - len(self.done) - len(self.given_up)

    @property
    def limit(self) -> float:
        """Seconds after which a part is late."""
        return max(self.patience, LATE * statistics.median(self.seconds) if self.seconds else 0.0)

    def next(self, worker: str, ready: int, now: float) -> Part | None:
        """The next part of a worker, of `ready` ones in all; None where it has enough, or there is none."""
        mine = self.held[worker]
        if len(mine) >= AHEAD or (mine and len(self.waiting) <= ready):  # near the end each has one
            return None
        part = self.waiting.popleft() if self.waiting else None if mine else self._late(worker, now)
        if part is not None:
            mine.append(Held(part, now))
        return part

    def _late(self, worker: str, now: float) -> Part | None:
        """The part that others have had for longest, if it is late; one that two have is not given to a third."""
        holders: dict[int, list[Held]] = defaultdict(list)
        for held in self.held.values():
            for one in held:
                holders[one.part.number].append(one)
        open = [some[0] for number, some in holders.items() if number not in self.done and len(some) == 1]
        found = min(open, key=lambda one: one.since, default=None)
        if found is None or now - found.since < self.limit:
            return None
        self.again += 1
        return found.part

    def finished(self, worker: str, part: Part, now: float) -> tuple[bool, list[str]]:
        """Note that a worker has done a part: whether it was the first, and which others have it for too long."""
        mine = self.held[worker]
        began = next((one.since for one in mine if one.part.number == part.number), now)
        self.held[worker] = rest = [one for one in mine if one.part.number != part.number]
        for one in rest[:1]:  # it begins now
            one.since = now
        if part.number in self.done:
            return False, []
        limit = self.limit
        self.done.add(part.number)
        self.seconds.append(now - began)
        hung = [
            other
            for other, held in self.held.items()
            if any(one.part.number == part.number and now - one.since >= limit for one in held)
        ]
        return True, hung

    def gone(self, worker: str) -> Part | None:
        """Take back the parts of a worker that was lost: the one that it was doing may be hopeless, and is returned."""
        mine = self.held.pop(worker, [])
        elsewhere = {one.part.number for held in self.held.values() for one in held}
        back = [one.part for one in mine if one.part.number not in self.done | elsewhere]
        first = mine[0].part if mine and mine[0].part.number not in self.done else None
        if first is not None:
            self.lost[first.number] += 1
            if self.lost[first.number] >= self.tries:
                self.given_up.append(first)
                back = [part for part in back if part.number != first.number]
                self.waiting.extendleft(back[::-1])
                return first
        self.again += len(back)
        self.waiting.extendleft(back[::-1])
        return None
