"""Options of the whole test suite."""

import gc
import os
import signal
from pathlib import Path

gc.disable()  # until all is imported and collected: nearly all of that stays, and is only looked at again and again

# Before torch is imported, and for the processes that tests start: threads that spin take the other tests' cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

import unmask  # noqa: E402, F401  (what it asks of MKL is read when torch first multiplies)

torch.set_num_threads(1)  # one test per core; small tensors gain nothing from more
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its children


# What `make quick` leaves out: browsers, training, fuzzing, installing, and whatever takes seconds.
SLOW = {
    "browser",
    "checkpoints",
    "exact/test_exact_evidence.py",
    "exact/test_exact_samplers.py",
    "exact/test_exact_theory.py",
    "form/test_hostile_forms.py",
    "laws/test_block_laws.py",
    "laws/test_option_laws.py",
    "laws/test_resample_laws.py",
    "laws/test_seed_laws.py",
    "laws/test_slice_laws.py",
    "laws/test_stop_laws.py",
    "parity/test_block_decoders.py",
    "parity/test_decoders.py",
    "server",
    "test_bench.py",
    "test_bulk.py::test_a_piped_prompt_is_read",
    "test_bulk.py::test_a_run_killed_three_times_has_the_same_rows",
    "test_blocks.py",
    "test_calibrate.py",
    "test_cli.py::test_a_closed_pipe_is_quiet",
    "test_cli.py::test_examples_of_the_help_work",
    "test_cli.py::test_one_is_not_several",
    "test_demo.py",
    "test_docs.py",
    "test_evaluate.py",
    "test_fabricate.py",
    "test_families.py",
    "test_hub.py",
    "test_judge.py",
    "test_layers.py::test_models_read_no_file_until_one_is_loaded",
    "test_likelihood.py",
    "test_look.py",
    "test_model_laws.py",
    "test_own_settings.py::test_the_server_knows_what_was_registered_before_it",
    "test_paper.py",
    "test_paper_cells.py",
    "test_placement.py",
    "test_potentials.py",
    "test_reference.py",
    "test_remote.py",
    "test_replay.py",
    "test_sandbox.py",
    "test_fuzz_files.py",
    "test_torn.py",
    "test_speed.py",
    "test_speed_cached.py",
    "test_start.py::test_every_command_imports_only_its_own_rooms",
    "test_study.py",
    "test_theory.py",
    "test_waves.py::test_a_stopped_run_is_a_prefix",
    "test_wheel.py",
    "train",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that take little time: under a minute in all")
    parser.addoption(
        "--recordings",
        default=str(Path(__file__).parent / "parity"),
        help="folder with recordings of public implementations (toys/, decoders/, schedules.json, graders/)",
    )
    parser.addoption(
        "--data",
        default=os.environ.get("UNMASK_DATA"),
        help="folder with the files of the public benchmarks (sudoku4/, countdown/, math/, code/); docs/guide/tasks.md",
    )
    parser.addoption(
        "--images", default=None, help="folder for pictures of larger reports, taken by the browser tests (docs/img)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: half as many again as there are cores, for tests that wait: for a server, a limit, a browser."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no search for garbage looks at it again."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick, slow folders and files are not even imported."""
    place = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if config.getoption("--quick") and place in SLOW else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --quick, slow tests of other files are left out."""
    if config.getoption("--quick"):
        here = Path(__file__).parent
        named = {item: f"{item.path.relative_to(here).as_posix()}::{item.name.partition('[')[0]}" for item in items}
        config.hook.pytest_deselected(items=[item for item in items if named[item] in SLOW])
        items[:] = [item for item in items if named[item] not in SLOW]
