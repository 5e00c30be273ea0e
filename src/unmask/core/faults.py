"""Rows of a step in which something is wrong -> an error, raised at once or noted as a number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.state import Step
from unmask.errors import ModelError, ProgressError, SettingError, UnmaskError

KINDS = ("empty", "broken", "banned", "still", "unmet")
ROWS = 2**32  # more than there ever are


@dataclass
class Faults:
    """Collects what a step finds wrong, row by row: raised at once, or as a code where the host must not wait."""

    model: str
    particles: int
    step: Step
    code: Tensor | None = None  # [] int64: the first fault, 0 for none; None: it is raised at once
    first: int = 0  # rows of the prompt before these

    def note(self, kind: str, rows: Tensor) -> None:  # rows [B] bool
        """These rows have a fault, if any."""
        if self.code is None:
            self.refuse(kind, rows)
            return
        new = KINDS.index(kind) * ROWS + rows.to(torch.int8).argmax() + 1
        self.code = torch.where((self.code == 0) & rows.any(), new, self.code)

    def refuse(self, kind: str, rows: Tensor) -> None:
        """Raise the fault, if these rows have it: the host waits."""
        if bool(rows.any()):
            raise replace(self, step=int(self.step)).error(kind, int(rows.nonzero()[0, 0]))

    def check(self, code: int) -> None:
        """Raise the fault that a code stands for."""
        if code:
            kind, row = divmod(code - 1, ROWS)
            raise self.error(KINDS[kind], row)

    def error(self, kind: str, row: int) -> UnmaskError:
        row, particles = row + self.first, self.particles + self.first
        if kind in ("empty", "broken"):
            where = f"row {row} (prompt {row // particles}, particle {row % particles})"
            what = "all -inf" if kind == "empty" else "NaN or +inf"
            return ModelError(
                f"step {self.step}, {where}: {self.model} gave logits that are {what}",
                "check its weights, dtype and input",
            )
        if kind == "banned":
            return SettingError(
                f"step {self.step}, row {row}: every token that {self.model} allows is banned",
                "ban fewer; the mask is never drawn",
            )
        if kind == "unmet":
            what = (
                f"step {self.step}, row {row}: {self.model} gives all tokens that the constraint allows probability 0"
            )
            return ModelError(what, "allow more, or ask another model")
        return ProgressError(
            f"step {self.step}, row {row}: the sampler decided nothing",
            "one without a schedule must decide at least one position in every step",
        )
