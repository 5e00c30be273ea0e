"""The training loop: it learns, the same seed goes the same way, an interrupted run too, and the model loads."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from unmask import load
from unmask.cli import main
from unmask.errors import InputError, ModelError
from unmask.models.laws import check
from unmask.train.loop import LOG, STATE, Plan, train
from unmask.train.start import fresh, save, take
from unmask.train.sudoku import CONFIG, MASK, Grids

TINY = {**CONFIG, "width": 32, "layers": 1, "heads": 2, "inner": 32}


class Fixed:
    """Rows that all begin with their first token: soon learned."""

    def batch(self, number, size):
        generator = torch.Generator().manual_seed(number % 2**32)
        tokens = torch.randint(9, (size, 1), generator=generator).expand(size, 81).clone()
        return tokens, torch.ones_like(tokens, dtype=torch.bool)

    def validate(self, network):
        return {"layers": network.shape.layers}


def run(directory, plan, source=None, config=TINY):
    events = []
    network = fresh(config, "cpu", plan.seed)
    trained = train(
        network, source or Fixed(), plan, directory, mask=MASK, save=lambda d, n: save(d, config, n), tell=events.append
    )
    return trained, events


def weights(network):
    return torch.cat([p.flatten() for p in network.parameters()])


def test_it_learns(tmp_path):
    _, events = run(tmp_path, Plan(steps=150, batch=32, warmup=10, log=10, rate=3e-3))
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[0] > 2 and losses[-1] < 0.5
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == events and lines[0]["plan"]["batch"] == 32


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path):
    plan = Plan(steps=6, batch=8, warmup=2)
    one, two = (weights(run(tmp_path / name, plan)[0]) for name in "ab")
    other = weights(run(tmp_path / "c", Plan(steps=6, batch=8, warmup=2, seed=1))[0])
    assert torch.equal(one, two) and not torch.equal(one, other)


@pytest.mark.parametrize("weighting", ["even", "nelbo"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path, weighting):
    whole, _ = run(tmp_path / "whole", Plan(steps=8, batch=8, warmup=2, weighting=weighting))

    class Stops(Fixed):
        def batch(self, number, size):
            if number % 2**32 >= 5:
                raise KeyboardInterrupt
            return super().batch(number, size)

    plan = Plan(steps=8, batch=8, warmup=2, weighting=weighting, check=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", plan, Stops())
    kept = load_file(tmp_path / "parts" / STATE)
    assert 1 <= int(kept["step"]) <= 5
    parts, events = run(tmp_path / "parts", plan)
    assert events[0]["step"] == int(kept["step"])
    assert torch.equal(weights(whole), weights(parts))


def test_batches_from_other_processes_are_the_same(tmp_path):
    plan = Plan(steps=3, batch=8, warmup=2)
    here = weights(run(tmp_path / "a", plan, Grids(held=1, clues=()))[0])
    there = weights(run(tmp_path / "b", Plan(steps=3, batch=8, warmup=2, workers=1), Grids(held=1, clues=()))[0])
    assert torch.equal(here, there)


def test_the_model_loads_and_keeps_the_laws(tmp_path):
    trained, _ = run(tmp_path / "made", Plan(steps=3, batch=8, warmup=2))
    model = load(tmp_path / "made")
    assert [verdict for verdict in check(model) if verdict.held is False] == []
    assert torch.allclose(weights(model.network), weights(trained), atol=1e-3)
    again = fresh(TINY, "cpu", 5)
    take(again, tmp_path / "made/model.safetensors")
    assert torch.equal(weights(again), weights(model.network))


def test_other_networks_are_refused(tmp_path):
    run(tmp_path / "a", Plan(steps=1, batch=4))
    with pytest.raises(ModelError, match="another network"):
        run(tmp_path / "a", Plan(steps=1, batch=4), config={**TINY, "width": 64})
    with pytest.raises(ModelError, match="another network"):
        take(fresh({**TINY, "layers": 2}, "cpu", 0), tmp_path / "a/model.safetensors")
    (tmp_path / "a" / STATE).write_bytes(b"half")
    with pytest.raises(ModelError, match="cannot be read"):
        run(tmp_path / "a", Plan(steps=1, batch=4))
    with pytest.raises(InputError, match="no end"):
        Plan()


def test_a_loss_that_is_lost_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="lower the rate"):
        run(tmp_path, Plan(steps=50, batch=4, warmup=1, rate=1e30, log=1, clip=1e30))


def test_the_rate_rises_and_falls():
    plan = Plan(steps=100, warmup=10, rate=1.0)
    rates = [plan.rate_at(step, plan.progress(step, 0.0)) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] and rates[-1] < 0.02
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert Plan(seconds=10).progress(7, 5.0) == 0.5 and Plan(steps=8, seconds=10).progress(8, 1.0) == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["chess", "d", "--steps", "1"], "unknown task 'chess'"),
        (["sudoku", "d"], "training has no end"),
        (["sudoku", "d", "--steps", "1", "--shape", "3"], "is no JSON object"),
        (["sudoku", "d", "--steps", "1", "--shape", '{"width": -3}'], "width is -3"),
        (["sudoku", "d", "--steps", "1", "--weights", "nowhere"], "cannot be read"),
    ],
)
def test_bad_commands_are_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
