"""What the browser tests share: waiting, keys, and a large walk made of random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from playwright.sync_api import Page

from unmask.decoding.trace import Event

Open = Callable[..., Page]
PUZZLE = "070000028053000000000005901006000010080003009004800000002006400000130600040250000"
READY = "() => window.unmask && window.unmask.drawnWide"


def settle(page: Page) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page: Page) -> int:
    settle(page)
    return int(page.evaluate("unmask.step"))


def press(page: Page, *keys: str) -> int:
    for key in keys:
        page.keyboard.press(key)
    return shown(page)


def large(particles: int = 64, columns: int = 1024, every: int = 32) -> Iterator[Event]:
    """A walk that decides one position a step in each row, made of random numbers."""
    dice = random.Random(0)
    spelled = [[token, f" w{token}"] for token in range(2, 5000)]
    recipe = {"sampler": "uniform", "search": "smc", "steps": columns, "particles": particles, "every": every}
    start = {"event": "start", "version": 1, "model": "synthetic", "recipe": recipe, "seeds": [0], "mask": 1}
    yield {**start, "particles": particles, "canvases": [[1] * columns], "given": [0], "words": spelled}
    orders = [dice.sample(range(columns), columns) for _ in range(particles)]
    for step in range(columns):
        level = 8 * (1 - step / columns)
        event: Event = {"event": "step", "step": step, "h": [level + dice.random() for _ in range(particles)]}
        if step and step % every == 0:
            event["ancestors"] = sorted(dice.choices(range(particles), k=particles))
            orders = [list(orders[ancestor]) for ancestor in event["ancestors"]]
        picked = [order.pop(dice.randrange(len(order))) for order in orders]
        event["changes"] = [[r, c, dice.randrange(2, 5000), level * dice.random()] for r, c in enumerate(picked)]
        yield {**event, "calls": [step + 1], "evaluations": [particles * (step + 1)]}
    entropies = [4 + dice.random() for _ in range(particles)]
    yield {"event": "end", "chosen": [5], "path_entropy": entropies, "texts": ["a text " * 150] * particles}
