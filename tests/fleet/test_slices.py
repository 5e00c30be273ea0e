"""One prompt with many particles on real Ray: whoever does its slices, or is killed, it is that of one process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from unmask import Recipe, Result, decode, load
from unmask.cli import main
from unmask.errors import InputError, SettingError, UnmaskError
from unmask.evaluate.fleet import Fleet

SMC = Recipe("confidence", "smc", particles=22, temperature=1.0, every=2, length=10, scheme="systematic")
WALKS = {
    "smc": SMC,
    "reopen": SMC.replace(reopen=0.5, every=3),
    "guided": SMC.replace(guidance=0.5, potential="likelihood", target=0.5),
    "beam": Recipe("uniform", "beam", beams=4, candidates=5, every=4, temperature=1.0, length=10),
    "auto": Recipe("eb", "auto", particles=22, temperature=1.0, length=10),  # with a second look
    "vote": Recipe("uniform", "vote", particles=22, temperature=1.0, length=3),
}


def exact(result: Result) -> str:
    told = [vars(one) for one in result.particles]
    return repr((told, result.chosen, result.log_evidence, result.evaluations, result.rows, result.calls))


def killing(fleet: Fleet, after: int) -> list[Any]:
    """Kill a worker once this many segments are done, by all of them; what was seen."""
    seen, killed = list[Any](), list[int]()

    def on_progress(found: Any) -> None:
        seen.append(found)
        ready = [one for one in fleet.members.values() if one.loaded]
        if fleet.rows >= after and not killed:
            killed.append(ready[0].place.pid)
            os.kill(killed[0], signal.SIGKILL)

    fleet.on_progress = on_progress
    return seen


def test_two_workers_are_one_process(cluster) -> None:
    """To the bit, with one thread and the same slices; the tokens are those of one device without slices."""
    model = load("random")
    with Fleet(cluster, "random", 2, gpus=0) as fleet:
        for name, recipe in WALKS.items():
            there = decode(fleet, "abc", recipe=recipe, slice_size=4)
            assert exact(there) == exact(decode(model, "abc", recipe=recipe, slice_size=4)), name
            whole = decode(model, "abc", recipe=recipe)
            assert [one.tokens for one in there.particles] == [one.tokens for one in whole.particles], name
            assert (there.chosen, there.evaluations) == (whole.chosen, whole.evaluations), name
        more = {"reward": lambda text: text.count("a"), "potential": "reward"}  # stays in this process
        there = decode(fleet, "abc", recipe=SMC, slice_size=4, **more)
        assert exact(there) == exact(decode(model, "abc", recipe=SMC, slice_size=4, **more))
        forms = {"matches": "[ab]+c*", "particles": 6}
        there = decode(fleet, "abc", recipe=SMC, slice_size=4, **forms)
        assert exact(there) == exact(decode(model, "abc", recipe=SMC, slice_size=4, **forms))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_in_the_middle_of_a_walk(cluster, workers: int) -> None:
    recipe = SMC.replace(particles=64, length=16)
    alone = exact(decode(load("random"), "abc", recipe=recipe, slice_size=4))
    with Fleet(cluster, "random", (workers, workers), gpus=0) as fleet:  # it waits for all of them
        seen = killing(fleet, 20)  # of 16 in each of eight rounds
        assert exact(decode(fleet, "abc", recipe=recipe, slice_size=4)) == alone
    assert seen[-1].lost == 1 and seen[-1].again >= 1 and max(one.ready for one in seen) == workers


def test_a_slice_that_always_dies(cluster) -> None:
    with Fleet(cluster, "random", 1, gpus=0, tries=1) as fleet:
        killing(fleet, 2)
        with pytest.raises(UnmaskError, match=r"1 workers were lost while they did slices \d+: give a smaller slice"):
            decode(fleet, "abc", recipe=SMC.replace(particles=64, length=16), slice_size=4)
    with Fleet(cluster, "random", 1, gpus=0, tries=1, skip_lost=True) as fleet:
        killing(fleet, 2)
        with pytest.raises(UnmaskError, match=r"lost while they did slices \d+: no slice can be left out"):
            decode(fleet, "abc", recipe=SMC.replace(particles=64, length=16), slice_size=4)


def test_errors_are_those_of_one_process(cluster) -> None:
    with Fleet(cluster, "random", 1, gpus=0) as fleet:
        with pytest.raises(SettingError, match="random was not trained with block-causal attention"):
            decode(fleet, "abc", sampler="semi-ar", attention="block", search="smc", length=8)
        with pytest.raises(InputError, match="on_event has"):
            decode(fleet, "abc", recipe=SMC, on_event=print)
        assert decode(fleet, "abc", recipe=SMC.replace(particles=3)).slice_size == 3


def test_a_thousand_particles_of_the_bundled_model(cluster, tmp_path, monkeypatch, capsys) -> None:
    """By the command: the result is that of one process in slices; a worker is killed on the way."""
    monkeypatch.chdir(tmp_path)
    how = "--search smc --every 2 --scheme systematic --particles 1024 --length 4 --temperature 1 --json --seed 3"
    given = ["generate", "Once", *how.split()]
    assert main([*given, "--slice", "256"]) == 0
    alone = json.loads(capsys.readouterr().out)
    killed: list[int] = []
    begin = Fleet.each

    def each(fleet: Fleet, job: Any, items: Any) -> Any:
        if fleet.rows and not killed:  # all have loaded the model, and one segment of each slice is done
            killed.append(next(one.place.pid for one in fleet.members.values() if one.loaded))
            os.kill(killed[0], signal.SIGKILL)
        return begin(fleet, job, items)

    monkeypatch.setattr(Fleet, "each", each)
    assert main([*given, "--slice", "256", "--ray", cluster, "--gpus", "0", "--workers", "2"]) == 0
    there = json.loads(capsys.readouterr().out)
    changing = ("seconds", "memory")
    assert {k: v for k, v in there.items() if k not in changing} == {
        k: v for k, v in alone.items() if k not in changing
    }
    assert len(there["particles"]) == 1024 and there["slice_size"] == 256 and len(killed) == 1
    assert there["lineages"] < 1024 and there["evaluations"] == 1024 * 4
    assert main([*given, "--ray", cluster, "--gpus", "0", "--skip-lost"]) == 2
    assert "--skip-lost has no effect: a prompt in slices is decoded by itself" in capsys.readouterr().err
    Path("p.txt").write_text("a\n")
    assert main(["generate", "--prompts", "p.txt", "--ray", cluster]) == 2
    assert "--ray decodes one prompt, or a file of prompts into a file: add -o FILE" in capsys.readouterr().err
