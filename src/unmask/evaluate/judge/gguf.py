"""The header of a GGUF file -> refused if it lies: the library would follow its counts for as long as they say.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: magic, version, number of tensors and of fields, then the
fields (name, kind, value), then a name, a shape and a place for each tensor.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from unmask.errors import ModelError
from unmask.models.families.blueprint import MOST

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its kind
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}  # kinds of integers
TEXT, LIST = 8, 9
FIELDS = 4096
LIMITS = {  # the end of a field's name: what it counts, and the most of it
    "block_count": ("layers", MOST["layers"]),
    "embedding_length": ("units", MOST["width"]),
    "feed_forward_length": ("hidden units", 8 * MOST["width"]),
    "head_count": ("heads", MOST["heads"]),
    "head_count_kv": ("heads", MOST["heads"]),
    "vocab_size": ("tokens", MOST["vocabulary"]),
    "expert_count": ("experts", MOST["experts"]),
}
HINT = "fetch the file again"


def check_header(path: Path) -> None:
    """Refuse a file whose header is longer than the file, or describes a network that nobody has."""
    size = path.stat().st_size
    with path.open("rb") as file:
        _check(Header(file, size), path.name)


class Header:
    """The bytes of a header, which end with the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def number(self, kind: str) -> int:
        """The next integer, of one of struct's kinds."""
        data = self.file.read(struct.calcsize(f"<{kind}"))
        if len(data) != struct.calcsize(f"<{kind}"):
            raise ModelError("the header of the judge's GGUF file is cut off", HINT)
        return int(struct.unpack(f"<{kind}", data)[0])

    def skip(self, count: int) -> None:
        """Pass over bytes that must be there."""
        if count > self.size - self.file.tell():
            raise ModelError(f"the header of the judge's GGUF file tells of {count:,} more bytes than it has", HINT)
        self.file.seek(count, 1)

    def text(self) -> bytes:
        """The next text."""
        length = self.number("Q")
        if length > self.size - self.file.tell():
            raise ModelError(f"the header of the judge's GGUF file tells of {length:,} more bytes than it has", HINT)
        return self.file.read(length)


def _check(header: Header, name: str) -> None:
    if header.file.read(4) != b"GGUF" or header.number("I") not in (2, 3):
        raise ModelError(f"{name!r} is not a GGUF file of version 2 or 3", HINT)
    tensors, fields = header.number("Q"), header.number("Q")
    if fields > FIELDS or tensors > header.size // 24:
        raise ModelError(f"the judge's GGUF file tells of {tensors:,} tensors and {fields:,} fields", HINT)
    for _ in range(fields):
        field = header.text().decode("utf-8", "replace")
        kind = header.number("I")
        if kind in NUMBERS:
            _check_count(field, header.number(NUMBERS[kind]))
        else:
            _skip(header, kind, field)
    _check_tensors(header, tensors)


def _check_count(field: str, value: int) -> None:
    unit, most = LIMITS.get(field.rpartition(".")[2], ("", 0))
    if unit and not 0 <= value <= most:
        hint = f"a judge has at most {most:,} {unit}"
        raise ModelError(f"{field[:60]} of the judge's GGUF file is {value:,}", hint)


def _skip(header: Header, kind: int, field: str) -> None:
    """Pass over a value that is not an integer."""
    if kind in SIZES:
        header.skip(SIZES[kind])
        return
    if kind == TEXT:
        header.text()
        return
    inner = header.number("I") if kind == LIST else -1
    if inner not in SIZES and inner != TEXT:  # lists of lists are allowed by the format, and written by nobody
        raise ModelError(f"{field[:60]!r} of the judge's GGUF file is of an unknown kind", HINT)
    count = header.number("Q")
    if inner in SIZES:
        header.skip(count * SIZES[inner])
        return
    if count > header.size // 8:
        raise ModelError(f"{field[:60]!r} of the judge's GGUF file has {count:,} texts", HINT)
    for _ in range(count):
        header.text()


def _check_tensors(header: Header, tensors: int) -> None:
    """Shapes whose product no file of this size can hold, at two bits a number."""
    for _ in range(tensors):
        name = header.text().decode("utf-8", "replace")
        dimensions = header.number("I")
        if dimensions > 8:
            raise ModelError(f"{name[:60]!r} of the judge's GGUF file has {dimensions:,} dimensions", HINT)
        numbers = 1
        for _ in range(dimensions):
            numbers *= header.number("Q")
        if numbers > header.size * 8:
            raise ModelError(f"{name[:60]!r} of the judge's GGUF file has {numbers:,} numbers", HINT)
        header.skip(12)
