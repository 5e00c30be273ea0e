"""Reports without a browser: what is in them, strings of tokens, damaged traces, HTML for notebooks."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
import types
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from test_trace import EVENTS
from unmask import Recipe, Result, Table, decode, load
from unmask.cli import main
from unmask.core.state import Vocab
from unmask.decoding import trace
from unmask.decoding.trace import Event, spelling
from unmask.errors import InputError
from unmask.report.page import LIVE, MODULES, STYLES, WEB, inlined, report

HOSTILE = "</script></pre><script>alert(1)</script>'\""
RECIPE = Recipe(sampler="uniform", steps=3, length=6, temperature=1.0, search="smc", particles=4, every=1)


def packed(page: str) -> list[Event]:
    """The events inside a report."""
    found = re.search(r'id="trace">([^<]*)</script>', page)
    assert found
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(found[1])).decode().splitlines()]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk") / "path.jsonl"
    decode(load("table"), recipe=RECIPE, trace=path)
    return path


# --- strings of tokens -----------------------------------------------------------------------------------------------


def test_a_trace_holds_the_string_of_every_token_once(walk: Path) -> None:
    events = trace.load(walk)
    words = [pair for event in events for pair in event.get("words", [])]
    assert len({token for token, _ in words}) == len(words)
    known: dict[int, str] = {}
    for event in events:
        known |= dict(event.get("words", []))
        for _, _, token, _ in event.get("changes", []):
            assert known[token] == "aenrst"[token]


class Joining:
    """Writes a blank between words, none before the first, and keeps 2 for itself."""

    def encode(self, text: str) -> list[int]:
        return []

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{i}" for i in ids if i not in (2, 3))


def test_strings_stand_as_in_the_middle_of_a_text() -> None:
    spell = spelling(Joining(), Vocab(mask=9, eos=(2,)))
    assert spell({"canvases": [[1, 9, 2]]})["words"] == [[1, " w1"], [2, "⟨eos⟩"]]
    assert spell({"changes": [[0, 0, 3, 0.1], [0, 1, 1, 0.1]]})["words"] == [[3, "⟨3⟩"]]
    assert "words" not in spell({"changes": [[0, 0, 3, 0.1]]})


def test_blanks_of_a_real_tokenizer_stay() -> None:
    seen: list[Event] = []
    model = load("text")
    result = decode(
        model,
        "Once upon",
        recipe=Recipe(length=8, sampler="uniform", temperature=1.0, ban=("eos",)),
        on_event=seen.append,
    )
    known = {token: word for event in seen for token, word in event.get("words", [])}
    assert "".join(known[token] for token in result.tokens[seen[0]["given"][0] :]) == result.text


# --- a report --------------------------------------------------------------------------------------------------------


def test_a_report_is_one_file_that_asks_for_nothing(walk: Path) -> None:
    page = report(trace.load(walk))
    assert not re.search(r"(?:src|href)=|url\(|@import|^import ", page, re.M)
    assert page.count("<script") == page.count("</script>") == 2
    assert "default-src 'none'" in page


def test_every_file_of_the_views_is_in_a_report() -> None:
    assert sorted([*MODULES, *STYLES, *LIVE]) == sorted(path.name for path in WEB.iterdir())
    for name in MODULES:
        text = (WEB / name).read_text(encoding="utf-8")
        assert "</script" not in text and "<!--" not in text
        for module in re.findall(r'^import .* from "\./(.*)";$', text, re.M):
            assert MODULES.index(module) < MODULES.index(name)
        assert len(re.findall(r"^import ", text, re.M)) == len(re.findall(r'^import \{.*\} from "\./.*";$', text, re.M))
        assert len(text.splitlines()) <= 350 and max(map(len, text.splitlines())) <= 120, name


@pytest.mark.parametrize(
    "line",
    ['import {\n  a,\n} from "./draw.js";', 'import a from "./draw.js";', "export default a;", "  export { a };"],
)
def test_inlining_refuses_what_it_cannot_drop(line: str) -> None:
    with pytest.raises(AssertionError, match=r"some.js: .* cannot be inlined"):
        inlined("some.js", f"{line}\nconst b = 1;\n")


def test_inlining_drops_imports_and_exports() -> None:
    text = 'import { a, b } from "./draw.js";\nexport function c() {}\nconst important = "import x";\n'
    assert inlined("some.js", text) == 'function c() {}\nconst important = "import x";\n'


def test_a_report_holds_the_whole_walk(walk: Path) -> None:
    events = trace.load(walk)
    kept = packed(report(events))
    assert list(trace.replay(kept)) == list(trace.replay(events))
    assert trace.ancestry(kept) == trace.ancestry(events)
    assert kept[-1]["texts"] == events[-1]["texts"]
    for mine, theirs in zip(kept[1:-1], events[1:-1], strict=True):
        assert mine["h"] == pytest.approx(theirs["h"], rel=1e-4)


def test_the_same_trace_gives_the_same_file(walk: Path) -> None:
    assert report(trace.load(walk)) == report(trace.load(walk))


def test_hostile_names_stay_names() -> None:
    start = {**EVENTS[0], "model": HOSTILE, "recipe": {"sampler": HOSTILE, "search": "smc"}, "words": [[5, HOSTILE]]}
    page = report([start, *EVENTS[1:3]])
    assert "<script>alert" not in page and page.count("</script>") == 2
    assert unescape(re.findall("<title>(.*)</title>", page)[0]) == f"unmask: {HOSTILE}"
    assert packed(page)[0]["words"] == [[5, HOSTILE]]


def old(walk: Path) -> list[Event]:
    """The trace as it was before traces had strings."""
    return [{name: value for name, value in event.items() if name != "words"} for event in trace.load(walk)]


def test_older_traces(walk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("words" in event for event in packed(report(old(walk))))  # shown as ids
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in old(walk)), encoding="utf-8")
    assert main(["report", str(path)]) == 0
    assert "3 steps" in capsys.readouterr().out
    kept = packed(path.with_suffix(".html").read_text(encoding="utf-8"))
    strings = [[pair for event in events for pair in event.get("words", [])] for events in (kept, trace.load(walk))]
    assert strings[0] == strings[1] != []


def test_a_named_model_gives_the_strings(walk: Path, tmp_path: Path) -> None:
    start, *rest = old(walk)
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in [{**start, "model": "./mine"}, *rest]))
    assert main(["report", str(path), "-o", str(tmp_path / "ids.html")]) == 0
    assert main(["report", str(path), "-o", str(tmp_path / "words.html"), "--model", "table"]) == 0
    ids, words = (packed((tmp_path / f"{name}.html").read_text(encoding="utf-8")) for name in ("ids", "words"))
    assert not any("words" in event for event in ids) and any("words" in event for event in words)


DAMAGED = {
    "no canvas": (0, {"canvases": []}),
    "an empty canvas": (0, {"canvases": [[]]}),
    "no particles": (0, {"particles": 0}),
    "a mask that is no id": (0, {"mask": "9"}),
    "a row too many": (1, {"changes": [[2, 0, 1, 0.1]]}),
    "a column too many": (1, {"changes": [[0, 3, 1, 0.1]]}),
    "a negative row": (1, {"changes": [[-1, 0, 1, 0.1]]}),
    "half a change": (1, {"changes": [[0, 0]]}),
    "a token that is none": (1, {"changes": [[0, 0, None, 0.1]]}),
    "an entropy that is none": (1, {"changes": [[0, 0, 1, "low"]]}),
    "too few entropies": (1, {"h": [1.0]}),
    "a strange ancestor": (2, {"ancestors": [0, 2]}),
    "a winner who never ran": (3, {"chosen": [2]}),
    "no winner": (3, {}),
    "words that are no pairs": (0, {"words": [[1]]}),
    "words that are no strings": (0, {"words": [[1, 2]]}),
    "another kind": (1, {"event": "stop"}),
    "two starts": (1, {**EVENTS[0]}),
    "settings that are no settings": (0, {"recipe": 3}),
    "no seeds": (0, {"seeds": []}),
    "a length too many": (0, {"given": [0, 0]}),
    "a gap": (2, {"step": 3}),
    "steps that stand the other way round": (1, {"step": 1}),
    "an entropy that is no number": (1, {"h": [float("nan"), 1.0]}),
    "a decided entropy that is no number": (1, {"changes": [[0, 1, 2, float("inf")]]}),
    "too few calls": (1, {"calls": []}),
    "too few texts": (3, {"texts": ["a"]}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_traces_are_refused(name: str) -> None:
    place, change = DAMAGED[name]
    events = [dict(event) for event in EVENTS]
    events[3]["chosen"] = [0]
    report(events)
    events[3] = {"event": "end"} if name == "no winner" else events[3]
    events[place] |= change
    with pytest.raises(InputError, match=f"line {place + 1} of the trace is damaged: [^\n]+$"):
        report(events)


def test_nothing_follows_the_end() -> None:
    end = {"event": "end", "chosen": [0]}
    for events, line in (([*EVENTS[:2], end, EVENTS[2]], 4), ([*EVENTS[:2], end, end], 4), ([EVENTS[0]] * 2, 2)):
        with pytest.raises(InputError, match=f"line {line} of the trace is damaged"):
            report(events)


def test_numbers_that_are_no_json() -> None:
    """A mean over no steps is no number; decode wrote it as NaN."""
    events = [dict(event) for event in EVENTS]
    events[0]["recipe"] = {"sampler": "uniform", "bound": float("nan")}
    events[3] |= {"chosen": [0], "path_entropy": [float("nan"), 1.0]}
    assert packed(report(events))[3]["path_entropy"] == [None, 1.0]


def test_unfinished_traces_say_so(walk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, lines = tmp_path / "path.jsonl", walk.read_text(encoding="utf-8").splitlines()
    error = json.dumps({"error": {"message": "not decoded within 2 seconds <now>", "type": "timeout_error"}})
    for kept, why in (
        ([*lines[:3], error], "it failed after 2 steps: not decoded within 2 seconds <now>"),
        ([*lines[:3], lines[3][:20]], "it breaks off after 2 steps, without an end"),
        (lines[:2], "it breaks off after 1 step, without an end"),
    ):
        path.write_text("\n".join(kept))
        assert main(["report", str(path)]) == 0
        said = capsys.readouterr()
        assert said.err == f"unmask: warning: {str(path)!r} is unfinished: {why}\n" and re.search(
            r": (1 step|2 steps), ", said.out
        )
        page = path.with_suffix(".html").read_text(encoding="utf-8")
        assert f"This trace is unfinished: {why}." in unescape(page) and "<now>" not in page
        assert [event["event"] for event in packed(page)] == ["start", *["step"] * (2 if "2 steps" in why else 1)]
    assert "This trace is unfinished" not in report(trace.load(walk))
    path.write_text("\n".join([*lines[:3], error, *lines[3:]]))
    with pytest.raises(InputError, match="line 5 of the trace is damaged: nothing may follow the error"):
        report(trace.load(path))


def test_errors_on_the_command_line(walk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*words: str) -> str:
        assert main(["report", *words]) == 2
        return capsys.readouterr().err

    assert "cannot read the trace" in fails(str(tmp_path / "none.jsonl"))
    assert "overwrite its trace" in fails(str(walk), "-o", str(walk))
    link = tmp_path / "link.html"
    link.symlink_to(walk)
    assert "overwrite its trace" in fails(str(walk), "-o", str(link))
    assert "cannot write" in fails(str(walk), "-o", str(tmp_path / "no" / "folder.html"))
    assert "no effect" in fails(str(walk), "--model", "table")
    assert "the name of the report is empty" in fails(str(walk), "-o", "")
    other, text = tmp_path / "other.jsonl", walk.read_text(encoding="utf-8")
    for data, said in (
        (text.encode("utf-16"), "is UTF-16: a trace is UTF-8"),
        (text.replace("{", "[", 2).encode(), "is not a trace"),
        (b"", "is not a trace"),
        (text.encode().replace(b'"h"', b'"\xff"', 1), "line 2 of"),
        ("\n".join([*text.splitlines()[:2], "", *text.splitlines()[2:]]).encode(), "line 3 of"),
    ):
        other.write_bytes(data)
        found = fails(str(other))
        assert said in found and found.count("\n") == 1
    other.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert trace.load(other) == trace.load(walk)
    assert main(["report", str(other), "-o", "-"]) == 0
    assert capsys.readouterr().out == report(trace.load(walk))


# --- notebooks -------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def result(texts: list[str]) -> Result:
    found = decode(load("table"), recipe=RECIPE.replace(particles=len(texts)))
    particles = [type(one)(**{**vars(one), "text": text}) for one, text in zip(found.particles, texts, strict=True)]
    return Result(**{**vars(found), "particles": particles})


def test_html_of_a_result() -> None:
    texts = [HOSTILE, "plain", "x" * 1000]
    found = result(texts)
    tags = Tags()
    tags.feed(found._repr_html_())
    assert "script" not in tags.seen and tags.seen.count("polyline") == 3 and tags.seen.count("tr") == 4
    assert found.text in tags.text and HOSTILE in tags.text and f"{found.path_entropy:.3f}" in tags.text
    assert "x" * 399 + "…" in tags.text
    assert "table" not in result(["one"])._repr_html_()


def test_show_prints_outside_of_notebooks(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(["a", "b"])
    found.show()
    assert capsys.readouterr().out.startswith(f"{found.text}\npath entropy ")


def test_show_in_a_notebook(walk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython is no part of the tests: the two names that are used stand in for it."""
    seen: list[Any] = []
    shell, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell.get_ipython = object  # type: ignore[attr-defined]
    inner.display = seen.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    found = decode(load("table"), recipe=RECIPE)
    found.show()
    found.show(walk)
    with pytest.raises(InputError, match="is the trace of another decode: give the file that this one wrote"):
        decode(load("table"), recipe=RECIPE.replace(seed=1)).show(walk)
    assert seen[0]._repr_html_() == found._repr_html_() and repr(seen[0]).startswith(found.text)
    framed = re.search(r'<iframe sandbox="allow-scripts" srcdoc="([^"]*)"', seen[1]._repr_html_())
    assert framed and unescape(framed[1]) == report(trace.load(walk))


def test_a_model_without_strings_can_be_traced(tmp_path: Path) -> None:
    import torch

    model = Table(torch.ones(3, 3, dtype=torch.float64))
    decode(model, recipe=Recipe(length=2), trace=tmp_path / "path.jsonl")
    assert report(trace.load(tmp_path / "path.jsonl"))
