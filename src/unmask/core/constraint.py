"""Allowed and Constraint: the tokens that may be written at each position, so that a row can still be completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Allowed:
    """For each position a row of a table, which holds for each class of tokens whether they may be written."""

    row: Tensor  # [B, L] int64
    table: Tensor  # [M, C] bool
    kind: Tensor  # [V] int64: the class of each token

    def at(self, row: Tensor, column: Tensor) -> Tensor:  # [R], [R] -> [R, V] bool
        """The tokens that may be written at some positions."""
        return self.table[self.row[row, column]].index_select(1, self.kind)


Redraw = Callable[[Tensor, Allowed], Tensor]  # where [B, L] bool -> tokens [B, L]


class Constraint(Protocol):
    """What the text of a row must be in the end. It depends on the canvas alone, so that nothing follows a particle."""

    def check(self, tokens: Tensor, writable: Tensor) -> None:  # [B, L], [B, L] bool
        """Refuse canvases that cannot be completed."""
        ...

    def allowed(self, tokens: Tensor, writable: Tensor, where: Tensor) -> Allowed:
        """The tokens of `where` [B, L] bool, each given all that is decided elsewhere."""
        ...

    def settle(self, before: Tensor, after: Tensor, writable: Tensor, redraw: Redraw) -> Tensor:
        """The tokens [B, L] after a step, such that every row can still be completed.

        Those that the step wrote are kept from left to right as long as they fit together. A position whose token does
        not keeps its token from before if that fits, and is drawn anew otherwise.
        """
        ...
