"""Models, a background table, and walks with their traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask import Denoiser, Recipe, Result, decode_batch
from unmask.core.state import State
from unmask.decoding import trace
from unmask.decoding.background import Background

from .cases import SEEDS, Case, canvases
from .cases import models as make_models

torch.set_num_threads(1)  # tiny tensors: threads only cost, and the tests run side by side


class Jittered:
    """A float64 model whose numbers differ in their last bits, as they do with another number of rows in a batch."""

    def __init__(self, inner: Denoiser) -> None:
        self.inner, self.generator = inner, torch.Generator().manual_seed(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def look(self, state: State, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        hidden, cache = self.inner.look(state, rows)
        noise = torch.randn(hidden.shape, generator=self.generator, dtype=hidden.dtype)
        return hidden * (1 + 1e-15 * noise), cache


@dataclass(frozen=True)
class Walk:
    """A batch that was decoded, with all that is known of it."""

    case: Case
    recipe: Recipe
    model: Denoiser
    canvases: list[list[int]]
    results: list[Result]
    events: list[trace.Event]
    replayed: list[list[list[int]]]  # canvases of all rows: the first ones, then those after each step

    @property
    def k(self) -> int:
        return len(self.results[0].particles)

    @property
    def steps(self) -> list[trace.Event]:
        return [event for event in self.events if event["event"] == "step"]

    @property
    def mask(self) -> int:
        return self.model.vocab.mask

    def again(self, places: list[int]) -> list[Result]:
        """Decode some of the canvases once more, in this order; a float64 model with other last bits."""
        rows, seeds = [self.canvases[i] for i in places], [SEEDS[i] for i in places]
        model = self.model if self.case.model == "float32" else Jittered(self.model)
        return decode_batch(model, canvases=rows, recipe=self.recipe, seeds=seeds)

    def masks(self, step: int, row: int) -> int:
        """Masks of a row before a step."""
        return self.replayed[step][row].count(self.mask)


@pytest.fixture(scope="session")
def models() -> dict[str, Denoiser]:
    return make_models()


@pytest.fixture(scope="session")
def background(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("background") / "counts.json"
    Background({0: 700, 1: 90, 3: 8}, 2000).save(path)  # ids that all the models have
    return path


@pytest.fixture(scope="session")
def decode_case(models: dict[str, Denoiser], background: Path) -> Callable[..., list[Result]]:
    """Decode the places (all of them by default) of a case's canvases, in the order given."""

    def run(case: Case, places: list[int] | None = None, **changes: Any) -> list[Result]:
        model = models[case.model]
        rows = canvases(model)
        places = list(range(len(rows))) if places is None else places
        recipe = case.recipe(background, **changes)
        return decode_batch(model, canvases=[rows[i] for i in places], recipe=recipe, seeds=[SEEDS[i] for i in places])

    return run


@pytest.fixture(scope="session")
def walk_case(models: dict[str, Denoiser], background: Path) -> Callable[..., Walk]:
    """Decode a case with its trace."""

    def run(
        case: Case,
        *,
        model: Denoiser | None = None,
        rows: list[list[int]] | None = None,
        seeds: list[int] | None = None,
        **changes: Any,
    ) -> Walk:
        model = model or models[case.model]
        rows = rows or canvases(model)
        recipe = case.recipe(background, **changes)
        events: list[trace.Event] = []
        results = decode_batch(
            model, canvases=rows, recipe=recipe, seeds=seeds or SEEDS[: len(rows)], on_event=events.append
        )
        return Walk(case, recipe, model, rows, results, events, list(trace.replay(events)))

    return run
