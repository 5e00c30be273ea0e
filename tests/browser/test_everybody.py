"""Reports for everybody: by keyboard, narrow, light and dark, on paper, without colour vision."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from screen import Open, press, settle

from unmask.decoding.trace import Event
from unmask.report.page import WEB


def test_keyboard_only(board: list[Event], show: Open) -> None:
    page, last = show(board), len(board) - 2
    assert press(page, "Home") == 0
    assert press(page, "ArrowRight", "ArrowRight", "ArrowLeft") == 1
    assert press(page, "Shift+ArrowRight") == 1 + max(2, round(last / 10))
    assert press(page, "End") == last
    press(page, " ")
    page.wait_for_function(f"() => unmask.playing && unmask.step < {last}")
    press(page, " ")
    assert not page.evaluate("unmask.playing")
    press(page, "c")
    assert page.get_by_label("colour by").input_value() == "entropy"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "() => { const it = document.activeElement, s = getComputedStyle(it);"
            " return [it.getAttribute('aria-label') ?? it.textContent, s.outlineStyle, parseFloat(s.outlineWidth)]; }"
        )
        if here[0] in seen or page.evaluate("document.activeElement === document.body"):
            break
        assert here[1] == "solid" and here[2] >= 2, here
        seen.append(here[0])
        if here[0] == "step":  # the slider
            assert press(page, "Home", "ArrowRight", "ArrowRight") == 2
        if here[0].startswith("all particles"):
            row = page.evaluate("unmask._row()")
            press(page, "ArrowDown")
            assert page.evaluate("unmask._row()") == (row + 1) % 8
        if here[0] == "show particle 4":
            press(page, "Enter")
            assert page.evaluate("unmask._row()") == 4
    assert seen[:2] == ["play", "step"] and "path entropy" in seen and "show particle 7" in seen


def test_a_blank_on_a_button_presses_only_the_button(board: list[Event], show: Open) -> None:
    page = show(board)
    page.get_by_role("button", name="show particle 2").focus()
    press(page, " ")
    assert page.evaluate("unmask._row()") == 2 and not page.evaluate("unmask.playing")


@pytest.mark.parametrize("walk", ["board", "prose"])
def test_a_narrow_window(walk: str, show: Open, request: pytest.FixtureRequest) -> None:
    page = show(request.getfixturevalue(walk), wide=360)
    for wide in (360, 900, 320):
        page.set_viewport_size({"width": wide, "height": 800})
        page.wait_for_function("() => unmask.drawnWide === unmask._wide()")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        for canvas in page.locator("canvas").all():
            box = canvas.bounding_box()
            assert box is not None and box["width"] > 150 and box["x"] >= 0 and box["x"] + box["width"] <= wide


LUMINANCE = """(colour) => {
  const it = document.createElement("canvas").getContext("2d");
  it.fillStyle = colour; it.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...it.getImageData(0, 0, 1, 1).data].map((v) => (v / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


def contrast(page: Page, one: str, other: str) -> float:
    colours = [
        page.locator(".unmask").evaluate(f"(it) => getComputedStyle(it).getPropertyValue('--{n}')")
        for n in (one, other)
    ]
    low, high = sorted(page.evaluate(LUMINANCE, colour) for colour in colours)
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: Any, prose: list[Event], show: Open) -> None:
    page = show(prose, color_scheme=scheme)
    paper = page.evaluate(LUMINANCE, page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert paper > 0.9 if scheme == "light" else paper < 0.05
    assert contrast(page, "ink", "paper") > 7
    assert min(contrast(page, name, "paper") for name in ("soft", "chosen", "alive", "wrong")) > 4.5
    assert contrast(page, "given", "panel") > 7
    if scheme == "dark":
        page.get_by_role("slider").fill(str(len(prose) * 5 // 8))
        page.get_by_label("colour by").select_option("entropy")
        settle(page)
        drawn = [canvas.evaluate("(it) => it.toDataURL()") for canvas in page.locator("canvas").all()]
        page.emulate_media(color_scheme="light")  # the pictures follow
        settle(page)
        for before, canvas in zip(drawn, page.locator("canvas").all(), strict=True):
            assert canvas.evaluate("(it) => it.toDataURL()") != before
        assert page.evaluate(LUMINANCE, page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9


def test_scales_of_colours_are_even(prose: list[Event], show: Open) -> None:
    """Their lightness only rises or only falls, and what is written on them can be read."""
    page = show("about:blank", wait="() => true")
    source = (WEB / "palette.js").read_text(encoding="utf-8")
    address = "data:text/javascript," + source.replace("%", "%25").replace("#", "%23").replace("\n", "%0A")
    scales = page.evaluate(
        "async (address) => Object.fromEntries(Object.entries((await import(address)).SCALES)"
        ".map(([name, it]) => [name, [[...it.luminance], it.ink]]))",
        address,
    )
    for name, (luminance, ink) in scales.items():
        steps = [after - before for before, after in itertools.pairwise(luminance)]
        sign = 1 if name == "step" else -1
        assert all(sign * step > -0.002 for step in steps) and sign * (luminance[-1] - luminance[0]) > 0.5
        for light, colour in zip(luminance, ink, strict=True):
            bright = (light + 0.05) / (0.0056 + 0.05) if colour == "#111" else 1.05 / (light + 0.05)
            assert bright >= 4.0, (name, light, colour)


def test_paper(board: list[Event], show: Open, tmp_path: Path) -> None:
    """Printed from a dark screen: the page is light, and so are the pictures, which are drawn again for it."""
    page = show(board, color_scheme="dark")
    page.evaluate(
        """() => {
          window.drawn = [];
          const it = document.querySelector(".one canvas");
          const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
          const note = () => {
            probe.drawImage(it, -Math.round(it.width / 6), -9);
            drawn.push([it.width, [...probe.getImageData(0, 0, 1, 1).data]]);
          };
          note();
          for (const when of ["beforeprint", "afterprint"]) window.addEventListener(when, note);
        }"""
    )
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    before, printed, after = page.evaluate("drawn")
    assert max(before[1][:3]) < 60 and before == after  # a given cell: dark
    assert min(printed[1][:3]) > 230 and printed[0] == 2 * before[0]  # light, and sharper
    page.emulate_media(media="print", color_scheme="dark")
    settle(page)
    assert not page.get_by_role("slider").is_visible() and not page.locator(".play").is_visible()
    assert page.locator("table").is_visible() and page.locator(".plots canvas").first.is_visible()
    assert page.evaluate(LUMINANCE, page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
