"""Moments -> JSONL events, and back: every canvas, the ancestry and the path entropies of a walk.

Three kinds of event. `start`: what is decoded, one canvas a prompt. `step`: what one turn of the loop did. `end`: what
came out. Rows are `prompt * particles + particle`, columns count from a row's first real token, entropies are bits.
A trace is complete: replaying it needs no model, and `words` has the strings of tokens as they first come up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.engine import Moment
from unmask.entropy import bits
from unmask.errors import InputError
from unmask.models.denoiser import Tokenizer
from unmask.state import Vocab

VERSION = 1
Event = dict[str, Any]


# --- writing ---------------------------------------------------------------------------------------------------------


def step_event(moment: Moment) -> Event:
    """One turn of the loop.

    `h`: state entropy of each row's input, before resampling; null without masks. `ancestors`: the row whose contents
    each row took, if there was a resampling. `changes`: [row, column, token, entropy of the position].
    """
    state, k = moment.state, moment.state.particles
    event: Event = {"event": "step", "step": moment.step, "h": numbers(bits(moment.entropy))}
    if moment.resampled is not None:
        event["ancestors"] = moment.resampled.ancestors.tolist()
        event["ess"] = numbers(moment.resampled.ess)
        event["strength"] = numbers(moment.resampled.strength)
        event["log_evidence"] = numbers(moment.resampled.log_evidence)
        event["lineages"] = [len(set(row)) for row in state.origin.view(-1, k).tolist()]
    where = moment.before != state.tokens
    rows, columns = where.nonzero(as_tuple=True)
    event["changes"] = [
        [row, column, token, entropy]
        for row, column, token, entropy in zip(
            rows.tolist(),
            state.columns[rows, columns].tolist(),
            state.tokens[rows, columns].tolist(),
            numbers(bits(moment.raw.entropy[rows, columns].double())),
            strict=True,
        )
    ]
    event["steps"] = moment.tally.steps.tolist()
    event["calls"] = moment.tally.calls.tolist()
    event["evaluations"] = moment.tally.evaluations.view(-1, k).sum(1).tolist()
    return event


def spelling(tokenizer: Tokenizer, vocab: Vocab) -> Callable[[Event], Event]:
    """A function that adds `words` to an event: [token, its string] for each token that no event before it had."""
    known = {vocab.mask}

    def spell(event: Event) -> Event:
        there = {token for canvas in event.get("canvases", []) for token in canvas}
        there |= {token for _, _, token, _ in event.get("changes", [])}
        new = sorted(there - known)
        known.update(new)
        return {**event, "words": [[token, _word(tokenizer, vocab, token)] for token in new]} if new else event

    return spell


def _word(tokenizer: Tokenizer, vocab: Vocab, token: int) -> str:
    """What a token is in the middle of a text: some tokenizers write no blank before the first."""
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    if not once:
        return "⟨eos⟩" if token in vocab.eos else f"⟨{token}⟩"
    return (twice.removeprefix(once) if twice.startswith(once) else "") or once


def numbers(values: Tensor) -> list[float | None]:
    """Floats for JSON; what is not finite is null."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# --- reading ---------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> list[Event]:
    """The events of a trace file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        if not events or events[0]["event"] != "start":
            raise ValueError
        version = events[0]["version"]
    except OSError as error:
        raise InputError(f"cannot read the trace {str(path)!r}", str(error.strerror)) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{str(path)!r} is no trace", "make one with --trace FILE") from None
    if version != VERSION:
        raise InputError(f"{str(path)!r} has trace version {version}", f"this is version {VERSION}")
    return events


def _started(events: Iterable[Event]) -> Iterator[Event]:
    """The events, if they begin as a trace does."""
    for number, event in enumerate(events):
        if number == 0 and event.get("event") != "start":
            raise InputError("these events do not begin with a start", "give all events of a trace, as `load` does")
        yield event


def replay(events: Iterable[Event]) -> Iterator[list[list[int]]]:
    """The canvases of all rows: the first ones, then those after each step."""
    rows: list[list[int]] = []
    for event in _started(events):
        if event["event"] == "start":
            rows = [list(canvas) for canvas in event["canvases"] for _ in range(event["particles"])]
        elif event["event"] == "step":
            rows = [list(rows[ancestor]) for ancestor in event.get("ancestors", range(len(rows)))]
            for row, column, token, _ in event["changes"]:
                rows[row][column] = token
        else:
            return
        yield [list(row) for row in rows]


def lineages(events: Iterable[Event]) -> list[list[float | None]]:
    """For each final row, the state entropies along its own ancestry, step by step (bits)."""
    paths: list[list[float | None]] = []
    for event in _started(events):
        if event["event"] == "start":
            paths = [[] for _ in event["canvases"] for _ in range(event["particles"])]
        elif event["event"] == "step":
            paths = [[*path, h] for path, h in zip(paths, event["h"], strict=True)]
            paths = [paths[ancestor] for ancestor in event.get("ancestors", range(len(paths)))]
    return paths


def ancestry(events: Iterable[Event]) -> list[list[int]]:
    """For each final row, the row that its lineage was in: at the start, then after each resampling."""
    trees: list[list[int]] = []
    for event in _started(events):
        if event["event"] == "start":
            trees = [[row] for row in range(len(event["canvases"]) * event["particles"])]
        elif "ancestors" in event:
            trees = [[*trees[ancestor], row] for row, ancestor in enumerate(event["ancestors"])]
    return trees
