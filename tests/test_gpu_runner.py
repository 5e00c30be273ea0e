"""experiments/gpu: jobs are bounded and resumed, what comes back is whole, and every GPU test is named."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments" / "gpu"))
import outcomes
import run as runner
import stages
from stages import Job, Phase, always, until

GPU = Path(__file__).parents[1] / "experiments" / "gpu"
WORSE = """
import os, time
DEVICE = "cpu"
def test_good(): pass
def test_bad(): assert 1 == 2, "another number"
def test_long(): time.sleep(60)
def test_crash(): os.abort()
def test_last(): pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RUN": str(tmp_path / "run"), "DEVICE": "cpu", "TINY": "1"}.items():
        monkeypatch.setenv(name, value)


def go(tmp_path: Path, seconds: int) -> tuple[int, str]:
    args = argparse.Namespace(out=tmp_path / "out", seconds=seconds, only=[])
    return runner.command_go(args), (tmp_path / "out" / "summary.txt").read_text()


def phase(*jobs: Job, seconds: int = 60, name: str = "one") -> Phase:
    return Phase(name, "", seconds, 1, lambda setup: list(jobs))


def test_jobs_have_names_of_their_own() -> None:
    setup = stages.Setup.of_environment()
    for one in stages.PHASES:
        names = [job.name for job in one.jobs(setup)]
        assert len(names) == len(set(names)) and all(job.steps for job in one.jobs(setup))
        assert all(isinstance(word, str) for job in one.jobs(setup) for step in job.steps for word in step(100))
    assert sum(one.seconds for one in stages.PHASES[:-2]) < 3 * (500 - runner.LAST)  # `rest` takes what is left


def test_time_that_is_up_and_what_is_done_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run" / "rows" / "some.txt"
    count = always(["bash", "-c", f"echo once >> {file}"])
    slow = always(["bash", "-c", f"[ -e {file}.2 ] || {{ touch {file}.2; timeout 300 sleep 299; }}"])
    monkeypatch.setattr(stages, "PHASES", (phase(Job("slow", (count, slow))),))
    monkeypatch.setattr(runner, "LAST", 1)
    began = time.monotonic()
    code, said = go(tmp_path, 8)
    assert code == 75 and "ended with 124" in said and "left of one: slow" in said
    assert time.monotonic() - began < 20 and not runner.marked(f"{tmp_path / 'run'}:")
    assert go(tmp_path, 30)[0] == 0 and file.read_text() == "once\n"
    assert runner.unpack(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back/rows/some.txt").read_text() == "once\n" and (tmp_path / "back/done/slow.1").exists()


def test_a_job_that_fails_is_given_up_and_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Job("bad", (always(["nowhere-at-all"]),)), Job("good", (until("--seconds", 3, ["echo"]),))
    monkeypatch.setattr(stages, "PHASES", (phase(*jobs), phase(jobs[1], name="two")))
    code, said = go(tmp_path, 60)
    assert code == 75 and "bad: step 1 of 1 ended with 127" in said and "given up after 2 failures: bad" in said
    assert said.count("good: 0 s") == 1


def test_steps_apart_are_all_taken_and_each_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run" / "rows" / "some.txt"
    bad, slow = always(["bash", "-c", "seq 30; exit 3"]), always(["sleep", "300"])
    good = always(["bash", "-c", f"echo once >> {file}"])
    monkeypatch.setattr(stages, "PHASES", (phase(Job("some", (bad, slow, good), apart=True, each=2)),))
    code, said = go(tmp_path, 90)
    assert code == 75 and file.read_text() == "once\n"
    assert "step 1 of 3 ended with 3" in said and "29\n    30" in said and "step 2 of 3 ended with 124" in said
    assert "given up after 2 failures: some" in said and said.count("step 1 of 3") == 2


def test_a_phase_that_cannot_be_made_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setup: stages.Setup) -> None:
        raise OSError("no room")

    bad = Phase("bad", "", 60, 1, lambda setup: [Job("one", (always(["true"]),))], broken)
    monkeypatch.setattr(stages, "PHASES", (bad, phase(Job("good", (always(["true"]),)))))
    code, said = go(tmp_path, 60)
    assert code == 75 and "--- bad: OSError('no room')" in said and "good: 0 s" in said


def test_nothing_is_begun_where_the_first_job_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "there"
    first = Phase("first", "", 60, 1, lambda setup: [Job("first", (always(["test", "-e", str(file)]),))], first=True)
    monkeypatch.setattr(stages, "PHASES", (first, phase(Job("good", (always(["true"]),)))))
    for _ in range(3):
        code, said = go(tmp_path, 60)
        assert code == 75 and "nothing else was begun" in said and "good" not in said
    monkeypatch.setattr(stages.Setup, "commit", lambda setup: "another")
    file.touch()
    assert go(tmp_path, 60)[0] == 0


ENDED = """
import sys
sys.path.insert(0, {folder!r})
import run, stages
rows = "echo whole > $RUN/rows/some.txt; sleep 300 & sleep 300"
jobs = [stages.Job("slow", (stages.always(["bash", "-c", rows]), stages.always(["touch", "never"])))]
stages.PHASES = (stages.Phase("one", "", 60, 1, lambda setup: jobs),)
sys.argv = ["run.py", "go", {out!r}, "60"]
sys.exit(run.main())
"""


def test_a_command_that_is_told_to_end_packs_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-c", ENDED.format(folder=str(GPU), out=str(out))]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = time.monotonic() + 30
    while not (tmp_path / "run/rows/some.txt").exists() and time.monotonic() < late:
        time.sleep(0.1)
    began = time.monotonic()
    child.terminate()
    said = child.communicate(timeout=30)[0]
    assert child.returncode == 75 and time.monotonic() - began < 15 and "Traceback" not in said
    assert not runner.marked(f"{tmp_path / 'run'}:") and not Path("never").exists()
    assert runner.unpack(out, tmp_path / "back") and (tmp_path / "back/rows/some.txt").read_text() == "whole\n"
    assert "left of one: slow" in said and len(list(out.iterdir())) <= 8


def test_what_runs_beside_ends_with_the_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Job("short", (always(["true"]),)), Job("beside", (always(["sleep", "300"]),), filler=True)
    monkeypatch.setattr(stages, "PHASES", (phase(*jobs),))
    assert go(tmp_path, 60)[0] == 0


def test_every_file_with_gpu_tests_is_run() -> None:
    tests = Path(__file__).parent
    run = {f"test_{name}.py" for name in stages.TESTS} | {"train/test_stories.py"}
    asks = {path for path in tests.rglob("test_*.py") if "cuda.is_available()" in path.read_text(encoding="utf-8")}
    likewise = {path for path in tests.rglob("test_*.py") if "import DEVICE" in path.read_text(encoding="utf-8")}
    assert run == {path.relative_to(tests).as_posix() for path in asks | likewise} - {Path(__file__).name}


def test_every_gpu_test_has_an_outcome_or_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_worse.py").write_text(WORSE)
    (tmp_path / "test_lacking.py").write_text("import a_package_that_is_not_there\n")
    env = os.environ | {"PYTHONPATH": str(GPU), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ["-q", "-p", "no:cacheprovider", "-p", "only_cuda", "--outcomes", "out", "--worker", "0/1", "--each", "1"]
    for _ in range(3):
        command = [sys.executable, "-m", "pytest", *words, "test_worse.py", "test_lacking.py"]
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    told = outcomes.told(tmp_path / "out")
    assert "2 passed, 3 failed, 0 skipped, 1 begun and not ended, 0 not begun" in told
    assert "FAILED test_lacking.py: ModuleNotFoundError" in told
    assert "test_bad: AssertionError: another number" in told and "NOT ENDED test_worse.py::test_crash" in told
