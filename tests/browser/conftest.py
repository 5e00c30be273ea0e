"""A real Chromium, walks to look at, and pictures of them.

Without Chromium these tests are skipped, unless UNMASK_BROWSER=required. Every page must stay silent: no message on its
console, no error, no request to the network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from screen import PUZZLE, READY, Open, settle

from unmask import Recipe, decode, decode_batch, load
from unmask.decoding.trace import Event
from unmask.report.page import report

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
NEEDED = os.environ.get("UNMASK_BROWSER") == "required"
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d ")

# --- what is shown ---------------------------------------------------------------------------------------------------


def walked(**given: Any) -> list[Event]:
    """The events of a decode, as a file would hold them."""
    seen: list[Event] = []
    decode(on_event=seen.append, **given)
    return json.loads(json.dumps(seen))


@pytest.fixture(scope="session")
def big_enough(request: pytest.FixtureRequest) -> bool:
    """Whether pictures are taken: then of walks that are worth it."""
    return request.config.getoption("--images") is not None


@pytest.fixture(scope="session")
def board(big_enough: bool) -> list[Event]:
    steps = 28 if big_enough else 10
    recipe = Recipe(sampler="uniform", temperature=1.0, search="smc", particles=8, every=None, steps=steps, seed=3)
    model = load("sudoku")
    canvas = [model.vocab.mask if sign == "0" else int(sign) - 1 for sign in PUZZLE]
    return walked(model=model, canvas=canvas, recipe=recipe)


@pytest.fixture(scope="session")
def prose(big_enough: bool) -> list[Event]:
    size = {"steps": 32, "length": 64, "particles": 8} if big_enough else {"steps": 8, "length": 16, "particles": 4}
    recipe = Recipe(
        sampler="uniform", temperature=1.0, search="smc", every=2 + 2 * big_enough, seed=1, ban=("eos",), **size
    )
    return walked(model=load("text"), prompt="Once upon a time", recipe=recipe)


@pytest.fixture(scope="session")
def words() -> list[Event]:
    """A walk of a sampler that masks positions again, over three prompts of different lengths."""
    seen: list[Event] = []
    recipe = Recipe(sampler="p2", steps=6, temperature=1.0, search="smc", particles=4, every=2)
    canvases = ["[MASK*6]", "t[MASK*4]", "[MASK*3]"]
    decode_batch(load("table"), canvases=canvases, recipe=recipe, on_event=seen.append)
    return json.loads(json.dumps(seen))


# --- the browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")  # and no longer: other tests count the children of this process
def browser() -> Iterator[Browser]:
    if CHROMIUM is None and not NEEDED:
        pytest.skip("no chromium: apt-get install chromium")
    assert CHROMIUM is not None, "no chromium, and UNMASK_BROWSER=required"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """A function that opens the report of some events, or an address; at the end, nothing may have been complained of.

    With `refused`, the browser's own note that the server refused a request is no complaint.
    """
    pages: list[Page] = []
    noise: list[str] = []

    def opened(
        events: list[Event] | str,
        wide: int = 1120,
        high: int = 900,
        wait: str = READY,
        refused: bool = False,
        **settings: Any,
    ) -> Page:
        page = browser.new_page(viewport={"width": wide, "height": high}, **settings)
        pages.append(page)
        page.on("console", lambda message: (refused and REFUSED.match(message.text)) or noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on(
            "request",
            lambda asked: asked.url.startswith("http") and "127.0.0.1" not in asked.url and noise.append(asked.url),
        )
        address = events
        if not isinstance(events, str):
            path = tmp_path / f"{len(pages)}.html"
            path.write_text(report(events), encoding="utf-8", errors="replace")
            address = path.as_uri()
        page.goto(str(address))
        page.wait_for_function(wait)
        return page

    yield opened
    for page in pages:
        page.close()
    assert noise == []


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that takes a picture of a page, if pictures are wanted; in few colours, so that it is small."""

    def take(page: Page, name: str, **settings: Any) -> None:
        folder = request.config.getoption("--images")
        if folder is not None:
            path = Path(folder) / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            page.evaluate("document.activeElement.blur()")
            settle(page)
            page.screenshot(path=path, **settings)
            full = Image.open(path).convert("RGB")
            few = full.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
            few.save(path, optimize=True)

    return take
