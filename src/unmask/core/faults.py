"""What a step found wrong, row by row -> an error: at once, or later where the host must not wait for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.state import Step
from unmask.errors import ModelError, ProgressError, SettingError, UnmaskError

KINDS = ("empty", "broken", "banned", "still")
ROWS = 2**32  # more than there ever are


@dataclass
class Faults:
    """The faults of one step."""

    model: str
    particles: int
    step: Step
    code: Tensor | None = None  # [] int64: the first fault, 0 for none; None: it is raised at once

    def note(self, kind: str, rows: Tensor) -> None:  # rows [B] bool
        """These rows have a fault, if any."""
        if self.code is None:
            if bool(rows.any()):
                raise self.error(kind, int(rows.nonzero()[0, 0]))
            return
        new = KINDS.index(kind) * ROWS + rows.to(torch.int8).argmax() + 1
        self.code = torch.where((self.code == 0) & rows.any(), new, self.code)

    def check(self, code: int) -> None:
        """Raise what such a code says."""
        if code:
            kind, row = divmod(code - 1, ROWS)
            raise self.error(KINDS[kind], row)

    def error(self, kind: str, row: int) -> UnmaskError:
        if kind in ("empty", "broken"):
            where = f"row {row} (prompt {row // self.particles}, particle {row % self.particles})"
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
        return ProgressError(
            f"step {self.step}, row {row}: the sampler decided nothing",
            "one without a schedule must decide at least one position in every step",
        )
