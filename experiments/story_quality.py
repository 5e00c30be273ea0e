"""How good are stories? Samples with two judges' rows, against the source's own samples.

    unmask judge samples.jsonl --judge stories15M --ends --rows exact.jsonl
    unmask judge samples.jsonl --rows smollm2.jsonl
    python experiments/story_quality.py samples.jsonl --rows exact=exact.jsonl smollm2=smollm2.jsonl \
        --source exact=source.exact.jsonl smollm2=source.smollm2.jsonl > story_quality.json

A line of the samples has `text`, and where they are known `steps`, `finish` (end: the text has ended), `path_entropy`
and `group` or `seed` (of paths that are not independent). For each number of steps one JSON object is printed:

- `ended`: the share of texts that have ended; `empty` and `repeating`: shares by the rule, `flagged` either.
  Empty: fewer than 10 words. Repeating: some 4 words in a row occur 5 times or more, or fewer than 70 % of the runs of
  3 words are distinct. Words are what white space separates, in small letters, without punctuation around them. Of 522
  stories of the source itself the rule flags 3, and in each at least 87 % of the runs of 3 words are distinct.
  Intervals are Wilson's.
- of each judge: `ln_ppl` (nats a token of the judge, mean over texts), `pearson` and `spearman` of path entropy with it
  and `ceiling` (the highest correlation that its noise allows), with bootstrap intervals over groups; `above_source`:
  mean ln PPL less that of the source's samples, whose intervals are added in squares.

An empty text is not judged. Intervals are of 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from unmask.evaluate.judge import figures
from unmask.evaluate.stats import mean, wilson

Row = dict[str, Any]
FEWEST = 10  # words of a text that is not empty
RUN, TIMES = 4, 5  # so many words in a row, so many times, are a repetition
SHORT, VARIED = 3, 0.7  # runs of so many words, and the share of them that must be distinct
MARKS = ".,!?;:\"'()-“”‘’"


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters, without punctuation around them."""
    found = (word.strip(MARKS).lower() for word in text.split())
    return [word for word in found if word]


def runs(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[begin : begin + size]) for begin in range(len(words) - size + 1)]


def is_empty(text: str) -> bool:
    """Whether a text has fewer than 10 words."""
    return len(words_of(text)) < FEWEST


def is_repeating(text: str) -> bool:
    """Whether 4 words in a row occur 5 times, or under 70 % of the runs of 3 words are distinct."""
    words = words_of(text)
    long, short = Counter(runs(words, RUN)), runs(words, SHORT)
    return max(long.values(), default=0) >= TIMES or len(set(short)) < VARIED * len(short)


def share(verdicts: list[bool]) -> Row:
    """A share with Wilson's interval."""
    low, high = wilson(sum(verdicts), len(verdicts))
    return {"mean": sum(verdicts) / len(verdicts), "low": low, "high": high, "count": sum(verdicts)}


def flags(samples: list[Row]) -> Row:
    """The shares of texts that have ended, are empty or repeat themselves."""
    empty = [is_empty(row["text"]) for row in samples]
    repeating = [is_repeating(row["text"]) for row in samples]
    found = {"n": len(samples), "empty": share(empty), "repeating": share(repeating)}
    found["flagged"] = share([one or other for one, other in zip(empty, repeating, strict=True)])
    if all("finish" in row for row in samples):
        found["ended"] = share([row["finish"] == "end" for row in samples])
    return found


def above(own: Row, source: list[Row]) -> Row:
    """The mean ln PPL less that of the source's samples."""
    theirs = mean([row["ln_ppl"] for row in source])
    gap = own["mean"] - theirs.value
    if own["low"] is None or theirs.low is None:
        return {"mean": gap, "low": None, "high": None}
    half = math.hypot((own["high"] - own["low"]) / 2, theirs.half)
    return {"mean": gap, "low": gap - half, "high": gap + half}


def judged(rows: list[Row], source: list[Row] | None) -> Row:
    """One judge's figures of the rows of one number of steps."""
    made = figures(rows)
    kept = {name: made[name] for name in ("n", "ln_ppl", "pearson", "spearman", "ceiling") if name in made}
    return kept | ({} if source is None else {"above_source": above(made["ln_ppl"], source)})


def read(path: str) -> list[Row]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def named(pairs: list[str]) -> dict[str, list[Row]]:
    """NAME=FILE, as rows by name."""
    return {name: read(path) for name, _, path in (pair.partition("=") for pair in pairs)}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples")
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME=FILE", help="rows of `unmask judge`")
    parser.add_argument("--source", nargs="*", default=[], metavar="NAME=FILE", help="the same of the source's samples")
    parser.add_argument("--by", default="steps", help="a field whose values are kept apart")
    args = parser.parse_args()
    samples, judges, sources = read(args.samples), named(args.rows), named(args.source)
    for kind in sorted({row.get(args.by) for row in samples}, key=lambda one: (one is None, one)):
        found: Row = {} if kind is None else {args.by: kind}
        found |= flags([row for row in samples if row.get(args.by) == kind])
        for name, rows in judges.items():
            found[name] = judged([row for row in rows if row.get(args.by) == kind], sources.get(name))
        print(json.dumps(rounded(found)))


if __name__ == "__main__":
    main()
