"""The study of searches: its choices are the decoder's, fewer paths are the first of more, and every method builds."""

from __future__ import annotations

import json
import lzma
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unmask import SEARCHES, Recipe, load
from unmask.core.resampling import standing_of
from unmask.core.state import State, Vocab, begin
from unmask.decoding.decode import decode, decode_batch
from unmask.search import Resampled, Search, smc

sys.path.append(str(Path(__file__).parents[1] / "experiments" / "search"))
from choices import CHOICES, first
from methods import CELLS, METHODS, OWN, decided, goes, islands, settings, window
from study import line, main

LENGTH = 6
BIT = math.log(2)
K = 4
RECIPE = Recipe("uniform", "best-of-n", length=LENGTH, temperature=1.0, particles=8)


def rows(**changes):
    found = decode_batch(load("table"), [""] * 12, recipe=RECIPE.replace(**changes))
    return found, [
        line(one, n, LENGTH, 12, [particle.text for particle in one.particles]) for n, one in enumerate(found)
    ]


@pytest.mark.parametrize("choose", ["entropy", "likelihood", "surprise", "vote"])
def test_a_choice_is_the_decoders(choose: str) -> None:
    found, kept = rows(choose=choose)
    assert [CHOICES[choose](row) for row in kept] == [one.chosen for one in found]


def test_fewer_paths_are_the_first_of_more() -> None:
    (_, many), (found, few) = rows(), rows(particles=3)
    for more, less, one in zip(many, few, found, strict=True):
        cut = first(more, 3)
        names = ("entropy", "log_prob", "surprise", "evaluations", "open")
        assert [cut[name] for name in names] == [less[name] for name in names]
        assert CHOICES["entropy"](cut) == one.chosen


# --- searches of the study's own --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, build in OWN.items():
        monkeypatch.setitem(SEARCHES, name, build)


def state_of(entropy: list[float], written: int = 0) -> State:
    """One prompt of ten open positions, some written, whose particles have these state entropies, in bits."""
    tokens = torch.full((1, 10), 2)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    state = begin(tokens, everywhere, everywhere, torch.arange(1), Vocab(2), len(entropy), 10)
    tokens = state.tokens.index_fill(1, torch.arange(written), 0)
    return state.replace(entropy=torch.tensor(entropy).double() * BIT, tokens=tokens)


def once(search: Search, state: State) -> Resampled:
    everyone = torch.ones(search.particles, dtype=torch.bool)
    return search.resample(search, standing_of(search, state, everyone, 8), 3, torch.tensor([True]))


def test_all_entropies_of_a_path_are_counted_once() -> None:
    first, second = [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 1.0, 5.0]
    search, state = OWN["path"](K, 1, 1.0, below=1e-9), state_of(first)
    done = once(search, state)
    later = state_of(second).replace(log_weight=done.log_weight, score=done.score, entropy_sum=state.entropy)
    expected = [-(a + b) for a, b in zip(first, second, strict=True)]
    assert once(search, later).log_weight.tolist() == pytest.approx(expected)


def test_nothing_is_resampled_outside_of_the_window() -> None:
    some = state_of([1.0, 9.0, 9.0, 9.0], written=4)
    assert decided(some.masked.sum(1), some.open, some.particles).tolist() == pytest.approx([0.4])
    for limits, moves in (((0.0, 1.0), True), ((0.5, 1.0), False), ((0.0, 0.3), False), ((0.4, 1.0), True)):
        done = once(replace(smc(K, 1, strength=1e6), resample=window(*limits)), some)
        assert (done.ancestors.tolist() == [0] * K) is moves
        assert moves or bool(done.ess.isnan().all())


def test_the_strength_grows_with_what_is_decided() -> None:
    some = state_of([1.0, 2.0, 3.0, 4.0], written=5)
    done = once(OWN["tempered"](K, 1, 8.0, below=1e-9), some)
    expected = [8 / 4 * (1 - h / 3) for h in (1.0, 2.0, 3.0, 4.0)]  # eight tokens have three bits
    assert done.log_weight.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scheme", ["multinomial", "systematic"])
def test_islands_keep_to_themselves(scheme: str) -> None:
    state = state_of([5.0, 1.0, 5.0, 0.5, 3.0, 5.0])
    done = once(replace(smc(6, 1, strength=1e6, scheme=scheme), resample=islands(3)), state)
    assert done.ancestors.tolist() == [1, 1, 3, 3, 4, 4]
    assert done.ess.shape == done.strength.shape == (1,)


@pytest.mark.parametrize("name", OWN)
def test_a_search_of_the_study_decodes(name: str) -> None:
    recipe = Recipe("uniform", name, length=6, temperature=1.0, particles=8, every=1)
    found = decode(load("table"), "", recipe=recipe)
    assert len(found.particles) == 8 and load("table").vocab.mask not in found.tokens


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds(method: str) -> None:
    cells = [cell for cell in CELLS.values() if goes(method, cell)]
    assert {cell.task for cell in cells} == {"sudoku", "countdown", "text"}
    for cell in cells:
        for k in (2, 4, 8):
            search = settings(method, cell, k).build_search()
            assert search.particles == (1 if method == "steps" else k)


def test_a_study_from_puzzles_to_a_packed_file(tmp_path, monkeypatch, capsys) -> None:
    def study(what: str, *more: str) -> str:
        cell = ["--cells", "countdown4-uniform", "--methods", "best-of-n", "auto"]
        monkeypatch.setattr(sys, "argv", ["study.py", what, str(tmp_path), *cell, *more])
        main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit, match="no best-of-n of these cells to compare with: run it first"):
        study("report")
    study("run", "-n", "2", "--particles", "4")
    said = study("report", "--particles", "4")
    assert "K=4: E-BoN" in said and said.count("surprise      ") == 2 and "evaluations x1.00" in said
    assert "K=2: E-BoN" in study("report", "--particles", "2")  # the first two of the four
    with pytest.raises(SystemExit, match="has 2 puzzles: give that -n, or another folder"):
        study("run", "-n", "3", "--particles", "4")
    into = tmp_path / "rows"
    assert "2 runs" in study("pack", "--particles", "4", "--into", str(into))
    assert "3 runs" in study("pack", "--particles", "2", "--into", str(into))  # beside those of before
    lines = lzma.decompress((into / "search-study.jsonl.xz").read_bytes()).decode().splitlines()
    runs = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(run["method"], run["k"], run["paths"], run["n"]) for run in runs] == [
        ("best-of-n", 2, 4, 2),
        ("auto", 4, 4, 2),
        ("best-of-n", 4, 4, 2),
    ]
    assert len(lines) == 9 and all(len(run["columns"][-1].split()) == 8 for run in runs)
