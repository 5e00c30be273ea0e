"""`matches`, `choices` or `schema` × a model -> the constraint of a walk: what the text, or each hole, must be."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.core.denoiser import Denoiser
from unmask.core.step import Rules
from unmask.decoding.form.automaton import WORK, Automaton, compiled
from unmask.decoding.form.language import Language, any_of
from unmask.decoding.form.regex import language as of_pattern
from unmask.decoding.form.rows import Holes
from unmask.decoding.form.schema import language as of_schema
from unmask.decoding.form.tokens import NEVER, Tokens, over_tokens, spelling
from unmask.decoding.form.work import Work, too_large
from unmask.errors import InputError

MATCHES, CHOICES, SCHEMA = "matches", "choices", "schema"
CHOSEN = 2000  # choices
LONG = 200_000  # characters of choices, or of a schema
HOLES = 64  # different constraints of one canvas
KEPT = 1 << 28  # bytes of automata over tokens, of a form and of all that are kept
LARGE = 2 * WORK  # of all constraints of a canvas
ONE = threading.RLock()  # one constraint is compiled at a time: requests of strangers must not take all processors
Part = tuple[str, str]  # which of the three, and its value as text
Schema = Mapping[str, Any] | bool


@dataclass(frozen=True)
class Form:
    """What the text must be: one part for all of it and for every hole, or one for each hole; None: anything."""

    parts: tuple[Part | None, ...]

    def automata(self, model: Denoiser, never: Sequence[int] = ()) -> list[Tokens]:
        """The automaton of each part over the tokens of a model, but for those that are never written."""
        found: dict[Part | None, Tokens] = {}
        for part in dict.fromkeys(self.parts):
            found[part] = _tokens(part, model, tuple(never))
            if sum(one.bytes for one in found.values()) > KEPT:
                raise too_large("its parts together take too much memory")
        return [found[part] for part in self.parts]

    def constraint(self, model: Denoiser, never: Sequence[int] = ()) -> Holes:
        """The constraint of one walk."""
        return Holes(self.automata(model, never), model.vocab.mask, model.device)

    def rules(self, model: Denoiser, rules: Rules) -> Holes:
        """The constraint, without the tokens that the rules of a walk ban."""
        return self.constraint(model, rules.draw.ban)

    def check(self, model: Denoiser, canvases: Sequence[Sequence[int]], rules: Rules) -> None:
        """Refuse canvases that cannot be completed."""
        constraint = self.rules(model, rules)
        for canvas in canvases:
            tokens = torch.tensor([list(canvas)])
            constraint.check(tokens, tokens == model.vocab.mask)


def form(
    matches: str | Sequence[str | None] | None = None,
    choices: Sequence[str] | Sequence[Sequence[str] | None] | None = None,
    schema: Schema | Sequence[Schema | None] | None = None,
) -> Form | None:
    """A Form of what was given, after every check that needs no model; None: nothing was given.

    A list of patterns, of lists of choices or of schemas has one for each hole of a canvas.
    """
    given = {MATCHES: matches, CHOICES: choices, SCHEMA: schema}
    found = {name: _parts(name, value) for name, value in given.items() if value is not None}
    if not found:
        return None
    if len({len(parts) for parts in found.values()}) > 1 or (len(found) > 1 and len(next(iter(found.values()))) == 1):
        raise InputError(f"{' and '.join(found)} exclude each other", "give one of them, or lists for different holes")
    parts = []
    for hole, several in enumerate(zip(*found.values(), strict=True), 1):
        some = [part for part in several if part is not None]
        if len(some) > 1:
            raise InputError(f"hole {hole} has {some[0][0]} and {some[1][0]}", "give it one of them")
        parts.append(some[0] if some else None)
    if not any(parts):
        raise InputError("no hole has a constraint", "leave it out")
    different = {part for part in parts if part is not None}
    if len(different) > HOLES:
        raise InputError(f"there are {len(different):,} different constraints", f"give at most {HOLES}")
    work = Work(LARGE, "its parts together take too long")
    for part in dict.fromkeys(parts):
        if part is not None:
            work.spend(_automaton(part).work)
    return Form(tuple(parts))


# --- the parts -------------------------------------------------------------------------------------------------------


def _parts(name: str, value: Any) -> list[Part | None]:
    """What was given under a name, as one part or one for each hole."""
    if name == CHOICES:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InputError(f"choices is a {type(value).__name__}", "give a list of texts")
        holes: list[Any] = list(value) if any(one is None or _is_list(one) for one in value) else [value]
        return [None if one is None else (CHOICES, _choices(one)) for one in holes]
    holes = list(value) if _is_list(value) else [value]
    if not holes:
        raise InputError(f"{name} is an empty list", "give one for each hole")
    if name == MATCHES:
        for one in holes:
            if one is not None and not isinstance(one, str):
                raise InputError(f"matches is a {type(one).__name__}", "give a regular expression as text")
        return [None if one is None else (MATCHES, one) for one in holes]
    return [None if one is None else (SCHEMA, _schema(one)) for one in holes]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _choices(given: Any) -> str:
    if not _is_list(given) or not given or not all(isinstance(one, str) for one in given):
        raise InputError("choices holds something else than texts", "give a list of at least one text")
    if len(given) > CHOSEN or sum(map(len, given)) > LONG:
        raise InputError(f"there are {len(given):,} choices", f"give at most {CHOSEN:,}, of {LONG:,} characters in all")
    return json.dumps(list(given))


def _schema(given: Any) -> str:
    if not isinstance(given, Mapping | bool):
        raise InputError(f"a schema is a {type(given).__name__}", "give an object, as JSON Schema has it")
    try:
        text = json.dumps(given if isinstance(given, bool) else dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "the schema is not JSON", "give objects, lists, texts, numbers, true, false and null"
        ) from None
    if len(text) > LONG:
        raise InputError(f"the schema has {len(text):,} characters", f"give at most {LONG:,}")
    return text


def _language(part: Part) -> Language:
    kind, value = part
    if kind == MATCHES:
        return of_pattern(value)
    return any_of(json.loads(value)) if kind == CHOICES else of_schema(json.loads(value))


def _automaton(part: Part) -> Automaton:
    found = _automata.get(part)  # without waiting for others that are compiled
    if found is None:
        with ONE:
            found = _automata.get(part) or _compiled(part)
            _automata[part] = found
            for old in list(_automata)[:-HOLES]:
                _automata.pop(old, None)
    return found


_automata: dict[Part, Automaton] = {}  # the last ones


def _compiled(part: Part) -> Automaton:
    try:
        found = compiled(_language(part))
    except RecursionError:
        raise InputError(f"{part[0]} is nested too deep", "nest less") from None
    except UnicodeEncodeError:
        raise InputError(f"{part[0]} holds half a surrogate pair", "write whole characters") from None
    if found.start == 0:
        raise InputError(f"no text at all meets {part[0]}", "allow more")
    return found


# --- over the tokens of a model --------------------------------------------------------------------------------------

_known: weakref.WeakKeyDictionary[Any, dict[Any, Tokens]] = weakref.WeakKeyDictionary()


def _tokens(part: Part | None, model: Denoiser, never: tuple[int, ...]) -> Tokens:
    """The automaton of a part over a model's tokens; the last ones are kept."""
    vocab, head = model.vocab, model.head
    key = (part, vocab, head.width, head.absent, never)
    found = _known.get(model.tokenizer, {}).get(key)  # without waiting for others that are compiled
    if found is None:
        with ONE:
            kept = _known.setdefault(model.tokenizer, {})
            found = kept.get(key) or (_free(model, never) if part is None else _limited(part, model, never))
            kept[key] = found
            _forget(kept)
    return found


def _forget(newest: dict[Any, Tokens]) -> None:
    """Drop the oldest automata where all together take too much memory, those of other models first."""
    size = sum(one.bytes for kept in _known.values() for one in kept.values())
    for kept in [*(kept for kept in _known.values() if kept is not newest), newest]:
        for old in list(kept):
            if size <= KEPT:
                return
            size -= kept.pop(old).bytes


def _limited(part: Part, model: Denoiser, never: tuple[int, ...]) -> Tokens:
    ends = [
        token for token in model.vocab.eos if token < model.head.width and token not in (*never, *model.head.absent)
    ]
    return over_tokens(_automaton(part), spelling(model, never), model.head.width, ends)


def _free(model: Denoiser, never: tuple[int, ...]) -> Tokens:
    """Of a hole without a constraint: any token."""
    kind = np.ones(model.head.width, dtype=np.int64)
    kind[[token for token in (*never, model.vocab.mask, *model.head.absent) if token < len(kind)]] = NEVER
    moves = np.array([[0, 0], [0, 1]], dtype=np.int16)
    return Tokens(moves, kind, 1, np.array([False, True]))


__all__ = ["Form", "form"]
