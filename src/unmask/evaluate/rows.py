"""JSON-lines files <-> rows: one writer at a time, whole lines only, on the disk when written, resumed after any end.

JsonLines is the one rule for every file of results. `opened` and `read` add a header that says which run the rows are
of; `started` is for files that are never resumed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from unmask.errors import InputError, many
from unmask.evaluate.lock import holder, locked, release

KIND = "unmask rows"
Line = dict[str, Any]
SAME = {  # header fields that a resumed run must share with its file, and their names in errors
    "task": "the task",
    "task_sha256": "the SHA-256 of the task's file",
    "model": "the model",
    "weights": "the SHA-256 of the weights",
    "dtype": "dtype",
    "loading": "how the model is loaded",
    "sha256": "the SHA-256 of the data",
    "shots": "the SHA-256 of the worked examples",
    "template_sha256": "the SHA-256 of the prompt's file",
    "background": "the SHA-256 of the background table",
    "chat": "chat",
    "limit": "limit",
    "system": "the system message",
    "stop": "the stop strings",
    "form": "the form of the text",
    "constrained": "the form of answers",
    "samples": "the number of answers to a prompt",
    "logprobs": "logprobs",
    "recipe": "the recipe",
    "shard": "the shard",
}
LATER = (
    "template_sha256",
    "background",
    "task_sha256",
    "shard",
    "form",
    "constrained",
)  # not in headers of version 0.1, whose runs keep their identity
# may change on resuming; the change is recorded
ORIGIN = ("version", "torch", "device", "machine", "threads", "batch", "workers", "commit")


# --- JSON lines ------------------------------------------------------------------------------------------------------


class JsonLines:
    """A file that this process alone writes, until it is closed; nothing in it changes before the first `add`."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.file, self.lock = _opened(self.path)
        content = self.file.read()
        self.end = content.rfind(b"\n") + 1  # what follows is a line that was cut off
        self.lines, self.torn = parsed(content), content[self.end :]
        self.fresh = True

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines; they are on the disk when this returns."""
        self.end = _write(self.file, self.end, lines)
        if self.fresh and os.name == "posix":
            _sync_folder(Path(self.path).resolve().parent)
        self.fresh = False

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        release(self.lock)


def append(path: str | Path, lines: Iterable[Line]) -> None:
    """Append lines to a file that several runs share; it is locked while this writes."""
    file, lock = _opened(str(path), wait=True)
    with file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if file.read() not in (b"", b"\n"):  # the last line was cut off
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
        try:
            _write(file, end, lines)
        finally:
            release(lock)


def _write(file: IO[bytes], end: int, lines: Iterable[Line]) -> int:
    """Write lines at `end`, where the last whole line ends; returns the new end."""
    try:
        file.truncate(end)
        file.seek(end)
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
    except OSError as error:
        with suppress(OSError):  # it tries to write the same again, and would hide why
            file.close()
        raise InputError("cannot write the rows", f"{error.strerror}; earlier rows are kept") from None


def parsed(content: bytes) -> list[Line | None]:
    """The objects of all whole lines; None for a line that is not a JSON object."""
    return [_object(line) for line in content.split(b"\n")[:-1]]


def to_json(value: Any) -> Any:
    """Dataclasses as objects, and null for numbers that JSON cannot hold."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def started(path: str | None) -> Iterator[Callable[[Iterable[Line]], None]]:
    """A function that appends rows to a new file; without a path it stores nothing."""
    if path is None:
        yield lambda rows: None
        return
    with JsonLines(path) as file:
        if file.end or file.torn:
            raise InputError(f"{path!r} is not empty", "give another file, or delete it")
        kept = 0

        def store(rows: Iterable[Line]) -> None:
            nonlocal kept
            some = [to_json(row) for row in rows]
            file.add(some)
            kept += len(some)

        try:
            yield store
        except KeyboardInterrupt:
            raise KeyboardInterrupt(*([f"{many(kept, 'row is', 'rows are')} in {path!r}"] if kept else [])) from None


def _opened(path: str, wait: bool = False) -> tuple[IO[bytes], Path | bool]:
    """A file to read and append to, which no other run has open, and its lock."""
    place = Path(path)
    try:
        if place.exists() and not place.is_file():
            raise InputError(f"{path!r} is not a regular file", "rows need one that can be read again")
        binary = getattr(os, "O_BINARY", 0)  # of Windows
        number = os.open(path, os.O_RDWR | os.O_CREAT | binary, 0o666)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"cannot write {path!r}", getattr(error, "strerror", None) or str(error)) from None
    file = os.fdopen(number, "r+b")
    lock = locked(file, path, wait)
    if lock is False:
        file.close()
        raise _busy(path)
    return file, lock


def _busy(path: str) -> InputError:
    who = holder(path)
    if who is None:
        return InputError(f"another run is writing {path!r}", "wait for it, or give another place")
    way = f"wait for it, or if it has ended remove {path + '.lock'!r}: this file system has no locks"
    return InputError(f"another run is writing {path!r} ({who})", way)


def _sync_folder(folder: Path) -> None:
    """Have the name of a new file on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _object(line: bytes) -> Line | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# --- the rows of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One question, the answer to it, and what it cost."""

    task: str
    number: int
    id: str
    seed: int
    puzzle: str | None  # the text of a puzzle
    prompt: str | None  # the beginning of the SHA-256 of a prompt
    text: str  # everything that was decoded
    answer: str | None  # the answer found in it
    as_published: bool  # the verdict of the public grader
    strict: bool  # whether it is right, also where it differs from the reference answer
    fault: str | None  # why it could not be graded to the end
    path_entropy: float  # bits
    steps: int
    calls: int
    evaluations: int
    tokens: int  # positions that were decided
    seconds: float  # its share of the batch
    surprise: float | None = None  # nats a position; None in rows of older versions
    finish: str | None = None  # what ended the text: end, stop or length; None in rows of older versions
    group: str | None = None  # questions of one size, whose figures are also given apart
    rows: int | None = None  # that the network computed: of equal canvases one; None in rows of older versions
    paths: int | None = None  # that were decoded; None in rows of older versions
    look: float | None = None  # nats a position, at a second look; None where there was none
    template: str | None = None  # the prompt that it was asked with: ours, or a file and its hash; None for puzzles
    spread: float | None = None  # bits: SD of path entropy over the paths of the question; None with one path


LARGEST = 2**63  # whole numbers of a row are below: sums of larger ones are not floats
KINDS: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str}
KINDS |= {"str | None": (str, type(None)), "float | None": (int, float, type(None)), "int | None": (int, type(None))}


@dataclass
class Rows:
    """The rows of one run so far, and the file that they go to."""

    header: Line
    kept: list[Line] = field(default_factory=list)
    file: JsonLines | None = None
    first: list[Line] = field(default_factory=list)  # goes to the file before the next row
    resumed: list[Line] = field(default_factory=list)  # what changed each time that the run was resumed elsewhere
    begun: Line = field(default_factory=dict)  # the header as it was when the run began

    @property
    def origins(self) -> list[list[str | None]]:
        """Commit and day of everything that the rows were made by, in order; a + marks uncommitted changes."""
        all_of_them = [self.header if not self.resumed else self.begun, *self.resumed]
        pairs = [(one.get("commit"), str(one.get("date"))[:10]) for one in all_of_them]
        return [list(pair) for pair in dict.fromkeys(pairs)]

    def add(self, new: Iterable[Line]) -> None:
        """Keep rows: they are on the disk when this returns."""
        some = list(new)
        if self.file is not None and some:
            self.file.add([*self.first, *some])
            self.begun = self.begun or self.header
            self.resumed += [line["resumed"] for line in self.first]
            self.first = []
        self.kept += some

    def note(self, about: Mapping[str, Any]) -> None:
        """Have a line before the next row that says what changed in the header, if it did."""
        if self.kept or self.file is not None:
            before = self.header | {name: value for line in self.first for name, value in line["resumed"].items()}
            if any(before.get(name) != value for name, value in about.items()):
                self.first = [*self.first, {"resumed": dict(about)}]
        self.header = self.header | dict(about)

    @property
    def missing(self) -> int:
        """How many rows the run still lacks."""
        return int(self.header["n"]) - len(self.kept)

    def graded(self, path: str) -> list[Row]:
        """The rows by number, of a run that graded answers; `path` names the file in errors."""
        for line in self.kept:
            _check(line, self.header, path)
        return sorted((Row(**line) for line in self.kept), key=lambda row: row.number)


def read(path: str | Path) -> Rows:
    """A file of rows, finished or not; a line that was cut off is left out."""
    from unmask.tasks import files  # only here: who writes rows needs no tasks

    place = Path(path)
    try:
        content = place.read_bytes() if place.is_file() else files.raw(place)  # a pipe may have no end
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}", str(error.strerror)) from None
    found = _run(parsed(content), content[content.rfind(b"\n") + 1 :], str(path))
    if found is None:
        raise InputError(f"{str(path)!r} is empty", "`unmask eval … --rows FILE` writes rows")
    return found


def timeless(row: Mapping[str, Any]) -> Line:
    """A row without its seconds: all that is equal where the same part was decoded twice."""
    return {name: value for name, value in row.items() if name != "seconds"}


def identity(header: Mapping[str, Any]) -> Line:
    """What makes two runs differ: the fields of a header that they must share."""
    made = {name: header.get(name) for name in SAME if name not in LATER or header.get(name) is not None}
    recipe = made.get("recipe")
    if header.get("background") is not None and isinstance(recipe, dict):
        made["recipe"] = {name: one for name, one in recipe.items() if name != "background" or not _is_path(one)}
    return made


def _is_path(value: object) -> bool:
    """Whether a background is a file of the user's, which counts by its contents, and not a bundled one."""
    return isinstance(value, str) and bool(Path(value).suffix or Path(value).name != value)


def check_place(path: str | None) -> None:
    """Refuse a file that cannot hold rows, before the long work."""
    if path is not None:
        file, lock = _opened(path)
        file.close()
        release(lock)


@contextmanager
def opened(path: str | None, header: Line) -> Iterator[Rows]:
    """The rows of a run, resumed from its file; without a path they are kept in memory only."""
    header = json.loads(json.dumps({"kind": KIND, **header}))  # as it will be read again
    if path is None:
        yield Rows(header)
        return
    with JsonLines(path) as file:
        found = _run(file.lines, file.torn, path)
        if found is None or not found.kept:  # nothing to lose
            found, file.end = Rows(header), 0
            file.add([header])
        else:
            _check_same(found.header, header, path)
            file.add([])
            found.first = _moved(found.header, header)
        found.file = file
        try:
            yield found
        except KeyboardInterrupt:
            said = f"{many(len(found.kept), 'row is', 'rows are')} in {path!r}, the same command resumes it"
            raise KeyboardInterrupt(*([said] if found.kept else [])) from None


def _run(lines: list[Line | None], torn: bytes, path: str) -> Rows | None:
    """Header and rows; None where there is not yet a whole header."""
    foreign = InputError(f"{path!r} holds something else than rows of `unmask eval` or `generate`", "give another file")
    if not lines:
        if torn and not torn.startswith(b'{"kind": "unmask'[: len(torn)]):
            raise foreign
        return None
    header = lines[0]
    if header is None or header.get("kind") != KIND or not isinstance(header.get("n"), int):
        raise foreign
    found: dict[int, Line] = {}
    begun, moves = header, []
    for number, row in enumerate(lines[1:], 2):
        if row is not None and isinstance(row.get("resumed"), dict):
            header = header | row["resumed"]
            moves.append(row["resumed"])
        elif row is None or not isinstance(row.get("number"), int):
            raise InputError(f"line {number} of {path!r} is not a row", "give another file")
        elif timeless(found.setdefault(row["number"], row)) != timeless(row):  # equal ones are read as one
            what = f"line {number} of {path!r} repeats row {row['number']} with other values"
            raise InputError(what, "remove one of the two, or give another file")
    return Rows(header, list(found.values()), resumed=moves, begun=begun)


def _check(line: Line, header: Line, path: str) -> None:
    """Refuse a row that lacks a field, or has one of another type."""
    needed = {field.name: KINDS[str(field.type)] for field in fields(Row)}
    lost = [field.name for field in fields(Row) if field.default is MISSING and field.name not in line]
    if "strict" in lost or "text" in lost:
        why = f"its task is {header.get('task')}, version {header.get('version')}"
        raise InputError(f"{path!r} holds no graded answers", why)
    wrong = [name for name, value in line.items() if name not in needed or not isinstance(value, needed[name])]
    wrong += [name for name, value in line.items() if isinstance(value, int) and abs(value) >= LARGEST]
    if lost or wrong:
        what = f"has no {lost[0]!r}" if lost else f"has an unknown or wrong {wrong[0]!r}"
        raise InputError(f"row {line['number']} of {path!r} {what}", "it was changed, or made by another version")


def _check_same(there: Mapping[str, Any], here: Mapping[str, Any], path: str) -> None:
    """Refuse to resume another run, and say what differs."""
    from unmask.decoding.settings import ALIASES  # only here: who reads rows decodes nothing

    same_weights = there.get("weights") is not None and there["weights"] == here.get("weights")
    found = []
    for name, words in SAME.items():
        one, two = there.get(name), here.get(name)
        if name == "background" and name not in there:  # nobody wrote down which table version 0.1 read
            continue
        if name == "recipe" and isinstance(one, dict) and isinstance(two, dict):
            one, two = ({ALIASES.get(key, key): value for key, value in some.items()} for some in (one, two))
            keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
            if there.get("background") is not None:  # its contents are compared, wherever it is
                keys = [key for key in keys if key != "background" or not all(map(_is_path, (one[key], two[key])))]
            found += [f"{key} is {_short(one.get(key))} there and {_short(two.get(key))} here" for key in keys]
        elif one != two and not (name == "model" and same_weights):
            found.append(f"{words} is {_short(one)} there and {_short(two)} here")
    if found:
        raise InputError(f"{path!r} holds rows of another run: {'; '.join(found)}", "give another file for the rows")


def _moved(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[Line]:
    """A line that says where a run is resumed, if its origin changed."""
    origin = {name: here.get(name) for name in ORIGIN}
    if origin == {name: there.get(name) for name in ORIGIN}:
        return []
    return [{"resumed": origin | {"date": here.get("date")}}]


def _short(value: object) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"
