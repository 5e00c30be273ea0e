"""Prompts that come while others of their recipe are decoded in waves -> the result of each as soon as it is sure.

A prompt that joins has the paths, the tokens and the events that it has alone. It takes rows that others have freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from unmask.core.denoiser import Denoiser
from unmask.decoding import trace as traces
from unmask.decoding.decode import check, check_form, layout, run_wave
from unmask.decoding.ends import Stops, stop_strings
from unmask.decoding.finish import Reading
from unmask.decoding.form import Form
from unmask.decoding.prompt import Canvas, Text
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Result
from unmask.decoding.trace import Event, OnEvent
from unmask.decoding.waves import Attempt, Events, most_paths, stages, turns


@dataclass(frozen=True, eq=False)
class Asked:
    """One prompt or canvas that joins, and what is called when it is done."""

    text: Text
    seed: int
    on_result: Callable[[Result], None]
    wanted: Callable[[], bool] = lambda: True  # a prompt that nobody wants any more is dropped
    on_event: OnEvent | None = None
    logprobs: int | None = None  # as in `decode`


More = Callable[[], Sequence[Asked]]


class Unwanted(Exception):
    """Nobody wants the prompts of a wave any more."""


@dataclass(eq=False)
class Joined(Attempt):
    """A prompt that joined."""

    asked: Asked = field(kw_only=True)
    events: Events | None = None  # None: nobody reads them
    began: float = field(default_factory=time.perf_counter)


@torch.no_grad()
def decode_joining(
    model: Denoiser,
    more: More,
    recipe: Recipe,
    *,
    canvases: bool = False,
    stop: Stops | None = None,
    form: Form | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> None:
    """Decode what `more` gives, all with one recipe whose paths come in waves, until nothing is left.

    `more` is called before every wave; what it gives are prompts, or `canvases`. `on_step` is called after every step.
    """
    check_form(form, recipe)
    stops, search = stop_strings(stop), recipe.build_search()
    checked = [stage.replace(calibrated=None) for stage in stages(recipe)]  # each wave checks that of the whole

    def renewed(due: list[Joined]) -> list[Joined]:
        new = more()
        texts = [one.text for one in new]
        rows = layout(model, None if canvases else texts, texts if canvases else None, recipe) if texts else []
        for stage in checked if rows else ():
            check(model, rows, stage, form)
        joined = [_joined(model, one, row, recipe) for one, row in zip(new, rows, strict=True)]
        return [*(one for one in due if one.asked.wanted()), *joined]

    def wave(some: list[Joined]) -> None:
        tops = [one.asked.logprobs for one in some if one.asked.logprobs is not None]
        reading = Reading([one.canvas for one in some], stops, max(tops) if tops else None, form)
        with suppress(Unwanted):
            run_wave(model, some, recipe, reading, _on_event(some, on_step))

    for ended in turns(renewed, search.particles, wave):
        for one in ended:
            result = replace(one.result(), seconds=time.perf_counter() - one.began)  # since it joined
            if one.events is not None:
                chosen_by = search.chosen_by(recipe.build_sampler())
                one.events.record(traces.end_event([result], chosen_by, most_paths(recipe)))
            one.asked.on_result(result)


def _joined(model: Denoiser, asked: Asked, row: Canvas, recipe: Recipe) -> Joined:
    """An attempt that has its events alone: the first of one prompt."""
    one, on_event = Joined(0, row, recipe, asked.seed, asked=asked), asked.on_event
    if on_event is not None:
        spell, most = traces.spelling(model.tokenizer, model.vocab), most_paths(recipe)
        one.events = Events(1, most, lambda event: on_event(spell(event)))
        one.events.record(traces.start_event(model, [row], recipe, [asked.seed], most))
    return one


def _on_event(some: Sequence[Joined], on_step: Callable[[], None]) -> OnEvent:
    """A callback that splits the events of a wave among its attempts."""
    parts = traces.Parts.begun(len(some), some[0].width)
    each = [None if one.events is None else one.events.of([one]) for one in some]

    def on_event(event: Event) -> None:
        if any(own is not None for own in each):
            for own, part in zip(each, parts(event), strict=True):
                if own is not None and part is not None:
                    own(part)
        on_step()
        if not any(one.asked.wanted() for one in some):
            raise Unwanted

    return on_event
