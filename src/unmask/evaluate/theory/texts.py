"""Files -> Known texts for a model: lines, windows of running text, or Sudokus with their solutions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from unmask.core.denoiser import Denoiser
from unmask.errors import InputError, many
from unmask.evaluate.stats import is_finite
from unmask.evaluate.theory.reference import Known, known
from unmask.tasks import files
from unmask.tasks.puzzles import sudoku


@dataclass(frozen=True)
class Pair:
    """A text and its prompt."""

    prompt: str
    text: str
    bits: float | None = None  # -log2 p of the text given its prompt, under the law of the data


FILES = (".txt", ".jsonl", ".json", ".csv", ".xz", ".gz")  # what looks like the name of a file


def pairs(given: str, prompt: str) -> list[Pair]:
    """A given text, or those of a file: its lines, or JSON lines with `text` and an optional `prompt`."""
    try:
        there = given == "-" or Path(given).is_file()
    except (OSError, ValueError):  # no possible name of a file
        there = False
    if not there:
        if given.endswith(FILES) and not any(map(str.isspace, given)):
            raise InputError(f"there is no file {given!r}", "give an existing file, or a text")
        return [Pair(prompt, given)]
    found = []
    for number, line in enumerate(files.read(given).splitlines(), 1):
        if line.strip():
            found.append(_pair(line, prompt, f"{given}:{number}") if _json(given) else Pair(prompt, line))
    if not found:
        raise InputError(f"there is no text in {given!r}", "give a file with a text on each line")
    return found


def _json(path: str) -> bool:
    return path.endswith((".jsonl", ".json"))


def _pair(line: str, prompt: str, place: str) -> Pair:
    try:
        values = json.loads(line)
        found = Pair(values.get("prompt", prompt), values["text"], values.get("bits"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = Pair("", 0)  # type: ignore[arg-type]
    if not isinstance(found.text, str) or not isinstance(found.prompt, str):
        raise InputError(f"{place} is not a JSON object with a text", 'write {"prompt": "…", "text": "…"}')
    if found.bits is not None and not _amount(found.bits):
        raise InputError(f"{place} has {found.bits!r:.40} bits", "give -log2 p of the text, a number of at least 0")
    return found


def _amount(value: object) -> bool:
    return is_finite(value) and not isinstance(value, bool) and value >= 0  # type: ignore[operator]


def read(
    model: Denoiser, path: str, length: int | None, limit: int, documents: bool = False
) -> tuple[list[Known], Counter[int] | None]:
    """The first `limit` texts of a file, and how often each token occurs in them; None where some have prompts.

    With a length the file is running text, documents with blank lines between them, cut into windows of that many
    tokens. With `documents` it has documents as well, each in a row of its own. Without either a text is a line; for
    the model of Sudokus a full board, or a puzzle and its solution.
    """
    if limit < 2:
        raise InputError(f"limit is {limit}", "give at least 2: their spread gives the interval of a mean")
    if documents and length is not None:
        raise InputError("a document in a row of its own is not cut into windows", "leave --length or --documents out")
    if length is not None:
        found = list(_windows(model, path, length, limit))
    elif documents:
        found = list(_documents(model, path, limit))
    elif model.vocab.mask == sudoku.MASK and model.limit == sudoku.CELLS:
        found = list(_boards(path, limit))
    else:
        some = pairs(_file(path), "")[:limit]
        found = [replace(known(model, pair.text, pair.prompt), bits=pair.bits) for pair in some]
    if len(found) < 2:
        raise InputError(
            f"{path!r} has {many(len(found), 'text')}", "give at least 2: their spread gives the interval of a mean"
        )
    whole = all(all(text.open) for text in found)
    return found, Counter(token for text in found for token in text.tokens) if whole else None


def _file(path: str) -> str:
    if path != "-" and not Path(path).is_file():
        raise InputError(f"there is no file {path!r}", "give a file of texts")
    return path


def _windows(model: Denoiser, path: str, length: int, limit: int) -> Iterator[Known]:
    """Neighbouring windows; an EOS, where the model has one, stands between documents."""
    if length < 1 or (model.limit is not None and length > model.limit):
        raise InputError(f"length is {length}", f"give 1 to {model.limit or 'any number of'} tokens")
    kept: list[int] = []
    made = 0
    for text in files.documents(_file(path)):
        kept += [*model.tokenizer.encode(text), *model.vocab.eos[:1]]
        while len(kept) >= length and made < limit:
            yield Known(kept[:length], [True] * length)
            kept, made = kept[length:], made + 1
        if made == limit:
            return


def _documents(model: Denoiser, path: str, limit: int) -> Iterator[Known]:
    """A document and ends up to the limit of the model, all open: the rows that `unmask train text` learns."""
    if model.limit is None or not model.vocab.eos:
        raise InputError(f"{model.name} has no rows that end", "leave --documents out")
    some = (
        pairs(path, "")
        if _json(path) and Path(path).is_file()
        else map(partial(Pair, ""), files.documents(_file(path)))
    )
    for number, pair in enumerate(some):
        if number == limit:
            return
        text = known(model, pair.text, pair.prompt)
        ends = model.limit - len(text.tokens)
        yield Known(text.tokens + ends * [model.vocab.eos[0]], text.open + ends * [True], pair.bits)


def _boards(path: str, limit: int) -> Iterator[Known]:
    """A line with a puzzle and its solution is open where the puzzle is blank; a full board is open everywhere."""
    made = 0
    for number, line in enumerate(files.read(path).splitlines(), 1):
        fields = [part for part in re.split(r"[\s,;]+", line) if re.fullmatch(r"[0-9.]{81}", part)]
        if made == limit:
            return
        if not fields:
            continue
        puzzle, solution = sudoku.parse(fields[0]), sudoku.parse(fields[-1])
        if 0 in solution:
            way_out = "`unmask puzzles sudoku --answers` writes both"
            raise InputError(f"line {number} of {path!r} has a puzzle without its solution", way_out)
        strange = sudoku.fault(fields[-1], puzzle if len(fields) > 1 else [0] * sudoku.CELLS)
        if strange is not None:
            raise InputError(f"line {number} of {path!r}: {strange}", "give solutions that keep the rules")
        open = [digit == 0 for digit in puzzle] if len(fields) > 1 else [True] * sudoku.CELLS
        if any(open):
            made += 1
            yield Known(sudoku.canvas(solution), open)
