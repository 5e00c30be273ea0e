"""Moments -> JSONL events, and back: every canvas, the ancestry and the path entropies of a walk.

Three kinds of event. `start`: what is decoded, one canvas a prompt. `step`: what one turn of the loop did. `end`: what
came out. Rows are `prompt * particles + particle`, columns count from a row's first real token, entropies are bits.
A trace is complete: replaying it needs no model, and `words` has the strings of tokens as they first come up.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Head, Tokenizer
from unmask.core.entropy import bits
from unmask.core.state import Vocab
from unmask.core.step import Moment
from unmask.errors import InputError, many

VERSION = 1
Event = dict[str, Any]
ROWS = 256  # positions whose logits are held at a time


# --- writing ---------------------------------------------------------------------------------------------------------


def step_event(moment: Moment, head: Head | None = None, top: int | None = None) -> Event:
    """One turn of the loop.

    `h`: state entropy of each row's input, before resampling; null without masks. `ancestors`: the row whose contents
    each row took, if there was a resampling. `changes`: [row, column, token, entropy of the position]. With `top`,
    `logprobs` has for each change [log-probability, [[token, log-probability], …]]: so many most probable tokens.
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
    if top is not None:
        assert head is not None and moment.hidden is not None
        event["logprobs"] = _logprobs(head, moment.hidden[rows, columns], state.tokens[rows, columns], top)
    event["steps"] = moment.tally.steps.tolist()
    event["calls"] = moment.tally.calls.tolist()
    event["evaluations"] = moment.tally.evaluations.view(-1, k).sum(1).tolist()
    return event


def spelling(tokenizer: Tokenizer, vocab: Vocab) -> Callable[[Event], Event]:
    """A function that adds `words` to an event: [token, its string] for each token that no event before it had."""
    known = {vocab.mask}

    def spell(event: Event) -> Event:
        new = sorted(_tokens(event) - known)
        known.update(new)
        return {**event, "words": [[token, _word(tokenizer, vocab, token)] for token in new]} if new else event

    return spell


def _tokens(event: Event) -> set[int]:
    """All tokens of an event."""
    there = {token for canvas in event.get("canvases", []) for token in canvas}
    return there | {token for _, _, token, _ in event.get("changes", [])}


def _word(tokenizer: Tokenizer, vocab: Vocab, token: int) -> str:
    """What a token is in the middle of a text: some tokenizers write no blank before the first."""
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    if not once:
        return "⟨eos⟩" if token in vocab.eos else f"⟨{token}⟩"
    return (twice.removeprefix(once) if twice.startswith(once) else "") or once


def _logprobs(head: Head, hidden: Tensor, tokens: Tensor, top: int) -> list[Any]:  # hidden [C, D], tokens [C]
    """[natural log-probability of the token, those of the most probable ones]; a token outside the head has null."""
    found: list[Any] = []
    for some, chosen in zip(torch.split(hidden, ROWS), torch.split(tokens, ROWS), strict=True):
        logs = head.logits(some).log_softmax(1)  # [R, V]
        inside = chosen < head.width
        mine = logs.gather(1, chosen.where(inside, 0)[:, None])[:, 0].where(inside, torch.nan)
        best = logs.topk(min(top, head.width), dim=1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops = [[[token, log] for token, log in zip(*pair, strict=True) if math.isfinite(log)] for pair in pairs]
        found += [[log, most] for log, most in zip(numbers(mine), tops, strict=True)]
    return found


def numbers(values: Tensor) -> list[float | None]:
    return finite(values.tolist())


def finite(values: Iterable[float]) -> list[float | None]:
    """Floats for JSON; what is not finite is null."""
    return [value if math.isfinite(value) else None for value in values]


# --- reading ---------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> list[Event]:
    """The events of a trace file. The line with which a failed stream of `/v1/paths` ends is an event `error`."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the trace {str(path)!r}", reason) from None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{str(path)!r} is UTF-16", "a trace is UTF-8: save it as that")
    lines = _whole(data.removeprefix(codecs.BOM_UTF8).split(b"\n"))
    events = [_event(str(path), number, line) for number, line in enumerate(lines, 1)]
    version = events[0].get("version")
    if version != VERSION:
        raise InputError(f"{str(path)!r} has trace version {version}", f"this is version {VERSION}")
    return events


def _whole(lines: list[bytes]) -> list[bytes]:
    """Without what follows the last newline, and without a last line that was cut, as a killed decode leaves it."""
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return lines[:-1] if len(lines) > 1 and not lines[-1].rstrip().endswith(b"}") else lines


def _event(path: str, number: int, line: bytes) -> Event:
    """One line of a trace file."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, dict) and isinstance(event.get("error"), dict) and "event" not in event:
        event = {"event": "error", **event}
    kind = event.get("event") if isinstance(event, dict) else None
    if number == 1 and kind != "start":
        raise InputError(f"{path!r} is no trace", "make one with --trace FILE")
    if not isinstance(event, dict) or not isinstance(kind, str):
        raise InputError(f"line {number} of {path!r} is no event", "decode it again with --trace")
    return event


def ending(events: Sequence[Event]) -> str | None:
    """Why a trace is unfinished, in a few words; None if it has its end."""
    last, steps = events[-1], sum(event["event"] == "step" for event in events)
    if last["event"] == "end":
        return None
    after = f"after {many(steps, 'step')}"
    if last["event"] == "error":
        said = last["error"].get("message") if isinstance(last.get("error"), dict) else None
        return f"it failed {after}: {said or 'no reason is given'}"
    return f"it breaks off {after}, without an end"


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


# --- the events of a batch, for each of its prompts ------------------------------------------------------------------


class Parts:
    """Called with the events of a batch, one after the other -> those of each prompt, as they would be alone."""

    def __init__(self) -> None:
        self.particles, self.steps = 1, [0]
        self.words: dict[int, str] = {}  # the strings of all tokens so far
        self.spelt: list[set[int]] = []  # for each prompt, the tokens whose strings it was given

    def __call__(self, event: Event) -> list[Event | None]:
        """One for each prompt; None where a prompt took no step."""
        self.words.update((token, word) for token, word in event.get("words", []))
        if event["event"] == "start":
            self.particles, prompts = event["particles"], len(event["canvases"])
            self.steps, self.spelt = [0] * (prompts * self.particles), [set() for _ in range(prompts)]
            parts = [{**event, **_at(event, place, ("seeds", "canvases", "given"))} for place in range(prompts)]
            return [self._with_words(part, place) for place, part in enumerate(parts)]
        if event["event"] == "end":
            return [self._end(event, place) for place in range(len(event["chosen"]))]
        mine = self._changes(event)
        found = [self._step(event, place, mine[place]) for place in range(len(mine))]
        self.steps = event["steps"]
        return [None if part is None else self._with_words(part, place) for place, part in enumerate(found)]

    def _with_words(self, part: Event, place: int) -> Event:
        """With the strings of the tokens that are new to this prompt."""
        new = sorted((_tokens(part) & self.words.keys()) - self.spelt[place])
        self.spelt[place].update(new)
        plain = {name: value for name, value in part.items() if name != "words"}
        return {**plain, "words": [[token, self.words[token]] for token in new]} if new else plain

    def _rows(self, place: int) -> slice:
        return slice(place * self.particles, (place + 1) * self.particles)

    def _changes(self, event: Event) -> list[list[tuple[list[Any], Any]]]:
        """For each prompt its changes, rows counted from its own first one, with their log-probabilities."""
        found: list[list[tuple[list[Any], Any]]] = [[] for _ in event["calls"]]
        logs = event.get("logprobs") or [None] * len(event["changes"])
        for (row, *rest), log in zip(event["changes"], logs, strict=True):
            found[row // self.particles].append(([row % self.particles, *rest], log))
        return found

    def _step(self, event: Event, place: int, changes: list[tuple[list[Any], Any]]) -> Event | None:
        rows = self._rows(place)
        if event["steps"][rows] == self.steps[rows]:
            return None
        part: Event = {"event": "step", "step": event["step"], "h": event["h"][rows]}
        ancestors = [row - rows.start for row in event.get("ancestors", [])[rows]]
        own = list(range(self.particles))
        if ancestors and (ancestors != own or event["ess"][place] is not None):  # else only others were resampled
            part["ancestors"] = ancestors
            part |= _at(event, place, ("ess", "strength", "log_evidence", "lineages"))
        part["changes"] = [change for change, _ in changes]
        if "logprobs" in event:
            part["logprobs"] = [log for _, log in changes]
        return part | {"steps": event["steps"][rows]} | _at(event, place, ("calls", "evaluations"))

    def _end(self, event: Event, place: int) -> Event:
        names = ("path_entropy", "log_prob", "surprise", "texts", "steps")
        rows = {name: event[name][self._rows(place)] for name in names}
        each = _at(event, place, ("chosen", "calls", "evaluations", "log_evidence", "lineages"))
        return {**event, **rows, **each}


def _at(event: Event, place: int, names: Iterable[str]) -> Event:
    """These lists with what they have at one place."""
    return {name: [event[name][place]] for name in names}
