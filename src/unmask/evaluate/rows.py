"""A file of rows <-> a header and rows, as JSON lines: whole lines, one writer at a time, resumed after any end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from unmask.errors import InputError, many
from unmask.evaluate.lock import locked

KIND = "unmask rows"
Line = dict[str, Any]
SAME = {  # what a run must have in common with the one that it goes on with, and how it is called
    "task": "the task",
    "model": "the model",
    "weights": "the SHA-256 of the weights",
    "dtype": "dtype",
    "loading": "how the model is loaded",
    "sha256": "the SHA-256 of the data",
    "shots": "the SHA-256 of the worked examples",
    "chat": "chat",
    "limit": "limit",
    "recipe": "the recipe",
}
ORIGIN = ("version", "torch", "device", "machine", "commit")  # may change on the way, and is written down where it does


@dataclass
class Rows:
    """The rows of one run so far, and the file that they go to."""

    header: Line
    kept: list[Line] = field(default_factory=list)
    file: BinaryIO | None = None
    first: list[Line] = field(default_factory=list)  # goes to the file before the next row

    def add(self, new: Iterable[Line]) -> None:
        """Keep rows: they are on the disk when this returns."""
        some = list(new)
        if self.file is not None and some:
            _append(self.file, [*self.first, *some])
            self.first = []
        self.kept += some

    @property
    def missing(self) -> int:
        """How many rows the run still lacks."""
        return int(self.header["n"]) - len(self.kept)


def read(path: str | Path) -> Rows:
    """A file of rows, finished or not; what follows the last newline is no row."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}", str(error.strerror)) from None
    found = _parsed(content, str(path))
    if found is None:
        raise InputError(f"{str(path)!r} is empty", "`unmask eval … --rows FILE` writes rows")
    return found


def check_place(path: str | None) -> None:
    """Refuse a place where no rows can go, before anything is read."""
    if path is not None:
        _open(path).close()


@contextmanager
def opened(path: str | None, header: Line) -> Iterator[Rows]:
    """The rows of a run, those of before included; without a path they are kept in memory only."""
    header = json.loads(json.dumps({"kind": KIND, **header}))  # as it is read again
    if path is None:
        yield Rows(header)
        return
    with _open(path) as file:
        content = file.read()
        found = _parsed(content, path)
        if found is None or not found.kept:  # nothing to lose
            found, whole, begun = Rows(header), 0, [header]
        else:
            _fits(found.header, header, path)
            whole, begun = content.rfind(b"\n") + 1, []
            found.first = _elsewhere(found.header, header)
        if whole < len(content):
            file.truncate(whole)
        file.seek(whole)
        _append(file, begun)
        _settle(path)
        found.file = file
        try:
            yield found
        except KeyboardInterrupt:
            said = f"{many(len(found.kept), 'row is', 'rows are')} in {path!r}, the same command goes on"
            raise KeyboardInterrupt(*([said] if found.kept else [])) from None


# --- the file --------------------------------------------------------------------------------------------------------


def _open(path: str) -> BinaryIO:
    """A file to read and append to, which no other run has open."""
    place = Path(path)
    try:
        if place.exists() and not place.is_file():
            raise InputError(f"{path!r} is no file", "rows need one that can be read again")
        binary = getattr(os, "O_BINARY", 0)  # of Windows
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | binary, 0o666), "r+b")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"cannot write {path!r}", getattr(error, "strerror", None) or str(error)) from None
    if not locked(file):
        file.close()
        raise InputError(f"another run is writing {path!r}", "wait for it, or give another file for the rows")
    return file


def _append(file: BinaryIO, lines: Iterable[Line]) -> None:
    try:
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise InputError("cannot write the rows", f"{error.strerror}; those of before are kept") from None


def _settle(path: str) -> None:
    """Have the name of a new file on the disk, too."""
    if os.name == "posix":
        folder = os.open(Path(path).resolve().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- what is in it ---------------------------------------------------------------------------------------------------


def _parsed(content: bytes, path: str) -> Rows | None:
    """Header and rows; None where there is nothing yet, or no whole header."""
    *lines, torn = content.split(b"\n")
    if not lines:
        if torn and not torn.startswith(b'{"kind": "unmask'[: len(torn)]):
            raise _foreign(path)
        return None
    header = _object(lines[0])
    if header is None or header.get("kind") != KIND or not isinstance(header.get("n"), int):
        raise _foreign(path)
    found: dict[int, Line] = {}
    for number, line in enumerate(lines[1:], 2):
        row = _object(line)
        if row is not None and isinstance(row.get("resumed"), dict):
            header = header | row["resumed"]
        elif row is None or not isinstance(row.get("number"), int) or row["number"] in found:
            raise InputError(f"line {number} of {path!r} is no row, or one that was there", "give another file")
        else:
            found[row["number"]] = row
    return Rows(header, list(found.values()))


def _foreign(path: str) -> InputError:
    return InputError(f"{path!r} holds something else than rows of `unmask eval`", "give another file")


def _object(line: bytes) -> Line | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fits(there: Mapping[str, Any], here: Mapping[str, Any], path: str) -> None:
    """Refuse to go on with another run, and say what differs."""
    same_weights = there.get("weights") is not None and there["weights"] == here.get("weights")
    found = []
    for name, words in SAME.items():
        one, two = there.get(name), here.get(name)
        if name == "recipe" and isinstance(one, dict) and isinstance(two, dict):
            keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
            found += [f"{key} is {_said(one.get(key))} there and {_said(two.get(key))} here" for key in keys]
        elif one != two and not (name == "model" and same_weights):
            found.append(f"{words} is {_said(one)} there and {_said(two)} here")
    if found:
        raise InputError(f"{path!r} holds rows of another run: {'; '.join(found)}", "give another file for the rows")


def _elsewhere(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[Line]:
    """A line that says where a run goes on, if not where it was."""
    origin = {name: here.get(name) for name in ORIGIN}
    if origin == {name: there.get(name) for name in ORIGIN}:
        return []
    return [{"resumed": origin | {"date": here.get("date")}}]


def _said(value: object) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"
