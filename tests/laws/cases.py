"""The registries -> Cases: every sampler × every search, on small models, with prompts and holes of many lengths.

A new entry of a registry is covered with its defaults at once; `SAMPLER_VARIANTS` and `SEARCH_VARIANTS` add settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask import SAMPLERS, SEARCHES, Denoiser, Recipe, Table
from unmask.core.sampler import Sampler
from unmask.decoding.settings import takes
from unmask.models.transformer import random_transformer
from unmask.samplers import counts
from unmask.search import SCHEMES

Settings = dict[str, Any]

# --- what is varied --------------------------------------------------------------------------------------------------
# The first variant of a name stands for it where names are crossed. "temperature" is 1 unless a variant says otherwise.

BACKGROUND = "<background>"  # replaced by the path of a table of token counts

SAMPLER_VARIANTS: dict[str, list[Settings]] = {
    "uniform": [{}, {"steps": 3}, {"block_length": 3}, {"steps": 9, "temperature": 0.0}],
    "ancestral": [{}, {"steps": 9}],
    "confidence": [{}, {"steps": 3, "block_length": 4}, {"select_temperature": 0.1, "temperature": 0.0}],
    "entropy": [{}, {"select_temperature": 0.1, "temperature": 0.0}],
    "margin": [{}, {"select_temperature": 0.1, "block_length": 4}],
    "eb": [{"bound": 6.0}, {}, {"bound": 100.0}, {"bound": 3.0, "block_length": 4, "select_temperature": 0.1}],
    "semi-ar": [{"block_length": 3}, {"block_length": 4, "steps": 4, "select_temperature": 0.1, "temperature": 0.0}],
    "fast-dllm": [
        {"threshold": 0.1, "block_length": 4},
        {"factor": 3.5, "block_length": 4},
        {"steps": 4, "block_length": 4},
        {"threshold": 0.1, "block_length": 4, "select_temperature": 0.1},
    ],
    "pc": [
        {"background": BACKGROUND},
        {"background": BACKGROUND, "decay": 0.0, "select_temperature": 0.1, "temperature": 0.0},
        {"background": BACKGROUND, "steps": 5, "block_length": 3},
    ],
    "p2": [
        {},
        {"eta": 0.0},
        {"eta": 2.0, "steps": 5},
        {"rule": "fresh-draw"},
        {"rule": "fresh-draw", "eta": 2.0, "steps": 9},
    ],
    "draft-refine": [
        {"draft": 0.75, "loops": 2},
        {"draft": 1.0, "reveal": 2, "loops": 2},
        {"draft": 0.0, "reveal": 3},
        {"draft": 0.5, "reveal": 2, "loops": 1, "temperature": 0.0},
    ],
    "dream": [
        {},
        {"rule": "maskgit_plus", "steps": 5},
        {"rule": "topk_margin", "select_temperature": 0.5},
        {"rule": "confidence_threshold", "threshold": 0.1, "steps": 4},
        {"rule": "confidence_threshold", "steps": 3},
        {"rule": "entropy", "select_temperature": 0.5, "temperature": 0.0},
    ],
    "sdar": [
        {"threshold": 0.1, "block_length": 3},
        {"rule": "static", "rounds": 3, "block_length": 4, "temperature": 0.0},
        {"rule": "sequential", "rounds": 2, "block_length": 4},
    ],
    "llada2": [
        {"threshold": 0.1, "block_length": 4},
        {"rounds": 3, "early_stop": True, "block_length": 4},
        {"threshold": 0.1, "edit_threshold": 0.05, "edit_rounds": 2, "block_length": 4},
        {"edit_threshold": 0.05, "reveal": 2, "early_stop": True, "temperature": 0.0},
    ],
    "fast-dllm-v2": [{"threshold": 0.1, "sub_block": 2, "block_length": 4}, {}],
}

SMC: Settings = {"particles": 4, "every": 2, "strength": 20.0}
SEARCH_VARIANTS: dict[str, list[Settings]] = {
    "best-of-n": [{"particles": 3}],
    "smc": [
        SMC,
        {"particles": 3},
        *[{**SMC, "scheme": scheme, "every": 1} for scheme in SCHEMES],
        {**SMC, "potential": "plain", "strength": 3.0},
        {"particles": 4, "every": 2, "target": 0.5},
        {"particles": 4, "every": 1, "below": 0.9, "scheme": "systematic"},
        {**SMC, "potential": "likelihood", "strength": 1.0, "choose": "likelihood"},
    ],
    "greedy": [{"candidates": 3}, {"candidates": 3, "every": 2}],
    "beam": [{"beams": 2, "candidates": 2}, {"beams": 3, "candidates": 2, "every": 2}],
    "vote": [{"particles": 3}],
}

# What acts on the draw, never on the entropies; and guidance, which acts on both.
DRAWS: list[Settings] = [
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "ban": (15, "eos", 3)},
    {"temperature": 0.7, "end_penalty": 1.5},
    {"temperature": 1.0, "guidance": 0.8},
]


def samplers(name: str) -> list[Settings]:
    return SAMPLER_VARIANTS.get(name, [{}])


def searches(name: str) -> list[Settings]:
    return SEARCH_VARIANTS.get(name, [{}])


# --- a case ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One way of decoding on one model."""

    sampler: str
    search: str
    settings: Settings = field(hash=False)
    model: str = "float64"

    def __str__(self) -> str:
        extra = ",".join(f"{k}={v}" for k, v in self.settings.items() if k != "background")
        return "-".join(filter(None, [self.model, self.sampler, self.search, extra]))

    def recipe(self, background: Path, **changes: Any) -> Recipe:
        given = {"temperature": 1.0, **self.settings, **changes}
        if "background" in given:
            given["background"] = str(background)
        return Recipe(sampler=self.sampler, search=self.search, **given)


def names(model: str, **extra: Any) -> list[Case]:
    """Every sampler × every search, each with its first variant."""
    return [
        Case(sampler, search, {**samplers(sampler)[0], **searches(search)[0], **extra}, model)
        for sampler in SAMPLERS
        for search in SEARCHES
    ]


KINDS = ("uniform", "ancestral", "eb", "p2", "draft-refine")  # one of each: fixed, random, adaptive and revising counts


def variants(model: str) -> list[Case]:
    """Every sampler × every search, every variant of a sampler under resampling, every variant of a search."""
    more = [Case(a, "smc", {**how, **SMC}, model) for a in SAMPLERS for how in samplers(a)[1:]]
    others = [Case(a, b, {**samplers(a)[0], **how}, model) for a in KINDS for b in SEARCHES for how in searches(b)[1:]]
    return [*names(model), *more, *others]


def draws(model: str) -> list[Case]:
    """Every sampler × every way of drawing, under resampling."""
    return [Case(name, "smc", {**samplers(name)[0], **SMC, **how}, model) for name in SAMPLERS for how in DRAWS]


def guided(model: str) -> list[Case]:
    """Every sampler under guidance; on a table the logits of decided positions are -inf but for one."""
    return [Case(name, "smc", {**samplers(name)[0], **SMC, "guidance": 1.0}, model) for name in SAMPLERS]


FLOAT32 = [case for case in names("float32") if case.search in ("smc", "auto")]
CASES = [*variants("float64"), *draws("float64"), *FLOAT32, *names("table"), *guided("table")]
SAMPLER_CASES = [Case(name, "vanilla", how) for name in SAMPLERS for how in samplers(name)]
# Of the others, some rows end before their canvas is full: what is left is filled and not drawn (test_blockwise.py).
FULL_CASES = [case for case in SAMPLER_CASES if case.sampler not in ("sdar", "llada2", "fast-dllm-v2")]
BLOCK_CASES = [c for c in SAMPLER_CASES if "block_length" in c.settings and "edit_threshold" not in c.settings]


def adaptive(sampler: Sampler) -> bool:
    """Whether the number of decided positions depends on what is drawn; a new sampler is taken to have fixed counts."""
    kinds = (counts.Binomial, counts.EntropyBound, counts.Threshold, counts.Factor, counts.Examine)
    return isinstance(getattr(sampler, "count", None), kinds) or getattr(sampler, "memory", 0) > 0


def alone(search: str) -> Settings:
    """Settings that leave a search one particle."""
    return {name: 1 for name in takes(SEARCHES[search]) if name in ("particles", "candidates", "beams")}


# --- what is decoded -------------------------------------------------------------------------------------------------


WEIGHTS = 51  # a seed whose network says different things at different positions, at temperature 0 too


def models() -> dict[str, Denoiser]:
    generator = torch.Generator().manual_seed(0)
    joint = torch.rand((4,) * 6, generator=generator, dtype=torch.float64) ** 4 + 1e-3
    return {
        "float64": random_transformer(seed=WEIGHTS, width=32, layers=2, dtype=torch.float64, limit=64),
        "float32": random_transformer(seed=WEIGHTS, width=32, layers=2, dtype=torch.float32, limit=64),
        "table": Table(joint, eos=(3,)),
    }


HOLE = -1
CANVASES: dict[str, list[list[int]]] = {
    # a short prompt; holes in several places; a longer prompt with more to generate
    "transformer": [
        [7, 4, *[HOLE] * 5],
        [1, HOLE, HOLE, 20, 8, HOLE, 30, HOLE, 2],
        [19, 7, 4, 36, 16, *[HOLE] * 6],
    ],
    "table": [[2, *[HOLE] * 4], [HOLE, 1, HOLE, HOLE, 3, HOLE], [HOLE] * 3],
}
SEEDS = [11, 2**40 + 3, -5]


def canvases(model: Denoiser) -> list[list[int]]:
    rows = CANVASES["table" if isinstance(model, Table) else "transformer"]
    return [[model.vocab.mask if token == HOLE else token for token in row] for row in rows]
