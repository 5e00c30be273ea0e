"""Samplers, searches, potentials and choosers of a user's own bring settings, which are checked like ours."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask import SAMPLERS, SEARCHES, Recipe, UnmaskError, decode, load
from unmask.cli import main
from unmask.core.state import State
from unmask.decoding import settings
from unmask.decoding import trace as traces
from unmask.decoding.settings import SETTINGS, Range, Setting
from unmask.samplers import Reveal, Sampler, counts, scores
from unmask.search import CHOOSERS, POTENTIALS, SCHEMES, Chooser, Potential, Search

calls: list[str] = []


def shy(pace: int = 2, bold: bool = False, steps: int | None = None) -> Sampler:
    """Confident positions first, at most `pace` steps."""
    calls.append("shy")
    return Reveal(scores.by_entropy if bold else scores.by_confidence, counts.quota, steps or pace)


def pair(apart: float = 0.5) -> Search:
    """Two paths."""
    return Search(2)


@pytest.fixture
def registered() -> Iterator[None]:
    SAMPLERS["shy"], SEARCHES["pair"] = shy, pair
    yield
    del SAMPLERS["shy"], SEARCHES["pair"]


def test_a_potential_a_scheme_and_a_chooser(monkeypatch: pytest.MonkeyPatch) -> None:
    def tilted(state: State, width: int, tilt: float = 1.0) -> Tensor:
        return -tilt * state.entropy

    def turned(weights: Tensor, total: Tensor, noise: Tensor, turn: int = 1) -> Tensor:
        return (SCHEMES["systematic"](weights, total, noise) + turn) % weights.shape[1]

    def numbered(state: State, answers: list[Any], number: int = 0) -> Tensor:
        return torch.full((len(state.tokens) // state.particles,), number)

    monkeypatch.setitem(POTENTIALS, "tilted", Potential(tilted))
    monkeypatch.setitem(SCHEMES, "turned", turned)
    monkeypatch.setitem(CHOOSERS, "numbered", Chooser("numbered", numbered))
    how = {"search": "smc", "every": 1, "potential": "tilted", "scheme": "turned", "choose": "numbered"}
    recipe = Recipe(sampler="uniform", temperature=1.0, length=4, **how, tilt=2.0, turn=2, number=3)
    assert Recipe.from_text(recipe.to_text()) == recipe and decode(load("table"), "a", recipe=recipe).chosen == 3
    assert recipe.build_search().potential.score.keywords == {"tilt": 2.0}  # type: ignore[attr-defined]
    assert recipe.build_search().scheme.keywords == {"turn": 2}  # type: ignore[attr-defined]
    assert decode(load("table"), "a", recipe=recipe.replace(number=None)).chosen == 0
    assert refused(search="smc", tilt=2.0).endswith("search smc: leave it out, or use potential tilted")
    assert refused(search="smc", potential="tilted", tilt="x") == "tilt is 'x': give a number"
    assert settings.known()["number"].kind is int and settings.takers("turn") == {"scheme turned": 1}


def refused(**how: Any) -> str:
    with pytest.raises(UnmaskError) as caught:
        Recipe(**how)
    assert caught.value.hint and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_function_with_settings() -> None:
    recipe = Recipe(sampler=shy, settings={"pace": 3}, length=6)
    assert recipe.build_sampler().steps == 3 and recipe.name("sampler") == "shy"
    assert recipe.to_dict() == {"sampler": "shy", "search": "vanilla", "length": 6, "pace": 3}
    assert recipe.get("pace") == 3 and recipe.get("bold") is None and recipe.settings == {"pace": 3}
    assert decode(load("table"), [0], recipe=recipe.replace(length=4)).steps == 3
    assert Recipe(sampler=shy).build_sampler().steps == 2  # the default of the signature


def test_values_are_checked() -> None:
    assert refused(sampler=shy, settings={"pace": 2.5}) == "pace is 2.5: give a whole number"
    assert refused(sampler=shy, settings={"bold": 1}) == "bold is 1: give true or false"
    assert refused(sampler=shy, settings={"pase": 2}) == "unknown setting 'pase': did you mean 'pace'?"
    assert refused(sampler=shy, settings={"pace": 2}, pace=3) == "pace is given twice: leave one out"
    assert refused(sampler=shy, settings=3) == "settings is 3: give names and values"
    assert refused(sampler=shy, settings={"bound": 0.1}).startswith("bound has no effect on sampler shy with search")
    assert refused(beems=2) == "unknown setting 'beems': did you mean 'beams'?"


def test_a_setting_that_has_a_field_stands_in_it() -> None:
    assert Recipe(sampler=shy, settings={"steps": 4}) == Recipe(sampler=shy, steps=4)
    assert Recipe(sampler="eb", settings={"bound": 0.1}).settings == {}


def test_equality_hash_replace_and_pickle() -> None:
    one, same = Recipe(sampler=shy, settings={"pace": 3}), Recipe(sampler=shy, pace=3)
    assert one == same and hash(one) == hash(same) and one != Recipe(sampler=shy, pace=4)
    assert one.replace(pace=4) == Recipe(sampler=shy, pace=4) and one.replace(seed=1).settings == {"pace": 3}
    assert one.replace(settings={}) == Recipe(sampler=shy) == one.replace(pace=None)
    assert pickle.loads(pickle.dumps(one)) == one


def test_sampler_and_search_are_built_once() -> None:
    calls.clear()
    recipe = Recipe(sampler=shy, search="smc", pace=3)
    assert recipe.build_sampler() is recipe.build_sampler() and recipe.build_search() is recipe.build_search()
    assert calls == ["shy"]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("way", ["dict", "text", "json", "toml"])
def test_round_trips(way: str) -> None:
    recipe = Recipe(sampler="shy", search="pair", pace=4, bold=True, apart=0.25)
    read = getattr(Recipe, f"from_{way}")
    assert read(getattr(recipe, f"to_{way}")()) == recipe
    assert Recipe(sampler=shy, search=pair, settings={"pace": 4, "bold": True, "apart": 0.25}) == recipe


@pytest.mark.usefixtures("registered")
def test_who_takes_it() -> None:
    assert settings.takers("pace") == {"shy": 2} and settings.known()["apart"].kind is float
    assert refused(pace=3).endswith("search vanilla: leave it out, or use shy")
    assert "| `pace` | `--pace` | int |  | shy 2 |" in settings.reference()


def test_a_row_of_the_table_gives_help_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "pace", Setting("pace", int, "steps at most", Range(1, 9), group=settings.SAMPLER))
    assert refused(sampler=shy, pace=0) == "pace is 0: it must be at least 1"
    assert refused(pace=3).startswith("pace has no effect on sampler confidence")


def test_what_a_signature_must_say() -> None:
    def vague(pace) -> Sampler:  # type: ignore[no-untyped-def]
        return shy(pace)

    def needy(pace: int) -> Sampler:
        return shy(pace)

    assert refused(sampler=vague).startswith("pace of vague has no kind that a setting can have: annotate it")
    assert refused(sampler=needy) == "sampler needy needs pace: give it"
    assert Recipe(sampler=needy, pace=3).build_sampler().steps == 3


SERVED = """
import json
from test_own_settings import shy
from unmask import SAMPLERS
SAMPLERS["shy"] = shy
from unmask.server import catalog, schemas, refusals
entry = next(one for one in catalog.catalog({})["samplers"] if one["name"] == "shy")
field = schemas.Completion.model_json_schema()["properties"]["pace"]
print(json.dumps([entry["settings"][0], field["anyOf"][0]["type"], refusals.WANTED["pace"]]))
"""


def test_the_server_knows_what_was_registered_before_it() -> None:
    command = [sys.executable, "-c", SERVED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    setting, kind, wanted = json.loads(done.stdout)
    assert (setting["name"], setting["kind"], setting["default"], setting["minimum"]) == ("pace", "int", 2, None)
    assert kind == "integer" and wanted == "a whole number"


@pytest.mark.usefixtures("registered")
def test_flags_traces_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = ["generate", "a", "--model", "table", "--length", "4", "--sampler", "shy", "--search", "pair"]
    assert main([*line, "--pace", "3", "--bold", "--apart", "0.25", "--trace", str(trace), "--json"]) == 0
    expected = {"sampler": "shy", "search": "pair", "length": 4, "pace": 3, "bold": True, "apart": 0.25}
    assert json.loads(capsys.readouterr().out)["recipe"] == expected
    start = traces.load(trace)[0]
    assert start["recipe"] == expected and Recipe.from_dict(start["recipe"]).to_dict() == expected
    assert main([*line, "--pace", "x"]) == 2 and "pace is 'x': give a whole number" in capsys.readouterr().err
    assert main(["generate", "--help"]) == 0
    help = " ".join(capsys.readouterr().out.split())
    assert "--pace N a setting of shy [shy 2]" in help and "--bold" in help and "--apart X" in help
    assert main(["samplers", "shy"]) == 0 and "pace" in capsys.readouterr().out


@pytest.mark.usefixtures("registered")
def test_rows_of_an_evaluation_are_resumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    board = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
    (tmp_path / "boards.txt").write_text(f"{board}\n")
    line = ["eval", "sudoku", "--data", str(tmp_path / "boards.txt"), "--rows", str(tmp_path / "rows.jsonl")]
    for _ in range(2):
        assert main([*line, "--sampler", "shy", "--pace", "4"]) == 0 and "4 steps" in capsys.readouterr().out
    header, *rows = [json.loads(text) for text in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert header["recipe"] == {"sampler": "shy", "search": "vanilla", "pace": 4} and len(rows) == 1
    assert main([*line, "--sampler", "shy", "--pace", "5"]) == 2 and "rows.jsonl" in capsys.readouterr().err
