"""The live page of a real server in Chromium: generate and watch, Sudokus, two recipes, what is taken along."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect
from screen import PUZZLE, Open, settle

from unmask import Denoiser, decode, load
from unmask.cli import main
from unmask.decoding import trace
from unmask.report.page import report
from unmask.server.limits import Limits, Refusal
from unmask.server.request import ServeConfig
from unmask.server.run import Server, serve
from unmask.tasks.puzzles import sudoku

HERE = "() => window.unmask"
TEXT = {"model": "text", "given": "Once upon a time", "length": 16, "seed": 3, "a.sampler": "uniform", "a.steps": 16}
WALK = {"a.temperature": 1, "a.search": "smc", "a.particles": 4, "a.every": 4}
BOARD = {"model": "sudoku", "given": PUZZLE, "seed": 2, "a.sampler": "uniform", "a.temperature": 1, "a.search": "smc"}
EIGHT = {"a.particles": 8, "a.every": 4}
SEEN = "() => { const it = unmask.columns[0].view.trace; return it.steps > 0 && !it.end; }"
IN_VIEW = """() => {
  const it = unmask.columns[0].view.trace, bar = document.querySelector(".top").getBoundingClientRect().bottom;
  const box = document.querySelector(".one canvas").getBoundingClientRect();
  const stop = document.querySelector(".bar button:not(.go)").getBoundingClientRect();
  const seen = box.height > 50 && box.top >= bar && box.bottom <= innerHeight && box.right <= innerWidth;
  return it.steps > 0 && !it.end && seen && stop.top >= 0 && stop.right <= innerWidth;
}"""
SCREENS = [(1280, 800), (390, 844)]  # a laptop and a phone


@contextmanager
def hosted(models: dict[str, Denoiser], token: str | None = None, **defaults: Any) -> Iterator[tuple[str, Server]]:
    """A server in a thread: its address."""
    there, found = threading.Event(), {}

    def ready(url: str, server: Server) -> None:
        found.update(url=url, server=server)
        there.set()

    config = ServeConfig(models, defaults, Limits())
    thread = threading.Thread(target=lambda: serve(config, port=0, token=token, on_ready=ready))
    thread.start()
    assert there.wait(20)
    try:
        yield found["url"], found["server"]
    finally:
        found["server"].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def host() -> Iterator[tuple[str, Server]]:
    with hosted({name: load(name) for name in ("sudoku", "countdown", "text")}) as here:
        yield here


@pytest.fixture
def live(host: tuple[str, Server], show: Open) -> Open:
    """A function that opens the page with some settings in its address."""

    def opened(settings: dict[str, Any], **options: Any) -> Page:
        return show(f"{host[0]}/#{urlencode(settings)}", wait=HERE, **options)

    return opened


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name)


def first(page: Page, what: str) -> Any:
    """A part of the first recipe's result."""
    return page.locator(".result").first.locator(what)


def run(page: Page) -> None:
    """Decode to the end."""
    button(page, "Decode").click()
    expect(first(page, ".outcome")).to_be_visible(timeout=60_000)
    settle(page)


def unfold(page: Page) -> None:
    """Open the settings of every recipe that is shown."""
    folded = page.locator(".recipe:visible .fold:not([open]) > summary")
    while folded.count():
        folded.first.click()


def press(page: Page, *keys: str) -> int:
    """Press keys, one after the other -> the step that is shown then."""
    for key in keys:
        page.keyboard.press(key)
    settle(page)
    return int(page.evaluate("() => unmask.columns[0].view.step"))


def figure(page: Page, name: str, column: int = 0) -> str:
    found = page.locator(".result").nth(column).locator(f".figures div:has(dt:text-is('{name}')) dd")
    return str(found.text_content())


def test_text_is_watched_while_it_is_decoded(live: Open) -> None:
    page = live({**TEXT, **WALK}, wide=390, high=844)
    button(page, "Decode").click()
    page.wait_for_function(IN_VIEW)  # a part of the walk is there before its end, where it can be seen
    assert button(page, "Stop").is_enabled()
    expect(first(page, ".outcome")).to_be_visible(timeout=60_000)
    settings = {"sampler": "uniform", "search": "smc", "length": 16, "steps": 16, "particles": 4, "every": 4, "seed": 3}
    result = decode(load("text"), "Once upon a time", temperature=1.0, **settings)
    assert first(page, ".outcome .answer").text_content() == result.text
    assert figure(page, "path entropy") == f"{result.path_entropy:.3f} bits"
    assert figure(page, "log-probability") == f"{result.best.log_prob:.3f} nats"
    assert figure(page, "chosen by") == "path entropy"
    assert figure(page, "evaluations") == "64" and figure(page, "steps") == "16"
    assert re.fullmatch(r"\d+\.\d\d", figure(page, "seconds"))
    states = page.evaluate("() => unmask.columns[0].view.trace.steps")
    assert states == 16 and page.locator("tr.chosen").count() == 1
    page.get_by_role("slider").fill("5")  # the replay, afterwards
    settle(page)
    assert first(page, ".count").text_content() == "step 5 of 16"
    assert "▒" in (first(page, ".one canvas").text_content() or "")
    expect(button(page, "Stop")).not_to_be_visible()


@pytest.mark.parametrize(("wide", "high"), SCREENS)
def test_a_sudoku_is_solved_by_eight_particles(wide: int, high: int, live: Open, picture, big_enough: bool) -> None:
    settings = {**BOARD, "a.search": "auto", "a.particles": 8, "a.steps": 28 if big_enough else 14}
    page = live(settings, wide=wide, high=high)
    assert page.get_by_label("row 1, column 2").input_value() == "7"
    for name in ("model", "A-search"):  # and what matters is there without scrolling
        expect(page.locator(f"#{name}")).to_be_in_viewport()
    button(page, "Decode").click()
    page.wait_for_function(IN_VIEW)
    expect(first(page, ".outcome")).to_be_visible(timeout=60_000)
    settle(page)
    expect(first(page, ".one canvas")).to_be_in_viewport(ratio=1)
    assert first(page, ".outcome .verdict").text_content() == "solved"
    answer = first(page, ".outcome .answer").text_content()
    assert sudoku.fault(answer, sudoku.parse(PUZZLE)) is None
    assert first(page, "tbody tr").count() == 8 and first(page, ".both.board").count() == 1
    before = first(page, ".one canvas").evaluate("(it) => it.toDataURL()")
    page.get_by_role("slider").fill("6")
    settle(page)
    assert first(page, ".one canvas").evaluate("(it) => it.toDataURL()") != before
    page.get_by_role("slider").fill("12")
    settle(page)
    page.evaluate("() => scrollTo(0, 0)")
    if wide > 1000:
        picture(page, "live-sudoku")


def test_the_page_begins_where_search_wins(live: Open, picture) -> None:
    page = live({}, wide=1280, high=800)  # nothing is set: the first example, with the search that is advised
    assert page.locator("#A-search").input_value() == "auto" and page.locator("#A-particles").input_value() == "8"
    assert button(page, "Sudoku").get_attribute("aria-pressed") == "true"
    assert page.locator(".fold .chosen").first.text_content() == "confidence, temperature 1"
    button(page, "Compare with another recipe").click()
    assert page.locator("#B-search").input_value() == "vanilla" and page.locator("#B-particles").count() == 0
    button(page, "Decode").click()
    line = page.locator(".versus")
    expect(line).to_be_visible(timeout=60_000)
    said = str(line.text_content())
    low = figure(page, "surprise").split(" ")[0]
    other = page.evaluate("() => unmask.columns[1].outcome.figures.surprise")
    assert said.startswith("Recipe A solves it, B does not. Recipe A has the lower surprise, which A chose by: ")
    assert f": {low} against {other:.3f} nats a position. Evaluations: A 456, B 57." in said
    seeds = page.evaluate("() => unmask.columns.map((one) => one.view.trace.start.seeds[0])")
    assert seeds == [1, 1] and "b.search=vanilla" in page.url
    for place, count in ((0, 8), (1, 1)):
        assert page.locator(".result").nth(place).locator("tbody tr").count() == count
    page.evaluate("() => scrollTo(0, 0)")
    page.evaluate("() => (unmask.desk.scrollTop = 10000)")
    picture(page, "live-compare")
    button(page, "Only one recipe").click()
    assert not line.is_visible() and "b." not in page.url and page.locator(".result:visible").count() == 1


def test_keyboard_only(live: Open) -> None:
    page = live({"model": "countdown", "seed": 1})
    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        here = page.evaluate("() => document.activeElement.id")
        assert outline == "solid", here
        if here == "model":
            break
    page.keyboard.press("ArrowUp")  # to sudoku
    assert page.locator("#model").input_value() == "sudoku"
    page.keyboard.press("Tab")
    focused = "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    assert page.evaluate(focused) == "Decode"  # the model and this come first
    press(page, "Tab", " ")
    assert page.evaluate(focused) == "Sudoku" and page.locator("#given").input_value().startswith("0720")
    page.get_by_label("row 1, column 1").focus()
    press(page, "ArrowDown", "ArrowRight", "ArrowRight", "4")  # row 2, column 3; the focus goes on to column 4
    assert page.get_by_label("row 2, column 3").input_value() == "4"
    press(page, "Backspace")  # nothing stands in column 4: back, and the 4 goes
    assert page.get_by_label("row 2, column 3").input_value() == ""
    press(page, "5", "Tab")  # one stop for all cells
    assert page.evaluate(focused) == "As text"
    press(page, "Enter", "Tab")
    assert page.evaluate("() => document.activeElement.id") == "given"
    assert page.locator("#given").input_value().replace(".", "0")[9:12] == "005"
    page.locator(".fold summary").first.focus()
    assert not page.locator("#A-steps").is_visible()
    press(page, "Enter")  # the settings unfold
    page.get_by_role("button", name="help on steps").focus()
    press(page, "Enter")
    assert page.locator("#A-steps-help").is_visible()
    press(page, "Tab")
    assert page.evaluate("() => document.activeElement.id") == "A-steps"
    press(page, "7", "Tab")
    press(page, "Control+Enter")
    page.wait_for_function(SEEN)
    expect(first(page, ".outcome")).to_be_visible(timeout=60_000)
    page.get_by_role("region", name="path").focus()
    assert press(page, "Home") == 0 and press(page, "ArrowRight") == 1 and press(page, "End") == 7
    press(page, " ")
    page.wait_for_function("() => unmask.columns[0].view.playing")


def test_what_is_wrong_is_one_line(live: Open) -> None:
    page = live({**BOARD, **EIGHT, "given": PUZZLE[:-1]}, refused=True)
    fault = page.locator("#fault")
    button(page, "Decode").click()
    expect(fault).to_have_text(
        "a Sudoku has 81 cells, this one has 80: write 81 characters, . or 0 for a blank", timeout=20_000
    )
    page.locator("#given").fill("77" + PUZZLE[2:])
    assert page.get_by_label("row 1, column 1").get_attribute("aria-invalid") == "true"
    button(page, "Decode").click()
    expect(fault).to_contain_text("7 twice in row 1")
    unfold(page)
    page.locator("#A-steps").fill("many")
    page.locator(".fold > summary").first.click()
    button(page, "Decode").click()
    expect(fault).to_have_text("steps of recipe A is many: give a number")
    expect(page.locator("#A-steps")).to_be_focused()  # its fold is open again
    page.locator("#given").fill(PUZZLE)
    page.locator("#A-steps").fill("0")
    button(page, "Decode").click()
    expect(fault).to_have_text("steps is 0: it must be at least 1")
    assert page.locator("#A-steps").get_attribute("aria-invalid") == "true"
    page.locator("#seed").fill("9" * 20)
    button(page, "Decode").click()
    expect(fault).to_have_text(f"the seed is {'9' * 20}: give a whole number of at most 15 digits")
    page.locator("#seed").fill("2")
    assert page.locator(".result:visible").count() == 0
    page.locator("#A-steps").fill("8")
    button(page, "Compare with another recipe").click()
    page.locator("#A-steps").fill("0")
    button(page, "Decode").click()
    expect(fault).to_have_text("steps is 0: it must be at least 1")
    expect(button(page, "Decode")).to_be_enabled()
    assert page.locator(".outcome:visible").count() == 0  # the other recipe is stopped, too
    button(page, "Only one recipe").click()
    button(page, "30 clues").click()
    run(page)
    assert not fault.is_visible()


def test_hostile_texts_are_only_texts(live: Open) -> None:
    """Script in a prompt, and in the address, is shown and not run; the policy of the page would forbid it, too."""
    hostile = "<img src=x onerror='window.hacked = 1'></textarea><script>window.hacked = 2</script>"
    page = live({"model": "text", "given": hostile, "length": "4"})
    run(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0 and hostile in page.locator("textarea").first.input_value()
    policy = page.evaluate("fetch('/').then(answer => answer.headers.get('content-security-policy'))")
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_settings_are_folded_and_help_needs_no_mouse(live: Open) -> None:
    page = live({**TEXT, **WALK, "a.late": "eos"}, wide=390, high=844, has_touch=True)
    for name in ("A-search", "A-particles", "given", "length", "seed"):
        assert page.locator(f"#{name}").is_visible()
    for name in ("A-sampler", "A-temperature", "A-every", "A-late"):
        assert not page.locator(f"#{name}").is_visible()
    set_there = "uniform, steps 16, temperature 1, every 4, late eos"  # can be read without opening it
    assert sorted(str(page.locator(".fold .chosen").first.text_content()).split(", ")) == sorted(set_there.split(", "))
    page.locator(".fold > summary").first.tap()
    assert page.locator("#A-every").is_visible() and not page.locator("#A-late").is_visible()
    help_text = page.locator("#A-temperature-help")
    assert not help_text.is_visible()
    ask = button(page, "help on temperature").first
    box = ask.bounding_box()
    assert box is not None and min(box["width"], box["height"]) >= 24
    ask.tap()
    assert help_text.is_visible() and help_text.text_content() == "of the tokens; 0 takes the most probable one"
    assert ask.get_attribute("aria-expanded") == "true"
    assert page.locator("#A-temperature").get_attribute("aria-describedby") == "A-temperature-help"
    ask.tap()
    assert not help_text.is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_every_example_is_set_with_one_click(live: Open) -> None:
    page = live({})
    models = {"Story": "text", "Word problem": "text", "Fill holes": "text", "Countdown": "countdown"}
    models |= {"five numbers": "countdown", "Sudoku": "sudoku", "17 clues": "sudoku", "Block by block": "text"}
    models |= {"Fill a form": "text"}
    for name, model in models.items():
        button(page, name).click()
        assert page.locator("#model").input_value() == model
        assert page.locator("#A-search").input_value() == "auto"
        pressed = page.locator(".examples [aria-pressed=true]")
        assert pressed.all_text_contents() == [name] and page.locator(".about").text_content()
    assert not button(page, "17 clues").is_visible()  # only with its own kind
    button(page, "Fill holes").click()
    page.locator("#A-particles").fill("2")
    run(page)
    assert re.fullmatch(
        r"Once upon a time, there was a.+ who liked to.+\. One day,.+\. They were happy\.",
        str(first(page, ".outcome .answer").text_content()),
    )
    button(page, "Fill a form").click()
    page.locator("#A-particles").fill("2")
    run(page)
    filled = r"Ben .* Red: [0-9]{1,3} Blue: [0-9]{1,3} More of them are (red|blue)\."
    assert re.fullmatch(filled, str(first(page, ".outcome .answer").text_content()))
    button(page, "Block by block").click()
    assert page.locator("#form-text").input_value() == ""
    page.locator("#length").fill("16")
    page.locator("#A-particles").fill("2")
    run(page)
    changes = page.evaluate("() => unmask.columns[0].lines.slice(1, -1).map((it) => JSON.parse(it).changes)")
    start = page.evaluate("() => unmask.columns[0].view.trace.start")
    assert start["recipe"]["attention"] == "block" and start["recipe"]["block_length"] == 8
    blocks = [[(column - start["given"][0]) // 8 for row, column, *_ in step if row == 0] for step in changes]
    written = [block for step in blocks for block in step]
    assert written == sorted(written) == [0] * 8 + [1] * 8  # one block after the other


def test_only_what_a_sampler_and_a_search_take(live: Open) -> None:
    page = live({**TEXT, **WALK})
    fields = "() => [...document.querySelectorAll('.recipe:not([hidden]) [name]')].map((it) => it.name)"
    general = {"temperature", "top_k", "top_p", "guidance", "cache_block", "ban", "late", "fill_tail", "skip_tail"}
    general |= {"scope", "attention", "end_penalty", "cache", "cache_before", "cache_after", "cache_every"}
    general |= {"constrained_entropy"}
    mine = set(page.evaluate(fields)) - general
    searching = {"particles", "every", "strength", "potential", "scheme", "target", "below", "reopen", "choose"}
    assert mine == {"steps", "block_length", *searching}
    unfold(page)
    page.locator("#A-sampler").select_option("eb")
    page.locator("#A-search").select_option("greedy")
    mine = set(page.evaluate(fields)) - general
    assert mine == {"bound", "block_length", "select_temperature", "candidates", "every", "reopen", "choose"}
    assert "a.steps" not in page.url and page.locator("#A-bound").get_attribute("placeholder") == "0.01"
    page.locator("#A-sampler").select_option("uniform")
    assert page.locator("#A-steps").input_value() == "16"  # what was set comes back


PROMPTS = ['--length It\'s "so" $HOME \\ `x` café\n-', "Once[MASK*3] a 'girl'[MASK]"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_copied_command_and_python_say_the_same(
    prompt: str, live: Open, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = live({**TEXT, **WALK, "given": prompt}, permissions=["clipboard-read", "clipboard-write"])
    run(page)
    page.locator("#seed").fill("99")  # what is set afterwards changes nothing in what is copied
    event = json.loads(page.evaluate("() => unmask.columns[0].lines.at(-1)"))
    text = event["texts"][event["chosen"][0]]
    copied = []
    for name in ("Copy the command", "Copy as Python", "Copy the link"):
        button(page, name).click()
        expect(first(page, ".actions [role=status]")).to_have_text("copied")
        copied.append(page.evaluate("() => navigator.clipboard.readText()"))
    words = shell_words(copied[0])
    capsys.readouterr()
    assert words[0] == "unmask" and main([words[1], "--json", *words[2:]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == text and found["path_entropy"] == pytest.approx(event["path_entropy"][event["chosen"][0]])
    monkeypatch.chdir(tmp_path)
    exec(compile(copied[1], "copied", "exec", dont_inherit=True), names := {})
    assert names["result"].text == text
    assert trace.load("path.jsonl")[-1]["texts"] == event["texts"]
    page.goto("about:blank")
    page.goto(copied[2])  # the link sets all, but decodes nothing by itself
    page.wait_for_function(HERE)
    assert not page.locator("#fault").is_visible() and page.locator(".result:visible").count() == 0
    run(page)
    again = json.loads(page.evaluate("() => unmask.columns[0].lines.at(-1)"))
    assert again["texts"] == event["texts"] and again["chosen"] == event["chosen"]


def shell_words(command: str) -> list[str]:
    """The words of a command as a shell reads them, which knows $'…' as well."""
    listed = subprocess.run(["bash", "-c", f'printf "%s\\0" {command}'], capture_output=True, check=True)
    return listed.stdout.decode().split("\0")[:-1]


def test_the_command_of_a_puzzle(live: Open, capsys: pytest.CaptureFixture[str]) -> None:
    page = live({"model": "countdown", "given": "3, 7,25,46", "seed": 5, "a.sampler": "margin", "a.search": "vote"})
    run(page)
    words = shlex.split(str(first(page, "pre >> nth=0").text_content()))
    main([words[1], "--json", *words[2:]])
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer == first(page, ".outcome .answer").text_content()
    row = first(page, "tr.chosen td.answer")  # as it is written, and judged
    assert str(row.text_content()).endswith(answer) and row.locator(".verdict").text_content()


def test_the_trace_is_taken_along(live: Open, tmp_path: Path) -> None:
    page = live({**TEXT, **WALK})
    run(page)
    with page.expect_download() as download:
        button(page, "Download the trace").click()
    assert download.value.suggested_filename == "unmask-text-smc-3.jsonl"
    path = tmp_path / "trace.jsonl"
    download.value.save_as(path)
    events = trace.load(path)
    assert [event["event"] for event in events] == ["start", *["step"] * 16, "end"]
    final = list(trace.replay(events))[-1]
    tokens = [token for row in final for token in row]
    assert page.evaluate("() => [...unmask.columns[0].view.trace.last.tokens]") == tokens
    assert "unmask: text" in report(events)
    assert main(["report", str(path), "-o", str(tmp_path / "report.html")]) == 0


def test_a_walk_is_stopped(live: Open, host: tuple[str, Server]) -> None:
    page = live({**TEXT, **WALK, "length": 240, "a.steps": 240, "a.particles": 16})
    button(page, "Decode").click()
    page.wait_for_function(SEEN)
    press(page, "Escape")
    expect(first(page, ".status")).to_have_text(re.compile(r"stopped after step \d+"))
    expect(button(page, "Decode")).to_be_enabled()
    assert first(page, ".one canvas").is_visible()  # what there is can be looked at
    assert "▒▒▒…▒▒▒" in str(first(page, "td.answer >> nth=0").text_content())  # without a wall of what is open
    page.locator("#length").fill("8")
    unfold(page)
    page.locator("#A-steps").fill("4")
    run(page)  # the server does not go on with the first one
    assert page.evaluate("() => unmask.columns[0].view.trace.steps") == 4


def test_a_walk_that_fails_says_so_in_its_trace(live: Open, host: tuple[str, Server], tmp_path: Path) -> None:
    page = live({**TEXT, **WALK, "length": 240, "a.steps": 240, "a.particles": 16})
    button(page, "Decode").click()
    page.wait_for_function(SEEN)
    for job in host[1].batcher.running:
        job.close(Refusal(500, "the model is gone", "fetch it"))
    expect(page.locator("#fault")).to_have_text("the model is gone: fetch it")
    expect(first(page, ".status")).to_have_text(re.compile(r"unfinished: it failed after step \d+"))
    with page.expect_download() as download:
        button(page, "Download the trace").click()
    download.value.save_as(tmp_path / "trace.jsonl")
    assert re.search(
        "after [0-9]+ steps?: the model is gone: fetch it", str(trace.ending(trace.load(tmp_path / "trace.jsonl")))
    )


def test_an_address_is_shared(live: Open) -> None:
    page = live({**TEXT, **WALK})
    button(page, "Compare with another recipe").click()
    unfold(page)
    page.locator("#B-sampler").select_option("eb")
    page.locator("#B-bound").fill("0.5")
    page.locator("#given").fill("a & b #1 = ü")
    page.locator("#seed").fill("77")
    page.locator("#seed").blur()
    said = "() => [unmask.given.text, unmask.seed.value, unmask.columns.map((one) => one.form.texts())]"
    other = live({}, wide=900)
    other.goto("about:blank")
    other.goto(page.url)
    other.wait_for_function(HERE)
    assert other.evaluate(said) == page.evaluate(said)


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        ({"model": "text", "a.sampler": "eb", "a.candidates": 3, "colour": "red"}, "colour=red, a.candidates=3"),
        ({**TEXT, **WALK, "a.scheme": "warp", "a.fill_tail": "maybe"}, "a.scheme=warp, a.fill_tail=maybe"),
        ({"model": "gpt", "a.search": "smd", "b.sampler": "oracle"}, "model=gpt, a.search=smd, b.sampler=oracle"),
        (
            {**BOARD, **EIGHT, "length": 5, "chat": "true", "c.steps": "9" * 50},
            f"c.steps={'9' * 39}…, chat=true, length=5",
        ),
    ],
)
def test_what_an_address_asks_for_in_vain_is_named(settings: dict[str, Any], lost: str, live: Open) -> None:
    page = live(settings)
    expect(page.locator("#fault")).to_have_text(f"dropped from the address, as there is no use for it here: {lost}")
    again = page.url
    page.goto("about:blank")
    page.goto(again)  # what the page made of it has nothing in vain
    page.wait_for_function(HERE)
    assert not page.locator("#fault").is_visible()


def test_settings_after_the_wrong_sign(host: tuple[str, Server], show: Open) -> None:
    page = show(f"{host[0]}/?model=text&a.steps=3&ref=mail", wait=HERE)
    said = "dropped from the address: model, a.steps, as settings stand after a #, not after a ?"
    expect(page.locator("#fault")).to_have_text(said)
    page = show(f"{host[0]}/?ref=mail#{urlencode({**TEXT, **WALK})}", wait=HERE)
    assert not page.locator("#fault").is_visible()


def test_narrow_windows_light_and_dark(live: Open) -> None:
    page = live({**BOARD, **EIGHT, "a.steps": 4, "b.sampler": "uniform", "b.steps": 4}, wide=360)
    button(page, "Decode").click()
    expect(page.locator(".versus")).to_be_visible(timeout=60_000)
    for wide in (360, 320, 1000, 1280):
        page.set_viewport_size({"width": wide, "height": 800})
        settle(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= wide
        cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
        assert page.locator(".result .scroll").evaluate_all(cut) == 0
    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for part in ("body", ".top", ".results .unmask"):
            found = page.locator(part).first.evaluate("(it) => getComputedStyle(it).backgroundColor")
            assert found == colour, part


def test_a_server_that_wants_its_token(show: Open) -> None:
    flags = {"search": "best-of-n", "particles": 3, "temperature": 0.5}
    with hosted({"table": load("table")}, token="sesame", **flags) as (address, _):
        page = show(f"{address}/", wait="() => !document.getElementById('key').hidden", refused=True)
        assert not page.locator("#page").is_visible()
        for token in ("wrong", "sesame"):
            page.get_by_label("The server's token").fill(token)
            page.keyboard.press("Enter")
            if token == "wrong":
                expect(page.locator("#fault")).to_contain_text("this server needs its token")
        page.wait_for_function(HERE)
        texts = page.evaluate("() => unmask.columns[0].form.texts()")  # flags of the server hold over the page's search
        assert (texts["search"], texts["particles"], texts["temperature"]) == ("best-of-n", "3", "0.5")
        page.locator("#given").fill("t")
        page.locator("#length").fill("4")
        run(page)
        assert "sesame" not in page.url and not page.locator("#fault").is_visible()
        page.close()
