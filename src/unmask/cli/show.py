"""Results and registries -> what people read in a terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Grid
from rich.text import Text

from unmask.errors import many as many
from unmask.errors import unknown

if TYPE_CHECKING:  # a command that only prints a table loads no model and no torch
    from unmask.decoding.decode import Result
    from unmask.decoding.named_recipes import NamedRecipe
    from unmask.decoding.trace import Event, OnEvent
    from unmask.evaluate.fleet import Fleet
    from unmask.evaluate.fleet import Progress as FleetProgress
    from unmask.models.laws import Verdict


def console(stderr: bool = False) -> Console:
    """Standard output, or standard error, without markup, and with room for tables when it is not a terminal."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 120
    return Console(markup=False, emoji=False, highlight=False, width=width, stderr=stderr)


def grid(*columns: str, right: tuple[str, ...] = ()) -> Grid:
    """An empty table; the columns named in `right` hold numbers."""
    made = Grid(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


# --- results ---------------------------------------------------------------------------------------------------------


EMPTY = "The text is empty: its end was decided before any word. --late eos decides ends last."
ALIKE = "all paths are the same: with --temperature, or --select-temperature, they part"


def result(found: Result, ends: bool = False) -> None:
    """The text, and on standard error what it cost, the other particles, and remarks; `ends`: the model knows ends."""
    answer(found.text)
    note(found.cost() + (" · no end within the length" if ends and found.finish == "length" else ""))
    if len(found.particles) > 1:
        console(stderr=True).print(particles(found))
        if found.alike:
            note(ALIKE)
    if ends and found.finish == "end" and not found.text and "eos" not in found.recipe.late:
        note(EMPTY)


def answer(text: str) -> None:
    """Standard output has the answer alone; it is there before any note on it."""
    print(safe(text), flush=True)


def note(text: str) -> None:
    """A line about an answer, on standard error."""
    print(safe(text, sys.stderr), file=sys.stderr)


def particles(found: Result) -> Grid:
    """All particles, with what they were chosen by; the chosen one has a mark."""
    other = {"likelihood": "log p", "surprise": "surprise", "auto": "surprise", "look": "look"}.get(found.choice)
    names = ["path entropy", *([other] if other else []), "steps"]
    made = grid("", "particle", "text", *names, "began as", right=tuple(names))
    texts = apart([particle.text for particle in found.particles])
    for place, particle in enumerate(found.particles):
        mark = "▶" if place == found.chosen else ""
        value = {"log p": particle.log_prob, "look": particle.look}.get(other or "", particle.surprise)
        told = [] if not other else ["–" if value is None else f"{value:.4g}"]
        numbers = [f"{particle.path_entropy:.3f}", *told, str(particle.steps)]
        made.add_row(mark, str(place), one_line(texts[place], stream=sys.stderr), *numbers, str(particle.origin))
    return made


def apart(texts: Sequence[str]) -> list[str]:
    """Texts for a column; a long beginning that all of them share is left out, but for its last word."""
    least, most = min(texts), max(texts)  # what these two share, all share
    shared = next((place for place, pair in enumerate(zip(least, most, strict=False)) if len(set(pair)) > 1), 0)
    start = least[:shared].rstrip().rfind(" ")
    return [f"…{text[start:]}" for text in texts] if len(set(texts)) > 1 and start >= 8 else list(texts)


def board(cells: Sequence[int]) -> str:
    """A Sudoku, its boxes apart; 0 is a blank."""
    signs = ["." if cell == 0 else str(cell) for cell in cells]
    rows = [" ".join(signs[start : start + 3]) for start in range(0, 81, 3)]
    lines = [" | ".join(rows[start : start + 3]) for start in range(0, 27, 3)]
    frame = "\n------+-------+------\n"
    return frame.join("\n".join(lines[start : start + 3]) for start in range(0, 9, 3))


STYLES = {"clue": "bold cyan", "new": "black on green", "earlier": "green", "masked": "dim"}


def painted(cells: Sequence[int], clues: Sequence[int], before: Sequence[int]) -> Text:
    """A Sudoku on its way, coloured as STYLES says; `before` is the board one step ago."""
    text = Text(board(cells))
    places = [place for place, sign in enumerate(text.plain) if sign.isdigit() or sign == "."]
    for place, cell, clue, last in zip(places, cells, clues, before, strict=True):
        kind = "clue" if clue else "masked" if not cell else "earlier" if last else "new"
        text.stylize(STYLES[kind], place, place + 1)
    return text


def colours() -> Text:
    """What the colours of a painted board mean."""
    return Text("  ").join(Text(kind, STYLES[kind]) for kind in STYLES)


def one_line(text: str, most: int = 32, stream: TextIO | None = None) -> str:
    """Text for a cell of a table: on one line, and short enough for the other columns."""
    return safe((text if len(text) <= most else text[: most - 1] + "…").replace("\n", "↵"), stream)


def safe(text: str, stream: TextIO | None = None) -> str:
    """Text for standard output, or another stream: a terminal would obey control characters, which are written out."""
    screen = (stream or sys.stdout).isatty()
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", _written, text) if screen else text


def _written(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


# --- registries ------------------------------------------------------------------------------------------------------


def listed(kind: str, entries: Sequence[dict[str, Any]], args: Namespace) -> None:
    """All entries of a registry, or the one that the flags name; as JSON where they ask for it."""
    chosen = entries if args.name is None else [one for one in entries if one["name"] == args.name]
    if not chosen:
        raise unknown(kind, args.name, [one["name"] for one in entries])
    if args.json:
        print(json.dumps(chosen if args.name is None else chosen[0]))
    elif args.name is None:
        console().print(registry(chosen))
    else:
        detail(chosen[0])


def registry(entries: Sequence[dict[str, Any]]) -> Grid:
    """One line for each entry: what it is and its settings with their defaults."""
    made = grid("name", "what it is", "settings")
    for about in entries:
        made.add_row(about["name"], about["summary"], " ".join(map(_setting, about["settings"])))
    return made


def _setting(setting: dict[str, Any]) -> str:
    return setting["name"] if setting["default"] is None else f"{setting['name']}={setting['default']}"


def detail(about: dict[str, Any]) -> None:
    """One entry with all its settings."""
    print(f"{about['name']}: {about['summary']}")
    if about["more"]:
        print(about["more"])
    if about["settings"]:
        made = grid("setting", "default", "what it does")
        for setting in about["settings"]:
            default = "" if setting["default"] is None else str(setting["default"])
            made.add_row(setting["name"], default, setting["help"])
        console().print(made)
    for name, value in about.get("facts", {}).items():
        print(f"{FACTS.get(name, name)}: {_fact(value)}")


FACTS = {  # of a model: what they mean in words
    "shifted": "output i predicts token i + 1",
    "timed": "takes the time as an input",
    "mask": "id of the mask",
    "eos": "ids that end a text",
    "absent": "ids outside its distribution",
    "limit": "longest row, in tokens",
}


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{key}={_fact(one) if isinstance(one, list | tuple) else one}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def recipes(found: Sequence[NamedRecipe]) -> Grid:
    """One line for each named recipe."""
    made = grid("name", "what it is")
    for one in found:
        made.add_row(one.name, one.about)
    return made


def recipe(one: NamedRecipe) -> None:
    """A named recipe: its settings as a recipe file has them, and the command that runs it."""
    print(f"{one.name}: {one.about}")
    for name, value in one.settings.items():
        print(f"  {name} = {_toml(value)}")
    if one.beyond:
        print(f"Not in the paper: {one.beyond}.")
    if one.needs:
        print(f"You give: {', '.join(one.needs)}.")
    print(one.command())
    if one.evaluation() is not None:
        others = ", ".join(one.tasks[1:])
        print(f"{one.evaluation()}" + (f"    also {others}" if others else ""))
    for table in one.tables:
        print(f"unmask paper {table}")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def verdicts(found: Sequence[Verdict]) -> None:
    """The laws of a model, one line each."""
    made = grid("", "law", "what was found")
    for verdict in found:
        made.add_row({True: "✓", False: "✗", None: "–"}[verdict.held], verdict.law, verdict.detail)
    console().print(made)


def memory_used(found: Mapping[str, int]) -> str:
    """One line: weights and peaks."""
    names = {"weights": "weights", "device_peak": "peak on the device", "host_peak": "peak on the host"}
    return " · ".join(f"{text} {found[name] / 2**30:.2f} GiB" for name, text in names.items() if name in found)


# --- progress --------------------------------------------------------------------------------------------------------


def progress() -> Progress:
    """A bar on standard error, only where that is a terminal."""
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *times
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def milestone(line: str) -> None:
    """A line on standard error, unless that is a terminal, which shows a bar."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def paced(seconds: float = 10) -> Callable[[str], None]:
    """`milestone`, with at most one line in this many seconds."""
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            milestone(line)

    return tell


@contextmanager
def training() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A callback that shows training: a bar on a terminal, and a line for each validation."""
    with progress() as bar:
        task = bar.add_task("step 0", total=1.0)

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "step":
                about = f"step {event['step']}, loss {event['loss']:.4f}"
                bar.update(task, completed=event["progress"], description=about)
            elif event["event"] == "validating":
                bar.update(task, description=f"step {event['step']}, validating")
            elif event["event"] == "validation":
                line = ", ".join(f"{name} {_short(value)}" for name, value in event.items() if name != "event")
                bar.console.print(line, soft_wrap=True, markup=False, highlight=False)

        yield on_event


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@contextmanager
def following() -> Iterator[OnEvent | None]:
    """A callback that shows how many positions are decided: a bar, or without a terminal a line now and then."""
    with progress() as bar:
        yield _follow(bar) if not bar.disable else _telling(paced())


@contextmanager
def evaluating(questions: int, done: int = 0, name: str = "") -> Iterator[OnEvent | None]:
    """A callback that shows how many questions of all batches are decoded; None without a terminal."""
    with progress() as bar:
        task = bar.add_task(name or many(questions, "question"), total=questions, completed=done)
        before, now = done, 0  # questions of earlier batches, and of this one

        def on_progress(event: Event, decided: int, open: int) -> None:
            nonlocal before, now
            if event["event"] == "start":
                before, now = before + now, len(event["canvases"])
            bar.update(task, completed=min(questions, before + now * decided / open))

        yield None if bar.disable else _counting(on_progress)


@contextmanager
def fleet(crew: Fleet, kept: Sized, total: int, name: str) -> Iterator[None]:
    """Show how many rows are there, with the workers of a fleet."""
    with progress() as bar:
        follow(crew, bar, bar.add_task(name, total=total, completed=len(kept)), lambda: (len(kept), name))
        yield


@contextmanager
def fleet_at_work(crew: Fleet) -> Iterator[Fleet]:
    """Show the workers of a fleet that decodes one prompt, and how many segments they have done."""
    tell = paced()
    with progress() as bar, crew:
        task = bar.add_task("starting workers", total=None)

        def on_progress(found: FleetProgress) -> None:
            again = f", {found.again} again" if found.again else ""
            line = f"{found.ready} of {many(found.asked, 'worker')}, {many(found.rows, 'segment')} done{again}"
            bar.update(task, description=line)
            tell(line)

        crew.on_progress = on_progress
        yield crew


def follow(crew: Fleet, bar: Progress, task: TaskID, now: Callable[[], tuple[int, str]]) -> None:
    """Have a bar show the workers of a fleet, and how many rows are done of which; elsewhere a line now and then."""
    tell = paced()

    def on_progress(found: FleetProgress) -> None:
        done, what = now()
        bar.update(task, completed=done, description=str(found))
        tell(f"{done} of {what}: {found}")

    crew.on_progress = on_progress


def _follow(bar: Progress) -> OnEvent:
    task = bar.add_task("step 0")

    def on_progress(event: Event, decided: int, open: int) -> None:
        bar.update(task, completed=decided, total=open, description=f"step {event.get('step', -1) + 1}")

    return _counting(on_progress)


def _telling(tell: Callable[[str], None]) -> OnEvent:
    def on_progress(event: Event, decided: int, open: int) -> None:
        tell(f"step {event.get('step', -1) + 1}: {decided:,} of {open:,} positions are decided")

    return _counting(on_progress)


def _counting(on_progress: Callable[[Event, int, int], None]) -> OnEvent:
    """Calls back at every start and step with the number of decided positions, and of all open ones."""
    from unmask.decoding.trace import Canvases  # torch: a command that only prints a table does without

    canvases, open = Canvases(), 0

    def on_event(event: Event) -> None:
        nonlocal open
        canvases.apply(event)
        open = canvases.masked if event["event"] == "start" else open
        if event["event"] in ("start", "step"):
            on_progress(event, open - canvases.masked, open)

    return on_event
