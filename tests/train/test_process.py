"""The forward process and the NELBO: schedules, times, masks, and the value that the loss must have."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.errors import InputError
from unmask.train.loop import Plan
from unmask.train.process import SCHEDULES, SOONEST, expected, masked, objective, times


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_fall_from_one_to_nothing_and_weigh_by_their_slope(name):
    schedule = SCHEDULES[name]
    t = torch.linspace(0, 1, 2001, dtype=torch.float64)
    kept = schedule.kept(t)
    assert kept[0] == 1 and abs(float(kept[-1])) < 1e-12 and (kept.diff() < 0).all()
    inner = t[1:-1]
    slope = (schedule.kept(inner + 1e-6) - schedule.kept(inner - 1e-6)) / 2e-6
    assert torch.allclose(schedule.weight(inner), -slope / (1 - schedule.kept(inner)), rtol=1e-4)


def test_times_are_one_in_each_part():
    found = times(64, generator())
    assert torch.equal((found * 64).floor().long(), torch.arange(64))
    assert times(1, generator()).shape == (1,) and times(10_000, generator()).min() >= SOONEST


@pytest.mark.parametrize("tilt", [0.0, 0.5, 1.0, 3.0])
def test_tilted_times_have_a_density_that_grows_as_a_power(tilt):
    """Below t there are as many as the integral of the density says: t to the power 1 + tilt."""
    found = times(4000, generator(), tilt)
    assert torch.equal(found, found.sort().values) and found.max() <= 1
    for t in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert abs(float((found < t).double().mean()) - t ** (1 + tilt)) <= 1 / 4000
    share = (found < 0.5).double().mean()
    assert (share < 0.4) == (tilt > 0.2)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_as_many_are_masked_as_expected(name, tilt):
    found = 1 - SCHEDULES[name].kept(times(50_000, generator(), tilt).double())
    assert float(found.mean()) == pytest.approx(expected(SCHEDULES[name], tilt), abs=1e-3)
    exact = {
        ("linear", 0.0): 1 / 2,
        ("linear", 1.0): 2 / 3,
        ("cosine", 0.0): 2 / math.pi,
        ("cosine", 1.0): 8 / math.pi**2,
    }
    assert expected(SCHEDULES[name], tilt) == pytest.approx(exact[name, tilt], abs=1e-4)


def test_the_nelbo_takes_no_tilt():
    with pytest.raises(InputError, match="tilt has no effect on the NELBO"):
        Plan(steps=1, weighting="nelbo", tilt=1.0)
    assert Plan(steps=1, weighting="nelbo").tilt == 0 and Plan(steps=1, tilt=1.0).tilt == 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_open_positions_are_masked_as_often_as_the_schedule_says(name):
    time = torch.tensor([0.1, 0.5, 0.9]).repeat_interleave(2000)
    open = torch.ones(6000, 50, dtype=torch.bool)
    open[:, ::2] = False
    hide = masked(open, time, SCHEDULES[name], generator(1))
    assert not hide[:, ::2].any()
    share = hide[:, 1::2].double().mean(1).view(3, 2000).mean(1)
    wanted = 1 - SCHEDULES[name].kept(torch.tensor([0.1, 0.5, 0.9]).double())
    error = (wanted * (1 - wanted) / 50_000).sqrt()
    assert ((share - wanted).abs() < 4.9 * error).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_nelbo_of_a_model_that_knows_nothing_is_the_log_of_its_vocabulary(name):
    """Each token is worth log V wherever it is masked, and the weights of all times add up to one."""
    schedule, found = SCHEDULES[name], []
    open = torch.ones(512, 40, dtype=torch.bool)
    losses = torch.full((512, 40), math.log(9.0))
    for seed in range(60):
        dice = generator(seed)
        when = times(512, dice)
        found.append(float(objective(losses, masked(open, when, schedule, dice), open, when, schedule, "nelbo")))
    mean, error = sum(found) / 60, torch.tensor(found).std().item() / 60**0.5
    assert abs(mean - math.log(9.0)) < 4.9 * error + 2 * SOONEST


def test_even_weights_give_the_mean_over_masked_tokens():
    losses = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    hide = torch.tensor([[True, False, True], [False, False, True]])
    open = torch.ones_like(hide)
    assert objective(losses, hide, open, torch.tensor([0.5, 0.5]), SCHEDULES["linear"], "even") == 37 / 3
    assert objective(losses, hide & False, open, torch.tensor([0.5, 0.5]), SCHEDULES["linear"], "even") == 0
    weighted = objective(losses, hide, open, torch.tensor([0.5, 0.25]), SCHEDULES["linear"], "nelbo")
    assert weighted == (5 / 0.5 + 32 / 0.25) / 6
