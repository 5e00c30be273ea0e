"""The study of searches: its choices are the decoder's, fewer paths are the first of more, and every method builds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unmask import Recipe, load
from unmask.decode import decode_batch

sys.path.append(str(Path(__file__).parents[1] / "experiments" / "search"))
from choices import CHOICES, first
from methods import CELLS, METHODS, goes, settings
from study import line

LENGTH = 6
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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds(method: str) -> None:
    cells = [cell for cell in CELLS.values() if goes(method, cell)]
    assert {cell.task for cell in cells} == {"sudoku", "countdown", "text"}
    for cell in cells:
        for k in (2, 4, 8):
            search = settings(method, cell, k).build_search()
            assert search.particles == (1 if method == "steps" else k)
