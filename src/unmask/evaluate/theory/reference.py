"""Known texts × model × Recipe -> their reference paths, revealed step by step, and paths that the model decodes.

A reference path is a walk in which every token that is written is the true one. With the sampler `ancestral` that is
the forward process seen backwards, the paper's Pr(τ): from time t to s a masked position is revealed with probability
(t - s)/t, by itself. With other samplers it is the text revealed in their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmask.core.beliefs import Beliefs, Drawn, DrawRule, weigh
from unmask.core.denoiser import Denoiser, Head
from unmask.core.entropy import bits
from unmask.core.state import padded
from unmask.core.walk import walk
from unmask.decoding.decode import Result, decode_batch, prepare
from unmask.decoding.prompt import Canvas, Text, encode
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import takes
from unmask.errors import InputError, SettingError, many
from unmask.evaluate import batch
from unmask.evaluate.stats import Mean, mean
from unmask.search import SEARCHES

DRAWS = 8  # paths of each text, from which the spread is known well enough
Progress = Callable[[int, int], None]  # texts done, texts in all


@dataclass(frozen=True)
class Known:
    """A text whose tokens are known, and which of them are to be found."""

    tokens: list[int]
    open: list[bool]
    bits: float | None = None  # -log2 p under the law of the data, given what is not open; None: not known

    def canvas(self, mask: int) -> list[int]:
        """The ids, masked where the text is open."""
        return [mask if free else token for token, free in zip(self.tokens, self.open, strict=True)]


@dataclass(frozen=True)
class ReferencePath:
    """One reference path. Everything is in bits."""

    path_entropy: float
    state_entropy: list[float]  # of each step's input; NaN where nothing was masked
    loss: float  # -log p of every open token in the step that revealed it, summed
    evaluations: int
    step_loss: list[float] = field(default_factory=list)  # the same, step by step


@dataclass(frozen=True)
class Scored:
    """A text with its path entropy over several paths. Entropies are bits, losses bits a token."""

    prompt: str
    text: str
    tokens: int  # that were masked
    path_entropy: Mean
    loss: Mean
    evaluations: int
    seed: int


def known(model: Denoiser, text: Text, prompt: Text = "") -> Known:
    """A text after a prompt: the text is open, the prompt is not."""
    given, ids = encode(model, prompt), encode(model, text)
    if not ids:
        raise InputError("there is nothing to score", "give a text of at least one token")
    for name, some in (("prompt", given), ("text", ids)):
        if model.vocab.mask in some:
            raise InputError(f"the {name} holds the mask id {model.vocab.mask}", "give a text without holes")
    if model.limit is not None and len(given) + len(ids) > model.limit:
        what = f"{len(given) + len(ids)} tokens are more than {model.name} allows ({model.limit})"
        raise InputError(what, "shorten the text or the prompt")
    return Known([*given, *ids], [False] * len(given) + [True] * len(ids))


def score(
    model: Denoiser,
    texts: Sequence[str],
    prompts: Sequence[str] | None = None,
    *,
    recipe: Recipe = Recipe("ancestral", steps=32),
    draws: int = DRAWS,
    on_progress: Progress | None = None,
    tell: Progress | None = None,
) -> list[Scored]:
    """The path entropy of each text over `draws` reference paths; text i has the seed recipe.seed + i.

    `tell` is the former name of `on_progress`.
    """
    if tell is not None:
        warnings.warn("tell is now called on_progress", DeprecationWarning, stacklevel=2)
    progress = on_progress or tell or (lambda done, total: None)
    before = [""] * len(texts) if prompts is None else list(prompts)
    if len(before) != len(texts):
        raise InputError(f"{many(len(before), 'prompt')} for {many(len(texts), 'text')}", "give one each")
    rows = [known(model, text, prompt) for text, prompt in zip(texts, before, strict=True)]
    found = reference(model, rows, recipe, draws, progress)
    return [
        Scored(
            prompt,
            text,
            sum(row.open),
            mean([path.path_entropy for path in paths]),
            mean([path.loss / sum(row.open) for path in paths]),
            sum(path.evaluations for path in paths),
            recipe.seed + place,
        )
        for place, (prompt, text, row, paths) in enumerate(zip(before, texts, rows, found, strict=True))
    ]


# --- reference paths -------------------------------------------------------------------------------------------------


@dataclass
class _Teacher:
    """Draws the true tokens, and keeps their loss of the last draw."""

    truth: Tensor  # [B, L] int64
    loss: Tensor  # [B, L] nats

    def __call__(
        self, hidden: Tensor, head: Head, where: Tensor, dice: Tensor, how: DrawRule, beliefs: Beliefs | None = None
    ) -> Drawn:
        found = weigh(hidden, head, where, self.truth)
        self.loss = -found.standing
        return Drawn(self.truth, found.standing, found.standing, found.entropy, found.top, found.second)


def reference(
    model: Denoiser,
    texts: Sequence[Known],
    recipe: Recipe,
    draws: int = 1,
    on_progress: Progress = lambda done, total: None,
    seeds: Sequence[int] | None = None,
) -> list[list[ReferencePath]]:
    """`draws` paths of each text. Of the recipe only order, steps and measure count: the tokens are the true ones."""
    if draws < 1:
        raise SettingError(f"draws is {draws}", "it must be at least 1")
    recipe = _unsearched(recipe, draws)
    if recipe.build_sampler().revises:
        raise SettingError(f"sampler {recipe.sampler} masks text again", "use one that only reveals, like ancestral")
    if not all(any(text.open) for text in texts):
        raise InputError("there is nothing to reveal", "give texts of at least one open token")
    if recipe.guidance > 0 and all(all(text.open) for text in texts):
        raise InputError("guidance has no effect where nothing is given", "give a prompt, or leave guidance out")
    keys = [recipe.seed + place for place in range(len(texts))] if seeds is None else list(seeds)
    size = batch.size("known", model.device, draws)
    found: list[list[ReferencePath]] = []
    for begin in range(0, len(texts), size):
        found += _revealed(model, texts[begin : begin + size], keys[begin : begin + size], recipe, draws)
        on_progress(len(found), len(texts))
    return found


def _unsearched(recipe: Recipe, draws: int) -> Recipe:
    """The same order with independent paths; any temperature above 0 makes the walk draw tokens."""
    nothing = dict.fromkeys(name for build in SEARCHES.values() for name in takes(build))
    plain = {"temperature": 1.0, "top_k": None, "top_p": None, "fill_tail": False, "length": None}
    return recipe.replace(**{**nothing, **plain, "search": "best-of-n", "particles": draws})


@torch.no_grad()
def _revealed(
    model: Denoiser, texts: Sequence[Known], keys: Sequence[int], recipe: Recipe, draws: int
) -> list[list[ReferencePath]]:
    """The paths of a batch."""
    rows = [Canvas(text.canvas(model.vocab.mask), 0) for text in texts]
    denoiser, state, sampler, search, rules = prepare(model, rows, keys, recipe)
    truth = padded([text.tokens for text in texts], model.vocab.pad)[0].to(state.tokens.device)
    teacher = _Teacher(truth.repeat_interleave(draws, 0), torch.zeros(0))
    losses, along = [], []
    for moment in walk(denoiser, state, sampler, search, rules, teacher):
        new = moment.before != moment.state.tokens
        losses.append(teacher.loss.double().where(new, 0.0).sum(1))
        along.append(moment.entropy)
        state, tally = moment.state, moment.tally
    each = bits(torch.stack(losses, 1))
    columns = (bits(state.path_entropy), bits(torch.stack(along, 1)), each.sum(1), tally.evaluations, each)
    paths = [ReferencePath(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True)]
    return [paths[place * draws : place * draws + draws] for place in range(len(texts))]


# --- decoded paths ---------------------------------------------------------------------------------------------------


def generated(
    model: Denoiser, texts: Sequence[Known], recipe: Recipe, on_progress: Progress = lambda done, total: None
) -> list[Result]:
    """Decode the open positions of texts; text i has the seed recipe.seed + i."""
    size = batch.size("known", model.device, recipe.build_search().particles)
    found: list[Result] = []
    for begin in range(0, len(texts), size):
        canvases = [text.canvas(model.vocab.mask) for text in texts[begin : begin + size]]
        seeds = [recipe.seed + begin + place for place in range(len(canvases))]
        found += decode_batch(model, canvases=canvases, recipe=recipe.replace(length=None), seeds=seeds)
        on_progress(len(found), len(texts))
    return found
