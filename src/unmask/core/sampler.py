"""StepInput, Written and Sampler: what a sampler is given and answers; Ranking: how positions are put in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.beliefs import Beliefs, Drawn
from unmask.core.state import State, Step, first_masked, one_of


@dataclass(frozen=True)
class StepInput:
    """All that a sampler may use in a step."""

    state: State
    step: Step  # steps taken before this one
    beliefs: Beliefs  # the model's, where the sampler wanted them and at every masked position
    draw: Callable[[Tensor], Drawn]  # where [B, L] bool -> a token for each; the same when called twice
    late: tuple[int, ...] = ()  # tokens that may only come last in time
    draw_or_stay: Callable[[Tensor, Tensor], Drawn] | None = None  # where, stay [B] -> MDLM's draw in float32

    @property
    def raw(self) -> Beliefs:
        """The name that `beliefs` had in 0.1."""
        return self.beliefs

    def is_late(self, token: Tensor) -> Tensor:  # [B, L] -> [B, L] bool
        """Whether a proposed token has to wait for all others."""
        return one_of(token, self.late)


@dataclass(frozen=True)
class Written:
    """The tokens after a step, and the log-probability of each new one in the model's own distribution."""

    tokens: Tensor  # [B, L] int64
    log_prob: Tensor  # [B, L], nats; used only where a token is new
    memory: Tensor | None = None  # [B, M] int64: what the sampler keeps for the next step; None: as before
    ended: Tensor | None = None  # [B] bool: rows whose text is over; what is masked there is filled with EOS


class Sampler(Protocol):
    """One way to advance a state. It keeps nothing between steps: a copied particle continues its ancestor's path.

    Numbers that it needs again are in `state.memory`, which follows the particle: `memory: int` says how many, Written
    has the new ones. A sampler that may change what it has decided says with `front(state) -> Tensor [B]` from which
    rank on; without it, everything before the first mask is final.

    A sampler whose steps never read a tensor on the host may also have `steady(state) -> Tensor [B] bool`: whether next
    to no step leaves a row unchanged. Its steps are then recorded on a GPU, where all rows are steady. And it may have
    `planned_end: bool`, True if a row is done exactly after its planned steps. Both are read by `steady` and
    `planned_end` of this module.
    """

    @property
    def steps(self) -> int | None:
        """Planned steps; None: one open position a step."""
        ...

    @property
    def scheduled(self) -> bool:
        """True: the plan says when it ends; False: it ends when a row is done, and each step must decide something."""
        ...

    @property
    def revises(self) -> bool:
        """Whether it may reopen a decided position."""
        ...

    @property
    def filters(self) -> bool:
        """Whether top-k and top-p shape its order, and so have an effect at temperature 0."""
        ...

    @property
    def block_length(self) -> int | None:
        """Open positions to a block; None: one block."""
        ...

    def want(self, state: State, step: Step) -> Tensor:  # [B, L] bool
        """The positions whose distribution it needs (the masked ones are added, for the entropy)."""
        ...

    def region(self, state: State, step: Step) -> Tensor:  # [B, L] bool
        """The open positions up to the end of the current block."""
        ...

    def act(self, given: StepInput) -> Written | Tensor:
        """What the step writes, or only the tokens [B, L]: their log-probabilities then cost another sweep."""
        ...

    def done(self, state: State, step: Step) -> Tensor:  # [B] bool
        """Whether a row is finished after `step` steps."""
        ...

    def time(self, state: State, step: Step) -> Tensor:  # [B] float64
        """The diffusion time at which the network is asked, for networks that want it."""
        ...


def front(sampler: Sampler, state: State) -> Tensor:  # [B] int64
    """The rank below which nothing changes any more."""
    declared: Callable[[State], Tensor] | None = getattr(sampler, "front", None)
    return first_masked(state) if declared is None else declared(state)


def steady(sampler: Sampler, state: State) -> bool:
    """Whether a sampler declares steps without host reads that change nearly every row of this state."""
    declared: Callable[[State], Tensor] | None = getattr(sampler, "steady", None)
    return declared is not None and bool(declared(state).all())


def planned_end(sampler: Sampler, state: State) -> int | None:
    """The number of steps after which all rows are done, where the plan alone determines it."""
    return int(state.budget.max()) if getattr(sampler, "planned_end", False) else None


@dataclass(frozen=True)
class Ranking:
    """Candidate positions, best first; ties go to the lowest column."""

    candidates: Tensor  # [B] int64: how many ranks are real
    columns: Tensor  # [B, L] int64: the column at each rank

    @property
    def number(self) -> Tensor:  # [L] int64
        """0, 1, 2, …: the ranks."""
        return torch.arange(self.columns.shape[1], device=self.columns.device)

    @property
    def real(self) -> Tensor:  # [B, L] bool
        """The ranks that hold a candidate."""
        return self.number < self.candidates[:, None]

    def sorted(self, numbers: Tensor) -> Tensor:  # [B, L] by column -> [B, L] by rank
        """Numbers of the columns, best rank first."""
        return numbers.gather(1, self.columns)

    def first(self, count: Tensor) -> Tensor:  # [B] -> [B, L] bool by column
        """The columns of the first `count` ranks."""
        taken = self.number < torch.minimum(count, self.candidates)[:, None]
        return torch.zeros_like(taken).scatter(1, self.columns, taken)


@dataclass(frozen=True)
class Counted(Ranking):
    """A ranking that also holds, for each column, how many candidates come before it."""

    before: Tensor  # [B, L] int64; L where there is no candidate

    def first(self, count: Tensor) -> Tensor:
        return self.before < torch.minimum(count, self.candidates)[:, None]


TIE = 64  # scores that differ by less than this many roundings of their kind are equal
COUNTED = 2048  # columns up to which comparing all with all, compiled, is faster than a sort


def rank(  # [B, L], [B, L] bool, [B, L] bool
    order: Tensor, candidates: Tensor, late: Tensor | None = None, exact: bool = False
) -> Ranking:
    """Largest `order` first; `late` candidates after all others; ties, up to rounding, from the left.

    `exact` scores are the same to the last bit wherever they are computed: a single sort does.
    """
    length = order.shape[1]
    if exact and late is None and torch.compiler.is_compiling() and length <= COUNTED:
        return _counted(order, candidates)
    values, columns = order.where(candidates, -torch.inf).sort(dim=1, descending=True, stable=True)
    if exact and late is None:
        return Ranking(candidates.sum(1), columns)
    slack = TIE * torch.finfo(order.dtype).eps * values[:, :-1].abs().clamp(1, 1e30)
    apart = values[:, :-1] - values[:, 1:] > slack
    level = torch.nn.functional.pad(apart.long().cumsum(1), (1, 0))
    group = torch.where(candidates, 0 if late is None else late.long(), 2).gather(1, columns)
    place = ((group * length + level) * length + columns).argsort(dim=1)
    return Ranking(candidates.sum(1), columns.gather(1, place))


def _counted(order: Tensor, candidates: Tensor) -> Counted:
    """Every column against every other; a compiler makes one small kernel of it."""
    mine, other = order[:, :, None], order[:, None, :]
    number = torch.arange(order.shape[1], device=order.device)
    ahead = (other > mine) | ((other == mine) & (number[None, :] < number[:, None]))
    before = (ahead & candidates[:, None, :]).sum(2).where(candidates, order.shape[1])
    rest = candidates.sum(1, keepdim=True) + (~candidates).long().cumsum(1) - 1
    columns = torch.zeros_like(before).scatter(1, before.where(candidates, rest), number.expand_as(before))
    return Counted(candidates.sum(1), columns, before)


def masked_share(state: State) -> Tensor:  # [B] float64
    """The share of open positions that is still masked: the time of a sampler without a time grid."""
    return state.masked.sum(1).double() / state.open.clamp(min=1)
