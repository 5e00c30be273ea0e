"""Reports in Chromium: scrubbing, playing, particles; hostile texts and large walks."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from screen import Open, large, settle, shown

from unmask import Recipe, decode, load
from unmask.decoding import trace
from unmask.decoding.trace import Event
from unmask.report.page import report

# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("walk", ["board", "prose", "words"])
def test_every_state_is_that_of_the_trace(walk: str, show: Open, request: pytest.FixtureRequest) -> None:
    """In any order of scrubbing, with resampling, reopened positions and prompts of different lengths."""
    events = request.getfixturevalue(walk)
    states = list(trace.replay(events))
    page = show(events)
    order = [*range(len(states)), *random.Random(1).sample(range(len(states)), len(states))]
    for step in order:
        found = page.evaluate("(step) => [...unmask.trace.at(step).tokens]", step)
        wide = len(found) // len(states[step])
        for row, canvas in enumerate(states[step]):
            assert found[row * wide : row * wide + len(canvas)] == canvas, (step, row)
    rows = len(states[0])
    lines = page.evaluate("(rows) => Array.from({length: rows}, (_, row) => [...unmask.trace.line(row)])", rows)
    for row, path in enumerate(trace.lineages(events)):
        mine = [event["h"][slot] for event, slot in zip(events[1:-1], lines[row], strict=False)]
        assert mine == path
        assert page.evaluate("(row) => unmask.trace.meanEntropy(row)", row) == pytest.approx(
            sum(h for h in path if h is not None) / sum(h is not None for h in path), rel=1e-4
        )


def test_scrubbing_shows_the_path_of_the_chosen_particle(prose: list[Event], show: Open, picture) -> None:
    page = show(prose)
    model, start, end = load("text"), prose[0], prose[-1]
    states = list(trace.replay(prose))
    line = page.evaluate("(row) => [...unmask.trace.line(row)]", end["chosen"][0])
    slider = page.get_by_role("slider")
    for step in (0, 3, 1, len(states) - 1):
        slider.fill(str(step))
        assert shown(page) == step
        tokens = states[step][line[step]][start["given"][0] :]
        text = "".join("▒" if token == start["mask"] else model.tokenizer.decode([token]) for token in tokens)
        assert page.locator(".one canvas").text_content() == text
        assert page.locator(".count").text_content() == f"step {step} of {len(states) - 1}"
    assert page.locator(".one canvas").text_content() == end["texts"][end["chosen"][0]]
    slider.fill(str(len(states) * 5 // 8))
    settle(page)
    picture(page, "report-text", full_page=True)


def test_what_is_drawn_changes_with_the_step(board: list[Event], show: Open) -> None:
    page = show(board)
    seen = []
    for step in (0, 4, 4, len(board) - 2):
        page.get_by_role("slider").fill(str(step))
        settle(page)
        seen.append([page.locator(f"{place} canvas").evaluate("(it) => it.toDataURL()") for place in (".one", ".all")])
    assert seen[1] == seen[2]
    assert seen[0][0] != seen[1][0] != seen[3][0] and seen[0][1] != seen[1][1] != seen[3][1]


def test_colours_by_step_or_by_entropy(board: list[Event], show: Open) -> None:
    page = show(board)
    before = page.locator(".one canvas").evaluate("(it) => it.toDataURL()")
    page.get_by_label("colour by").select_option("entropy")
    settle(page)
    assert page.locator(".one canvas").evaluate("(it) => it.toDataURL()") != before
    assert "bits" in (page.locator(".legend").text_content() or "")


def test_playing_goes_to_the_end_and_pauses(prose: list[Event], show: Open) -> None:
    page = show(prose)
    last = len(prose) - 2
    assert page.get_by_label("speed").locator("option").all_text_contents() == ["¼ ×", "½ ×", "1 ×", "2 ×", "4 ×"]
    page.get_by_label("speed").select_option("0.5")
    page.get_by_role("button", name="play", exact=True).click()
    page.wait_for_function("() => unmask.step === 2")
    page.get_by_role("button", name="pause").click()
    paused = shown(page)
    assert 2 <= paused < last
    page.wait_for_timeout(400)  # nothing moves while it is paused
    assert shown(page) == paused
    page.get_by_label("speed").select_option("4")
    page.get_by_role("button", name="play", exact=True).click()
    page.wait_for_function(f"() => unmask.step === {last} && !unmask.playing")
    page.get_by_role("button", name="play", exact=True).click()  # from the beginning
    page.wait_for_function(f"() => unmask.playing && unmask.step < {last}")


def test_the_curves_lead_to_a_step(prose: list[Event], show: Open) -> None:
    page = show(prose)
    for plot in page.locator(".plots canvas").all():
        box = plot.bounding_box()
        assert box is not None
        plot.click(position={"x": 47, "y": box["height"] / 2})
        assert shown(page) == 0
        plot.click(position={"x": box["width"] - 11, "y": box["height"] / 2})
        assert shown(page) == len(prose) - 2


def test_particles_in_the_table(board: list[Event], show: Open) -> None:
    page, end = show(board), board[-1]
    rows = page.locator("tbody tr")
    assert rows.count() == 8
    assert page.locator("tr.chosen").get_attribute("data-row") == str(end["chosen"][0])
    page.get_by_role("button", name="path entropy").click()
    found = [float(cell) for cell in page.locator("tbody td:nth-child(3)").all_text_contents()]
    assert found == sorted(found) and found == pytest.approx(sorted(end["path_entropy"]), abs=6e-4)
    page.get_by_role("button", name="path entropy").click()
    assert page.locator("th[aria-sort=descending]").text_content() == "path entropy"
    rows.nth(0).click()
    settle(page)
    worst = rows.nth(0).get_attribute("data-row")
    assert "selected" in str(rows.nth(0).get_attribute("class"))
    assert str(page.locator(".one canvas").get_attribute("aria-label")).startswith(f"Particle {worst} ")


@pytest.mark.parametrize(("choose", "said"), [("likelihood", "log-probability"), ("surprise", "surprise")])
def test_what_a_path_was_chosen_by(choose: str, said: str, show: Open) -> None:
    recipe = Recipe("uniform", "best-of-n", steps=3, length=6, temperature=1.0, particles=4, choose=choose)
    seen: list[Event] = []
    decode(load("table"), recipe=recipe, on_event=seen.append)
    page, end = show(seen), seen[-1]
    assert page.locator("h3").first.text_content() == f"Path of particle {end['chosen'][0]}, chosen by {said}"
    assert page.locator(".settings div:has(dt:text-is('chosen by')) dd").text_content() == said
    assert page.locator(".settings dt:text-is('choose')").count() == 0  # said once
    kind, name = ("surprise", "surprise") if choose == "surprise" else ("log p", "log_prob")
    page.get_by_role("button", name=kind).click()
    found = [float(cell) for cell in page.locator("tbody td:nth-child(4)").all_text_contents()]
    assert found == pytest.approx(sorted(end[name]), abs=6e-4)
    older = {name: value for name, value in end.items() if name not in ("choose", "log_prob", "surprise")}
    page = show([*seen[:-1], older])
    assert page.locator("h3").first.text_content() == f"Path of particle {end['chosen'][0]}, chosen"
    assert not page.locator("th", has_text="log p").is_visible()
    assert not page.locator("tbody td:nth-child(4)").first.is_visible()


def test_prompts_of_one_batch(words: list[Event], show: Open) -> None:
    page = show(words)
    for prompt in range(3):
        page.get_by_label("prompt").select_option(index=prompt)
        settle(page)
        texts = words[-1]["texts"][4 * prompt : 4 * prompt + 4]
        assert page.locator("td.answer").all_text_contents() == texts
        assert page.locator(".one canvas").text_content() == texts[words[-1]["chosen"][prompt]]


def test_a_walk_that_was_stopped(board: list[Event], show: Open) -> None:
    page = show(board[:5])
    assert shown(page) == 4 and page.locator("tr.chosen").count() == 0
    assert show(board[:1]).locator(".count").text_content() == "step 0 of 0"


# --- what must not break it ------------------------------------------------------------------------------------------

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e\x07\ud800&amp;"


def test_hostile_texts_are_only_texts(show: Open) -> None:
    recipe = {"sampler": HOSTILE, HOSTILE: HOSTILE}
    start = {"event": "start", "version": 1, "model": HOSTILE, "recipe": recipe, "seeds": [2**63 - 1], "particles": 2}
    events: list[Event] = [
        {**start, "mask": 1, "canvases": [[1, 1, 7]], "given": [0], "words": [[7, HOSTILE]]},
        {"event": "step", "step": 0, "h": [1.0, None], "changes": [[0, 0, 8, 0.5]], "words": [[8, HOSTILE]]},
        {"event": "end", "chosen": [0], "path_entropy": [1.0, 2.0], "texts": [HOSTILE, HOSTILE]},
    ]
    page = show(events)
    assert page.evaluate("window.hacked") is None
    assert page.locator("td.answer").first.text_content() == HOSTILE
    assert page.locator("script").count() == 2 and page.locator("img").count() == 0
    assert "9223372036854775807" in (page.locator(".settings").text_content() or "")
    assert "<script>" in page.title()


def test_a_large_walk_does_not_freeze(show: Open, tmp_path: Path) -> None:
    """64 particles × 1,024 columns × 1,024 steps; the thresholds are far above what a quiet machine takes."""
    events = list(large())
    path = tmp_path / "large.html"
    path.write_text(report(events), encoding="utf-8")
    page = show("about:blank", wait="() => true")
    page.add_init_script(
        "window.longest = 0; new PerformanceObserver((list) => list.getEntries().forEach((task) =>"
        " { window.longest = Math.max(window.longest, task.duration); })).observe({type: 'longtask', buffered: true});"
        "const look = () => { if (window.unmask?.drawnWide) window.seen = performance.now();"
        " else requestAnimationFrame(look); }; look();"
    )
    page.goto(path.as_uri())
    page.wait_for_function("() => window.seen")
    times = page.evaluate(
        "() => Array.from({length: 80}, (_, turn) => { const began = performance.now();"
        " unmask.step = (turn * 617) % 1025; unmask._paint(false); return performance.now() - began; })"
    )
    frames = page.evaluate(
        "async () => { const found = []; for (let turn = 0; turn < 30; turn++) { const began = performance.now();"
        " unmask.go((turn * 617) % 1025);"
        " await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
        " found.push(performance.now() - began); } return found; }"
    )
    times.sort()
    frames.sort()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    figures = {
        "MiB": path.stat().st_size / 2**20,
        "first paint, ms": paint,
        "views, ms": page.evaluate("window.seen"),
        "longest task, ms": page.evaluate("window.longest"),
        "scrub, median, ms": times[40],
        "scrub, worst, ms": times[-1],
        "until it is on the screen, median, ms": frames[15],
        "heap, MiB": page.evaluate("performance.memory.usedJSHeapSize / 2**20"),
    }
    print({name: round(value, 2) for name, value in figures.items()})
    assert figures["MiB"] < 2 and figures["views, ms"] < 5000 and figures["longest task, ms"] < 2000
    assert figures["scrub, median, ms"] < 50 and figures["scrub, worst, ms"] < 250
    states = list(trace.replay(events))
    for step in (1000, 3, 517):
        assert page.evaluate("(step) => [...unmask.trace.at(step).tokens]", step) == [*itertools.chain(*states[step])]
