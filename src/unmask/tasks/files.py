"""Files, packed or not -> bytes, text, lines, documents or rows; every error names the file and the place in it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from unmask.errors import InputError, unknown

MOST = 1 << 30  # bytes of a file that is read whole, unpacked
LONGEST = 1 << 24  # characters of a line or a document of running text
NO_LINES = "give text with blank lines between documents"
Row = dict[str, Any]
Progress = Callable[[str, int, int], None]  # the file, bytes read, bytes in all

# --- whole files -----------------------------------------------------------------------------------------------------


def read(path: str | Path) -> str:
    """The text of a file, with \\n at the end of every line; `-` is standard input."""
    return unpacked(Path(path)).replace("\r\n", "\n").replace("\r", "\n")


def unpacked(path: Path) -> str:
    """The text of a file as it is stored, unpacked where its name ends in .gz."""
    stored = raw(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(stored)) as file:
                stored = _bounded(file.read, path)
        return stored.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is not a gzip file"
        raise InputError(f"cannot read {str(path)!r}", why) from None


def raw(path: Path) -> bytes:
    """The bytes of a file; `-` is standard input."""
    try:
        if str(path) == "-":
            return _piped(sys.stdin)
        with path.open("rb") as file:
            return _bounded(file.read, path)
    except UnicodeError:
        raise InputError(f"cannot read {str(path)!r}", "it is not UTF-8 text") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"cannot read {str(path)!r}", getattr(error, "strerror", None) or str(error)) from None


def _bounded(read: Callable[[int], bytes], path: Path) -> bytes:
    """All that is in a file, unless it is too much for the memory."""
    parts, size = [], 0
    while part := read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > MOST:
            raise InputError(f"{str(path)!r} holds more than {MOST:,} bytes", "give a part of it")
    return b"".join(parts)


@lru_cache(maxsize=1)  # standard input can be read once, and callers want both its text and its hash
def _piped(stream: TextIO | None) -> bytes:
    if stream is None:
        raise InputError("standard input is closed", "give a file")
    return stream.read().encode()


# --- rows ------------------------------------------------------------------------------------------------------------


def rows(path: Path, *names: str) -> list[Row]:
    """The rows of a .jsonl, .json, .csv or .parquet file, perhaps with .gz; each must have fields of these names."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        found = _parquet(path)
    else:
        found = {"csv": _csv, "json": _json}.get(kind, _json_lines)(unpacked(path), str(path))
    for number, row in enumerate(found, 1):
        missing = [name for name in names if not isinstance(row, dict) or row.get(name) is None]
        if missing:
            raise InputError(f"row {number} of {str(path)!r} has no {missing[0]!r}", f"rows need {', '.join(names)}")
    return found


def check_readable(path: Path) -> None:
    """Refuse a format that needs a package which is not installed."""
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{path.name} is a Parquet file", "pip install pyarrow, or give the questions as JSON lines")


def _parquet(path: Path) -> list[Row]:
    check_readable(path)
    parquet = import_module("pyarrow.parquet")
    try:
        found: list[Row] = parquet.read_table(str(path)).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own are of these kinds
        raise InputError(f"cannot read {str(path)!r}", str(error).partition("\n")[0]) from None
    return found


def _json_lines(text: str, path: str) -> list[Row]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                raise InputError(f"line {number} of {path!r} is not JSON", "give JSON lines, .json or .csv") from None
    return found


def _json(text: str, path: str) -> list[Row]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path!r} is not JSON", "JSON lines need a name that ends in .jsonl") from None
    if not isinstance(found, list):
        raise InputError(f"{path!r} is not a list", "give a list of objects, or JSON lines")
    return found


def _csv(text: str, path: str) -> list[Row]:
    try:
        return list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{path!r} is not CSV", str(error)) from None


# --- running text ----------------------------------------------------------------------------------------------------


def documents(path: str) -> Iterator[str]:
    """The documents of a text file, .xz and .gz too; blank lines separate them."""
    some: list[str] = []
    size = 0
    for line in _lines(path):
        if line.strip():
            some.append(line)
            size += len(line)
            if size > LONGEST:
                raise InputError(f"{path!r} has a document of more than {LONGEST:,} characters", NO_LINES)
        elif some:
            yield "".join(some).rstrip("\n")
            some, size = [], 0
    if some:
        yield "".join(some).rstrip("\n")


def _lines(path: str) -> Iterator[str]:
    opens: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
    found = False
    try:
        file: TextIO = opens.get(Path(path).suffix, open)(path, "rt", encoding="utf-8")
        with file:
            while line := file.readline(LONGEST):
                if len(line) == LONGEST:
                    raise InputError(f"{path!r} has a line of more than {LONGEST:,} characters", NO_LINES)
                found = found or bool(line.strip())
                yield line
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot read the text {path!r}", why) from None
    if not found:
        raise InputError(f"there is no text in {path!r}", "give files with text in them")


def texts(
    paths: Sequence[str],
    fields: Sequence[str] | None = None,
    on_progress: Progress = lambda path, done, total: None,
) -> Iterator[tuple[str, str]]:
    """The place (file:line) and text of every line of files; with `fields`, of these strings of each JSON line."""
    for path in paths:
        if fields is None and path.endswith((".jsonl", ".json")):
            raise InputError(f"{path!r} holds JSON", "name the fields that hold text with --fields")
        try:
            total = Path(path).stat().st_size
            with open(path, "rb") as stored, io.TextIOWrapper(stored, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    place, text = f"{path}:{number}", line.removesuffix("\n")
                    for one in [text] if fields is None else _strings(text, fields, place):
                        yield place, one
                    on_progress(path, stored.tell(), total)
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read {path!r}", why) from None


def _strings(line: str, fields: Sequence[str], place: str) -> Iterator[str]:
    """These strings of a JSON line."""
    if not line.strip():
        return
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is not JSON", "give JSON lines, or leave --fields out") from None
    for name in fields:
        if not isinstance(values, dict) or name not in values:
            error = unknown("field", name, values if isinstance(values, dict) else ())
            raise InputError(f"{place}: {error.message}", error.hint)
        if not isinstance(values[name], str):
            raise InputError(f"{place}: the field {name!r} is not text", "name fields that hold strings")
        yield values[name]
