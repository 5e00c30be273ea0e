"""What stands in for a GPU's recorded steps where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from unmask.core.gpu import recorded
from unmask.core.step import Moment


class Again:
    """Stands in for a recorded graph: moves the carried tensors on in place."""

    def __init__(self, step: Callable[[recorded.Carry], tuple[recorded.Carry, Moment]], carry: recorded.Carry) -> None:
        self.step, self.carry = step, carry

    def play(self, step: int) -> Moment:
        after, moment = self.step(self.carry)
        before = moment.before.clone()
        recorded.copy(after.tensors, self.carry.tensors)
        return replace(moment, step=step, before=before, state=self.carry.state, tally=self.carry.tally)


class Late:
    """Stands in for signals: what is read is a step old."""

    def __init__(self, signal: torch.Tensor) -> None:
        self.signal, self.sent = signal, {}

    def send(self, step: int) -> None:
        self.sent[step] = self.signal.tolist()

    def read(self, step: int) -> list[int]:
        assert step >= max(self.sent) - 1
        return self.sent[step]
