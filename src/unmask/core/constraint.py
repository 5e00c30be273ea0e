"""Allowed and Constraint: the tokens that may be written at each position, so that a row can still be completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

NOTHING = 0  # the row of positions that nobody asks about: no token is allowed


@dataclass(frozen=True)
class Allowed:
    """For each position a row of a table, which holds for each token whether it may be written."""

    row: Tensor  # [B, L] int64
    table: Tensor  # [M, C] bool; positions of equal sets share a row, and tokens that act alike a column
    kind: Tensor  # [V] int32: the column of each token
    full: bool = True  # the distribution of the allowed tokens is asked for, not the most probable of them alone

    def has(self, place: tuple[Tensor, Tensor], token: Tensor) -> Tensor:  # [R], [R] each -> [R] bool
        """Whether a token may be written at each of some positions."""
        return self.table[self.row[place], self.kind[token].long()]

    def stands(self, where: Tensor, tokens: Tensor) -> Tensor:  # [B, L] bool, [B, L] -> [B, L] bool
        """Whether the token at each position of `where` may be written; elsewhere it may."""
        inside = tokens.clamp(max=len(self.kind) - 1)
        return (self.table[self.row, self.kind[inside].long()] & (tokens == inside)) | ~where

    def only(self, logits: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:  # [R, V], [R] each -> [R, V]
        """Logits with -inf for all tokens that are not allowed."""
        closed = self.table[self.row[place]].to(logits.dtype).log_()  # of 1 and 0: a sum needs no branch per token
        return closed.index_select(1, self.kind).add_(logits)


def allowed(constraint: Constraint, tokens: Tensor, writable: Tensor, where: Tensor) -> Allowed:
    """The tokens of `where` [B, L] bool."""
    row = constraint.read(tokens, writable, where)()
    return Allowed(row, *constraint.table)


Redraw = Callable[[Tensor, Allowed], Tensor]  # where [B, L] bool -> tokens [B, L]


class Constraint(Protocol):
    """What the text of a row must be in the end. It depends on the canvas alone, so that nothing follows a particle."""

    def check(self, tokens: Tensor, writable: Tensor) -> None:  # [B, L], [B, L] bool
        """Refuse canvases that cannot be completed."""
        ...

    def read(self, tokens: Tensor, writable: Tensor, where: Tensor) -> Callable[[], Tensor]:
        """What the canvases leave open at `where` [B, L] bool; only here the host waits for the device.

        The answer works out `Allowed.row` [B, L]: each position of `where` given all that is decided elsewhere, and
        NOTHING elsewhere. Network and host can work side by side between the two.
        """
        ...

    @property
    def table(self) -> tuple[Tensor, Tensor]:
        """`Allowed.table` and `Allowed.kind`, to which the last rows refer."""
        ...

    def reserve(self, positions: int) -> None:
        """Keep the table where it is from now on, with room for all positions of a step: steps are recorded."""
        ...

    def settle(self, before: Tensor, after: Tensor, writable: Tensor, redraw: Redraw) -> Tensor:
        """The tokens [B, L] after a step, such that every row can still be completed.

        Those that the step wrote are kept from left to right as long as they fit together. A position whose token does
        not keeps its token from before if that fits, and is drawn anew otherwise.
        """
        ...
