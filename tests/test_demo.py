"""The demo: all methods in its table, numbers that come from the answers."""

from __future__ import annotations

import contextlib
import io
import math
import re

import pytest

from unmask import decode, demo, trace
from unmask.cli import main
from unmask.models.words import WORDS, words


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the demo prints with a few seeds, and where its trace is."""
    path = tmp_path_factory.mktemp("demo") / "runs" / "demo.jsonl"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--seeds", "3", "--trace", str(path)]) == 0
    return out.getvalue(), path


def test_all_methods_are_compared(page):
    text, _ = page
    for name, recipe in demo.METHODS.items():
        found = demo.answers(words(), recipe, 3)
        row = next(line for line in text.splitlines() if re.match(rf" {name} +\d", line))
        share = sum(result.text in WORDS for result in found) / 3
        assert f"{sum(result.path_entropy for result in found) / 3:.3f} ± " in row
        assert f" {share:.0%} (" in row
        assert row.split()[-1] == str(found[0].evaluations)
        assert all(result.text in text for result in found)


def test_the_path_is_the_one_in_the_trace(page):
    text, path = page
    events = trace.load(path)
    result = decode(words(), recipe=demo.METHODS["E-SMC"])
    steps = re.findall(r"step \d +([a-z_]{6}) +h = ([\d.]+) bits", text)
    assert [h for _, h in steps] == [f"{h:.3f}" for h in trace.lineages(events)[result.chosen]]
    assert [canvas.count("_") for canvas, _ in steps] == [6, 4, 2]
    for (canvas, _), (after, _) in zip(steps, [*steps[1:], (result.text, "")], strict=True):
        assert re.fullmatch(canvas.replace("_", "."), after)
    assert f"answer   {result.text}   H = {result.path_entropy:.3f} bits" in text
    assert str(path) in text


def test_likelihoods_are_exact():
    model = words()
    found = demo.answers(model, demo.METHODS["vanilla"], 4)
    mean = sum(math.log2(model.joint[tuple(result.tokens)]) for result in found) / 4
    assert demo.measure(model, "vanilla", found).likelihood[0] == pytest.approx(mean)


def test_wilson():
    assert demo.wilson(0, 10) == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)  # a known value
    assert demo.wilson(5, 10) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert demo.wilson(10, 10)[2] == pytest.approx(1.0)
