"""Constraints that want time, memory or a traceback."""

from __future__ import annotations

import re
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from unmask import decode, load
from unmask.decoding import form as forms
from unmask.decoding.form import automaton, form, rows, sets
from unmask.decoding.form.automaton import compiled
from unmask.decoding.form.regex import language
from unmask.errors import InputError

IDEOGRAPHS = [chr(0x4E00 + place) for place in range(19_000)]
ENUM = {"enum": [f"v{place}" for place in range(9_000)]}
LETTERS = {"type": "string", "pattern": "ab" * 9_000}
WORDS = {"type": "string", "pattern": "^(?u:\\w)$"}
FAR = {"type": "number", "minimum": -123456789012345, "maximum": 987654321098765}


def again(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, 4,000 times."""
    return {"$defs": {"e": schema}, "anyOf": [{"$ref": "#/$defs/e"}] * 4_000}


DEAR: dict[str, dict[str, Any]] = {
    "sets of either case": {"matches": "(?i)" + "".join(f"[a{one}]" for one in IDEOGRAPHS[:4_900])},
    "sets without a letter": {"matches": "(?i)" + "".join(f"[^{one}]" for one in IDEOGRAPHS[:4_900])},
    "letters of either case": {"matches": "(?i)" + "".join(IDEOGRAPHS)},
    "words": {"matches": r"(?u:\w)" * 2_500},
    "what may be left out": {"matches": "(a?){1700}"},
    "kinds of bytes": {"matches": "(?s:.?){400}" + "|".join(f"\\x{one:02x}" for one in range(1, 127))},
    "holes": {"matches": [f"a{place}" for place in range(20_000)]},
    "dear holes": {"matches": [f"(a?){{1{place:03}}}" for place in range(64)]},
    "an enumeration again and again": {"schema": again(ENUM)},
    "a pattern again and again": {"schema": again(LETTERS)},
    "a set again and again": {"schema": again(WORDS)},
    "bounds": {"schema": {"type": "object", "properties": {f"f{place}": FAR for place in range(1_500)}}},
    "fields required by all": {
        "schema": {"required": [f"a{place}" for place in range(12_000)], "anyOf": [{"required": ["b"]}] * 5_000}
    },
    "fields required by two": {
        "schema": {"allOf": [{"required": [f"{one}{place}" for place in range(11_000)]} for one in "ab"]}
    },
    "fields of many": {"schema": {"allOf": [{"properties": {f"p{place}": {}}} for place in range(5_500)]}},
}


@pytest.mark.parametrize("given", DEAR.values(), ids=DEAR)
def test_what_would_take_minutes_or_gigabytes_is_refused_soon(given: dict[str, Any]) -> None:
    began = time.process_time()
    with pytest.raises(InputError):
        form(**given)
    assert time.process_time() - began < 6  # most take under 2; the former ones 8 s to hours


def test_what_is_repeated_in_a_schema_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="too large"):
            form(schema=again({"enum": ["v" * 90] * 90}))
        assert tracemalloc.get_traced_memory()[1] < 250 << 20  # 4,000 times 8,000 letters are gigabytes
    finally:
        tracemalloc.stop()


def test_large_bounds_are_written_in_few_states() -> None:
    """The halves of a range of numbers were halved, and those, and those: 2¹⁵ parts."""
    for kind in ("integer", "number"):
        found = form(schema={"type": kind, "minimum": -123456789012345, "maximum": 987654321098765})
        assert found is not None
        machine = forms._automaton(found.parts[0])  # type: ignore[arg-type]
        for number, right in ((-123456789012345, 1), (987654321098765, 1), (-123456789012346, 0), (987654321098766, 0)):
            assert machine.matches(str(number).encode()) == bool(right)
        assert len(machine.moves) < 100


@pytest.mark.parametrize("pattern", ["(?i)[^x]", "(?i)[^xA-F]", "(?iu:[^ſ])", r"(?iu:\W)", r"(?i)[^\dK]", "(?iu:[ʼ-ͅ])"])
def test_the_complement_of_a_set_has_neither_case_of_it(pattern: str) -> None:
    machine = compiled(language(pattern))
    for letter in "xXaFgGsSſkKKι\u0345İıß1-_ÀàǅǄ":
        assert machine.matches(letter.encode()) == bool(re.fullmatch(pattern, letter, re.ASCII)), letter


@pytest.mark.parametrize("kind", ["w", "W", "d", "D", "s", "S"])
@pytest.mark.parametrize("flags", ["i", "iu"])
def test_categories_are_those_of_python_in_either_case(kind: str, flags: str) -> None:
    pattern = f"(?{flags}:\\{kind})"
    machine, matcher = compiled(language(pattern)), re.compile(pattern, re.ASCII)
    for number in (*range(0x3000), 0x1E9E, 0x212A, 0xFB05, 0xFB06, *range(0x10400, 0x10450)):
        assert machine.matches(chr(number).encode()) == bool(matcher.fullmatch(chr(number))), hex(number)


STRANGE: list[Any] = [
    {"allOf": [{"minimum": "a"}, {"minimum": 1}]},
    {"allOf": [{"properties": 5}, {"properties": {"a": {}}}]},
    {"allOf": [{"properties": {"a": {"required": 5}}}, {"properties": {"a": {"required": ["b"]}}}]},
    {"allOf": [{"required": [{}]}, {"type": "object"}]},
    {"oneOf": [{"type": [{}]}, {"type": "string"}]},
    {"oneOf": [{"required": ["a"], "properties": [1]}, {"required": ["a"], "properties": {"a": {"const": "x"}}}]},
    {"oneOf": [{"required": ["a"], "properties": {"a": one}} for one in (5, {"const": "x"})]},
    {"oneOf": [{"required": ["a"], "properties": {"a": one}} for one in ({"enum": 5}, {"const": "x"})]},
    {"oneOf": [{"enum": None}, {"enum": 5}]},
    {"type": "array", "prefixItems": 5},
    {"type": "array", "prefixItems": {"a": 1}},
    {"type": "integer", "multipleOf": {"a": 1}},
    {"type": "string", "format": ["date"]},
    {"$defs": [{"type": "null"}], "$ref": "#/$defs/²"},
    {"$defs": [1], "$ref": "#/$defs/" + "9" * 5000},
    {"type": "object", "propertyNames": {"type": 5}},
]


@pytest.mark.parametrize("schema", STRANGE)
def test_a_strange_schema_is_refused_in_one_line(schema: Any) -> None:
    with pytest.raises(InputError) as caught:
        form(schema=schema)
    assert "\n" not in str(caught.value)


# --- while it decodes ------------------------------------------------------------------------------------------------


def test_sets_of_states_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number grows with rows and steps; the tokens are the same."""
    how: dict[str, Any] = {"length": 24, "sampler": "uniform", "temperature": 1.0, "search": "smc", "particles": 4}
    model, cleared = load("text"), list[int]()

    def decoded() -> list[int]:
        return decode(model, "Tom has", matches=r"[ -~]{0,90}\.", seed=3, **how).tokens

    kept, clear = decoded(), sets.Sets.clear
    monkeypatch.setattr(sets, "BYTES", 20_000)
    monkeypatch.setattr(sets.Sets, "clear", lambda self: (cleared.append(1), clear(self))[1])
    assert decoded() == kept and len(cleared) > 3


def test_a_row_whose_steps_would_take_seconds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOVES", 1_000)
    with pytest.raises(InputError, match="too many tokens may stand at 16 positions"):
        decode(load("text"), "Tom has", length=16, matches="[a-z ]{0,99}")


def test_a_long_row_is_read_soon() -> None:
    """900 positions of nearly 4,000 states took 7 s before the first step."""
    found, model = form(matches="[ -~]{0,3990}"), load("text")
    assert found is not None
    from torch import full

    tokens = full((1, 900), model.vocab.mask)
    began, holes = time.process_time(), found.constraint(model)
    holes.check(tokens, tokens == model.vocab.mask)
    holes.read(tokens, tokens == model.vocab.mask, tokens == model.vocab.mask)()
    assert time.process_time() - began < 3


def test_automata_share_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("text")
    monkeypatch.setattr(forms, "KEPT", 300_000)
    for place in range(40):
        found = form(matches=f"[a-z ]{{0,{40 + place}}}")
        assert found is not None
        found.automata(model)
    assert sum(one.bytes for kept in forms._known.values() for one in kept.values()) <= 300_000
    many = form(matches=[f"[a-z ]{{0,{100 + place}}}" for place in range(40)])
    assert many is not None
    with pytest.raises(InputError, match="too much memory"):
        many.automata(model)


def test_what_is_compiled_does_not_wait_for_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that decodes asks for the automaton of every batch."""
    model = load("text")

    def decoded() -> str:
        return decode(model, "Tom has", length=4, matches=" [a-z]+", seed=1).text

    there, text = threading.Event(), decoded()

    def slow(made: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any) -> Any:
            there.set()
            time.sleep(3)
            return made(*given)

        return wait

    monkeypatch.setattr(forms, "compiled", slow(automaton.compiled))
    other = threading.Thread(target=lambda: form(matches="something else"))
    other.start()
    assert there.wait(5)
    began = time.monotonic()
    assert decoded() == text and time.monotonic() - began < 2
    other.join()
