"""Import paths of 0.1 still work, and warn."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings

import pytest
import torch

import unmask
from unmask.core.beliefs import Drawn
from unmask.errors import UnmaskError

LM_EVAL = importlib.util.find_spec("lm_eval") is not None
# What the guide of 0.1 imported, by module.
GUIDE = {
    "bench": "canvases run summary",
    "countdown": "canvas answer fault parse",
    "engine": "Rules walk",
    "judge": "Rules figures judged load_judge opinions read_samples",
    "models.text": "Characters",
    "page": "report",
    "prompt": "from_prompt start",
    "read": "Draw",
    "sandbox": "Limits run",
    "shipped": "RECIPES",
    "state": "State Vocab",
    "sudoku": "canvas parse",
    "trace": "load replay lineages ancestry",
}


@pytest.mark.parametrize("old", unmask._MOVED)
def test_every_alias_leads_somewhere(old: str) -> None:
    sys.modules.pop(f"unmask.{old}", None)
    with pytest.warns(DeprecationWarning, match=rf"unmask\.{old} is now ") as caught:
        module = importlib.import_module(f"unmask.{old}")
    assert len(caught) == 1
    with pytest.raises(UnmaskError if old == "lmeval" and not LM_EVAL else AttributeError, match=r"lm-eval|nonsense"):
        module.nonsense  # noqa: B018


def test_the_names_of_the_guide() -> None:
    for old, names in GUIDE.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(f"unmask.{old}")
        for name in names.split():
            assert callable(getattr(module, name)) or name == "RECIPES", f"unmask.{old}.{name}"


def test_the_warning_names_the_line_of_the_user() -> None:
    code = "from unmask.read import Draw\nfrom unmask import sudoku\nimport unmask\nunmask.countdown.canvas"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    assert [line.split(":")[:2] for line in lines] == [["<string>", "1"], ["<string>", "2"], ["<string>", "4"]]


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, unmask; print(*[name for name in sys.modules if name.startswith(('torch', 'numpy', 'unmask.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["unmask._version"]


def test_public_names_are_there() -> None:
    for name in unmask.__all__:
        assert getattr(unmask, name) is not None
    assert set(unmask.__all__) <= set(dir(unmask))
    with pytest.raises(AttributeError, match="nonsense"):
        unmask.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="nonsense"):
        importlib.import_module("unmask.nonsense")


def test_former_names_of_callbacks_work() -> None:
    told: list[tuple[int, int]] = []
    with pytest.warns(DeprecationWarning, match="tell is now called on_progress"):
        unmask.score(unmask.load("table"), ["tea"], draws=1, tell=lambda done, total: told.append((done, total)))
    assert told


def test_attributes_of_the_package_are_the_modules_of_the_guide() -> None:
    with pytest.warns(DeprecationWarning, match=r"unmask\.bench is now"):
        bench = unmask.__getattr__("bench")  # as `from unmask import bench` asks for it
    assert bench.summary is importlib.import_module("unmask.evaluate.compare").summary
    with pytest.warns(DeprecationWarning, match=r"unmask\.read is now"):
        assert unmask.__getattr__("read").Draw is unmask.DrawRule


def test_names_that_samplers_of_ones_own_used() -> None:
    from unmask.samplers import Turn

    fields = dict.fromkeys(("token", "model_logp", "log", "entropy", "top", "second"), torch.zeros(1))
    drawn = Drawn(**fields)
    assert drawn.raw is drawn.model_logp
    given = Turn(None, 0, "beliefs", None)  # type: ignore[arg-type]
    assert given.raw == given.beliefs
