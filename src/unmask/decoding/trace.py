"""A walk -> JSONL events, and back: every canvas, the ancestry and the path entropies.

There are three kinds of event. `start` holds the inputs, one canvas per prompt. `step` holds the changes of one step.
`end` holds the results. Rows are `prompt * particles + particle`, columns count from a row's first real token, and
entropies are bits. A trace is complete: replaying it needs no model. `words` gives the string of each token at its
first appearance.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.denoiser import Denoiser, Head, Tokenizer
from unmask.core.entropy import bits
from unmask.core.state import Vocab
from unmask.core.step import Moment
from unmask.decoding.ends import LENGTH
from unmask.decoding.prompt import Canvas
from unmask.decoding.recipe import Recipe
from unmask.decoding.result import Particle, Result, Token
from unmask.errors import InputError, UnmaskError, many

VERSION = 1
Event = dict[str, Any]
OnEvent = Callable[[Event], None]
Logprob = list[Any]  # [log-probability of the token, [[token, log-probability], …] of the most probable ones]
MOST = 1 << 20  # rows of a trace that is read
AGAIN = "decode it again with --trace"
ROWS = 256  # positions whose logits are held at a time
NOTHING = Particle([], "", math.nan, [], 0, 0, math.nan, math.nan, LENGTH)  # a path that never began


# --- writing ---------------------------------------------------------------------------------------------------------


def start_event(denoiser: Denoiser, rows: Sequence[Canvas], recipe: Recipe, seeds: list[int], particles: int) -> Event:
    """The inputs of a decode."""
    return {
        "event": "start",
        "version": VERSION,
        "model": denoiser.name,
        "recipe": recipe.to_dict(),
        "seeds": seeds,
        "particles": particles,
        "mask": denoiser.vocab.mask,
        "canvases": [row.tokens for row in rows],
        "given": [row.given for row in rows],
    }


def step_event(moment: Moment, head: Head | None = None, top: int | None = None) -> Event:
    """One step.

    `h`: state entropy of each row's input, before resampling; null without masks. `ancestors`: the row whose contents
    each row took, if there was a resampling. `changes`: [row, column, token, entropy of the position]. With `top`,
    `logprobs` has for each change [log-probability, [[token, log-probability], …]] with the `top` most probable tokens.
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
            numbers(bits(moment.beliefs.entropy[rows, columns].double())),
            strict=True,
        )
    ]
    if top is not None:
        assert head is not None and moment.hidden is not None
        event["logprobs"] = _logprobs(head, moment.hidden[rows, columns], state.tokens[rows, columns], top)
    event["steps"] = moment.tally.steps.tolist()
    event["calls"] = moment.tally.calls.tolist()
    event["evaluations"] = moment.tally.evaluations.view(-1, k).sum(1).tolist()
    event["rows"] = moment.tally.rows.view(-1, k).sum(1).tolist()
    return event


def end_event(results: Sequence[Result], choose: str, most: int | None = None) -> Event:
    """The results of a decode, particle by particle, and the particle that was chosen for each prompt.

    Of `most` particles a prompt may have fewer, where it stopped early: those that never began have null and no text.
    """
    particles = [
        particle
        for result in results
        for particle in [*result.particles, *[NOTHING] * ((most or 0) - len(result.particles))]
    ]
    return {
        "event": "end",
        "choose": choose,
        "chosen": [result.chosen for result in results],
        "path_entropy": [particle.path_entropy for particle in particles]
        if most is None
        else finite(particle.path_entropy for particle in particles),
        "log_prob": finite(particle.log_prob for particle in particles),
        "surprise": finite(particle.surprise for particle in particles),
        "look": [particle.look for particle in particles],
        "texts": [particle.text for particle in particles],
        "finish": [particle.finish for particle in particles],
        "steps": [particle.steps for particle in particles],
        "calls": [result.calls for result in results],
        "evaluations": [result.evaluations for result in results],
        "rows": [result.rows for result in results],
        "log_evidence": [result.log_evidence for result in results],
        "lineages": [result.lineages for result in results],
        "seconds": results[0].seconds,
    }


@contextmanager
def recording(model: Denoiser, path: str | Path | None, on_event: OnEvent | None) -> Iterator[OnEvent | None]:
    """A function that writes events, with their words, to a file and passes them to `on_event`; None without either."""
    spell = spelling(model.tokenizer, model.vocab)
    if path is None:
        yield None if on_event is None else lambda event: on_event(spell(event))
        return
    try:
        file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot write the trace {str(path)!r}", reason) from None

    def record(event: Event) -> None:
        event = spell(event)
        file.write(json.dumps(event) + "\n")
        if on_event is not None:
            on_event(event)

    with file:
        yield record


def spelling(tokenizer: Tokenizer, vocab: Vocab) -> Callable[[Event], Event]:
    """A function that adds `words` to an event: [token, its string] for each token that no earlier event had."""
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
    """The string of a token in the middle of a text: some tokenizers omit the blank before the first token."""
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    if not once:
        return "⟨eos⟩" if token in vocab.eos else f"⟨{token}⟩"
    return (twice.removeprefix(once) if twice.startswith(once) else "") or once


def _logprobs(head: Head, hidden: Tensor, tokens: Tensor, top: int) -> list[Logprob]:  # hidden [C, D], tokens [C]
    """Natural log-probabilities of the tokens and of the most probable ones; null for a token outside the head."""
    found: list[Logprob] = []
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
    """Floats for JSON; null for a value that is not finite."""
    return [value if math.isfinite(value) else None for value in values]


# --- reading ---------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> list[Event]:
    """The events of a trace file; the last line of a failed `/v1/paths` stream becomes an event `error`."""
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
    """The lines without trailing blank ones, and without a last line that a killed decode left incomplete."""
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
        raise InputError(f"{path!r} is not a trace", "make one with --trace FILE")
    if not isinstance(event, dict) or not isinstance(kind, str):
        raise InputError(f"line {number} of {path!r} is not an event", AGAIN)
    return event


def ending(events: Sequence[Event]) -> str | None:
    """Why a trace is unfinished, in a few words; None if it has its end."""
    last, steps = events[-1], sum(event["event"] == "step" for event in events)
    if last["event"] == "end":
        return None
    after = f"after {many(steps, 'step')}"
    if last["event"] == "error":
        reason = last["error"].get("message") if isinstance(last.get("error"), dict) else None
        return f"it failed {after}: {reason or 'no reason is given'}"
    return f"it breaks off {after}, without an end"


def _started(events: Iterable[Event]) -> Iterator[Event]:
    """The events, after a check that the first one is a start."""
    for number, event in enumerate(events):
        if number == 0 and event.get("event") != "start":
            raise InputError("these events do not begin with a start", "give all events of a trace, as `load` does")
        if number == 0 and not 0 < len(event["canvases"]) * event["particles"] <= MOST:
            raise InputError(f"these events have not 1 to {MOST:,} rows", AGAIN)
        yield event


@contextmanager
def _sound() -> Iterator[None]:
    """Events that do not fit together are told as such."""
    try:
        yield
    except UnmaskError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError("these events do not fit together", AGAIN) from error


class Canvases:
    """The canvas of every row, with the log-probabilities of its tokens, after the events applied so far."""

    def __init__(self) -> None:
        self.mask = -1
        self.rows: list[list[int]] = []
        self.logprobs: list[dict[int, Logprob]] = []  # by column

    def apply(self, event: Event) -> None:
        """Apply one event; an `end` or `error` changes nothing."""
        if event["event"] == "start":
            self.mask = event["mask"]
            self.rows = [list(canvas) for canvas in event["canvases"] for _ in range(event["particles"])]
            self.logprobs = [{} for _ in self.rows]
        elif event["event"] == "step":
            if "ancestors" in event:
                self.rows = [list(self.rows[ancestor]) for ancestor in event["ancestors"]]
                self.logprobs = [dict(self.logprobs[ancestor]) for ancestor in event["ancestors"]]
            logs = event.get("logprobs", [None] * len(event["changes"]))
            for (row, column, token, _), log in zip(event["changes"], logs, strict=True):
                self.rows[row][column] = token
                if log is not None:
                    self.logprobs[row][column] = log

    @property
    def masked(self) -> int:
        """How many positions are masked, in all rows."""
        return sum(row.count(self.mask) for row in self.rows)


class Written:
    """The tokens that the path of every row has written so far, by column; not those that were masked again."""

    def __init__(self, rows: int, mask: int) -> None:
        self.mask = mask
        self.rows: list[dict[int, tuple[int, float | None, int, Logprob]]] = [{} for _ in range(rows)]

    def apply(self, event: Event) -> None:
        """Apply the event of a step that has log-probabilities."""
        if "ancestors" in event:
            self.rows = [dict(self.rows[ancestor]) for ancestor in event["ancestors"]]
        for (row, column, token, entropy), log in zip(event["changes"], event["logprobs"], strict=True):
            if token == self.mask:
                self.rows[row].pop(column, None)
            else:
                self.rows[row][column] = token, entropy, event["step"], log

    def tokens(self, tokenizer: Tokenizer, vocab: Vocab) -> list[list[Token]]:
        """For each row its tokens, in the order of their columns."""
        names: dict[int, str] = {}

        def name(token: int) -> str:
            return names.get(token) or names.setdefault(token, _word(tokenizer, vocab, token))

        return [
            [
                Token(column, token, name(token), log, entropy, step, [(one, name(one), p) for one, p in most])
                for column, (token, entropy, step, (log, most)) in sorted(row.items())
            ]
            for row in self.rows
        ]


def replay(events: Iterable[Event]) -> Iterator[list[list[int]]]:
    """The canvases of all rows: the first ones, then those after each step."""
    canvases = Canvases()
    with _sound():
        for event in _started(events):
            if event["event"] not in ("start", "step"):
                return
            canvases.apply(event)
            yield [list(row) for row in canvases.rows]


@_sound()
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


@_sound()
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

# fields of any event with one entry per prompt, and per row
PER_PROMPT = "seeds canvases given ess strength log_evidence lineages calls evaluations rows chosen".split()
PER_ROW = "h steps path_entropy log_prob surprise look texts finish".split()


class Parts:
    """Splits the events of a batch, in order, into the events that each prompt would have alone."""

    def __init__(self) -> None:
        self.particles, self.steps = 1, [0]
        self.words: dict[int, str] = {}  # the strings of all tokens so far
        self.spelt: list[set[int]] = []  # for each prompt, the tokens whose strings it has

    @classmethod
    def begun(cls, prompts: int, particles: int) -> Parts:
        """For events after the `start` of a batch."""
        parts = cls()
        parts._begin(prompts, particles)
        return parts

    def _begin(self, prompts: int, particles: int) -> None:
        self.particles, self.steps = particles, [0] * (prompts * particles)
        self.spelt = [set() for _ in range(prompts)]

    def __call__(self, event: Event) -> list[Event | None]:
        """One event per prompt; None for a prompt that took no step."""
        self.words.update((token, word) for token, word in event.get("words", []))
        if event["event"] == "start":
            self._begin(len(event["canvases"]), event["particles"])
        parts = [self._part(event, place) for place in range(len(self.spelt))]
        if event["event"] == "step":
            for row, *change in event["changes"]:
                parts[row // self.particles]["changes"].append([row % self.particles, *change])
            for (row, *_), log in zip(event["changes"], event.get("logprobs", []), strict="logprobs" in event):
                parts[row // self.particles]["logprobs"].append(log)
            before, self.steps = self.steps, event["steps"]
            took = [before[rows] != self.steps[rows] for rows in map(self._rows, range(len(parts)))]
        else:
            took = [True] * len(parts)
        return [self._with_words(part, place) if took[place] else None for place, part in enumerate(parts)]

    def _rows(self, place: int) -> slice:
        return slice(place * self.particles, (place + 1) * self.particles)

    def _part(self, event: Event, place: int) -> Event:
        """The fields of one prompt; its changes and their log-probabilities are still empty."""
        rows = self._rows(place)
        part = {name: value for name, value in event.items() if name != "words"}
        part |= {name: [event[name][place]] for name in PER_PROMPT if name in event}
        part |= {name: event[name][rows] for name in PER_ROW if name in event}
        part |= {name: [] for name in ("changes", "logprobs") if name in event}
        if "ancestors" in event:
            part["ancestors"] = [row - rows.start for row in event["ancestors"][rows]]
            if part["ancestors"] == list(range(self.particles)) and part["ess"] == [None]:  # others were resampled
                for name in ("ancestors", "ess", "strength", "log_evidence", "lineages"):
                    del part[name]
        return part

    def _with_words(self, part: Event, place: int) -> Event:
        """The event with the strings of the tokens that are new to this prompt."""
        new = sorted((_tokens(part) & self.words.keys()) - self.spelt[place])
        self.spelt[place].update(new)
        return {**part, "words": [[token, self.words[token]] for token in new]} if new else part
