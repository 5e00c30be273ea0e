"""Files of the shards of a run -> one file: that of the whole run, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.errors import InputError, many
from unmask.evaluate import rows
from unmask.evaluate.parts import Shard, to_shard

OTHER = ("shard", "n")  # fields of a header that shards of one run do not share


def join(paths: Sequence[str], output: str) -> int:
    """Write the rows of all shards by number; how many there are."""
    if Path(output).resolve() in [Path(path).resolve() for path in paths]:
        raise InputError(f"{output!r} is one of the shards", "give another file for the whole run")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise InputError("a file is given twice", "give each shard once")
    found = [(path, rows.read(path)) for path in paths]
    for path, one in found:
        if one.header.get("shard") is None:
            raise InputError(f"{path!r} is not of a shard", "`unmask eval … --shard I/N --rows FILE` writes one")
    first, header = paths[0], found[0][1].header
    for path, one in found[1:]:
        _check_same(first, header, path, one.header)
    _check_all([(path, _shard(one.header)) for path, one in found])
    for path, one in found:
        if one.missing:
            what = f"{path!r} lacks {many(one.missing, 'row')} of {one.header['n']}"
            raise InputError(what, "run its command again, which resumes it")
    lines = _by_number(found)
    if len(lines) != header.get("whole"):
        raise InputError(f"the shards have {many(len(lines), 'row')} of {header.get('whole')}", "one was changed")
    about = {name: value for name, value in header.items() if name not in (*OTHER, "whole")}
    workers = Counter(str(one.header.get("machine")) for _, one in found)
    with rows.opened(output, about | {"n": len(lines), "workers": dict(workers)}) as kept:
        if kept.kept:
            raise InputError(f"{output!r} is not empty", "give another file, or delete it")
        kept.add(lines)
    return len(lines)


def _shard(header: rows.Line) -> Shard:
    return to_shard(str(header["shard"]).partition(" ")[0])


def _check_same(first: str, header: rows.Line, path: str, other: rows.Line) -> None:
    """Refuse shards of different runs, and say what differs."""
    names = [*(name for name in rows.SAME if name not in OTHER), "whole", "batch", "version"]
    found = [name for name in names if header.get(name) != other.get(name)]
    if found or _shard(header).count != _shard(other).count:
        what = rows.SAME.get(found[0], found[0]) if found else "the number of shards"
        raise InputError(f"{path!r} is of another run than {first!r}: {what} differs", "give shards of one run")


def _check_all(shards: Sequence[tuple[str, Shard]]) -> None:
    """Refuse shards that overlap, and a set with one missing."""
    seen: dict[int, str] = {}
    for path, shard in shards:
        if shard.place in seen:
            raise InputError(f"{seen[shard.place]!r} and {path!r} are both shard {shard}", "leave one of them out")
        seen[shard.place] = path
    count = shards[0][1].count
    lacking = count - len(seen)
    if lacking:
        lost = islice((place for place in range(1, count + 1) if place not in seen), 4)
        some = ", ".join(f"{place}/{count}" for place in lost) + (" and more" if lacking > 4 else "")
        raise InputError(f"{many(lacking, 'shard is', 'shards are')} missing: {some}", "give the files of all shards")


def _by_number(found: Sequence[tuple[str, rows.Rows]]) -> list[rows.Line]:
    """All rows in order; one that two files have is refused."""
    where: dict[int, str] = {}
    lines: list[rows.Line] = []
    for path, one in found:
        for line in one.kept:
            if line["number"] in where:
                what = f"{where[line['number']]!r} and {path!r} both have row {line['number']}"
                raise InputError(what, "one of them is not the shard that its header names")
            where[line["number"]] = path
            lines.append(line)
    return sorted(lines, key=_number)


def _number(line: dict[str, Any]) -> int:
    return int(line["number"])
