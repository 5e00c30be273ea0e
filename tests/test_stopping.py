"""The threshold of a stop: the largest that keeps its promise, and that the promise holds."""

from __future__ import annotations

import json
import random

import pytest

import unmask
from unmask.cli import main
from unmask.decoding.decode import decode, decode_batch
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, SettingError
from unmask.evaluate.stopping import Stop, calibrate, decoded, stopped, stops, threshold

RECIPE = Recipe(sampler="uniform", temperature=1.0, search="auto", particles=8)


@pytest.fixture(scope="module")
def table():
    return unmask.load("table")


def made(rng: random.Random) -> list[Stop]:
    """A prompt whose best path comes after some waves; paths of lower cost are more often final."""
    cost, found = 1.0, []
    waves = (1, 2, 4, 8)
    final = rng.choice(waves)
    for paths in waves:
        cost *= rng.random()
        found.append(Stop(paths, cost, int(paths < final), 10 * paths))
    return found


def test_by_hand():
    prompts = [[Stop(1, 0.1 * place, int(place > 6), 5), Stop(2, 0.05, 0, 10)] for place in range(1, 20)]
    assert threshold(prompts, 0.05, RECIPE).until == pytest.approx(0.6)  # the first loss is met at 0.7
    assert threshold(prompts, 0.1, RECIPE).until == pytest.approx(0.7)  # one loss and the one to come, of 20
    with pytest.raises(InputError, match="19 prompts are too few for epsilon"):
        threshold(prompts, 0.04, RECIPE)
    worst = [[Stop(1, 0.1, 1, 5), Stop(2, 0.05, 0, 10)]] * 19
    assert threshold(worst, 0.05, RECIPE).until == 0.05 or threshold(worst, 0.05, RECIPE).lost == 0


def test_a_loss_that_was_met_stays():
    """Another answer in the middle counts for all larger thresholds, although a still earlier stop has the last one."""
    prompts = [[Stop(1, 0.5, 0, 5), Stop(2, 0.4, 1, 10), Stop(4, 0.1, 0, 20)]] * 30
    assert threshold(prompts, 0.1, RECIPE).until == pytest.approx(0.1)


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2])
def test_the_promise_holds_on_average(epsilon):
    """Over many draws of 60 prompts, the expected loss of another one is at most epsilon, and not far below."""
    rng, losses = random.Random(3), []
    for _ in range(400):
        prompts = [made(rng) for _ in range(61)]
        until = threshold(prompts[:60], epsilon, RECIPE).until
        losses.append(stopped(prompts[60], until).loss)
    share = sum(losses) / len(losses)
    error = (epsilon * (1 - epsilon) / len(losses)) ** 0.5
    assert share <= epsilon + 3 * error
    assert share >= epsilon - 1 / 61 - 4 * error  # it is not simply never stopping


def test_what_is_promised_is_what_decoding_does(table):
    """The stops of the full run are those of a run with the threshold."""
    canvases = ["[MASK*6]"] * 24
    full = decoded(table, None, RECIPE.replace(until=1e-300, most=16), canvases=canvases)
    until = 0.5
    found = decode_batch(table, canvases=canvases, recipe=RECIPE.replace(until=until, most=16))
    for attempt, result in zip(full, found, strict=True):
        end = stopped(stops(attempt, lambda number, one: one.text), until)
        assert (end.paths, end.evaluations) == (len(result.particles), result.evaluations)
        best = attempt.particles[attempt.chosen].text
        assert end.loss == (result.text != best)
    assert len({len(one.particles) for one in found}) > 1


def test_a_threshold_is_refused_elsewhere(table):
    found = calibrate(table, None, RECIPE, epsilon=0.3, canvases=["[MASK*6]"] * 20)
    assert found.until > 0 and found.lost <= 0.3 * 20 and found.bound <= 0.3
    assert found.evaluations < found.all_evaluations
    recipe = Recipe.from_toml(found.recipe.to_toml())
    assert decode(table, canvas="[MASK*6]", recipe=recipe).evaluations
    decode(table, canvas="[MASK*6]", recipe=recipe.replace(seed=5, particles=4))  # what it does not depend on
    with pytest.raises(SettingError, match="until was calibrated for"):
        decode(table, canvas="[MASK*6]", recipe=recipe.replace(temperature=0.5))
    with pytest.raises(SettingError, match="until was calibrated for"):
        decode(table, canvas="[MASK*6]", recipe=recipe.replace(sampler="confidence"))
    decode(table, canvas="[MASK*6]", recipe=recipe.replace(temperature=0.5, calibrated=None))


def test_verdicts_allow_more(table):
    """Where any answer is right, nothing is lost by stopping at once."""
    some = {"epsilon": 0.1, "canvases": ["[MASK*6]"] * 20}
    strict = calibrate(table, None, RECIPE, **some)
    free = calibrate(table, None, RECIPE, right=lambda number, one: True, **some)
    assert free.until >= strict.until and free.paths == 1.0 and free.lost == 0


def test_the_command(tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("se\nte\nst\nre\n" * 6)
    line = [
        "calibrate",
        "stop",
        str(tmp_path / "prompts.txt"),
        "--model",
        "table",
        "--length",
        "4",
        "--temperature",
        "1",
    ]
    line += ["--epsilon", "0.3", "-o", str(tmp_path / "out")]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 24 and found["until"] > 0 and found["bound"] <= 0.3
    assert json.loads((tmp_path / "out" / "stop.json").read_text())["until"] == found["until"]
    use = ["generate", "se", "--model", "table", "--recipe", str(tmp_path / "out" / "stop.toml")]
    assert main(use) == 0
    capsys.readouterr()
    assert main([*line, "--of", "chosen"]) == 2 and "--of has no effect on calibrate stop" in capsys.readouterr().err
    assert main([*line, "--labels"]) == 2 and "add --task NAME" in capsys.readouterr().err
    assert main(["calibrate", "stopp", *line[2:]]) == 2 and "did you mean 'stop'" in capsys.readouterr().err
    few = [*line[:2], str(tmp_path / "few.txt"), *line[3:]]
    (tmp_path / "few.txt").write_text("se\n")
    assert main(few) == 2 and "1 prompts are too few" in capsys.readouterr().err
