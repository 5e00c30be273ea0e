"""Options of the whole test suite."""

import os
import signal
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # one test per core; small tensors gain nothing from more
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its children


def pytest_addoption(parser: pytest.Parser) -> None:
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
