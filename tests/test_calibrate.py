"""The strength at which decoded paths have the entropy of reference paths: search, pooling, interval, ends, command."""

from __future__ import annotations

import json
import math

import pytest

from unmask import Recipe, load
from unmask.cli import main
from unmask.errors import SettingError
from unmask.evaluate.theory.calibrate import calibrate, crossing, falling
from unmask.evaluate.theory.reference import generated, known, reference

WORDS = ["senate", "street", "tester", "eaters", "rattan", "serene", "setter", "rennet"] * 2
RECIPE = Recipe("uniform", steps=2, temperature=1.0, search="smc", particles=8, every=1)


@pytest.fixture(scope="module")
def table():
    return load("table")


@pytest.fixture(scope="module")
def texts(table):
    return [known(table, word) for word in WORDS]


@pytest.fixture(scope="module")
def found(table, texts):
    return calibrate(table, texts, RECIPE, points=7)


def test_the_strength_lies_where_the_gap_changes_its_sign(found):
    gaps = {point.strength: gap.value for point, gap in zip(found.points, found.gaps(), strict=True)}
    below, above = [s for s in gaps if gaps[s] > 0], [s for s in gaps if gaps[s] <= 0]
    assert found.end is None and len(gaps) == 7 and {0.0, 1000.0} <= set(gaps)
    assert max(below) <= found.strength <= min(above)
    assert found.low <= found.strength <= found.high
    assert min(above) - max(below) < 0.5 * found.strength  # five bisections


def test_decoding_with_it_meets_the_reference(table, texts, found):
    """At the strength found, with the dice of the search, the gap is within the noise that is stated."""
    results = generated(table, texts, RECIPE.replace(strength=found.strength))
    own = [sum(p.path_entropy for p in one.particles) / len(one.particles) for one in results]
    gap = sum(own) / len(own) - sum(found.reference) / len(found.reference)
    assert abs(gap) < min(found.gaps(), key=lambda gap: abs(gap.value)).half


def test_the_reference_is_that_of_the_texts(table, texts, found):
    paths = reference(table, texts, RECIPE, 4)
    assert found.reference == [sum(path.path_entropy for path in some) / 4 for some in paths]
    spent = sum(path.evaluations for some in paths for path in some)
    assert found.evaluations == spent + sum(point.evaluations for point in found.points)


def test_equal_seeds_give_equal_strengths(table, texts, found):
    assert calibrate(table, texts, RECIPE, points=7) == found
    assert calibrate(table, texts, RECIPE.replace(seed=9), points=3).strength != found.strength


def test_strengths_share_their_dice(table, texts, found):
    """Strength 0 and a tiny one decode the same paths but where a resampling hangs on a hair."""
    tiny = generated(table, texts, RECIPE.replace(strength=1e-12))
    own = [sum(p.path_entropy for p in one.particles) / len(one.particles) for one in tiny]
    assert own == pytest.approx(found.points[0].population, abs=1e-9)


def test_a_budget_is_kept(table, texts):
    kept = []
    cost = len(WORDS) * 8 * 2
    found = calibrate(table, texts, RECIPE, budget=5 * cost, on_row=kept.append)
    assert found.evaluations <= 5 * cost and 3 <= len(found.points) < 8
    assert kept[0]["path_entropy"] == found.reference
    rows = sorted(kept[1:], key=lambda row: row["strength"])
    assert [{"kind": "generated", **vars(point)} for point in found.points] == rows
    with pytest.raises(SettingError, match="ends before a second strength"):
        calibrate(table, texts, RECIPE, budget=10)


def test_a_reference_below_the_reach_is_the_high_end(table, texts):
    """Two particles weighed once: even the larger strength does not lower the entropy enough."""
    found = calibrate(table, texts, RECIPE.replace(particles=2), most=0.01)
    assert (found.end, found.strength, len(found.points)) == ("high", None, 2)
    assert found.gaps()[-1].value > 0


def test_a_reference_above_the_reach_is_the_low_end(table, texts):
    """One token a step, exact conditionals: paths are like those of texts, and the best of eight is surer."""
    found = calibrate(table, texts, RECIPE.replace(steps=6), of="chosen")
    assert (found.end, found.strength, len(found.points)) == ("low", None, 1)
    assert found.gaps()[0].value < 0


def test_what_cannot_be_calibrated(table, texts):
    for recipe, settings, expected in (
        (Recipe("uniform"), {}, "search smc"),
        (RECIPE.replace(target=0.5), {}, "without a target"),
        (RECIPE, {"of": "best"}, "of is 'best'"),
        (RECIPE, {"most": 0.0}, "largest strength is 0"),
        (RECIPE, {"points": 2}, "at least 3"),
    ):
        with pytest.raises(SettingError, match=expected):
            calibrate(table, texts, recipe, **settings)


def test_pooling_is_the_nearest_falling_sequence():
    assert falling([3.0, 1.0, 2.0, 0.0]) == [3.0, 1.5, 1.5, 0.0]
    assert falling([1.0, 2.0, 3.0]) == [2.0, 2.0, 2.0]
    assert falling([4.0, 3.0, -1.0]) == [4.0, 3.0, -1.0]


def test_the_crossing_is_between_points_on_a_logarithmic_scale():
    assert crossing([0.0, math.e - 1, math.e**2 - 1], [2.0, 1.0, -1.0]) == pytest.approx(math.expm1(1.5))
    assert crossing([0.0, 1.0], [-1.0, -2.0]) == 0.0
    assert crossing([0.0, 1.0], [2.0, 1.0]) == math.inf
    assert crossing([0.0, 1.0, 3.0], [1.0, -0.5, 0.5]) == pytest.approx(1.0)  # a rise is pooled, here to 0


def test_the_command_writes_rows_a_summary_and_a_curve(capsys, tmp_path, found):
    (tmp_path / "lines.txt").write_text("\n".join(WORDS))
    line = ["calibrate", str(tmp_path / "lines.txt"), "--model", "table", "--steps", "2", "--particles", "8"]
    line += ["--every", "1", "--points", "7", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    out = capsys.readouterr().out
    made = json.loads((tmp_path / "out/calibrate.json").read_text())
    assert made["strength"] == found.strength and (made["low"], made["high"]) == (found.low, found.high)
    assert f"--strength {found.strength:.3g}" in out and f"{found.evaluations} evaluations" in out
    kept = [json.loads(row) for row in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert kept[0]["path_entropy"] == found.reference
    assert [row["strength"] for row in kept[1:3]] == [0.0, 1000.0] and len(kept) == 8
    assert (tmp_path / "out/calibrate.svg").read_text().count("<polygon") == 2
    flags = made["flags"].split()
    assert main(["generate", "--model", "table", *flags]) == 0
    capsys.readouterr()
    assert main(line) == 2
    assert "is not empty" in capsys.readouterr().err
    line[-1] = str(tmp_path / "other")
    assert main([*line, "--most", "0.01", "--particles", "2"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "no strength up to 0.01 meets the reference" in err
    assert json.loads((tmp_path / "other/calibrate.json").read_text())["end"] == "high"
    for flags, said in {"--particles 1": "2 or more", "--search best-of-n": "has no strength"}.items():
        assert main([*line, *flags.split()]) == 2
        assert said in capsys.readouterr().err


def test_an_interrupt_keeps_the_rows(capsys, tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("\n".join(WORDS))
    done = 0

    def stop(*given, **settings):
        nonlocal done
        done += 1
        if done > 2:
            raise KeyboardInterrupt
        return generated(*given, **settings)

    monkeypatch.setattr("unmask.evaluate.theory.calibrate.generated", stop)
    line = f"calibrate {tmp_path}/lines.txt --model table --steps 2 --particles 8 --every 1 -o {tmp_path}/out"
    assert main(line.split()) == 130
    assert "3 rows are in" in capsys.readouterr().err  # the reference and two strengths
    assert len((tmp_path / "out/rows.jsonl").read_text().splitlines()) == 3
