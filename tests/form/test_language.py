"""Patterns, schemas and numbers -> automata that accept what Python's own matcher and a validator accept."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "search"))

import forms  # type: ignore[import-not-found]  # experiments/search/forms.py

from unmask.decoding.form import form
from unmask.decoding.form.automaton import compiled
from unmask.decoding.form.numbers import Bounds, integers, numbers
from unmask.decoding.form.regex import language
from unmask.decoding.form.schema import language as of_schema
from unmask.errors import InputError

LETTERS = "abcAB01_ .,\n\t-é߀😀Kſ"
WRITTEN = [
    "a*b|c",
    "(ab){2,3}x?",
    r"[^\n]{0,5}é\w+",
    "(?i:ab)c",
    r"\d{2}-\d",
    "",
    "[]a]|[^a]",
    "(?s:.)*",
    "x??y",
    "a||b",
]
WRITTEN += [
    "^a.*b$",
    r"\A\w+\Z",
    "(?P<n>a)(?:b)",
    r"[\s\S]{2}",
    "[€-😀]+",
    r"(?u:\w)+",
    "(?x: a b )",
    "(?i:k)",
]


@pytest.mark.parametrize("pattern", WRITTEN)
def test_a_pattern_matches_what_python_matches(pattern: str) -> None:
    dice, automaton = random.Random(0), compiled(language(pattern))
    for _ in range(400):
        text = "".join(dice.choice(LETTERS) for _ in range(dice.randint(0, 6)))
        assert automaton.matches(text.encode()) == bool(re.fullmatch(pattern, text, re.ASCII)), text


def test_random_patterns_match_what_python_matches() -> None:
    dice = random.Random(1)
    for _ in range(150):
        pattern = forms.pattern(dice, "ab0 é")
        automaton = compiled(language(pattern))
        for _ in range(40):
            text = "".join(dice.choice("ab0 é\n") for _ in range(dice.randint(0, 6)))
            assert automaton.matches(text.encode()) == bool(re.fullmatch(pattern, text, re.ASCII)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "not a regular expression: missing )"),
        (r"(a)\1", "a reference to a group"),
        ("(?=a)a", "a look-around"),
        ("a$b", "an anchor inside"),
        (r"\bx", "a boundary of words"),
        ("a{20000}", "a repetition of 20,000 times"),
        ("a{99999999999}", "a repetition"),
        (r"(?u)\d", "(?u) for all of it"),
        ("((a{90}){90}){90}", "more than 60,000 parts"),
        ("(a|b)*a(a|b){20}", "more than 4,000 states"),
        ("(a?){5000}b{5000}", "too large"),
        ("(" * 3000 + ")" * 3000, "too many groups"),
        ("a" * 30_000, "30,000 characters"),
        ("(?!)", "a look-around"),
        ("[^\\s\\S]", "no text at all"),
    ],
)
def test_what_is_not_carried_is_refused_in_one_line_and_soon(pattern: str, why: str) -> None:
    began = time.process_time()
    with pytest.raises(InputError, match=re.escape(why)) as caught:
        form(matches=pattern)
    assert "\n" not in str(caught.value) and caught.value.hint
    assert time.process_time() - began < 8


@pytest.mark.parametrize("low", [None, -120, -7, 0, 3, 98])
@pytest.mark.parametrize("high", [None, -3, 0, 11, 104])
@pytest.mark.parametrize("ends", [(True, True), (False, False)])
def test_bounds(low: int | None, high: int | None, ends: tuple[bool, bool]) -> None:
    bounds = Bounds(low, high, *ends)
    whole, any_ = compiled(integers(bounds)), compiled(numbers(bounds))

    def within(value: float) -> bool:
        above = low is None or value > low or (value == low and ends[0])
        return above and (high is None or value < high or (value == high and ends[1]))

    for value in range(-130, 130):
        assert whole.matches(str(value).encode()) == within(value)
        assert any_.matches(str(value).encode()) == within(value)
        assert any_.matches(f"{value}.5".encode()) == within(value + (0.5 if value >= 0 else -0.5))
        assert not whole.matches(f"0{value}".encode())


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}}, "required": ["b"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": {"type": "null"}, "minItems": 1},
    {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 3}, {"enum": [1, [2, {"a": None}], "ü\n"]}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}},
    {"type": ["integer", "null"], "minimum": -3, "exclusiveMaximum": 12},
    {"type": "string", "pattern": "^(a|\\d)+-"},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "number", "minimum": 1}}}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
    True,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_documents_are_valid(schema: dict[str, object] | bool) -> None:
    """Random documents of the automaton, and a few more by a model."""
    validate = pytest.importorskip("jsonschema_rs").validator_for(schema)
    for text in forms.documents(forms.writer(), form(schema=schema), 2):
        assert validate.is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "multipleOf": 3}, "multipleOf 3 is not carried"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems is not carried"),
        ({"not": {}}, "'not' is not carried"),
        ({"properties": {"a": {"if": {}}}}, "schema/a: 'if' is not carried"),
        ({"$ref": "other.json"}, "is not a path within the schema"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "may overlap"),
        ({"type": "text"}, "choose from object"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "stands beside another condition"),
        ({"type": "string", "format": "hostname"}, "format 'hostname' is not carried"),
        ({"type": "number", "minimum": 0.5}, "whole bounds only"),
        ({"type": "object", "minProperties": 2}, "keys may be equal"),
        ({"type": "string", "maxLength": 50_000}, "too large"),
        (False, "no text at all meets schema"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "no text at all meets schema"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, "no text at all meets schema"),
        ({"type": "object", "required": [1]}, "required a list of texts"),
        ({"type": None}, "type is None"),
        ({"$ref": "#"}, "no text at all meets schema"),
        ({"enum": ["\ud800"]}, "half a surrogate pair"),
        ({"properties": {"a": {"$id": "x", "type": "null"}}}, "an $id of its own"),
    ],
)
def test_schemas_that_cannot_be_promised_are_refused(schema: object, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)) as caught:
        form(schema=schema)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and caught.value.hint


def test_recursion_is_cut_at_a_depth() -> None:
    tree = compiled(of_schema(SCHEMAS[3]))
    assert tree.matches(b"[[], [[]]]") and not tree.matches(b"[[[[]]]]")


def test_deep_and_wide_schemas_are_compiled_or_refused_soon() -> None:
    deep: dict[str, object] = {}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    wide = {"anyOf": [{"properties": {f"a{n}": {} for n in range(400)}}] * 40}
    twice = {
        "$defs": {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(40)}
    }
    twice |= {"$ref": "#/$defs/d0"}
    for schema in (deep, wide, twice):
        began = time.process_time()
        with suppress(InputError):
            form(schema=schema)
        assert time.process_time() - began < 8
