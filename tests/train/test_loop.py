"""The training loop: it learns, the same seed goes the same way, an interrupted run too, and the model loads."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unmask import load
from unmask.cli import main
from unmask.errors import InputError, ModelError
from unmask.models import WEIGHTS
from unmask.models.laws import check
from unmask.train.initial import fresh, save, take
from unmask.train.log import LOG, PLOT, open_log, read_log
from unmask.train.loop import STATE, Plan, _asked, _Losses, train, unbroken
from unmask.train.optim import Optimizer
from unmask.train.process import SCHEDULES, expected, masked, objective, times
from unmask.train.sudoku import CONFIG, MASK, Grids

COUNTDOWN = str(WEIGHTS / "countdown" / "model.safetensors")
TINY = {**CONFIG, "width": 32, "layers": 1, "heads": 2, "inner": 32}


class Fixed:
    """Rows that all begin with their first token: soon learned."""

    def batch(self, number, size):
        generator = torch.Generator().manual_seed(number % 2**32)
        tokens = torch.randint(9, (size, 1), generator=generator).expand(size, 81).clone().numpy()
        return tokens, np.ones(81, dtype=bool)

    def validate(self, network):
        return {"layers": network.shape.layers}


def run(directory, plan, source=None, config=TINY):
    events = []
    network = fresh(config, "cpu", plan.seed)
    trained = train(
        network,
        source or Fixed(),
        plan,
        directory,
        mask=MASK,
        save=lambda d, n: save(d, config, n),
        on_event=events.append,
    )
    return trained, events


def weights(network):
    return torch.cat([p.flatten() for p in network.parameters()])


def test_it_learns(tmp_path):
    _, events = run(tmp_path, Plan(steps=150, batch=32, warmup=10, log=10, rate=1e-2))
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[0] > 2 and losses[-1] < 0.5
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == events and lines[0]["plan"]["batch"] == 32


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_every_way_learns(tmp_path, optimizer, tilt):
    _, events = run(tmp_path, Plan(steps=40, batch=32, warmup=5, log=10, rate=1e-2, optimizer=optimizer, tilt=tilt))
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < losses[0] - 0.3
    assert (tmp_path / PLOT).read_text().startswith("<svg")


def test_only_open_columns_are_masked_and_counted(tmp_path, monkeypatch):
    class Half(Fixed):
        def batch(self, number, size):
            return super().batch(number, size)[0], np.arange(81) > 40

    seen = []

    def watch(losses, hidden, open, *rest):
        seen.append((hidden, open))
        return objective(losses, hidden, open, *rest)

    monkeypatch.setattr("unmask.train.loop.objective", watch)
    run(tmp_path, Plan(steps=3, batch=8), Half())
    for hidden, open in seen:
        assert open.tolist() == [[column > 40 for column in range(81)]] * 8
        assert hidden[:, 41:].any() and not hidden[:, :41].any()


@pytest.mark.parametrize(("rows", "length"), [(1, 5), (3, 81), (64, 81), (256, 20), (8, 512)])
@pytest.mark.parametrize(("name", "tilt"), [("linear", 0.0), ("linear", 1.0), ("cosine", 0.0)])
def test_every_masked_place_is_asked_for(rows, length, name, tilt):
    schedule, sizes = SCHEDULES[name], set()
    for seed in range(100):
        dice = torch.Generator().manual_seed(seed)
        hide = masked(torch.ones(rows, length, dtype=torch.bool), times(rows, dice, tilt), schedule, dice)
        asked = _asked(hide, expected(schedule, tilt))
        assert hide.flatten()[asked].sum() == hide.sum() and len(asked.unique()) == len(asked)
        sizes.add(len(asked))
    assert len(sizes) == 1  # whatever is masked
    assert sizes.pop() < rows * length or rows < 64


def test_losses_are_those_of_the_masked_places():
    network = fresh(TINY, "cpu", 0)
    dice = torch.Generator().manual_seed(0)
    clean, columns = torch.randint(9, (4, 81), generator=dice), torch.arange(81)[None]
    hide = torch.rand(clean.shape, generator=dice) < 0.3
    noised = clean.masked_fill(hide, MASK)
    found = _Losses(network)(noised, clean, columns, network.waves(columns), None, _asked(hide, 0.3))
    hidden, _ = network(noised, columns)
    every = -network.head(hidden).log_softmax(2).gather(2, clean[:, :, None])[:, :, 0]
    assert torch.allclose(found[hide], every[hide], atol=1e-5)


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
    with pytest.raises(ModelError, match="another network"):
        take(fresh(TINY, "cpu", 0), Path(COUNTDOWN))
    (tmp_path / "a" / STATE).write_bytes(b"half")
    with pytest.raises(ModelError, match="cannot be read"):
        run(tmp_path / "a", Plan(steps=1, batch=4))
    with pytest.raises(InputError, match="no end"):
        Plan()


def test_a_loss_that_is_lost_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="lower the rate"):
        run(tmp_path, Plan(steps=50, batch=4, warmup=1, rate=1e9, log=1, clip=1e9))
    assert read_log(tmp_path)[-1]["loss"] is None and "NaN" not in (tmp_path / LOG).read_text()


def test_lost_weights_do_not_replace_good_ones(tmp_path):
    run(tmp_path, Plan(steps=3, batch=4, warmup=1))
    before = (tmp_path / STATE).read_bytes()
    network = fresh(TINY, "cpu", 0)

    class Lost(Fixed):
        def batch(self, number, size):
            network.norm.weight.data.fill_(float("nan"))  # as a step that is too long would
            return super().batch(number, size)

    plan = Plan(steps=6, batch=4, warmup=1, log=50)
    with pytest.raises(ModelError, match="the weights are not finite"):
        train(network, Lost(), plan, tmp_path, mask=MASK, save=lambda d, n: save(d, TINY, n))
    assert (tmp_path / STATE).read_bytes() == before


def test_an_interrupted_run_keeps_its_state(tmp_path):
    class Stopped(Fixed):
        def batch(self, number, size):
            if number == 5:
                raise KeyboardInterrupt
            return super().batch(number, size)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", Plan(steps=8, batch=4, warmup=1), Stopped())
    assert int(load_file(tmp_path / "a" / STATE)["step"]) == 5
    again, _ = run(tmp_path / "a", Plan(steps=8, batch=4, warmup=1))
    whole, _ = run(tmp_path / "b", Plan(steps=8, batch=4, warmup=1))
    assert torch.equal(weights(again), weights(whole))


@pytest.fixture
def term():
    """SIGTERM, as a command has it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield signal.SIGTERM
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end(number, term, tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole", Plan(steps=4, batch=4, warmup=1))
    turn, turns = Optimizer._muon, []

    def pressed(self, rate):
        turns.append(rate)
        if len(turns) == 2:
            os.kill(os.getpid(), number)
        turn(self, rate)

    monkeypatch.setattr(Optimizer, "_muon", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", Plan(steps=4, batch=4, warmup=1))
    assert int(load_file(tmp_path / "parts" / STATE)["step"]) == 2
    parts, _ = run(tmp_path / "parts", Plan(steps=4, batch=4, warmup=1))
    assert torch.equal(weights(whole), weights(parts))


def test_ctrl_c_pressed_twice_does_not_wait():
    reached = []

    def press():
        with unbroken():
            for number in range(3):
                reached.append(number)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press()
    assert reached == [0, 1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_always_waits_for_the_end_of_a_step(term):
    reached = []

    def ended():
        with unbroken():
            for number in range(3):
                os.kill(os.getpid(), term)
                reached.append(number)

    with pytest.raises(KeyboardInterrupt):
        ended()
    assert reached == [0, 1, 2] and signal.getsignal(term) is signal.default_int_handler


def test_it_trains_in_a_thread(tmp_path):
    """Where no signals can be held back."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, tmp_path, Plan(steps=2, batch=4)).result()
    assert int(load_file(tmp_path / STATE)["step"]) == 2


def test_another_seed_or_other_data_are_no_resumption(tmp_path):
    def go(seed, about):
        network = fresh(TINY, "cpu", 0)
        plan = Plan(steps=2, batch=4, seed=seed)
        train(network, Fixed(), plan, tmp_path, mask=MASK, about=about, save=lambda d, n: save(d, TINY, n))

    go(0, {"files": {"a": "1"}})
    go(0, {"files": {"a": "1"}})
    with pytest.raises(ModelError, match="other data: seed is 1, it was 0"):
        go(1, {"files": {"a": "1"}})
    with pytest.raises(ModelError, match=r"other data: files is \{\}, it was"):
        go(0, {"files": {}})


def test_another_batch_is_no_resumption(tmp_path):
    run(tmp_path, Plan(steps=2, batch=4))
    with pytest.raises(ModelError, match="other data: batch is 8, it was 4: give the same, or another DIR"):
        run(tmp_path, Plan(steps=4, batch=8))


def test_what_is_different_in_a_resumed_run_is_said(tmp_path):
    run(tmp_path, Plan(steps=2, batch=4, rate=0.01))
    with pytest.warns(UserWarning, match="from step 2 on") as found:
        run(tmp_path, Plan(steps=3, batch=4, rate=0.02, optimizer="adamw"))
    said = ["from step 2 on optimizer is adamw, it was muon", "from step 2 on rate is 0.02, it was 0.01"]
    assert [str(warning.message) for warning in found] == said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, events = run(tmp_path, Plan(steps=4, seconds=9, batch=4, rate=0.02, optimizer="adamw", check=5, log=1))
    assert events[0]["plan"]["rate"] == 0.02 and events[0]["step"] == 3


def test_the_logged_rate_is_the_one_that_was_used(tmp_path, monkeypatch):
    used = []
    step = Optimizer.step
    monkeypatch.setattr(Optimizer, "step", lambda self, rate: (used.append(rate), step(self, rate)))
    _, events = run(tmp_path, Plan(steps=4, batch=4, warmup=2, log=1))
    assert [event["rate"] for event in events if event["event"] == "step"] == used


def test_a_log_that_was_cut_off_goes_on_in_a_new_line(tmp_path):
    run(tmp_path, Plan(steps=4, batch=4, warmup=1, log=1))
    with (tmp_path / LOG).open("a") as file:
        file.write('{"event": "step", "st')
    run(tmp_path, Plan(steps=6, batch=4, warmup=1, log=1))
    events = read_log(tmp_path)
    assert [event["step"] for event in events if event["event"] == "start"] == [0, 4]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4, 5, 6]


def test_two_trainings_in_one_directory_are_refused(tmp_path):
    run(tmp_path, Plan(steps=1, batch=4))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with open_log(tmp_path), pytest.raises(InputError, match=r"another run is writing .*: wait for"):
        run(tmp_path, Plan(steps=2, batch=4))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    run(tmp_path, Plan(steps=2, batch=4))


def test_a_lock_ends_with_its_process(tmp_path):
    code = f"""
import pathlib
from unmask.train.log import open_log
log = open_log(pathlib.Path({str(tmp_path)!r}))
print("open", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(InputError, match="another run is writing"):
            open_log(tmp_path)
        other.kill()
    open_log(tmp_path).file.close()


def test_where_there_are_no_locks_it_trains(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with open_log(tmp_path), pytest.raises(InputError, match="another run is writing"):  # a file beside it says so
        run(tmp_path, Plan(steps=1, batch=4))
    run(tmp_path, Plan(steps=1, batch=4))
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    open_log(tmp_path).file.close()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for place in ("file", "file/d"):
        assert main(["train", "sudoku", place, "--steps", "1"]) == 2
        assert capsys.readouterr().err.startswith(f"unmask: error: cannot write '{place}/{LOG}': ")


def test_the_plot_does_not_run_back(tmp_path):
    lines = [("start", 0), ("step", 1), ("step", 2), ("step", 3), ("start", 1), ("step", 2)]
    text = "".join(json.dumps({"event": event, "step": step, "loss": 1.0}) + "\n" for event, step in lines)
    (tmp_path / LOG).write_text(text)
    assert [event["step"] for event in read_log(tmp_path) if event["event"] == "step"] == [1, 2]


def test_a_clock_ends_it_and_validation_does_not_count(tmp_path):
    class Slow(Fixed):
        def validate(self, network):
            time.sleep(0.5)
            return {}

    _, events = run(tmp_path, Plan(seconds=1.0, check=0.4, batch=4, warmup=1, log=1), Slow())
    checks = [event["seconds"] for event in events if event["event"] == "validation"]
    assert len(checks) >= 3 and checks[-1] < 1.4 and checks[0] < 0.8


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
        (["sudoku", "d", "--steps", "1", "--shape", "3"], "is not a JSON object"),
        (["sudoku", "d", "--steps", "1", "--shape", '{"width": -3}'], "width is -3"),
        (["sudoku", "d", "--steps", "1", "--shape", '{"wdith": 3}'], "did you mean 'width'?"),
        (["sudoku", "d", "--steps", "1", "--shape", '{"vocabulary": 30}'], "unknown size 'vocabulary'"),
        (["sudoku", "d", "--steps", "1", "--weights", "nowhere"], "there is no 'nowhere': give a model.safetensors"),
        (["sudoku", "d", "--steps", "1", "--weights", "."], "there is no 'model.safetensors': give"),
        (["sudoku", "d", "--steps", "1", "--weights", COUNTDOWN], "is of another task: give another directory"),
        (["sudoku", "d", "--steps", "0"], "steps is 0: it must be from 1 to 1000000000"),
        (["sudoku", "d", "--seconds", "nan"], "seconds is nan: it must be from 0 to 1000000000"),
        (["sudoku", "d", "--steps", "1", "--batch", "0"], "batch is 0"),
        (["sudoku", "d", "--steps", "1", "--log", "0"], "log is 0"),
        (["sudoku", "d", "--steps", "1", "--held", "0"], "held is 0"),
        (["sudoku", "d", "--steps", "1", "--workers", "-1"], "workers is -1"),
        (["sudoku", "d", "--steps", "1", "--seed", "-1"], "seed is -1: it must be from 0 to 2147483648"),
        (["sudoku", "d", "--steps", "1", "--tilt", "-1"], "tilt is -1"),
        (["sudoku", "d", "--steps", "1", "--rate", "-1"], "rate is -1"),
        (["sudoku", "d", "--steps", "1", "--optimizer", "mun"], "did you mean 'muon'?"),
        (["sudoku", "d", "--steps", "1", "--device", "nowhere"], "cannot load sudoku on nowhere"),
        (["sudoku", "d", "--steps", "1", "--bits", "4"], "--bits"),
        (["countdown", "d", "--steps", "1", "--corpus", "d"], "--corpus has no effect on countdown"),
    ],
)
def test_bad_commands_are_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *given]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_a_model_that_is_there_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fabricate", "llada", "there"]) == 0
    before = Path("there/config.json").read_bytes()
    assert main(["train", "sudoku", "there", "--steps", "1"]) == 2
    assert "'there' holds a model: give another DIR" in capsys.readouterr().err
    assert Path("there/config.json").read_bytes() == before
