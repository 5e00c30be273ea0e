"""Text files, plain or JSON lines -> texts, each with its place for error messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.progress import Progress

from unmask.errors import InputError, unknown


def read(path: str | Path) -> str:
    """A whole UTF-8 file; `-` is standard input."""
    if path == "-" and sys.stdin is None:
        raise InputError("standard input is closed", "give the text itself, or a file")
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: OSError | UnicodeDecodeError) -> InputError:
    why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no UTF-8 text"
    return InputError(f"cannot read {str(path)!r}", why)


class Texts:
    """Iterates over the lines of files; with `fields`, over these strings of each JSON line."""

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None, bar: Progress) -> None:
        self.paths, self.fields, self.bar = paths, fields, bar
        self.place = ""  # file:line that is being read

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            if self.fields is None and path.endswith((".jsonl", ".json")):
                raise InputError(f"{path!r} holds JSON", "say with --fields which of its strings are text")
            try:
                with self.bar.open(path, "r", encoding="utf-8", description=path) as file:
                    for number, line in enumerate(file, 1):
                        self.place = f"{path}:{number}"
                        yield from self._texts(line.removesuffix("\n"))
            except (OSError, UnicodeDecodeError) as error:
                raise _unreadable(path, error) from None

    def _texts(self, line: str) -> Iterator[str]:
        if self.fields is None:
            yield line
            return
        if not line.strip():
            return
        try:
            values = json.loads(line)
        except ValueError:
            raise InputError(f"{self.place} is no JSON", "give JSON lines, or leave --fields out") from None
        for name in self.fields:
            if not isinstance(values, dict) or name not in values:
                error = unknown("field", name, values if isinstance(values, dict) else ())
                raise InputError(f"{self.place}: {error.message}", error.hint)
            if not isinstance(values[name], str):
                raise InputError(f"{self.place}: the field {name!r} is no text", "name fields that hold strings")
            yield values[name]

    def blamed(self, encode: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
        """`encode`, whose errors say where the text was found."""

        def named(text: str) -> list[int]:
            try:
                return encode(text)
            except InputError as error:
                raise InputError(f"{self.place}: {error.message}", error.hint) from None

        return named
