"""Model × rows × Recipe -> the parts of a walk, after every check that needs no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from unmask.core.denoiser import Denoiser, traits
from unmask.core.resampling import Search
from unmask.core.sampler import Sampler
from unmask.core.state import State
from unmask.core.step import Rules
from unmask.decoding import background
from unmask.decoding.elsewhere import Elsewhere
from unmask.decoding.form import Form
from unmask.decoding.prompt import Canvas, check_rows, start
from unmask.decoding.recipe import Recipe
from unmask.errors import SettingError
from unmask.models.cache import block_cached, cached
from unmask.models.transformer import attention_blocks, block_causal
from unmask.models.wrap import Guided
from unmask.samplers import with_background


def prepare(
    model: Denoiser, rows: Sequence[Canvas], keys: Sequence[int], recipe: Recipe, form: Form | None = None
) -> tuple[Denoiser, State, Sampler, Search, Rules]:
    """The arguments of `walk`, after every check that needs no network."""
    denoiser, _, sampler, search, rules = parts(model, recipe, form=form)
    state = start(denoiser, rows, keys, sampler, search.particles)
    if rules.constraint is not None:
        rules.constraint.check(state.tokens[:: search.particles], state.writable[:: search.particles])
    return denoiser, state, sampler, search, rules


def check(model: Denoiser, rows: Sequence[Canvas], recipe: Recipe, form: Form | None = None) -> None:
    """The checks of `prepare`, without building a State."""
    denoiser, _, sampler, search, rules = parts(model, recipe)
    check_rows(denoiser, rows, sampler, search.particles)
    if form is not None:
        form.check(model, [row.tokens for row in rows], rules)


def parts(
    model: Denoiser, recipe: Recipe, whole: Recipe | None = None, form: Form | None = None
) -> tuple[Denoiser, Recipe, Sampler, Search, Rules]:
    """The parts of a walk that do not depend on its rows. `whole` is the recipe that this one is a stage of; the recipe
    that is returned has the blocks of the model's attention."""
    check_calibrated(model, whole or recipe)
    if isinstance(model, Elsewhere):
        denoiser: Denoiser
        denoiser, recipe = model.prepared(recipe, form)
    else:
        denoiser, recipe = _denoising(model, recipe)
    if traits(denoiser).keeps_rows:
        recipe.check_cache()
    sampler, search = recipe.build_sampler(), recipe.build_search()
    if recipe.background is not None:
        table = background.load(recipe.background)
        table.check(model)
        sampler = with_background(sampler, table)
    rules = recipe.build_rules(denoiser.vocab, denoiser.head.width)
    if form is not None:
        rules = replace(rules, constraint=form.rules(denoiser, rules))
    return denoiser, recipe, sampler, search, rules


def _denoising(model: Denoiser, recipe: Recipe) -> tuple[Denoiser, Recipe]:
    """The model with the attention, the cache and the guidance of the recipe, and the recipe with its blocks."""
    denoiser, recipe = _attending(model, recipe)
    if traits(denoiser).attention is None and recipe.caches:
        denoiser = _windowed(denoiser, recipe)
    return (Guided(denoiser, recipe.guidance) if recipe.guidance > 0 else denoiser), recipe


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
    denoiser = block_cached(model if always else block_causal(model), part)  # exact: it keeps what would be computed
    return denoiser, recipe.replace(block_length=length, scope="block")


CACHE_BEFORE = 32  # columns before the block that an approximate cache computes: docs/research/caches.md


def _windowed(denoiser: Denoiser, recipe: Recipe) -> Denoiser:
    """The model with the approximate cache of the recipe."""
    before, after, every = (recipe.get(f"cache_{name}") for name in ("before", "after", "every"))
    block = recipe.cache_block or recipe.build_sampler().block_length
    assert block is not None, "a recipe with a cache has blocks"
    return cached(denoiser, block, CACHE_BEFORE if before is None else before, after, every or 0)


FREE = ("until", "most", "particles", "calibrated", "seed")  # settings that a threshold does not depend on


def calibrated_for(model: Denoiser, recipe: Recipe) -> str:
    """What a threshold of `until` holds for: the model, its precision, and all settings of its paths."""
    weight = model.head.weight
    kind = "logits" if weight is None else str(weight.dtype).removeprefix("torch.")
    about = {name: value for name, value in recipe.to_dict().items() if name not in FREE}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    return f"{model.name} {kind} {recipe.name('sampler')} {digest}"


def check_calibrated(model: Denoiser, recipe: Recipe) -> None:
    """Refuse a threshold that was found for something else."""
    if recipe.calibrated is not None and recipe.calibrated != (here := calibrated_for(model, recipe)):
        what = f"until was calibrated for {recipe.calibrated!r}, this is {here!r}"
        hint = "run `unmask calibrate stop` for these settings, or leave calibrated out to use it as it is"
        raise SettingError(what, hint, setting="calibrated")
