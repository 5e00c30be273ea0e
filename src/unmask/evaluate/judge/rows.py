"""Files of texts -> Samples; Samples × Judge -> rows in a file that is resumed; rows -> figures with intervals."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import InputError, unknown
from unmask.evaluate import batch
from unmask.evaluate.crew import Crew, Store, Work, crew_of, run
from unmask.evaluate.judge.judge import GRAMS, Judge, Opinion, Rules, opinions
from unmask.evaluate.rows import KIND, JsonLines, Line
from unmask.evaluate.stats import Floats, bootstrap, ceiling, is_finite, pearson, spearman
from unmask.tasks import files

Row = dict[str, Any]
ENDED = "end"  # the value of `finish` of a text that an end token ended
HEADS = (f'{{"kind": "{KIND}"', '{"resumed": ')  # lines of a file of rows that say which run the rows are of
ROWS = (".jsonl", ".json")  # such files, and standard input, hold JSON lines


@dataclass(frozen=True)
class Sample:
    """A text, its place, and the other values of its row."""

    text: str
    place: str
    about: Row  # the plain values of the row
    tokens: list[int] | None = None  # as the generating model wrote them

    @property
    def key(self) -> tuple[str, str]:
        """Identifies a text at its place."""
        return self.place, hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def ended(self) -> bool:
        """Whether its row says that the text has ended, and was not cut off."""
        return self.about.get("finish") == ENDED


# --- in --------------------------------------------------------------------------------------------------------------


def read_samples(paths: Sequence[str], field: str = "text", lines: bool = False) -> list[Sample]:
    """The texts of files: JSON lines with the text in `field`; of other files each is a text, or each line of it.

    Empty and blank texts are left out with a warning.
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
        return [_parsed(line, f"{name}:{number}", field) for number, line in rows if not line.startswith(HEADS)]
    if not lines:
        return [Sample(text, name, {})]
    return [Sample(line, f"{name}:{number}", {}) for number, line in enumerate(text.split("\n"), 1) if line]


def _parsed(line: str, place: str, field: str) -> Sample:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is not JSON", "give JSON lines, or a file of text with another ending") from None
    if not isinstance(row, dict) or field not in row:
        error = unknown("field", field, row if isinstance(row, dict) else ())
        raise InputError(f"{place}: {error.message}", error.hint + "; --field names the text")
    if not isinstance(row[field], str):
        raise InputError(f"{place}: the field {field!r} is not text", "name one that holds a string")
    if any("\ud800" <= letter <= "\udfff" for letter in row[field]):
        raise InputError(f"{place}: the text holds half of a surrogate pair", "no tokenizer reads it: correct the text")
    plain = {key: value for key, value in row.items() if key != field and _is_plain(value)}
    ids = row.get("tokens")
    whole = isinstance(ids, list) and ids and all(type(token) is int for token in ids)
    return Sample(row[field], place, plain, ids if whole else None)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


# --- out -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """What is judged of a sample."""

    number: int  # its place among all, from 0
    text: str
    tokens: list[int] | None
    ended: bool


@dataclass(frozen=True)
class Judging:
    """The job of a judge: texts -> opinions."""

    rules: Rules
    size: int  # texts of a part
    how: Row = field(default_factory=dict)  # what must be equal for figures to be compared, once the judge is known

    @property
    def refills(self) -> bool:
        return False

    def check(self) -> None:
        """Texts are judged anywhere."""

    def prepared(self, judge: Judge, items: Sequence[Text]) -> Judging:
        self.rules.check(judge)
        return replace(self, how=_how(judge, self.rules))

    def do(self, judge: Judge, items: Sequence[Text], store: Store, on_event: object = None) -> None:
        written, ended = [one.tokens for one in items], [one.ended for one in items]
        left = iter(items)
        for some in opinions(judge, [one.text for one in items], self.rules, written, ended, items[0].number):
            store([{"number": next(left).number, "opinion": one} for one in some])


def judged(
    judge: Judge | Crew,
    samples: Sequence[Sample],
    rules: Rules = Rules(),
    path: str | Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """A row for each sample, in their order; those that the file holds already are not judged again.

    Rows are appended to the file after every batch. Texts are judged in parts that are cut at the same places whatever
    the file holds, so that a resumed run rounds like one that was never stopped. A file with rows of another judge, or
    by other rules, is refused: the figures of one file can be compared. `on_progress` gets the number of samples done.
    """
    crew = crew_of(judge)
    items = [Text(number, one.text, one.tokens, one.ended) for number, one in enumerate(samples)]
    (job,) = crew.prepare([(Judging(rules, batch.size("judged", crew.device)), items)])
    assert isinstance(job, Judging)
    with nullcontext() if path is None else JsonLines(path) as file:
        known = {} if file is None else _known(file.lines, str(path), job.how)
        if file is not None and not file.lines and file.torn[:1] not in (b"", b"{"):
            raise InputError(f"{str(path)!r} holds other things than judged rows", "give another file")

        def store(lines: list[Line]) -> None:
            pairs = [(samples[line["number"]], line["opinion"]) for line in lines]
            new = {sample.key: _row(sample, opinion, job.how) for sample, opinion in pairs if sample.key not in known}
            if file is not None:
                file.add(new.values())
            known.update(new)
            on_progress(sum(sample.key in known for sample in samples))

        done = {number for number, sample in enumerate(samples) if sample.key in known}
        on_progress(len(done))
        run(crew, [Work(job, items, store, done, prepared=True)])
    return [known[sample.key] for sample in samples]


def _how(judge: Judge, rules: Rules) -> Row:
    """What must be equal for figures to be compared."""
    how: Row = {"judge": judge.name, "judge_dtype": judge.dtype, "convention": rules.convention}
    how |= {"judge_start": judge.start}
    how |= {"judge_cut": judge.context} if judge.cut else {"judge_stride": rules.stride or max(1, judge.context // 2)}
    how |= {"judge_ends": True} if rules.ends else {}
    return how if rules.convention == "sample" else how | {"mdlm_length": rules.length}


def _row(sample: Sample, opinion: Opinion, how: Row) -> Row:
    place, digest = sample.key
    found: Row = {"place": place, "sha256": digest, **how, "judge_tokens": opinion.tokens}
    found |= {"nats": opinion.nats, "ln_ppl": opinion.ln_ppl, "even": opinion.even, "odd": opinion.odd}
    found |= {"mdlm_tokens": opinion.mdlm_tokens, "mdlm_nats": opinion.mdlm_nats, "diversity": opinion.diversity}
    found |= {f"distinct_{n}": share for n, share in zip(GRAMS, opinion.distinct, strict=True)}
    return sample.about | {name: value for name, value in found.items() if value is not None}


def _known(lines: Sequence[Row | None], path: str, how: Row) -> dict[tuple[str, str], Row]:
    """The rows of an earlier run, by key; lines that were cut off by older versions are left out."""
    found: dict[tuple[str, str], Row] = {}
    for row in filter(None, lines):
        if "sha256" not in row or "judge" not in row:
            raise InputError(f"{path!r} holds other things than judged rows", "give another file")
        wanted = {"judge_ends": None, **how}  # rows with ends are not rows without
        other = next((name for name, value in wanted.items() if row.get(name) != value), None)
        if other is not None:
            differs = f"{other} {row.get(other)!r}, not {wanted[other]!r}"
            raise InputError(f"{path!r} holds rows with {differs}", "give another file for the rows")
        found[str(row.get("place")), str(row["sha256"])] = row
    return found


# --- figures ---------------------------------------------------------------------------------------------------------

MEANS = ("ln_ppl", "path_entropy", "diversity", "distinct_1", "distinct_2", "distinct_3")
RATIOS = {"ppl": ("nats", "judge_tokens"), "mdlm_ppl": ("mdlm_nats", "mdlm_tokens")}  # exp(all nats / all tokens)


def figures(rows: Sequence[Row], group: str | None = None) -> dict[str, Any]:
    """The figures of judged rows; rows with the same `group` are not independent, and are resampled together.

    The default field is `group`, else `seed`, where every row has it. A figure is there if all rows have what it is
    made of: `pearson` and `spearman` are of path entropy with ln PPL, and `ceiling` is the largest possible correlation
    with ln PPL.
    """
    names = [group] if group else [name for name in ("group", "seed") if all(name in row for row in rows)]
    keys: list[Hashable] = [str(row.get(names[0])) if names else place for place, row in enumerate(rows)]
    needed = {*MEANS, "even", "odd", *(name for pair in RATIOS.values() for name in pair)}
    table = {
        name: np.array([row[name] for row in rows], dtype=np.float64) for name in sorted(needed) if _all(rows, name)
    }
    found = bootstrap(lambda places: _measured({name: column[places] for name, column in table.items()}), keys)
    made = {name: dict(zip(("mean", "low", "high"), figure, strict=True)) for name, figure in found.items()}
    return {"n": len(rows), "groups": len(set(keys)), **made}


def _all(rows: Sequence[Row], name: str) -> bool:
    return all(is_finite(row.get(name)) for row in rows)


def _measured(table: dict[str, Floats]) -> dict[str, float]:
    found = {name: float(table[name].mean()) for name in MEANS if name in table}
    for name, (nats, tokens) in RATIOS.items():
        if nats in table and tokens in table:
            total = float(table[tokens].sum())
            found[name] = math.exp(min(700.0, float(table[nats].sum()) / total)) if total else math.nan
    if "path_entropy" in table and "ln_ppl" in table:
        found["pearson"] = pearson(table["path_entropy"], table["ln_ppl"])
        found["spearman"] = spearman(table["path_entropy"], table["ln_ppl"])
    if "even" in table and "odd" in table:
        found["ceiling"] = ceiling(table["even"], table["odd"])
    return found
