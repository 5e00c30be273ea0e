"""The body of a request × a ServeConfig -> a ParsedRequest: its choices, its recipe and the form of its response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from unmask.core.denoiser import Chats, traits
from unmask.decoding.decode import check, check_form, layout
from unmask.decoding.defaults import canonical, over
from unmask.decoding.form import Form, form
from unmask.decoding.prompt import HOLE, Canvas, Text, encode, fitting_length, from_canvas
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import ALIASES, DEFAULT_LENGTH, general, ours, takes
from unmask.decoding.waves import escalation, most_paths, stages
from unmask.errors import InputError, UnmaskError, unknown
from unmask.models import BUNDLED, Denoiser
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES
from unmask.server import schemas
from unmask.server.limits import Limits, Refusal
from unmask.server.puzzle import ParsedPuzzle, kind_of, parse_puzzle
from unmask.server.refusals import about


@dataclass(frozen=True)
class ServeConfig:
    """The models of a server, its default settings and its limits."""

    models: Mapping[str, Denoiser]
    defaults: Mapping[str, Any]  # settings that hold where a request gives none, over those of the models
    limits: Limits
    plain_chat: bool = False  # send messages as plain text to models without a chat template
    complete: bool = False  # the defaults are a whole recipe: nothing of the models' own is added

    def model(self, name: str) -> Denoiser:
        if name not in self.models:
            error = unknown("model", name, self.models)
            raise Refusal(404, error.message, error.hint, param="model", code="model_not_found")
        return self.models[name]


@dataclass(frozen=True)
class Choice:
    """One choice: its canvas, and the part of it that is the answer."""

    canvas: Canvas
    ids: list[int]  # the prompt, or the whole canvas
    end: int | None  # the answer ends before this column
    seed: int
    puzzle: ParsedPuzzle | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """A request after its checks."""

    name: str
    model: Denoiser
    recipe: Recipe  # without its seed
    choices: list[Choice]
    prompted: bool  # each choice is a prompt and a length, else a canvas
    is_canvas: bool  # the answer is the whole canvas
    prompt_tokens: int
    stop: tuple[str, ...]
    logprobs: int | None
    stream: bool
    include_usage: bool  # in the last chunk of a stream
    chat: bool
    form: Form | None = None  # what the texts must be

    @property
    def streams_text(self) -> bool:
        """Whether text is final before the end: with one path that never revises."""
        return most_paths(self.recipe) == 1 and not self.recipe.build_sampler().revises


Body = schemas.Completion | schemas.Chat | schemas.Paths


def parse(body: Body, config: ServeConfig) -> ParsedRequest:
    """The request, after every check that needs no network."""
    try:
        return _parsed(body, config)
    except UnmaskError as error:
        raise about(error, body) from None


def _parsed(body: Body, config: ServeConfig) -> ParsedRequest:
    model = config.model(body.model)
    n, stop = _choices_and_stops(body)
    settings = _settings(body, model, config)
    seed = settings.get("seed")
    puzzles = _puzzles(body, model)
    texts, is_canvas = _texts(body, model, config.plain_chat, puzzles)
    prompts = [] if is_canvas else [encode(model, text) for text in texts]
    recipe = _recipe(settings, _below(model, config), model, prompts, is_canvas).replace(seed=0)
    suffix = getattr(body, "suffix", None)
    after = encode(model, suffix) if suffix else []
    _check_size(config.limits, n, texts, prompts, after, recipe)
    if is_canvas:
        ids = [from_canvas(model, text).tokens for text in texts]
        config.limits.check_size(n * len(ids), _rows(recipe), max(map(len, ids)))
    else:
        ids = [_infilled(model, before, after, recipe) for before in prompts] if after else prompts
    starts = [one.head for one in puzzles] or [len(prompt) for prompt in prompts] or [0] * len(ids)
    ends = [start + (recipe.length or 0) if after else None for start in starts]
    recipe = recipe.replace(length=None) if after else recipe
    prompted = not is_canvas and not after
    rows = layout(model, ids if prompted else None, None if prompted else ids, recipe)
    asked = _form(body, recipe, stop)
    try:
        check(model, rows, recipe, asked)
    except InputError as error:
        raise (error if asked is None else Refusal(400, error.message, error.hint, param=_formed(body)[0])) from None
    canvases = [Canvas(row.tokens, start) for row, start in zip(rows, starts, strict=True)]
    parts = zip_longest(canvases, ids, ends, puzzles)  # there may be no puzzles
    choices = [Choice(canvas, one, end, 0, puzzle) for canvas, one, end, puzzle in parts]
    return ParsedRequest(
        name=body.model,
        model=model,
        recipe=recipe,
        choices=_seeded([choice for choice in choices for _ in range(n)], seed),
        prompted=prompted,
        is_canvas=is_canvas,
        prompt_tokens=sum(token != model.vocab.mask for row in rows for token in row.tokens),
        stop=stop,
        logprobs=_logprobs(body),
        stream=bool(getattr(body, "stream", None)),
        include_usage=_usage(body),
        chat=isinstance(body, schemas.Chat),
        form=asked,
    )


def _rows(recipe: Recipe) -> int:
    """Rows of one choice; guidance doubles them."""
    return most_paths(recipe) * (2 if recipe.guidance > 0 else 1)


def _check_size(
    limits: Limits, n: int, texts: Sequence[Text], prompts: Sequence[list[int]], after: list[int], recipe: Recipe
) -> None:
    """Refuse a request that is too large, before its canvases are built."""
    for stage in stages(recipe):
        limits.check_steps(stage)
    longest = max((len(prompt) + len(after) + (recipe.length or 0) for prompt in prompts), default=0)
    limits.check_size(n * len(texts), _rows(recipe), longest)
    if not prompts:
        limits.check_size(n, _rows(recipe), sum(map(_holes, texts)))


def _seeded(choices: Sequence[Choice], seed: int | None) -> list[Choice]:
    """The choices with consecutive seeds, from the given one or a random one."""
    first = secrets.randbits(31) if seed is None else seed
    if first + len(choices) > 2**63:
        most = 2**63 - len(choices)
        raise Refusal(400, f"seed is {first}", f"for {len(choices)} choices it must be at most {most}", param="seed")
    return [replace(choice, seed=first + place) for place, choice in enumerate(choices)]


def _holes(canvas: Text) -> int:
    """How many positions the markers of a canvas open."""
    marks = HOLE.findall(canvas) if isinstance(canvas, str) else []
    return sum(int(mark[6:-1] or 1) for mark in marks)


def _infilled(model: Denoiser, before: list[int], after: list[int], recipe: Recipe) -> list[int]:
    """A canvas with one hole between two texts."""
    assert recipe.length is not None
    if model.vocab.mask in [*before, *after]:
        raise InputError(f"prompt or suffix holds the mask id {model.vocab.mask}", "give text with holes as canvas")
    return [*before, *[model.vocab.mask] * recipe.length, *after]


# --- the fields ------------------------------------------------------------------------------------------------------


def _choices_and_stops(body: Body) -> tuple[int, tuple[str, ...]]:
    """The number of choices per prompt and the stop sequences; unsupported fields are refused."""
    for name, (neutral, way_out) in schemas.NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise Refusal(400, f"{name} is not supported", way_out, param=name)
    if isinstance(body, schemas.Paths):
        return 1, ()
    n = 1 if body.n is None else body.n
    if n < 1:
        raise Refusal(400, f"n is {n}", "it must be at least 1", param="n")
    if isinstance(body, schemas.Completion) and body.best_of not in (None, 1, n):
        raise Refusal(400, "best_of is not supported", "use search best-of-n with particles", param="best_of")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stop:
        raise Refusal(400, "a stop sequence is empty", "leave it out", param="stop")
    if body.stream_options is not None and not body.stream:
        raise Refusal(400, "stream_options has no effect without stream", "leave it out", param="stream_options")
    return n, stop


def _formed(body: Body) -> tuple[str, dict[str, Any]]:
    """The field that says what the text must be, and that as arguments; no arguments: anything."""
    found: dict[str, dict[str, Any]] = {}
    asked = body.response_format
    if asked is not None and asked.type == "json_object":
        found["response_format"] = {"schema": {"type": "object"}}
    if asked is not None and (asked.type == "json_schema") != (asked.json_schema is not None):
        raise Refusal(400, "json_schema goes with type json_schema", "give both or none", param="response_format")
    if asked is not None and asked.json_schema is not None:
        found["response_format"] = {"schema": asked.json_schema.schema_}
    found |= {} if body.matches is None else {"matches": {"matches": body.matches}}
    found |= {} if body.choices is None else {"choices": {"choices": body.choices}}
    if len(found) > 1:
        raise Refusal(400, f"{' and '.join(found)} exclude each other", "give one of them", param=[*found][1])
    return next(iter(found.items()), ("response_format", {}))


def _form(body: Body, recipe: Recipe, stop: tuple[str, ...]) -> Form | None:
    """What the text must be."""
    name, given = _formed(body)
    if given and stop:
        raise Refusal(400, f"stop would cut what {name} promises", "leave stop out", param="stop")
    try:
        found = form(**given)
    except InputError as error:
        raise Refusal(400, error.message, error.hint, param=name) from None
    check_form(found, recipe)
    return found


def _logprobs(body: Body) -> int | None:
    """How many most probable tokens the response has beside each; None: no log-probabilities."""
    if isinstance(body, schemas.Paths):
        return None
    if isinstance(body, schemas.Completion):
        return body.logprobs
    if body.top_logprobs is not None and not body.logprobs:
        raise Refusal(400, "top_logprobs has no effect without logprobs", "set logprobs: true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _usage(body: Body) -> bool:
    options = None if isinstance(body, schemas.Paths) else body.stream_options
    return options is not None and bool(options.include_usage)


def _puzzles(body: Body, model: Denoiser) -> list[ParsedPuzzle]:
    """The puzzles of a request: its `puzzle`, or its text prompts to a model of puzzles."""
    puzzle, prompt = getattr(body, "puzzle", None), getattr(body, "prompt", None)
    if puzzle is not None:
        return [parse_puzzle(model, body.model, puzzle)]
    texts = [prompt] if isinstance(prompt, str) else prompt or []
    given = any(isinstance(text, str) and text for text in texts)
    given = given or (prompt == "" and not getattr(body, "canvas", None))
    return [parse_puzzle(model, body.model, text) for text in texts] if given and kind_of(model) else []


def _texts(body: Body, model: Denoiser, plain: bool, puzzles: Sequence[ParsedPuzzle]) -> tuple[list[Text], bool]:
    """The prompts or canvases of a request, and whether they are canvases."""
    canvas, messages, prompt, puzzle = (
        getattr(body, name, None) for name in ("canvas", "messages", "prompt", "puzzle")
    )
    if sum(given not in (None, "") for given in (canvas, messages, prompt, puzzle)) > 1:
        names = "prompt, messages and canvas" if puzzle is None else "prompt, messages, canvas and puzzle"
        raise Refusal(400, f"{names} exclude each other", "give one of them", param="prompt")
    if puzzles or canvas is not None:
        for name in ("suffix", "stop", "length", "max_new_tokens", "gen_length", *schemas.LENGTHS):
            if getattr(body, name, None):
                message = f"{name} has no effect on a {'puzzle' if puzzles else 'canvas'}"
                raise Refusal(400, message, "leave it out", param=name)
        return ([one.canvas for one in puzzles] if canvas is None else [canvas]), True
    if messages is not None:
        return [_dialogue(messages, model, plain)], False
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return list(prompt), False
    return [prompt if prompt is not None else ""], False


def _dialogue(messages: Sequence[schemas.Message], model: Denoiser, plain: bool) -> Text:
    """The messages for the model's chat template; as plain text if it has none and `plain` allows it."""
    turns = [
        {"role": "system" if message.role == "developer" else message.role, "content": _content(message)}
        for message in messages
    ]
    if isinstance(model.tokenizer, Chats) and model.tokenizer.template is not None:
        return turns
    if plain:
        return "\n\n".join(turn["content"] for turn in turns)
    hint = "use /v1/completions, or start the server with --plain-chat"
    raise Refusal(400, f"{model.name} has no chat template", hint, param="messages")


def _content(message: schemas.Message) -> str:
    parts = message.content
    return parts if isinstance(parts, str) else "".join(part.text for part in parts)


# --- the recipe ------------------------------------------------------------------------------------------------------


def standing(config: ServeConfig, name: str) -> dict[str, Any]:
    """The settings that hold for a model where a request gives none."""
    model = config.model(name)
    given, default = _over_defaults({}, model, config), _below(model, config)
    return over(given, default, name, canvas=kind_of(model) is not None).to_dict()


def _below(model: Denoiser, config: ServeConfig) -> Mapping[str, Any]:
    """The model's default settings; those of OpenAI's API for a model that brings none."""
    return {} if config.complete else traits(model).recipe or NEUTRAL


def _settings(body: Body, model: Denoiser, config: ServeConfig) -> dict[str, Any]:
    """The settings of the request, over the server's defaults that its sampler and search take."""
    defaults = config.defaults
    given: dict[str, Any] = {}
    named: dict[str, str] = {}  # their names in the request
    for name in [*schemas.SETTINGS, *schemas.LENGTHS]:
        value = getattr(body, name, None)
        if value is None:
            continue
        setting = "length" if name in schemas.LENGTHS else ALIASES.get(name, name)
        if setting in given:
            raise Refusal(400, f"{named[setting]} and {name} mean the same", "leave one out", param=name)
        named[setting] = name
        given[setting] = ours(setting, value)
    for name, settings in (("background", given), *(("escalate", own) for _, _, own in escalation(_escalated(given)))):
        if settings.get("background") not in (None, *BUNDLED, defaults.get("background")):
            hint = f"a request may name {', '.join(BUNDLED)}; a file only the server"
            raise Refusal(400, f"background is {settings['background']!r}", hint, param=name)
    return _over_defaults(given, model, config)


def _escalated(given: Mapping[str, Any]) -> str:
    found = given.get("escalate")
    return found if isinstance(found, str) else ""


def _over_defaults(given: Mapping[str, Any], model: Denoiser, config: ServeConfig) -> dict[str, Any]:
    """These settings, over the server's defaults that their sampler and search take."""
    defaults = canonical(config.defaults)
    layers = (given, defaults, canonical(_below(model, config)), ENTRIES)
    sampler, search = (next(layer[name] for layer in layers if name in layer) for name in ENTRIES)
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS, setting="sampler")
    if search not in SEARCHES:
        raise unknown("search", search, SEARCHES, setting="search")
    taken = {*takes(SAMPLERS[sampler]), *takes(SEARCHES[search])}
    kept = {name: value for name, value in defaults.items() if general(name) or name in taken}
    return {**kept, **given}


ENTRIES = {"sampler": Recipe().sampler, "search": Recipe().search}
NEUTRAL = {"temperature": 1.0}  # of OpenAI's API


def _recipe(
    given: dict[str, Any],
    default: Mapping[str, Any],
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    canvas: bool,
) -> Recipe:
    """The recipe; without a length, the default one, or what the model allows.

    Clients send top_p = 1, and top_p with temperature 0: neither changes anything, so both are dropped.
    """
    if canvas:
        given.pop("length", None)
    elif given.get("length") is None:
        given["length"] = fitting_length(model, prompts, canonical(default).get("length", DEFAULT_LENGTH))
    top_p = given.get("top_p")
    recipe = over({**given, "top_p": None} if "top_p" in given else given, default, model.name, canvas=canvas)
    if top_p is None or Recipe(temperature=1.0, top_p=top_p).top_p == 1:
        return recipe
    filters = recipe.temperature > 0 or recipe.build_sampler().filters
    return recipe.replace(top_p=top_p) if filters else recipe
