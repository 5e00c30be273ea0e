"""A request × the models that are served -> an Order: what is decoded, with which recipe, and how it is answered."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.core.denoiser import Chats
from unmask.decoding.decode import layout, prepare
from unmask.decoding.prompt import HOLE, Canvas, Text, default_length, encode, from_canvas
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import ALIASES, SAMPLER_ALIASES, general, takes
from unmask.errors import InputError, UnmaskError, unknown
from unmask.models import BUNDLED, Denoiser
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES
from unmask.server import schemas
from unmask.server.limits import Limits, Refusal
from unmask.server.puzzle import Riddle, kind_of, riddle
from unmask.server.validation import about


@dataclass(frozen=True)
class Shop:
    """What is served, and how where a request says nothing."""

    models: Mapping[str, Denoiser]
    usual: Mapping[str, Any]  # settings of a recipe
    limits: Limits
    plain_chat: bool = False  # messages as plain text, for models without a chat template

    def model(self, name: str) -> Denoiser:
        if name not in self.models:
            error = unknown("model", name, self.models)
            raise Refusal(404, error.message, error.hint, param="model", code="model_not_found")
        return self.models[name]


@dataclass(frozen=True)
class Choice:
    """One choice: what is decoded, and which part of it is the answer."""

    canvas: Canvas
    ids: list[int]  # the prompt, or the whole canvas
    end: int | None  # the answer ends before this column
    seed: int
    riddle: Riddle | None = None  # the puzzle that it answers


@dataclass(frozen=True)
class Order:
    """A request that was understood."""

    name: str
    model: Denoiser
    recipe: Recipe  # without its seed
    choices: list[Choice]
    prompted: bool  # each is a prompt and a length, else a canvas
    whole: bool  # the answer is the whole canvas
    given: int  # tokens of all prompts
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    stream: bool = False
    usage: bool = False  # a stream ends with the usage
    chat: bool = False

    @property
    def settles(self) -> bool:
        """Whether text can be sent before the end: there is one path, which never goes back."""
        return self.recipe.build_search().particles == 1 and not self.recipe.build_sampler().revises


Body = schemas.Completion | schemas.Chat | schemas.Paths


def understand(body: Body, shop: Shop) -> Order:
    """The order, after every check that needs no network."""
    try:
        return _understood(body, shop)
    except UnmaskError as error:
        raise about(error, body) from None


def _understood(body: Body, shop: Shop) -> Order:
    model = shop.model(body.model)
    n, stop = _answered(body)
    given = _settings(body, shop.usual)
    seed = given.get("seed")
    riddles = _riddles(body, model)
    texts, kind = _texts(body, model, shop.plain_chat, riddles)
    prompts = [encode(model, text) for text in texts] if kind == "prompt" else []
    recipe = _recipe(given, model, prompts, kind == "canvas").replace(seed=0)
    limit, particles = shop.limits, recipe.build_search().particles * (2 if recipe.guidance > 0 else 1)
    suffix = getattr(body, "suffix", None)
    after = encode(model, suffix) if suffix else []
    positions = max([len(ids) + len(after) + (recipe.length or 0) for ids in prompts], default=0)
    limit.check_steps(recipe)
    limit.check_size(n * len(texts), particles, positions)
    found: list[tuple[list[int], int | None]]
    if kind == "canvas":
        limit.check_size(n, particles, sum(_holes(text) for text in texts))
        found = [(canvas.tokens, None) for canvas in (from_canvas(model, text) for text in texts)]
        limit.check_size(n * len(found), particles, max(len(ids) for ids, _ in found))
    elif after:
        found = [_infilled(model, ids, after, recipe) for ids in prompts]
        recipe = recipe.replace(length=None)
    else:
        found = [(ids, None) for ids in prompts]
    prompted = kind == "prompt" and not after
    many = [ids for ids, _ in found]
    rows = layout(model, many if prompted else None, None if prompted else many, recipe)
    prepare(model, rows, [0] * len(rows), recipe)
    first = secrets.randbits(31) if seed is None else seed
    choices = [
        Choice(Canvas(row.tokens, row.given if prompted else len(prompts[place]) if after else 0), ids, end, 0)
        for place, (row, (ids, end)) in enumerate(zip(rows, found, strict=True))
    ]
    for place, one in enumerate(riddles):
        choices[place] = replace(choices[place], canvas=Canvas(rows[place].tokens, one.head), riddle=one)
    spread = [choice for choice in choices for _ in range(n)]
    if first + len(spread) > 2**63:
        most = 2**63 - len(spread)
        raise Refusal(400, f"seed is {first}", f"for {len(spread)} choices it must be at most {most}", param="seed")
    return Order(
        body.model,
        model,
        recipe,
        [replace(one, seed=first + place) for place, one in enumerate(spread)],
        prompted,
        kind == "canvas",
        sum(token != model.vocab.mask for row in rows for token in row.tokens),
        stop,
        _logprobs(body),
        bool(getattr(body, "stream", None)),
        _usage(body),
        isinstance(body, schemas.Chat),
    )


def _holes(canvas: Text) -> int:
    """How many positions a canvas opens, before they are laid out."""
    marks = HOLE.findall(canvas) if isinstance(canvas, str) else []
    return sum(int(mark[6:-1] or 1) for mark in marks)


def _infilled(model: Denoiser, before: list[int], after: list[int], recipe: Recipe) -> tuple[list[int], int]:
    """A canvas whose one hole stands between two texts, and the column at which the hole ends."""
    assert recipe.length is not None
    if model.vocab.mask in [*before, *after]:
        raise InputError(f"prompt or suffix holds the mask id {model.vocab.mask}", "give text with holes as canvas")
    end = len(before) + recipe.length
    return [*before, *[model.vocab.mask] * recipe.length, *after], end


# --- the fields ------------------------------------------------------------------------------------------------------


def _answered(body: Body) -> tuple[int, tuple[str, ...]]:
    """Choices of a prompt and stop sequences, after a look at what is not supported."""
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


def _logprobs(body: Body) -> int | None:
    """How many most probable tokens are told beside each; None: no log-probabilities at all."""
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


def _riddles(body: Body, model: Denoiser) -> list[Riddle]:
    """The puzzles of a request: its `puzzle`, or the texts that it prompts a model of puzzles with."""
    puzzle, prompt = getattr(body, "puzzle", None), getattr(body, "prompt", None)
    if puzzle is not None:
        return [riddle(model, body.model, puzzle)]
    texts = [prompt] if isinstance(prompt, str) else prompt or []
    said = any(isinstance(text, str) and text for text in texts) or (prompt == "" and not getattr(body, "canvas", None))
    if not said or kind_of(model) is None:
        return []
    return [riddle(model, body.model, text) for text in texts]


def _texts(body: Body, model: Denoiser, plain: bool, riddles: Sequence[Riddle]) -> tuple[list[Text], str]:
    """What is decoded: prompts, or canvases."""
    canvas, messages, prompt, puzzle = (
        getattr(body, name, None) for name in ("canvas", "messages", "prompt", "puzzle")
    )
    if sum(given not in (None, "") for given in (canvas, messages, prompt, puzzle)) > 1:
        names = "prompt, messages and canvas" if puzzle is None else "prompt, messages, canvas and puzzle"
        raise Refusal(400, f"{names} exclude each other", "give one of them", param="prompt")
    if riddles or canvas is not None:
        for name in ("suffix", "stop", "length", "max_new_tokens", "gen_length", *schemas.LENGTHS):
            if getattr(body, name, None):
                said = f"{name} has no effect on a {'puzzle' if riddles else 'canvas'}"
                raise Refusal(400, said, "leave it out", param=name)
        return ([one.canvas for one in riddles] if canvas is None else [canvas]), "canvas"
    if messages is not None:
        return [_dialogue(messages, model, plain)], "prompt"
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return list(prompt), "prompt"
    return [prompt if prompt is not None else ""], "prompt"


def _dialogue(messages: Sequence[schemas.Message], model: Denoiser, plain: bool) -> Text:
    """The messages for the model's template; as plain text where it has none and that is allowed."""
    turns = [{"role": _role(message), "content": _content(message)} for message in messages]
    if isinstance(model.tokenizer, Chats) and model.tokenizer.template is not None:
        return turns
    if plain:
        return "\n\n".join(turn["content"] for turn in turns)
    raise Refusal(
        400,
        f"{model.name} has no chat template",
        "use /v1/completions, or start the server with --plain-chat",
        param="messages",
    )


def _role(message: schemas.Message) -> str:
    return "system" if message.role == "developer" else message.role


def _content(message: schemas.Message) -> str:
    parts = message.content
    return parts if isinstance(parts, str) else "".join(part.text for part in parts)


# --- the recipe ------------------------------------------------------------------------------------------------------


def _settings(body: Body, usual: Mapping[str, Any]) -> dict[str, Any]:
    """What the request says, over what is usual here as far as that goes with it."""
    given: dict[str, Any] = {}
    named: dict[str, str] = {}  # what the request calls them
    for name in [*schemas.SETTINGS, *schemas.LENGTHS]:
        value = getattr(body, name, None)
        if value is None:
            continue
        setting = "length" if name in schemas.LENGTHS else ALIASES.get(name, name)
        if setting in given:
            raise Refusal(400, f"{named[setting]} and {name} mean the same", "leave one out", param=name)
        named[setting] = name
        given[setting] = SAMPLER_ALIASES.get(str(value), value) if setting == "sampler" else value
    if given.get("background") not in (None, *BUNDLED, usual.get("background")):
        said = f"background is {given['background']!r}"
        raise Refusal(400, said, f"a request may name {', '.join(BUNDLED)}; a file only the server", param="background")
    sampler, search = (given.get(name, usual.get(name, usually)) for name, usually in WHO)
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS, setting="sampler")
    if search not in SEARCHES:
        raise unknown("search", search, SEARCHES, setting="search")
    taken = {*takes(SAMPLERS[sampler]), *takes(SEARCHES[search])}
    kept = {name: value for name, value in usual.items() if general(name) or name in taken}
    return {**kept, **given}


WHO = (("sampler", Recipe().sampler), ("search", Recipe().search))


def _recipe(given: dict[str, Any], model: Denoiser, prompts: Sequence[Sequence[int]], canvas: bool) -> Recipe:
    """The recipe; where nobody says how long an answer is, a few lines or what the model allows.

    A nucleus of everything, or of the one token that temperature 0 takes anyway, is none: clients send them.
    """
    if canvas:
        given.pop("length", None)
    elif given.get("length") is None:
        given["length"] = default_length(model, prompts)
    top_p = given.pop("top_p", None)
    recipe = Recipe.from_dict(given)
    if top_p is None or Recipe(temperature=1.0, top_p=top_p).top_p == 1:
        return recipe
    filters = recipe.temperature > 0 or recipe.build_sampler().filters
    return recipe.replace(top_p=top_p) if filters else recipe
