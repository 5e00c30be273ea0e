"""Model × prompt or canvas × Recipe -> Result: walk to the end and choose."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, traits
from unmask.core.entropy import bits
from unmask.core.resampling import Resampled, Search
from unmask.core.sampler import Sampler
from unmask.core.state import State
from unmask.core.step import Rules
from unmask.core.walk import walk
from unmask.decoding import background
from unmask.decoding import trace as traces
from unmask.decoding.defaults import canonical, resolve
from unmask.decoding.ends import Stops, cut, finish, shown, stop_strings
from unmask.decoding.prompt import (
    HOLE,
    MARKER,
    Canvas,
    Text,
    check_rows,
    encode,
    fitting_length,
    from_canvas,
    from_prompt,
    start,
)
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle as Particle
from unmask.decoding.result import Result as Result
from unmask.decoding.trace import OnEvent
from unmask.errors import InputError, SettingError, many
from unmask.models.cache import block_cached, cached
from unmask.models.transformer import attention_blocks, block_causal
from unmask.models.wrap import Guided
from unmask.samplers import with_background

Answer = Callable[[str], Hashable | None]
OnResults = Callable[[int, int, list[Result]], None]  # done, in all, the new ones


def decode(
    model: Denoiser,
    prompt: Text | None = None,
    *,
    canvas: Text | None = None,
    recipe: Recipe | None = None,
    stop: Stops | None = None,
    answer: Answer | None = None,
    trace: str | Path | None = None,
    on_event: OnEvent | None = None,
    logprobs: int | None = None,
    watch: OnEvent | None = None,
    **settings: Any,
) -> Result:
    """Generate `length` positions after a prompt, or fill the holes of a canvas.

    Without a recipe the model's default holds, with the `settings` over it; the default's length is an upper limit. A
    recipe is complete: nothing of the model's default is added to it. A prompt that is text with [MASK] in it is a
    canvas. The text ends before an end token, and before the first of the strings in `stop`. `answer` extracts the
    answer of a text, for the vote. `trace` is a file for the events; `on_event` is called with each of them. With
    `logprobs` the result, and the events, hold the log-probability of every token when it was written, and of this many
    most probable ones. `watch` is the former name of `on_event`.
    """
    on_event = _renamed(on_event, watch)
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
        **settings,
    )[0]


@torch.no_grad()
def decode_batch(
    model: Denoiser,
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
    watch: OnEvent | None = None,
    **settings: Any,
) -> list[Result]:
    """`decode` for many at once: each gives the same tokens as alone with its seed (by default recipe.seed + place).

    `answer` may be a list, one function for each. `n` results for each prompt stand side by side, with seeds one after
    another. `batch_size` of them go through the network together, by default all; after each batch `on_results` is
    called with the number done, the number in all, and the results of the batch.
    """
    on_event = _renamed(on_event, watch)
    stops = stop_strings(stop)
    if stops and canvases is not None:
        raise InputError("stop has no effect on a canvas", "its holes say where the text ends")
    recipe, at_most = _chosen(model, recipe, settings, prompts is None)
    _check_kinds(recipe, answer, (prompts, canvases, seeds))
    _check_numbers(n, batch_size, logprobs)
    rows = layout(model, prompts, canvases, recipe, at_most)
    asked = [answer] * len(rows) if answer is None or callable(answer) else list(answer)
    if len(asked) != len(rows):
        raise InputError(f"{many(len(asked), 'function')} for {many(len(rows), 'prompt')}", "give one answer each")
    rows, asked = [row for row in rows for _ in range(n)], [one for one in asked for _ in range(n)]
    keys = _keys(recipe, seeds, len(rows))
    size = batch_size or max(1, len(rows))
    if trace is not None and size < len(rows):
        raise InputError("a trace holds one batch", "leave batch_size or trace out")
    found: list[Result] = []
    for begin in range(0, max(1, len(rows)), size):  # once where there are none, which is refused
        part = slice(begin, begin + size)
        used = [_fitted(recipe, row) if at_most else recipe for row in rows[part]]
        new = _together(model, rows[part], used, keys[part], asked[part], recipe, stops, trace, on_event, logprobs)
        found += new
        if on_results is not None:
            on_results(len(found), len(rows), new)
    return found


def _together(
    model: Denoiser,
    rows: Sequence[Canvas],
    used: Sequence[Recipe],
    keys: list[int],
    asked: Sequence[Answer | None],
    recipe: Recipe,
    stops: Sequence[str],
    trace: str | Path | None,
    on_event: OnEvent | None,
    logprobs: int | None,
) -> list[Result]:
    """Rows that go through the network together; each has its recipe in `used`."""
    began = time.perf_counter()
    denoiser, state, sampler, search, rules = prepare(model, rows, keys, recipe)
    moments: list[tuple[Tensor, Resampled | None]] = []
    written = None if logprobs is None else traces.Written(len(rows) * search.particles, denoiser.vocab.mask)
    with traces.recording(model, trace, on_event) as record:
        if record:
            longest = max(used, key=lambda one: one.length or 0)
            record(traces.start_event(denoiser, rows, longest, keys, search.particles))
        for moment in walk(denoiser, state, sampler, search, rules, keeps_hidden=logprobs is not None):
            event = traces.step_event(moment, denoiser.head, logprobs) if record or written else {}
            if written:
                written.apply(event)
            if record:
                record(event)
            moments.append((moment.entropy, moment.resampled))
            state, tally = moment.state, moment.tally
        particles = _particles(model, rows, state, tally.steps.tolist(), _along(moments), stops)
        if written:
            decided = written.tokens(model.tokenizer, model.vocab)
            particles = [replace(one, logprobs=some) for one, some in zip(particles, decided, strict=True)]
        answers = _answers(particles, asked) if search.choose.needs_answers else []
        chosen = search.choose(state, answers)
        evidence = sum((r.log_evidence.cpu() for _, r in moments if r is not None), torch.zeros(len(rows)).double())
        k, seconds = search.particles, time.perf_counter() - began
        results = [
            Result(
                particles[place * k : place * k + k],
                winner,
                used[place],
                keys[place],
                int(tally.calls[place]),
                int(tally.evaluations.view(-1, k)[place].sum()),
                float(evidence[place]),
                seconds,
            )
            for place, winner in enumerate(chosen.tolist())
        ]
        if record:
            record(traces.end_event(results, search.choose.name))
    return results


# --- before the walk -------------------------------------------------------------------------------------------------


def prepare(
    model: Denoiser, rows: Sequence[Canvas], keys: Sequence[int], recipe: Recipe
) -> tuple[Denoiser, State, Sampler, Search, Rules]:
    """The arguments of `walk`, after every check that needs no network."""
    denoiser, sampler, search, rules = _parts(model, recipe)
    return denoiser, start(denoiser, rows, keys, sampler, search.particles), sampler, search, rules


def check(model: Denoiser, rows: Sequence[Canvas], recipe: Recipe) -> None:
    """The checks of `prepare`, without building a State."""
    denoiser, sampler, search, _ = _parts(model, recipe)
    check_rows(denoiser, rows, sampler, search.particles)


def _parts(model: Denoiser, recipe: Recipe) -> tuple[Denoiser, Sampler, Search, Rules]:
    """The parts of a walk that do not depend on its rows."""
    denoiser, recipe = _attending(model, recipe)
    if traits(denoiser).attention is None and recipe.caches:
        denoiser = _windowed(denoiser, recipe)
    denoiser = Guided(denoiser, recipe.guidance) if recipe.guidance > 0 else denoiser
    if traits(denoiser).keeps_rows:
        recipe.check_cache()
    sampler, search = recipe.build_sampler(), recipe.build_search()
    if recipe.background is not None:
        table = background.load(recipe.background)
        table.check(model)
        sampler = with_background(sampler, table)
    return denoiser, sampler, search, recipe.build_rules(denoiser.vocab, denoiser.head.width)


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


def _attending(model: Denoiser, recipe: Recipe) -> tuple[Denoiser, Recipe]:
    """The model with the attention of the recipe; the recipe with the blocks and entropies that go with it."""
    always = traits(model).attention is not None
    if not always and recipe.attention != "block":
        return model, recipe
    if always and recipe.attention == "full":
        raise SettingError(f"{model.name} knows attention in blocks only", "leave attention out", setting="attention")
    recipe.check_blocks()
    size = attention_blocks(model)
    part, sub = recipe.cache_block, min(recipe.get("sub_block") or size, size)
    length = size if recipe.block_length is None else recipe.block_length
    for name, value in (("block_length", length), ("sub_block", sub), ("cache_block", part)):
        if value is not None and size % value:
            what = f"{name} is {value}, which does not divide the {size} positions of {model.name}'s attention blocks"
            raise SettingError(what, "leave it out, or load a model of other blocks", setting=name)
    if part is not None and getattr(recipe.build_sampler(), "part", None) != part:
        what = f"cache_block is {part}, but sampler {recipe.name('sampler')} has no sub-blocks of that size"
        raise SettingError(what, f"leave it out, or use fast-dllm-v2 with sub_block {part}", setting="cache_block")
    denoiser = model if always else block_causal(model)
    if always or model.device.type == "cpu":  # exact: what is kept is what would be computed
        denoiser = block_cached(denoiser, part)
    return denoiser, recipe.replace(block_length=length, scope="block")


CACHE_BEFORE = 32  # columns before the block that an approximate cache computes: docs/research/caches.md


def _windowed(denoiser: Denoiser, recipe: Recipe) -> Denoiser:
    """The model with the approximate cache of the recipe."""
    before, after, every = (recipe.get(f"cache_{name}") for name in ("before", "after", "every"))
    block = recipe.cache_block or recipe.build_sampler().block_length
    assert block is not None, "a recipe with a cache has blocks"
    return cached(denoiser, block, CACHE_BEFORE if before is None else before, after, every or 0)


def _renamed(on_event: OnEvent | None, watch: OnEvent | None) -> OnEvent | None:
    """The callback, under its name or its former one."""
    if watch is None:
        return on_event
    warnings.warn("watch is now called on_event", DeprecationWarning, stacklevel=3)
    return watch


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
        if prompted and at_most and length is not None:
            text = encode(model, text)
            length = fitting_length(model, [text], length)
        return from_prompt(model, text, length) if prompted else from_canvas(model, text)
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


# --- after the walk --------------------------------------------------------------------------------------------------


def _along(moments: Sequence[tuple[Tensor, Resampled | None]]) -> list[list[float | None]]:
    """State entropies of every final row along its ancestry, in bits; found by walking back."""
    row = torch.arange(len(moments[0][0]), device=moments[0][0].device)
    back: list[Tensor] = []
    for entropy, resampled in reversed(moments):
        row = row if resampled is None else resampled.ancestors[row]
        back.append(entropy[row])
    return [traces.finite(path) for path in bits(torch.stack(back[::-1], 1)).tolist()]


def _particles(
    model: Denoiser,
    rows: Sequence[Canvas],
    state: State,
    steps: list[int],
    paths: list[list[float | None]],
    stops: Sequence[str],
) -> list[Particle]:
    kept = (state.tokens, bits(state.path_entropy), state.origin, state.log_prob, state.surprise)
    found = []
    for row, (tokens, entropy, origin, *score) in enumerate(zip(*(one.tolist() for one in kept), strict=True)):
        canvas = rows[row // state.particles]
        tokens = tokens[len(tokens) - len(canvas.tokens) :]
        text = model.tokenizer.decode([tokens[column] for column in shown(tokens, canvas, state.vocab)])
        end = cut(text, stops)
        why = finish(tokens, canvas, state.vocab, end < len(text))
        log_prob, surprise = score
        found.append(Particle(tokens, text[:end], entropy, paths[row], steps[row], origin, log_prob, surprise, why))
    return found


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
