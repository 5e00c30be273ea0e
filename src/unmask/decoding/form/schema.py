"""A JSON Schema -> the language of documents that are valid under it, written in one way.

Written in one way: keys in the order of the schema and no others, a blank or none after each comma and colon, no
escapes but those that are needed. So every text is valid; not every valid document is such a text. What this cannot
promise is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from unmask.decoding.form.language import (
    EVERYTHING,
    Alt,
    Chars,
    Language,
    Listed,
    Repeat,
    Separated,
    Seq,
    any_of,
    optional,
    rewritten,
    text,
    without,
)
from unmask.decoding.form.numbers import Bounds, integers, numbers, rounded
from unmask.decoding.form.regex import language as of_pattern
from unmask.decoding.form.work import Work, reading, too_large
from unmask.errors import InputError

DEPTH = 3  # objects and arrays in each other where the schema sets no limit; turns of a reference to itself
NODES = 20_000  # schemas inside a schema, references followed
BLANK = optional(text(" "))
COMMA, COLON = Seq((text(","), BLANK)), Seq((text(":"), BLANK))
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
SPECIAL = ((0, 31), (34, 34), (92, 92))

NOTES = frozenset(
    "title description default examples example $schema $id id $comment $defs definitions deprecated readOnly "
    "writeOnly contentEncoding contentMediaType contentSchema $vocabulary".split()
)
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"),
}
OF_TYPE |= {"integer": OF_TYPE["number"], "boolean": (), "null": ()}
LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LIMITS = (*LEAST, *MOST)
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
COMPOSED = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "type")
MONTHS = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
DATE, TIME = f"[12][0-9]{{3}}-{MONTHS}", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {
    "date": DATE,
    "time": f"{TIME}Z",
    "date-time": f"{DATE}T{TIME}Z",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{OCTET}(\.{OCTET}){{3}}",
    "email": r"[a-z0-9]+([._-][a-z0-9]+)*@[a-z0-9]+(-[a-z0-9]+)*(\.[a-z]+)+",
}


def refused(where: str, what: str, way_out: str = "leave it out") -> InputError:
    """The refusal of a part of a schema."""
    return InputError(f"schema{where}: {what}", way_out)


def language(schema: Any) -> Language:
    """The documents of a schema."""
    return _Reader(schema).value(schema, "", ())


class _Reader:
    """Reads one schema, whose references are into itself."""

    def __init__(self, root: Any) -> None:
        self.root, self.nodes, self.work = root, 0, reading()

    def value(self, schema: Any, where: str, seen: tuple[str, ...], depth: int = DEPTH) -> Language:
        """The documents of a schema at a place; `seen` are the references that led to it."""
        self.nodes += 1
        if self.nodes > NODES:
            raise too_large(f"a schema of more than {NODES:,} parts")
        if schema is True or schema == {}:
            return anything(depth)
        if schema is False:
            return Alt()
        if not isinstance(schema, Mapping):
            raise refused(where, f"a {type(schema).__name__} is not a schema", "give an object")
        if schema is not self.root and isinstance(schema.get("$id", schema.get("id")), str):
            raise refused(where, "a schema with an $id of its own inside another", "leave the $id out")
        schema = {name: one for name, one in schema.items() if name not in NOTES and not name.startswith("x-")}
        self.work.spend(50 + len(schema))
        self._check(schema, where)
        if "$ref" in schema:
            return self._referred(schema, where, seen, depth)
        for name in ("allOf", "anyOf", "oneOf"):
            if name in schema:
                return self._composed(name, schema, where, seen, depth)
        if "enum" in schema or "const" in schema:
            return self._listed(schema, where)
        types = _types(schema, where)
        return Alt(tuple(self._typed(one, schema, where, seen, depth) for one in types))

    def _check(self, schema: Mapping[str, Any], where: str) -> None:
        known = {*COMPOSED, *(name for names in OF_TYPE.values() for name in names)}
        for name in schema:
            if name not in known:
                raise refused(where, f"{name!r} is not carried")

    # --- several schemas in one ---

    def _referred(self, schema: Mapping[str, Any], where: str, seen: tuple[str, ...], depth: int) -> Language:
        name = schema["$ref"]
        found = self._target(name, where)
        if seen.count(name) >= DEPTH:
            return Alt()  # deeper ones are not written
        rest = {key: one for key, one in schema.items() if key != "$ref"}
        if rest:
            found = self._merged(found, rest, where)
        return self.value(found, where, (*seen, name), depth)

    def _target(self, name: Any, where: str) -> Any:
        """The schema that a reference names."""
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            raise refused(where, f"$ref {name!r} is not a path within the schema", "write it like #/$defs/name")
        found = self.root
        for part in name.split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            inside = isinstance(found, Mapping) and part in found
            place = isinstance(found, list) and part.isdecimal() and len(part) < 10 and int(part) < len(found)
            if not inside and not place:
                raise refused(where, f"$ref {name!r} leads nowhere", "correct it")
            found = found[part] if inside else found[int(part)]
        return found

    def _composed(
        self, name: str, schema: Mapping[str, Any], where: str, seen: tuple[str, ...], depth: int
    ) -> Language:
        parts = schema[name]
        if not isinstance(parts, list) or not parts:
            raise refused(where, f"{name} must be a list of schemas", "give at least one")
        rest = {key: one for key, one in schema.items() if key != name}
        if name == "allOf":
            whole: Any = rest
            for part in parts:
                whole = self._merged(whole, self._resolved(part, where), where)
            return self.value(whole, where, seen, depth)
        if name == "oneOf" and len(parts) > 1 and not self._apart([self._resolved(part, where) for part in parts]):
            raise refused(where, "the parts of oneOf may overlap", "use anyOf, or a constant that tells them apart")
        merged = [self._merged(rest, self._resolved(part, where), where) if rest else part for part in parts]
        return Alt(tuple(self.value(part, f"{where}/{name}/{n}", seen, depth) for n, part in enumerate(merged)))

    def _merged(self, one: Any, other: Any, where: str) -> Any:
        return _merged(one, other, where, self.work)

    def _apart(self, parts: Sequence[Any]) -> bool:
        """Whether no document can be of two of these schemas."""
        self.work.spend(sum(map(_size, parts)))
        for part in parts:
            _shaped(part, "")
        return _apart(parts)

    def _resolved(self, schema: Any, where: str) -> Any:
        """A schema whose own reference is followed, if it is a plain one."""
        if isinstance(schema, Mapping) and set(schema) - NOTES == {"$ref"} and isinstance(schema["$ref"], str):
            return self._target(schema["$ref"], where)
        return schema

    def _listed(self, schema: Mapping[str, Any], where: str) -> Language:
        """The values of an enum or a constant."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or ("const" in schema and "enum" in schema):
            raise refused(where, "enum must be a list of values, without const beside it", "correct it")
        more = set(schema) - {"enum", "const", "type"}
        if more:
            raise refused(where, f"{sorted(more)[0]} stands beside enum or const")
        types = _types(schema, where) if "type" in schema else TYPES
        kept = [one for one in values if _type(one) in types or (_type(one) == "integer" and "number" in types)]
        written = [json.dumps(one, ensure_ascii=False) for one in kept]
        self.work.spend(3 * sum(map(len, written)))
        return any_of(written)

    # --- one type ---

    def _typed(self, kind: str, schema: Mapping[str, Any], where: str, seen: tuple[str, ...], depth: int) -> Language:
        if kind == "null":
            return text("null")
        if kind == "boolean":
            return any_of(["true", "false"])
        if kind in ("integer", "number"):
            self.work.spend(20 * sum(len(str(schema.get(name, ""))[:16]) ** 2 for name in OF_TYPE["number"]))
            return _number(kind, schema, where)
        if kind == "string":
            return self._string(schema, where)
        if kind == "array":
            return self._array(schema, where, seen, depth)
        return self._object(schema, where, seen, depth)

    def _string(self, schema: Mapping[str, Any], where: str) -> Language:
        given = [name for name in ("pattern", "format") if name in schema]
        low, high = _count(schema, "minLength", where) or 0, _count(schema, "maxLength", where)
        if len(given) > 1 or (given and (low or high is not None)):
            raise refused(where, f"{given[0]} stands beside another condition on the string", "keep one of them")
        if high is not None and high < low:
            return Alt()
        if not given:
            return string(low, high)
        pattern = schema[given[0]]
        if given[0] == "format":
            if not isinstance(pattern, str) or pattern not in FORMATS:
                raise refused(where, f"format {pattern!r} is not carried", f"known are {', '.join(FORMATS)}")
            return quoted(of_pattern(FORMATS[pattern], work=self.work))
        if not isinstance(pattern, str):
            raise refused(where, "pattern must be text", "correct it")
        return quoted(of_pattern(pattern, search=True, work=self.work))

    def _array(self, schema: Mapping[str, Any], where: str, seen: tuple[str, ...], depth: int) -> Language:
        low, high = _count(schema, "minItems", where) or 0, _count(schema, "maxItems", where)
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # until draft 2019-09
            first, rest = rest, True
        if not isinstance(first, list):
            raise refused(where, "prefixItems must be a list of schemas", "correct it")
        if high is not None and high < low:
            return Alt()
        if schema.get("uniqueItems") and (high is None or high > 1):
            raise refused(where, "uniqueItems is not carried", "leave it out, or set maxItems to 1")
        if depth <= 0 and (first or rest is True):
            return Alt()
        places = [self.value(one, f"{where}/prefixItems/{n}", seen, depth - 1) for n, one in enumerate(first)]
        item = self.value(rest, f"{where}/items", seen, depth - (rest is True))
        return _array(item, low, high, places)

    def _object(self, schema: Mapping[str, Any], where: str, seen: tuple[str, ...], depth: int) -> Language:
        fields, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(fields, Mapping) or not _texts(required) or not _texts(list(fields)):
            raise refused(where, "properties must be an object, required a list of texts", "correct it")
        low, high = _count(schema, "minProperties", where) or 0, _count(schema, "maxProperties", where)
        missing = [name for name in dict.fromkeys(required) if name not in fields]
        if "propertyNames" in schema and (fields or required):
            raise refused(where, "propertyNames stands beside properties")
        if not fields and not required:
            return self._map(schema, extra, low, high, where, seen, depth)
        if low > len(set(required)) or (high is not None and high < len(fields) + len(missing)):
            raise refused(where, "minProperties or maxProperties limits fields that may be left out")
        parts = []
        for name, one in [*fields.items(), *((name, extra) for name in missing)]:
            self.work.spend(3 * len(name))
            inner = self.value(one, f"{where}/{name}", seen, depth - (one is True))
            parts.append((Seq((text(json.dumps(name, ensure_ascii=False)), COLON, inner)), name in required))
        return Seq((text("{"), Listed(tuple(parts), COMMA), text("}")))

    def _map(
        self,
        schema: Mapping[str, Any],
        extra: Any,
        low: int,
        high: int | None,
        where: str,
        seen: tuple[str, ...],
        depth: int,
    ) -> Language:
        """An object of any keys: two may be equal, so that more than one cannot be promised."""
        if low > 1:
            raise refused(where, f"minProperties is {low}, but keys may be equal", "name them under properties")
        if extra is False or (depth <= 0 and extra is True):
            return text("{}") if low == 0 else Alt()
        names = schema.get("propertyNames", True)
        key = string() if names is True else self.value(self._merged({"type": "string"}, names, where), where, seen)
        inner = self.value(extra, f"{where}/additionalProperties", seen, depth - (extra is True))
        return _map(key, inner, low, high)


# --- texts -----------------------------------------------------------------------------------------------------------


def _escaped(characters: Chars) -> Language:
    """Characters as they stand in a string of JSON; those that need more than a letter to escape are left out."""
    plain = without(characters.ranges, SPECIAL)
    escaped = [text(mark) for one, mark in ESCAPES.items() if any(a <= ord(one) <= b for a, b in characters.ranges)]
    return Alt((*([Chars(plain)] if plain else []), *escaped))


@lru_cache(maxsize=8)
def anything(depth: int) -> Language:
    """Any document of a depth."""
    simple = [string(), numbers(Bounds()), any_of(["true", "false", "null"])]
    if depth <= 0:
        return Alt(tuple(simple))
    inner = anything(depth - 1)
    return Alt((*simple, _array(inner, 0, None), _map(string(), inner, 0, None)))


@lru_cache(maxsize=64)
def string(low: int = 0, high: int | None = None) -> Language:
    """A string of some characters."""
    return quoted(Repeat(Chars(EVERYTHING), low, high))


def quoted(inner: Language) -> Language:
    """A string of JSON whose value is of a language."""
    return Seq((text('"'), rewritten(inner, _escaped), text('"')))


def _array(item: Language, low: int, high: int | None, first: Sequence[Language] = ()) -> Language:
    """An array: the first ones, then items, of which there are from `low` to `high` in all."""
    if not first:
        return Seq((text("["), Separated(item, COMMA, low, high), text("]")))
    more = max(0, low - len(first)), None if high is None else max(0, high - len(first))
    following: Language = Repeat(Seq((COMMA, item)), *more)
    for place in reversed(range(len(first) if high is None else min(len(first), high))):
        last = high is not None and place == high - 1
        following = Seq((*([COMMA] if place else []), first[place], *([] if last else [following])))
        following = following if place < low else optional(following)
    return Seq((text("["), following, text("]"))) if high != 0 else text("[]")


def _map(key: Language, value: Language, low: int, high: int | None) -> Language:
    return Seq((text("{"), Separated(Seq((key, COLON, value)), COMMA, low, high), text("}")))


def _number(kind: str, schema: Mapping[str, Any], where: str) -> Language:
    step = schema.get("multipleOf")
    if step is not None and not (kind == "integer" and step == 1):
        raise refused(where, f"multipleOf {step!r} is not carried", "leave it out; an integer is a multiple of 1")
    bounds = Bounds()
    for name, low in (("minimum", True), ("exclusiveMinimum", True), ("maximum", False), ("exclusiveMaximum", False)):
        if name in schema:
            bounds = _narrowed(bounds, kind, name, schema[name], low, where)
    return integers(bounds) if kind == "integer" else numbers(bounds)


def _narrowed(bounds: Bounds, kind: str, name: str, value: Any, low: bool, where: str) -> Bounds:
    """Bounds with one more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise refused(where, f"{name} is {value!r}", "give a number, up to 1e15")
    whole = rounded(value, up=low)
    if whole != value and kind == "number":
        raise refused(where, f"{name} is {value!r}, and numbers have whole bounds only", "give a whole one")
    has = not name.startswith("exclusive") or whole != value
    if low:
        if bounds.low is not None and (bounds.low, not bounds.has_low) >= (whole, not has):
            return bounds
        return Bounds(whole, bounds.high, has, bounds.has_high)
    if bounds.high is not None and (bounds.high, bounds.has_high) <= (whole, has):
        return bounds
    return Bounds(bounds.low, whole, bounds.has_low, has)


# --- schemas ---------------------------------------------------------------------------------------------------------


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _types(schema: Mapping[str, Any], where: str) -> list[str]:
    """The types of a schema; without any, those that its conditions are about."""
    given = schema.get("type")
    if "type" not in schema:
        about = [kind for kind, names in OF_TYPE.items() if kind != "integer" and any(one in schema for one in names)]
        return about or [kind for kind in TYPES if kind != "integer"]
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or any(one not in TYPES for one in found):
        raise refused(where, f"type is {given!r}", f"choose from {', '.join(TYPES)}")
    return [one for one in found if not (one == "integer" and "number" in found)]


def _type(value: Any) -> str:
    """The type of a value."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return next(name for kind, name in kinds.items() if isinstance(value, kind))


def _count(schema: Mapping[str, Any], name: str, where: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise refused(where, f"{name} is {value!r}", "give a whole number, at least 0")
    return int(value)


def _size(schema: Any) -> int:
    """How many fields and names a schema has to be gone through when it is merged."""
    if not isinstance(schema, Mapping):
        return 1
    inner = [schema.get(name) for name in ("properties", "required", "type", "enum")]
    return len(schema) + sum(len(one) for one in inner if isinstance(one, Mapping | list))


def _shaped(schema: Any, where: str) -> None:
    """Refuse conditions of a kind that they cannot have, before two are compared."""
    if not isinstance(schema, Mapping):
        return
    if not isinstance(schema.get("properties", {}), Mapping) or not _texts(schema.get("required", [])):
        raise refused(where, "properties must be an object, required a list of texts", "correct it")
    if not isinstance(schema.get("enum", []), list):
        raise refused(where, "enum must be a list of values", "correct it")
    if "type" in schema:
        _types(schema, where)
    for name in LIMITS:
        if name in schema and (isinstance(schema[name], bool) or not isinstance(schema[name], int | float)):
            raise refused(where, f"{name} is {schema[name]!r}", "give a number")


def _merged(one: Any, other: Any, where: str, work: Work) -> Any:
    """A schema that asks for both."""
    work.spend(10 + _size(one) + _size(other))
    for part in (one, other):
        _shaped(part, where)
    if one is True or other is True:
        return other if one is True else one
    if one is False or other is False:
        return False
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        raise refused(where, "a part of it is not a schema", "give an object")
    found = {name: value for name, value in one.items() if name not in NOTES}
    both = [set(part.get("properties", {})) | set(part.get("required", [])) for part in (one, other)]
    closed = [part.get("additionalProperties", True) is not True for part in (one, other)]
    if any(closed) and "properties" in {**one, **other} and both[0] != both[1] and one and other:
        raise refused(where, "additionalProperties does not go with fields from elsewhere", "write them in one schema")
    for name, value in other.items():
        if name in NOTES or found.get(name) == value:
            continue
        if name not in found:
            found[name] = value
        elif name == "required":
            found[name] = list(dict.fromkeys([*found[name], *value]))
        elif name == "properties":
            mine = found[name]
            found[name] = {
                **mine,
                **{k: _merged(mine[k], v, where, work) if k in mine else v for k, v in value.items()},
            }
        elif name in LEAST:
            found[name] = max(found[name], value)
        elif name in MOST:
            found[name] = min(found[name], value)
        else:
            raise refused(where, f"two conditions {name!r} meet", "write them as one")
    return found


def _apart(parts: Sequence[Any]) -> bool:
    """Whether no document can be of two of these schemas: their types differ, or a required constant does."""
    if not all(isinstance(part, Mapping) for part in parts):
        return False
    kinds = [_kinds_of(part) for part in parts]
    if all(kinds) and sum(map(len, kinds)) == len(set().union(*kinds)):
        return True
    names = set.intersection(*(set(part.get("required", [])) for part in parts)) if parts else set()
    return any(_different([part.get("properties", {}).get(name, {}) for part in parts]) for name in names)


def _kinds_of(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema says it has, a number being an integer as well; nothing: it does not say."""
    if "const" in schema or "enum" in schema:
        return {json.dumps(one) for one in schema.get("enum", [schema.get("const")])} if "type" not in schema else set()
    given = schema.get("type", [])
    found = {given} if isinstance(given, str) else set(given)
    return {"number" if one == "integer" else one for one in found}


def _different(parts: Sequence[Any]) -> bool:
    values: list[str] = []
    for part in parts:
        if not isinstance(part, Mapping):
            return False
        some = [part["const"]] if "const" in part else part.get("enum", [])
        if not isinstance(some, list):
            return False
        if not some or any(not isinstance(one, str) for one in some):
            return False
        values += some
    return len(values) == len(set(values))
