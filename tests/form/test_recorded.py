"""Steps with a constraint, recorded in parts: tokens are those of steps that are not, and nothing waits but to read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import Case, canvases, models, names

import tape
from again import Late
from test_replay import assert_same, numbers
from unmask import Recipe
from unmask.core import beliefs, dice
from unmask.core.denoiser import traits
from unmask.core.gpu import parted, recorded
from unmask.core.sampler import steady
from unmask.core.step import Setup
from unmask.core.walk import waiting
from unmask.decoding.background import Background
from unmask.decoding.decode import prepare
from unmask.decoding.form import form, rows
from unmask.decoding.prompt import from_canvas

unrecorded = recorded.Unrecorded
MODEL = models()["float64"]


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("background") / "counts.json"
    Background({0: 700, 1: 90, 3: 8}, 2000).save(path)
    return path


def failed(*_: Any) -> None:
    raise AssertionError("a step could not be recorded")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorded, "Signals", Late)
    monkeypatch.setattr(recorded, "Device", tape.Device)
    monkeypatch.setattr(recorded, "Paused", tape.Paused)
    monkeypatch.setattr(recorded, "Unrecorded", failed)
    monkeypatch.setattr(dice, "uniform", tape.kernel(dice.uniform))  # a kernel on a GPU


def walks(recipe: Recipe, matches: Any, canvas: list[int]) -> tuple[list[Any], list[Any]] | None:
    """What every step of both walks gives; None: such steps are never recorded."""
    found = []
    for walk in (waiting, recorded.walk):
        parts = prepare(MODEL, [from_canvas(MODEL, canvas)] * 2, [0, 1], recipe, form(matches=matches))
        denoiser, state, sampler, search, rules = parts
        reads = search.potential is not None and search.potential.reads
        if reads or not (traits(denoiser).recordable and steady(sampler, state)):
            return None
        setup = Setup(
            denoiser, sampler, search, rules, weigh=tape.kernel(beliefs.weigh), draw=tape.kernel(beliefs.draw)
        )
        found.append(list(map(numbers, walk(setup, state))))
    return found[0], found[1]


def matched(recipe: Recipe, canvas: list[int]) -> None:
    found = walks(recipe, "[a-f]{1,3}( ?[a-m]){0,9}", canvas)
    if found is not None and len(found[0]) + len(found[1]) > 2:
        assert_same(*found)


@pytest.mark.parametrize("case", names("float64")[::4], ids=str)  # every sampler, every search
def test_every_sampler_and_search(case: Case, background: Path) -> None:
    luck = random.Random(str(case))
    recipe = case.recipe(background, constrained_entropy=luck.random() < 0.3)
    matched(recipe, luck.choice(canvases(MODEL)[:2]))


OPTIONS: list[dict[str, Any]] = [
    {"sampler": "fast-dllm", "threshold": 0.05, "block_length": 12},  # much is drawn anew
    {"sampler": "confidence", "temperature": 0.0},  # particles are equal, and computed once
    {"sampler": "confidence", "temperature": 0.0, "constrained_entropy": True, "end_penalty": 2.0},
    {"sampler": "entropy", "search": "smc", "potential": "constraint", "strength": 1.0, "every": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    played, repaired, kinds, settle = [], [], [], rows._Repair.write
    play, record = parted.Pauses.play, recorded.paused
    monkeypatch.setattr(parted.Pauses, "play", lambda self, place: played.append(place) or play(self, place))
    monkeypatch.setattr(rows._Repair, "write", lambda self, token: repaired.append(played) or settle(self, token))
    monkeypatch.setattr(recorded, "paused", lambda setup, *rest: kinds.append(setup.most) or record(setup, *rest))
    how = {"search": "best-of-n", "temperature": 1.0, "particles": 4, **options}
    matched(Recipe(**how), [MODEL.vocab.mask] * 12)
    assert set(played) == {0, 1, 2}  # the canvas is read, the allowed tokens are worked out, the step is settled
    assert bool(repaired) == (options["sampler"] == "fast-dllm")
    assert options.get("temperature") != 0.0 or {1, 2} & set(kinds)  # rows that were computed


def test_a_recording_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recorded, "Paused", refuse)
    monkeypatch.setattr(recorded, "Unrecorded", unrecorded)
    with pytest.warns(UserWarning, match="could not be recorded: operation not permitted"):
        matched(Recipe("confidence", "smc", temperature=1.0, particles=3, every=2), [MODEL.vocab.mask] * 9)
