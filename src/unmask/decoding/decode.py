"""Model × prompt or canvas × Recipe -> Result: walk to the end and choose."""

from __future__ import annotations

import operator
import os
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.core.denoiser import Denoiser
from unmask.decoding import trace as traces
from unmask.decoding.defaults import canonical, resolve
from unmask.decoding.elsewhere import Crew, Elsewhere
from unmask.decoding.ends import Stops, stop_strings, texts_over
from unmask.decoding.finish import Reading, finished
from unmask.decoding.form import Form, Schema
from unmask.decoding.form import form as form_of
from unmask.decoding.parts import calibrated_for as calibrated_for
from unmask.decoding.parts import check as check
from unmask.decoding.parts import check_calibrated, parts
from unmask.decoding.parts import prepare as prepare
from unmask.decoding.prompt import (
    HOLE,
    MARKER,
    Canvas,
    Text,
    encode,
    fitting_length,
    from_canvas,
    from_prompt,
    start,
)
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle as Particle
from unmask.decoding.result import Result as Result
from unmask.decoding.rewards import Reward, as_number, rewarding
from unmask.decoding.slices import check_slices, sliced
from unmask.decoding.trace import OnEvent
from unmask.decoding.waves import Attempt, Events, Verify, most_paths, rounds, stages
from unmask.errors import AlikeWarning, InputError, SettingError, many
from unmask.search import POTENTIALS

Answer = Callable[[str], Hashable | None]
OnResults = Callable[[int, int, list[Result]], None]  # done, in all, the new ones


def decode(
    model: Denoiser | Crew,
    prompt: Text | None = None,
    *,
    canvas: Text | None = None,
    recipe: Recipe | None = None,
    stop: Stops | None = None,
    answer: Answer | None = None,
    trace: str | Path | None = None,
    on_event: OnEvent | None = None,
    logprobs: int | None = None,
    reward: Reward | None = None,
    verify: Verify | None = None,
    matches: str | Sequence[str | None] | None = None,
    choices: Sequence[str] | Sequence[Sequence[str] | None] | None = None,
    schema: Schema | Sequence[Schema | None] | None = None,
    form: Form | None = None,
    slice_size: int | None = None,
    watch: OnEvent | None = None,
    **settings: Any,
) -> Result:
    """Generate `length` positions after a prompt, or fill the holes of a canvas.

    Without a recipe the model's default holds, with the `settings` over it; the default's length is an upper limit. A
    recipe is complete: nothing of the model's default is added to it. A prompt that is text with [MASK] in it is a
    canvas. The text ends before an end token, and before the first of the strings in `stop`; orders in blocks do not
    decode what follows. `answer` extracts the answer of a text, for the vote. `trace` is a file for the events;
    `on_event` is called with each of them. With `logprobs` the result, and the events, hold the log-probability of
    every token when it was written, and of this many most probable ones. `verify` is a function of a text that says
    whether it is right: paths come in waves, as with `until`, and the first one that is right is returned. `reward` is
    a function of a text that gives a number: the potential `reward` asks it in the walk, with [MASK] for what is open,
    and the choice `reward` at the end.

    The whole text matches the regular expression `matches`, is one of `choices`, or is JSON of a `schema`; of a canvas
    each hole, or each its own if a list is given. `form` is such a constraint, made before. `watch` is the former name
    of `on_event`.

    Instead of a model there may be a Fleet, whose workers decode the particles in slices of `slice_size` (by default
    32). With a model and a `slice_size` they are decoded in this process, slice after slice.
    """
    on_event = _renamed(on_event, watch)
    _check_one(prompt, canvas, settings)
    if isinstance(prompt, str) and canvas is None and HOLE.search(prompt):
        prompt, canvas = None, prompt
    prompts = None if prompt is None else [prompt]
    canvases = None if canvas is None else [canvas]
    if prompts is None and canvases is None:
        prompts = [""]
    return decode_batch(
        model,
        prompts,
        canvases=canvases,
        recipe=recipe,
        stop=stop,
        answer=answer,
        trace=trace,
        on_event=on_event,
        logprobs=logprobs,
        reward=reward,
        verify=verify,
        matches=matches,
        choices=choices,
        schema=schema,
        form=form,
        slice_size=slice_size,
        **settings,
    )[0]


@torch.no_grad()
def decode_batch(
    model: Denoiser | Crew,
    prompts: Sequence[Text] | None = None,
    *,
    canvases: Sequence[Text] | None = None,
    recipe: Recipe | None = None,
    stop: Stops | None = None,
    seeds: Sequence[int] | None = None,
    answer: Answer | Sequence[Answer] | None = None,
    trace: str | Path | None = None,
    on_event: OnEvent | None = None,
    logprobs: int | None = None,
    n: int = 1,
    batch_size: int | None = None,
    on_results: OnResults | None = None,
    reward: Reward | None = None,
    verify: Verify | None = None,
    matches: str | Sequence[str | None] | None = None,
    choices: Sequence[str] | Sequence[Sequence[str] | None] | None = None,
    schema: Schema | Sequence[Schema | None] | None = None,
    form: Form | None = None,
    slice_size: int | None = None,
    watch: OnEvent | None = None,
    **settings: Any,
) -> list[Result]:
    """`decode` for many at once: each gives the same tokens as alone with its seed (by default recipe.seed + place).

    `answer` may be a list, one function for each. `n` results for each prompt stand side by side, with seeds one after
    another. `batch_size` of them go through the network together, by default all; after each batch `on_results` is
    called with the number done, the number in all, and the new results (`Result.number` says of which prompt). With
    `until`, or with `verify`, a prompt stops at the first path that is sure or right enough, and the next one takes its
    place.
    """
    on_event = _renamed(on_event, watch)
    if isinstance(model, str | os.PathLike):
        raise InputError(f"the model is a name, {os.fspath(model)!r}", f"give load({os.fspath(model)!r})")
    model = sliced(model, slice_size)
    stops = stop_strings(stop)
    if stops and canvases is not None:
        raise InputError("stop has no effect on a canvas", "its holes say where the text ends")
    recipe, at_most = _chosen(model, recipe, settings, prompts is None)
    _check_kinds(recipe, answer, (prompts, canvases, seeds))
    _check_reward(recipe, reward, answer)
    form = _form(form, form_of(matches, choices, schema), recipe, stops)
    _check_numbers(n, batch_size, logprobs)
    rows = layout(model, prompts, canvases, recipe, at_most)
    answer = _valued(reward) if recipe.build_search().choose.name == "reward" else answer
    asked = [answer] * len(rows) if answer is None or callable(answer) else list(answer)
    if len(asked) != len(rows):
        raise InputError(f"{many(len(asked), 'function')} for {many(len(rows), 'prompt')}", "give one answer each")
    rows, asked = [row for row in rows for _ in range(n)], [one for one in asked for _ in range(n)]
    keys = _keys(recipe, seeds, len(rows))
    size = batch_size or (1 if isinstance(model, Elsewhere) else max(1, len(rows)))
    if trace is not None and size < len(rows):
        raise InputError("a trace holds one batch", "leave batch_size or trace out")
    if isinstance(model, Elsewhere):
        check_slices(slice_size, recipe)
        _check_slices(recipe, verify, {"trace": trace, "on_event": on_event, "logprobs": logprobs}, size)
    used = [_fitted(recipe, row) if at_most else recipe for row in rows]
    if in_waves(recipe, verify):
        attempts = [Attempt(*one, verify) for one in zip(range(len(rows)), rows, used, keys, strict=True)]
        reading = Reading(rows, stops, logprobs, form)
        return _told(_in_waves(model, attempts, recipe, size, reading, trace, on_event, on_results))
    found: list[Result] = []
    for begin in range(0, max(1, len(rows)), size):  # once where there are none, which is refused
        part = slice(begin, begin + size)
        given = used[part], keys[part], asked[part]
        new = _together(
            model, Reading(rows[part], stops, logprobs, form), *given, recipe, trace, on_event, begin, reward
        )
        found += new
        if on_results is not None:
            on_results(len(found), len(rows), new)
    return _told(found)


def _check_slices(recipe: Recipe, verify: object, told: Mapping[str, object], size: int) -> None:
    """Refuse what the slices of a prompt's particles cannot do."""
    if in_waves(recipe) or verify is not None:
        what = f"{'until' if verify is None else 'verify'} decodes one or two paths at first, and then asks for more"
        raise InputError(what, "leave it out, or decode without slices")
    for name, given in told.items():
        if given is not None:
            raise InputError(f"{name} has what happens in each step, which slices do not send", "leave it out")
    if size != 1:
        raise InputError(f"batch_size is {size}, a prompt in slices is decoded by itself", "leave batch_size out")


def _told(found: list[Result]) -> list[Result]:
    """The results, with a warning where the particles of none of them differ."""
    if all(one.alike for one in found):
        what = f"all {len(found[0].particles)} particles took the same path"
        hint = "with a temperature above 0, a select_temperature or sampler uniform they differ"
        warnings.warn(f"{what}: {hint}", AlikeWarning, stacklevel=_outside())
    return found


def _outside() -> int:
    """How far up the caller of the package is, for a warning of the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("unmask", "torch"):
        level, frame = level + 1, frame.f_back
    return level


# --- in waves, until a path is sure enough ---------------------------------------------------------------------------


def in_waves(recipe: Recipe, verify: Verify | None = None) -> bool:
    """Whether paths come in waves."""
    search = recipe.build_search()
    if verify is not None and not callable(verify):
        raise InputError(f"verify is {verify!r}", "give a function of a text")
    if verify is not None and (search.choose.cost is None or search.resamples):
        raise InputError(f"verify does not go with search {recipe.name('search')}", "use auto or best-of-n")
    return search.until > 0 or verify is not None


def _in_waves(
    model: Denoiser,
    attempts: Sequence[Attempt],
    recipe: Recipe,
    size: int,
    reading: Reading,
    trace: str | Path | None,
    on_event: OnEvent | None,
    on_results: OnResults | None,
) -> list[Result]:
    """The results of all attempts in their order; `size` × particles rows go through the network together."""
    search, found = recipe.build_search(), dict[int, Result]()
    most = most_paths(recipe)
    for stage in stages(recipe):
        check(model, [one.canvas for one in attempts], stage.replace(calibrated=None), reading.form)
    check_calibrated(model, recipe)
    with traces.recording(model, trace, on_event) as record:
        events = None
        if record:
            keys = [one.key for one in attempts]
            record(_started(model, reading.rows, [one.recipe for one in attempts], keys, most))
            events = Events(len(attempts), most, record)

        def wave(some: list[Attempt]) -> None:
            run_wave(model, some, recipe, reading, None if events is None else events.of(some))

        for ended in rounds(attempts, size * search.particles, wave):
            found |= {one.place: one.result() for one in ended}
            if on_results is not None:
                on_results(len(found), len(attempts), [found[one.place] for one in ended])
        results = [found[place] for place in range(len(attempts))]
        if record:
            record(traces.end_event(results, search.chosen_by(recipe.build_sampler()), most))
    return results


@torch.no_grad()
def run_wave(
    model: Denoiser, some: Sequence[Attempt], recipe: Recipe, reading: Reading, on_event: OnEvent | None = None
) -> None:
    """The next wave of attempts that all have the same width: their paths, costs and figures grow."""
    began, each = time.perf_counter(), some[0].width
    rows, keys = [one.canvas for one in some], [one.key for one in some]
    stage = stages(recipe)[some[0].stage]
    denoiser, _, sampler, search, rules = parts(model, stage, whole=recipe, form=reading.form)
    first = torch.tensor([one.first for one in some], device=denoiser.device).repeat_interleave(each)
    state = start(denoiser, rows, keys, sampler, each)
    state = state.replace(slot=state.slot + first, origin=state.origin + first)
    read, known = replace(reading, rows=rows), [one.looks for one in some for _ in range(each)]
    about = (denoiser, state, sampler, replace(search, particles=each), rules, read, on_event)
    found = finished(*about, search.looks(sampler), known)
    assert search.choose.cost is not None
    costs, seconds = search.choose.cost(found.state).tolist(), time.perf_counter() - began
    for place, one in enumerate(some):
        mine = slice(place * each, place * each + each)
        one.particles += found.particles[mine]
        one.costs += costs[mine]
        if one.verify is not None:
            one.right += [bool(one.verify(particle.text)) for particle in found.particles[mine]]
        one.calls += int(found.tally.calls[place])
        one.evaluations += int(found.tally.evaluations.view(-1, each)[place].sum())
        one.rows += int(found.tally.rows.view(-1, each)[place].sum())
        one.spent[len(one.particles)] = one.evaluations
        one.seconds += seconds
        one.share += seconds / len(some)


def _together(
    model: Denoiser,
    reading: Reading,
    used: Sequence[Recipe],
    keys: list[int],
    asked: Sequence[Answer | None],
    recipe: Recipe,
    trace: str | Path | None,
    on_event: OnEvent | None,
    first: int,
    reward: Reward | None,
) -> list[Result]:
    """Rows that go through the network together, from number `first` on; each has its recipe in `used`."""
    began, rows = time.perf_counter(), reading.rows
    denoiser, state, sampler, search, rules = prepare(model, rows, keys, recipe, reading.form)
    if reward is not None and search.potential is POTENTIALS["reward"]:
        search = replace(search, potential=rewarding(reward, denoiser, rows))
    with traces.recording(model, trace, on_event) as record:
        if record:
            record(_started(denoiser, rows, used, keys, search.particles))
        about = (denoiser, state, sampler, search, rules, reading, record)
        over = texts_over(denoiser, state, sampler, search, reading.stops)
        if over is not None and isinstance(denoiser, Elsewhere):
            what = "with blocks a stop string ends a walk by the texts of all particles, which no slice has"
            raise InputError(what, "leave stop or block_length out")
        found = finished(*about, search.looks(sampler), over=over)
        answers = _answers(found.particles, asked) if search.choose.needs_answers else []
        chosen = search.choose(found.state, answers)
        k, seconds = search.particles, time.perf_counter() - began
        results = [
            Result(
                found.particles[place * k : place * k + k],
                winner,
                used[place],
                keys[place],
                int(found.tally.calls[place]),
                int(found.tally.evaluations.view(-1, k)[place].sum()),
                float(found.log_evidence[place]),
                seconds,
                first + place,
                rows=int(found.tally.rows.view(-1, k)[place].sum()),
                slice_size=min(denoiser.size, k) if isinstance(denoiser, Elsewhere) and k > 1 else None,
                prompt=rows[place].source,
                given=rows[place].given,
            )
            for place, winner in enumerate(chosen.tolist())
        ]
        if record:
            record(traces.end_event(results, search.chosen_by(sampler)))
    return results


def _started(
    denoiser: Denoiser, rows: Sequence[Canvas], used: Sequence[Recipe], keys: list[int], particles: int
) -> traces.Event:
    """The first event of a trace."""
    longest = max(used, key=lambda one: one.length or 0)
    return traces.start_event(denoiser, rows, longest, keys, particles)


def _answers(particles: list[Particle], asked: Sequence[Answer | None]) -> list[Hashable | None]:
    each = len(particles) // len(asked)
    pairs = [(particle.text, asked[place // each]) for place, particle in enumerate(particles)]
    found = [text if answer is None else answer(text) for text, answer in pairs]
    for one in found:
        if not isinstance(one, Hashable):
            raise InputError(
                f"answer gave a {type(one).__name__}", "give what can be compared: a text, a number, a tuple"
            )
    return found


# --- before the walk -------------------------------------------------------------------------------------------------


def _form(given: Form | None, made: Form | None, recipe: Recipe, stops: Sequence[str]) -> Form | None:
    """The constraint, after the checks of what goes with it."""
    if given is not None and made is not None:
        raise InputError("form is a constraint by itself", "leave it, or matches, choices and schema out")
    form = made if given is None else given
    check_form(form, recipe)
    if form is not None and stops:
        raise InputError("a stop string would cut what the constraint promises", "leave stop out")
    return form


def check_form(form: Form | None, recipe: Recipe) -> None:
    """Refuse settings that have no effect without a constraint."""
    if form is None and recipe.get("constrained_entropy"):
        way_out = "give matches, choices or schema, or leave it out"
        raise SettingError(
            "constrained_entropy has no effect without a constraint", way_out, setting="constrained_entropy"
        )
    if form is None and recipe.build_search().potential is POTENTIALS["constraint"]:
        way_out = "give matches, choices or schema, or another potential"
        raise SettingError("potential constraint weighs by a constraint", way_out, setting="potential")


def _valued(reward: Reward | None) -> Answer:
    """The reward of a text as a finite number."""

    def value(text: str) -> float:
        assert reward is not None
        return as_number(reward(text))

    return value


def _check_reward(recipe: Recipe, reward: Reward | None, answer: object) -> None:
    """Refuse a reward that nobody asks for, and a search that lacks one."""
    search = recipe.build_search()
    asks = search.choose.name == "reward" or search.potential is POTENTIALS["reward"]
    if asks and reward is None:
        raise InputError("the search goes by a reward", "give reward=, a function of the text, in Python")
    if reward is not None and not callable(reward):
        raise InputError(f"reward is {reward!r}", "give a function of a text")
    if reward is not None and not asks:
        way = "use best-of-n with choose='reward', or smc with potential='reward'"
        raise InputError(f"reward has no effect on search {recipe.name('search')}", way)


def _chosen(model: Denoiser, recipe: Recipe | None, settings: dict[str, Any], canvas: bool) -> tuple[Recipe, bool]:
    """The recipe that is used, and whether its length is an upper limit, as that of a model's default is."""
    if recipe is None:
        found = resolve(model, settings, canvas=canvas)
        return found, found.length is not None and canonical(settings).get("length") is None
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__name__}", "give a Recipe, or Recipe.from_dict of a dict")
    return (recipe.replace(**settings) if settings else recipe), False


def _fitted(recipe: Recipe, row: Canvas) -> Recipe:
    """The recipe with the length that this row has."""
    length = len(row.tokens) - row.given
    return recipe if recipe.length == length else recipe.replace(length=length)


def _renamed(on_event: OnEvent | None, watch: OnEvent | None) -> OnEvent | None:
    """The callback, under its name or its former one."""
    if watch is None:
        return on_event
    warnings.warn("watch is now called on_event", DeprecationWarning, stacklevel=3)
    return watch


MANY = ("n", "seeds", "batch_size", "on_results", "canvases")  # arguments of `decode_batch` alone


def _check_one(prompt: object, canvas: object, settings: Mapping[str, object]) -> None:
    """Refuse several prompts, and arguments that are for several."""
    for name in MANY:
        if name in settings:
            raise InputError(f"decode gives one result, {name} is for several", "use decode_batch(model, [prompt], …)")
    for text in (prompt, canvas):
        rows = isinstance(text, list | tuple) and len(text) > 0 and isinstance(text[0], str | list | tuple)
        if rows or (getattr(text, "ndim", 1) == 2 and len(text) != 1):  # type: ignore[arg-type]
            raise InputError(
                f"decode takes one prompt, this is a list of {len(text)}",  # type: ignore[arg-type]
                "decode_batch takes several",
            )


def _check_kinds(recipe: Recipe, answer: object, lists: Sequence[object]) -> None:
    """Refuse arguments of the wrong kind, and an answer that nobody would ask for."""
    for given in lists:
        if isinstance(given, str) or not (given is None or isinstance(given, Sequence)):
            raise InputError(f"{given!r} is not a list", "decode_batch takes lists; decode takes one prompt or canvas")
    if answer is not None and not recipe.build_search().choose.needs_answers:
        raise InputError(f"answer has no effect on search {recipe.search}", "choose by vote, or leave it out")


def _check_numbers(n: int, batch_size: int | None, logprobs: int | None) -> None:
    """Refuse numbers that are none, or too small."""
    for name, value, least in (("n", n, 1), ("batch_size", batch_size, 1), ("logprobs", logprobs, 0)):
        if not (value is None and name != "n") and (not isinstance(value, int) or value < least):
            raise InputError(f"{name} is {value!r}", f"give a whole number, at least {least}")


def layout(
    model: Denoiser,
    prompts: Sequence[Text] | None,
    canvases: Sequence[Text] | None,
    recipe: Recipe,
    at_most: bool = False,
) -> list[Canvas]:
    """The rows to decode; with `at_most` a row is as long as the model allows, but not longer than the recipe says."""
    if (prompts is None) == (canvases is None):
        raise InputError("give prompts or canvases", "one of the two")
    given = list(prompts if prompts is not None else canvases or [])
    if canvases is not None and recipe.length is not None:
        raise InputError("length has no effect on a canvas", "its holes say how much is generated")
    rows = [
        _row(place, len(given), model, text, recipe.length, prompts is not None, at_most)
        for place, text in enumerate(given)
    ]
    if recipe.guidance > 0 and all(set(row.tokens) == {model.vocab.mask} for row in rows):
        raise InputError("guidance has no effect where nothing is given", "give a prompt, or leave guidance out")
    return rows


def _row(
    place: int, rows: int, model: Denoiser, text: Text, length: int | None, prompted: bool, at_most: bool
) -> Canvas:
    """One row; an error says which of many it is about."""
    try:
        if prompted and isinstance(text, str) and HOLE.search(text):
            raise InputError(
                f"the prompt holds {MARKER}", "give it as a canvas; as token ids, if the letters are meant"
            )
        tokens = text
        if prompted and at_most and length is not None:
            tokens = encode(model, text)
            length = fitting_length(model, [tokens], length)
        row = from_prompt(model, tokens, length) if prompted else from_canvas(model, text)
        return replace(row, source=text)
    except InputError as error:
        if rows == 1:
            raise
        raise InputError(f"{'prompt' if prompted else 'canvas'} {place + 1}: {error.message}", error.hint) from None


def _keys(recipe: Recipe, seeds: Sequence[int] | None, rows: int) -> list[int]:
    """A seed for each row."""
    try:
        keys = [recipe.seed + row for row in range(rows)] if seeds is None else [operator.index(s) for s in seeds]
    except TypeError:
        raise InputError(f"the seeds are {seeds}", "give integers") from None
    if len(keys) != rows:
        raise InputError(f"{many(len(keys), 'seed')} for {many(rows, 'prompt')}", "give one seed each")
    return keys
