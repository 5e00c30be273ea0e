"""Files of texts -> Samples; Samples × Judge -> rows, kept in a file as they come and taken up again from there."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InputError, unknown
from unmask.evaluate.judge.judge import Judge
from unmask.evaluate.judge.opinion import GRAMS, Opinion, Rules, opinions
from unmask.tasks import files

Row = dict[str, Any]
ROWS = (".jsonl", ".json")  # such files, and standard input, hold JSON lines


@dataclass(frozen=True)
class Sample:
    """A text, where it stands, and what its row says about it."""

    text: str
    place: str
    about: Row  # the plain values of the row
    tokens: list[int] | None = None  # as the generating model wrote them

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same text in the same place."""
        return self.place, hashlib.sha256(self.text.encode()).hexdigest()[:16]


# --- in --------------------------------------------------------------------------------------------------------------


def read_samples(paths: Sequence[str], field: str = "text", lines: bool = False) -> list[Sample]:
    """The texts of files: JSON lines with the text in `field`; of other files each is a text, or each line of it.

    Texts without a token of their own, empty or blank, are left out with a warning.
    """
    found = [sample for path in paths for sample in _samples(path, field, lines)]
    full = [sample for sample in found if sample.text.strip()]
    if not full:
        raise InputError(f"there is no text in {', '.join(map(repr, paths))}", "each sample needs one")
    if len(full) < len(found):
        empty = [sample.place for sample in found if not sample.text.strip()]
        more = f" and {len(empty) - 4} more" if len(empty) > 4 else ""
        warnings.warn(f"left out, being empty: {', '.join(empty[:4])}{more}", stacklevel=2)
    return full


def is_rows(path: str) -> bool:
    """Whether a file holds JSON lines."""
    return path == "-" or path.endswith(ROWS)


def _samples(path: str, field: str, lines: bool) -> list[Sample]:
    text, name = files.read(path), Path(path).name
    if is_rows(path):
        rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return [_parsed(line, f"{name}:{number}", field) for number, line in rows]
    if not lines:
        return [Sample(text, name, {})]
    return [Sample(line, f"{name}:{number}", {}) for number, line in enumerate(text.split("\n"), 1) if line]


def _parsed(line: str, place: str, field: str) -> Sample:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is no JSON", "give JSON lines, or a file of text with another ending") from None
    if not isinstance(row, dict) or field not in row:
        error = unknown("field", field, row if isinstance(row, dict) else ())
        raise InputError(f"{place}: {error.message}", error.hint + "; --field names the text")
    if not isinstance(row[field], str):
        raise InputError(f"{place}: the field {field!r} is no text", "name one that holds a string")
    if any("\ud800" <= letter <= "\udfff" for letter in row[field]):
        raise InputError(f"{place}: the text holds half of a surrogate pair", "no tokenizer reads it: mend the text")
    plain = {key: value for key, value in row.items() if key != field and _is_plain(value)}
    ids = row.get("tokens")
    whole = isinstance(ids, list) and ids and all(type(token) is int for token in ids)
    return Sample(row[field], place, plain, ids if whole else None)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


# --- out -------------------------------------------------------------------------------------------------------------


def judged(
    judge: Judge,
    samples: Sequence[Sample],
    rules: Rules = Rules(),
    path: str | Path | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """A row for each sample, in their order; those that the file holds already are not judged again.

    Rows are appended to the file after every batch. A row of another judge, or by other rules, is refused: a file has
    figures that can be compared. `tell` is called with how many samples are done.
    """
    rules.check(judge)
    how = _how(judge, rules)
    known = {} if path is None else _known(Path(path), how)
    left = [sample for sample in samples if sample.key not in known]
    tell(len(samples) - len(left))
    done = 0
    for some in opinions(judge, [sample.text for sample in left], rules, [sample.tokens for sample in left]):
        new = {}
        for sample, opinion in zip(left[done : done + len(some)], some, strict=True):
            new[sample.key] = _row(sample, opinion, how)
        if path is not None:
            _append(Path(path), list(new.values()))
        known |= new
        done += len(some)
        tell(len(samples) - len(left) + done)
    return [known[sample.key] for sample in samples]


def _how(judge: Judge, rules: Rules) -> Row:
    """What must be equal for figures to be compared."""
    said: Row = {"judge": judge.name, "judge_dtype": judge.dtype, "convention": rules.convention}
    said |= {"judge_start": judge.start, "judge_stride": rules.stride or max(1, judge.context // 2)}
    return said if rules.convention == "sample" else said | {"mdlm_length": rules.length}


def _row(sample: Sample, opinion: Opinion, how: Row) -> Row:
    place, digest = sample.key
    found: Row = {"place": place, "sha256": digest, **how, "judge_tokens": opinion.tokens}
    found |= {"nats": opinion.nats, "ln_ppl": opinion.ln_ppl, "even": opinion.even, "odd": opinion.odd}
    found |= {"mdlm_tokens": opinion.mdlm_tokens, "mdlm_nats": opinion.mdlm_nats, "diversity": opinion.diversity}
    found |= {f"distinct_{n}": share for n, share in zip(GRAMS, opinion.distinct, strict=True)}
    return sample.about | {name: value for name, value in found.items() if value is not None}


def _known(path: Path, how: Row) -> dict[tuple[str, str], Row]:
    """The rows of an earlier run, by key; a line that was cut off is none."""
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
        with path.open("ab") as file:  # a cut line must not swallow the next one; and a file that cannot be, fails now
            file.write(b"\n" if lines and not path.read_bytes().endswith(b"\n") else b"")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}", error.strerror or "give another file") from None
    found: dict[tuple[str, str], Row] = {}
    for line in lines:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if not isinstance(row, dict) or "sha256" not in row or "judge" not in row:
                raise InputError(f"{str(path)!r} holds other things than judged rows", "give another file")
            other = next((name for name, value in how.items() if row.get(name) != value), None)
            if other is not None:
                said = f"{other} {row.get(other)!r}, not {how[other]!r}"
                raise InputError(f"{str(path)!r} holds rows with {said}", "give another file for the rows")
            found[str(row.get("place")), str(row["sha256"])] = row
    return found


def _append(path: Path, rows: Sequence[Row]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}", error.strerror or "give another file") from None
