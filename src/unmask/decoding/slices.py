"""One prompt with very many particles × a crew -> its walk and its second look, in slices of a fixed size.

What travels are canvases with their numbers, never a model or its hidden states. A slice is done again by somebody else
if whoever had it is lost: a segment is a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.core import slices
from unmask.core.constraint import Constraint
from unmask.core.denoiser import Denoiser, traits
from unmask.core.resampling import Search
from unmask.core.sampler import Sampler
from unmask.core.slices import Leg, Reached, Walked
from unmask.core.state import State, change
from unmask.core.step import Rules, Setup
from unmask.decoding.elsewhere import About, Crew, Elsewhere
from unmask.decoding.form import Form
from unmask.decoding.parts import parts
from unmask.decoding.prompt import check_memory
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, SettingError
from unmask.models.cache import without_approximation
from unmask.search.look import each_token

SLICE = 32  # particles of a slice: rows that go through the network together

# --- what is done elsewhere ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """Finished rows for a second look."""

    number: int
    state: State


@dataclass(frozen=True)
class Segments:
    """The job of those who have the model: segments of a walk with a recipe, and second looks at its answers."""

    recipe: Recipe | None = None  # None: there is nothing to do yet
    form: Form | None = None
    about: About | None = None  # once it is prepared
    attending: Recipe | None = None  # the recipe with the blocks of the model's attention
    size: int = 1  # items of a part
    refills: bool = False

    def check(self) -> None:
        """Segments are done anywhere."""

    @torch.no_grad()
    def prepared(self, model: Denoiser, items: Sequence[object]) -> Segments:
        """The job that knows the model."""
        if self.recipe is None:
            return replace(self, about=About.of(model))
        denoiser, recipe, *_ = parts(model, self.recipe, form=self.form)
        return replace(self, about=About.of(denoiser), attending=recipe)

    @torch.no_grad()
    def do(
        self, model: Denoiser, items: Sequence[Any], store: Callable[[list[Any]], None], on_event: Any = None
    ) -> None:
        assert self.recipe is not None
        denoiser, _, sampler, search, rules = parts(model, self.recipe, form=self.form)
        setup = Setup(denoiser, sampler, search, rules, shares_rows=not traits(denoiser).keeps_rows)
        store([_reached(setup, one) if isinstance(one, Leg) else _looked(setup, one) for one in items])


def _reached(setup: Setup, leg: Leg) -> Reached:
    state = whole(leg.state)
    check_memory(setup.denoiser, 1, state.particles, state.tokens.shape[1], way_out="give a smaller slice_size")
    found = slices.segment(setup, replace(leg, state=state))
    return replace(found, state=thin(found.state))


def _looked(setup: Setup, answers: Answers) -> tuple[Tensor, Tensor]:
    denoiser, rules = without_approximation(setup.denoiser), setup.rules
    state = change(whole(answers.state), lambda mine: mine.to(denoiser.device))
    limit = rules.constraint if rules.constrained_entropy else None
    logs, asked = each_token(denoiser, state, torch.arange(state.particles, device=denoiser.device), limit)
    return logs.cpu(), asked.cpu()


def thin(state: State) -> State:
    """A state for the way: what is the same in all rows is sent once."""
    return change(state, lambda mine: mine[:1].clone() if len(mine) > 1 and bool((mine == mine[:1]).all()) else mine)


def whole(state: State) -> State:
    """A state that came by `thin`."""
    return change(state, lambda mine: mine.repeat_interleave(state.particles // len(mine), 0))


# --- who does it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alone:
    """A crew of one: the model, in this process."""

    model: Denoiser

    def prepare(self, jobs: Sequence[tuple[Any, Sequence[Any]]]) -> list[Any]:
        return [job.prepared(self.model, items) for job, items in jobs]

    def each(self, job: Any, items: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        job.do(self.model, items, found.extend)
        return found


def sliced(model: Denoiser | Crew, size: int | None) -> Denoiser:
    """The model as it is; for a crew, or with the size of slices, one whose walks are done in slices."""
    _check_number(size)
    if not isinstance(model, Crew):
        if size is None:
            return model
        model = Alone(model)
    (job,) = model.prepare([(Segments(), ())])
    return Elsewhere(job.about, model, job, size or SLICE)


def check_slices(size: int | None, recipe: Recipe) -> None:
    """Refuse a size that no slice has, and slices of what is one path."""
    _check_number(size)
    if size is not None and recipe.build_search().particles == 1:
        raise InputError("slice_size has no effect on one path", "leave it out, or give search and particles")


def _check_number(size: int | None) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"slice_size is {size!r}", "give a whole number, at least 1")
    if size >= 1 << 31:
        raise InputError(f"slice_size is {size}", "it must be at most 2147483647")


# --- what is done here -----------------------------------------------------------------------------------------------


def walk(denoiser: Elsewhere, state: State, sampler: Sampler, search: Search, rules: Rules) -> Walked:
    """The walk of one prompt by the crew of a denoiser."""
    setup = Setup(denoiser, sampler, search, rules)
    if search.resamples and denoiser.keeps_rows:
        what = f"{denoiser.name} keeps numbers of earlier canvases, which do not travel with copied particles"
        raise SettingError(what, "leave the approximate cache out, or use a search without resampling")

    def work(legs: Sequence[Leg]) -> list[Reached]:
        found = denoiser.each([replace(leg, state=thin(leg.state)) for leg in legs])
        return [replace(one, state=whole(one.state)) for one in found]

    return slices.walk(setup, state, denoiser.size, work)


def look_again(
    denoiser: Elsewhere, state: State, rows: Tensor, constraint: Constraint | None = None
) -> tuple[Tensor, Tensor]:  # [B, L] float64, [B] int64
    """`each_token` of these rows, by the crew of a denoiser."""
    logs, asked = torch.zeros_like(state.token_logp), torch.zeros_like(state.slot)
    if not len(rows):
        return logs, asked
    some = state.take(rows).replace(particles=len(rows), cache=None)
    ((found, often),) = denoiser.each([Answers(0, thin(some))])
    return logs.index_copy(0, rows, found), asked.index_copy(0, rows, often)
