"""What stands in for a GPU's recorded steps where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from unmask.core.gpu import recorded
from unmask.core.step import Carry, Moment


class Again:
    """Stands in for a recorded graph: advances the tensors of the loop in place."""

    def __init__(self, step: Callable[[Carry], tuple[Carry, Moment]], loop: recorded.Loop) -> None:
        self.step, self.loop = step, loop

    def play(self, step: int) -> Moment:
        after, moment = self.step(recorded.given(self.loop.carry, self.loop.cache))
        moment = recorded.fixed(moment, self.loop)
        recorded.copy(recorded.looped(after, self.loop.cache, self.loop.counts), self.loop)
        return replace(moment, step=step)


class Late:
    """Stands in for signals: what is read is a step old."""

    def __init__(self, signal: torch.Tensor) -> None:
        self.signal, self.sent = signal, {}

    def send(self, step: int) -> None:
        self.sent[step] = self.signal.tolist()

    def read(self, step: int) -> list[int]:
        assert step >= max(self.sent) - 1
        return self.sent[step]
