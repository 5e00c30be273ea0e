"""What the live page is made of: its files, the catalog of settings, puzzles and the verdicts on them."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

import pytest
from serving import Running, running

from unmask import SAMPLERS, SEARCHES, Recipe, load
from unmask.decoding.settings import SETTINGS, takes
from unmask.report.page import LIVE, MODULES, STYLES, WEB
from unmask.tasks.puzzles import countdown, sudoku

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"

HARD = "070000028053000000000005901006000010080003009004800000002006400000130600040250000"


def ask(here: Running, path: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[Any, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", here.port)
    if body is None:
        line.request("GET", path, headers=headers)
    else:
        line.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
    answer = line.getresponse()
    return answer, answer.read()


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]


def refused(here: Running, **fields: Any) -> tuple[int, str]:
    answer, data = ask(here, "/v1/paths", fields)
    return answer.status, json.loads(data)["error"]["message"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_every_part_of_the_page_is_served(usual: Running) -> None:
    answer, page = ask(usual, "/")
    assert answer.status == 200 and answer.getheader("content-type") == "text/html; charset=utf-8"
    policy = str(answer.getheader("content-security-policy"))
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert b'data-token="no"' in page and b"style=" not in page and b"onclick" not in page
    wanted = re.findall(r'(?:src|href)="/web/([^"]+)"', page.decode())
    for name in wanted:  # and what they import
        answer, data = ask(usual, f"/web/{name}")
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
        assert answer.status == 200 and str(answer.getheader("content-type")).startswith(kind), name
        assert answer.getheader("x-content-type-options") == "nosniff" and data == (WEB / name).read_bytes()
        more = re.findall(r'^import .* from "\./(.*)";$', data.decode(), re.M)
        wanted += [other for other in more if other not in wanted]
    assert {*wanted, "live.html", "report.js"} == {*MODULES, *STYLES, *LIVE}
    answer, data = ask(usual, "/web/live.js", **{"if-none-match": str(ask(usual, "/web/live.js")[0].getheader("etag"))})
    assert answer.status == 304 and data == b""


@pytest.mark.parametrize("name", ["live.html", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "nothing.js", ""])
def test_nothing_else_is_served(usual: Running, name: str) -> None:
    answer, data = ask(usual, f"/web/{name}")
    assert answer.status == 404 and "error" in json.loads(data)


def test_modules_are_short_and_load_nothing_from_elsewhere() -> None:
    for name in LIVE:
        text = (WEB / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 350 and "://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        if name.endswith(".js"):
            assert max(map(len, text.splitlines())) <= 120, name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), name


def test_examples_can_be_solved() -> None:
    text = (WEB / "examples.js").read_text(encoding="utf-8")
    boards, problems = re.findall(r'"([0-9]{81})"', text), re.findall(r'"(\d+(?:,\d+){3,5})"', text)
    assert (len(boards), len(problems)) == (3, 2)
    assert [sudoku.check(sudoku.parse(board)) for board in boards] == [None] * 3
    assert [countdown.check(countdown.parse(problem)) for problem in problems] == [None] * 2


# --- the catalog -----------------------------------------------------------------------------------------------------


def test_the_catalog_is_that_of_the_registries(usual: Running) -> None:
    found = json.loads(ask(usual, "/v1/recipes")[1])
    for entries, registry in ((found["samplers"], SAMPLERS), (found["searches"], SEARCHES)):
        assert [entry["name"] for entry in entries] == list(registry)
        for entry in entries:
            assert [one["name"] for one in entry["settings"]] == takes(registry[entry["name"]])
            assert entry["summary"] and all(one["help"] for one in entry["settings"])
    assert {one["name"] for one in found["general"]} == {row.name for row in SETTINGS.values() if row.general} - {
        "sampler",
        "search",
    }
    assert found["usual"] == {"temperature": 1.0}


def test_what_the_catalog_names_is_taken(usual: Running) -> None:
    """Every choice and every default is one that a Recipe takes."""
    found = json.loads(ask(usual, "/v1/recipes")[1])
    for kind, entries in (("sampler", found["samplers"]), ("search", found["searches"])):
        for entry in entries:
            needed = {"background": "text"} if entry["name"] == "pc" else {}
            for one in entry["settings"]:
                for value in [*(one["choices"] or []), *([] if one["default"] is None else [one["default"]])]:
                    Recipe.from_dict({**needed, kind: entry["name"], one["name"]: value})
    rules = {entry["name"]: one["choices"] for entry in found["samplers"] for one in entry["settings"]
             if one["name"] == "rule"}  # fmt: skip
    assert rules["p2"] == ["self-planning", "fresh-draw"] and "entropy" in rules["dream"]


# --- puzzles ---------------------------------------------------------------------------------------------------------


def test_models_say_which_puzzles_they_are_for(usual: Running) -> None:
    data = json.loads(ask(usual, "/v1/models")[1])["data"]
    found = {one["id"]: one["unmask"]["puzzle"] for one in data}
    assert found == {
        "text": None,
        "sudoku": "sudoku",
        "countdown": "countdown",
        "table": None,
        "random": None,
        "chatty": None,
    }


def test_a_puzzle_and_its_verdicts(usual: Running) -> None:
    fields = {"model": "sudoku", "puzzle": HARD, "search": "best-of-n", "particles": 3, "seed": 1, "steps": 1}
    end = events(ask(usual, "/v1/paths", {**fields, "sampler": "uniform"})[1])[-1]
    board = sudoku.parse(HARD)
    assert end["event"] == "end" and len(end["answers"]) == 3 and end["strange"] is None
    assert end["answers"] == end["texts"]
    assert end["faults"] == [sudoku.fault(answer, board) for answer in end["answers"]]
    assert any(end["faults"])  # one step is too few
    sure = events(ask(usual, "/v1/paths", {"model": "sudoku", "puzzle": PUZZLE, "temperature": 0})[1])[-1]
    assert sure["faults"] == [None]
    several = PUZZLE.replace("5", "0", 1).replace("3", "0", 2).replace("7", "0", 1).replace("6", "0", 1)
    open_ = events(ask(usual, "/v1/paths", {"model": "sudoku", "puzzle": several, "steps": 2})[1])[-1]
    assert open_["strange"] == sudoku.check(sudoku.parse(several)) == "has several solutions"


def test_a_countdown_is_judged(usual: Running) -> None:
    with running({"countdown": load("countdown")}) as here:
        fields = {"model": "countdown", "puzzle": "15, 44,79,50", "temperature": 0, "sampler": "margin"}
        end = events(ask(here, "/v1/paths", fields)[1])[-1]
        assert end["faults"] == [countdown.fault(end["answers"][0], countdown.parse("15,44,79,50"))]
        assert refused(here, model="countdown", puzzle="1,1,1,99")[0] == 400


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"puzzle": PUZZLE[1:]}, "a Sudoku has 81 cells, this one has 80: write 81 characters, . or 0 for a blank"),
        ({"puzzle": "55" + PUZZLE[2:]}, "the clues clash: 5 twice in row 1: "),
        ({"puzzle": PUZZLE, "prompt": "1"}, "prompt, messages, canvas and puzzle exclude each other: "),
        ({"puzzle": PUZZLE, "max_tokens": 3}, "max_tokens has no effect on a puzzle: leave it out"),
        ({"puzzle": PUZZLE, "model": "text"}, "text is not a model of puzzles: give a prompt or a canvas"),
        ({"puzzle": ""}, "a Sudoku has 81 cells, this one has 0: "),
    ],
)
def test_what_is_no_puzzle_is_refused_in_one_line(usual: Running, fields: dict[str, Any], said: str) -> None:
    status, message = refused(usual, **{"model": "sudoku", **fields})
    assert status == 400 and message.startswith(said) and "\n" not in message
