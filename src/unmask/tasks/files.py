"""A file of JSON lines, JSON or CSV, packed or not -> its rows, with one-line errors that name the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from unmask.errors import InputError

Row = dict[str, Any]


def rows(path: Path, *names: str) -> list[Row]:
    """The rows of a .jsonl, .json or .csv file, perhaps with .gz; each must have fields of these names."""
    text = unpacked(path)
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    found = {"csv": _csv, "json": _json}.get(kind, _lines)(text, str(path))
    for number, row in enumerate(found, 1):
        missing = [name for name in names if not isinstance(row, dict) or row.get(name) is None]
        if missing:
            raise InputError(f"row {number} of {str(path)!r} has no {missing[0]!r}", f"rows need {', '.join(names)}")
    return found


def unpacked(path: Path) -> str:
    """The text of a file, unpacked where its name ends in .gz."""
    packed = raw(path)
    try:
        return (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is not packed as its name says"
        raise InputError(f"cannot read {str(path)!r}", why) from None


def raw(path: Path) -> bytes:
    """A whole file; `-` is standard input."""
    if str(path) == "-":
        return _piped(sys.stdin)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"cannot read {str(path)!r}", getattr(error, "strerror", None) or str(error)) from None


@lru_cache(maxsize=1)  # it can be read once, and both its text and its hash are wanted
def _piped(stream: TextIO | None) -> bytes:
    if stream is None:
        raise InputError("standard input is closed", "give a file")
    return stream.read().encode()


def _lines(text: str, path: str) -> list[Row]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError:
                raise InputError(f"line {number} of {path!r} is no JSON", "give JSON lines, or .json or .csv") from None
    return found


def _json(text: str, path: str) -> list[Row]:
    try:
        found = json.loads(text)
    except ValueError:
        raise InputError(f"{path!r} is no JSON", "JSON lines need a name that ends in .jsonl") from None
    if not isinstance(found, list):
        raise InputError(f"{path!r} holds no list", "give a list of objects, or JSON lines")
    return found


def _csv(text: str, path: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(text, newline="")))
