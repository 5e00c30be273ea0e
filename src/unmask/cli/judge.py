"""The command line's half for judges: files of texts -> their perplexity and diversity; a judge -> parts to carry."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask._version import __version__
from unmask.cli import models, show
from unmask.cli.parser import flag, refuse
from unmask.errors import InputError
from unmask.evaluate.judge import (
    CONVENTIONS,
    DEFAULT,
    LENGTH,
    Judge,
    Reader,
    Rules,
    export,
    figures,
    judged,
    load_judge,
    read_samples,
)
from unmask.evaluate.judge.rows import Row, Sample, is_rows
from unmask.evaluate.judge.stories import SOURCE
from unmask.models.files.checkpoint import DTYPES, dtype_name

if TYPE_CHECKING:
    from unmask.evaluate.crew import Crew
    from unmask.evaluate.fleet import Fleet

PART = 60  # MiB of a file, for those who may carry 64 at a time
WORDS = {
    "ln_ppl": "ln PPL, mean of samples",
    "ppl": "PPL of all tokens",
    "mdlm_ppl": "PPL as MDLM has it",
    "diversity": "token entropy (nats)",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "distinct_3": "distinct-3",
    "path_entropy": "path entropy (bits)",
    "pearson": "path entropy ~ ln PPL, Pearson",
    "spearman": "path entropy ~ ln PPL, Spearman",
    "ceiling": "~ ln PPL, the largest possible",
}

IDLE: dict[str, tuple[str, ...]] = {  # flags that have no effect, by convention
    "sample": ("bits", "part", "length"),
    "mdlm": ("bits", "part", "stride", "start", "ends"),
    "both": ("bits", "part"),
    "export": ("rows", "by", "group", "limit", "field", "lines", "length", "stride", "start", "ends", "batch", "ray"),
}


def run_judge(args: Namespace) -> None:
    """Judge texts, or write the judge itself in parts."""
    if args.export is None and not args.files:
        raise InputError("there is nothing to judge", "give files with texts, or --export DIR")
    models.check_fleet(args)
    _check_idle(args)
    if args.export is not None:
        _export(args)
        return
    samples = read_samples(args.files, args.field or "text", args.lines)[: _limit(args)]
    if args.rows is not None and Path(args.rows).resolve() in {Path(path).resolve() for path in args.files}:
        raise InputError(f"{args.rows!r} holds the texts", "give another file for the rows")
    _check_fields(samples, args)
    how = {name: getattr(args, name) for name in ("dtype", "start", "revision", "trust_remote_code")}
    fleet = models.fleet(args, Reader(args.judge, **how))
    with fleet or nullcontext():
        rows = _rows(fleet or _load(args), samples, args, fleet)
    parts = _split(rows, args.by)
    found = [{**({args.by: kind} if args.by else {}), **figures(some, args.group)} for kind, some in parts]
    if args.json:
        about = {"judge": rows[0]["judge"], "dtype": rows[0]["judge_dtype"], "convention": args.convention}
        about |= {"version": __version__}
        print(json.dumps({**about, "files": args.files, "results": found}))
    else:
        for one in found:
            _show(one, args.by)


def _check_idle(args: Namespace) -> None:
    """Refuse flags that would have no effect."""
    tables = [is_rows(path) for path in args.files]
    use = args.convention if args.export is None else "export"
    what, idle = "--export" if use == "export" else f"the convention {use}", IDLE[use]
    refuse(args, idle, what, "leave it out, or see `unmask judge --help`")
    if all(tables):
        refuse(args, ("lines",), "JSON lines")
    if not any(tables):
        refuse(args, ("field",), "files of text")


def _limit(args: Namespace) -> int | None:
    limit: int | None = args.limit
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}", "it must be at least 1")
    return limit


def _check_fields(samples: list[Sample], args: Namespace) -> None:
    """Refuse a field that is to part rows, and that some of them lack."""
    for option in ("by", "group"):
        name = getattr(args, option)
        lost = None if name is None else next((sample for sample in samples if name not in sample.about), None)
        if lost is not None:
            known = ", ".join(lost.about) or "none"
            raise InputError(f"{lost.place} has no plain field {name!r} for --{option}", f"its fields: {known}")


def _load(args: Namespace) -> Judge:
    with show.progress() as bar:
        bar.add_task(f"loading {args.judge}", total=None)
        return load_judge(
            args.judge,
            args.device,
            args.dtype,
            start=args.start,
            revision=args.revision,
            trust_remote_code=args.trust_remote_code,
        )


def _rows(judge: Judge | Crew, samples: list[Sample], args: Namespace, fleet: Fleet | None) -> list[Row]:
    """The judged rows, with a bar."""
    rules = Rules(args.convention, LENGTH if args.length is None else args.length, args.stride, args.batch, args.ends)
    done = 0
    with show.progress() as bar:
        name = show.many(len(samples), "text")
        task = bar.add_task(name, total=len(samples))

        def on_progress(now: int) -> None:
            nonlocal done
            done = now
            bar.update(task, completed=now)

        if fleet is not None:
            show.follow(fleet, bar, task, lambda: (done, name))

        try:
            return judged(judge, samples, rules, args.rows, on_progress)
        except KeyboardInterrupt:
            way = f"the same command resumes from {args.rows!r}" if args.rows else "--rows FILE would have kept them"
            raise KeyboardInterrupt(f"{done} of {len(samples)} texts are judged, {way}") from None


def _split(rows: list[Row], by: str | None) -> list[tuple[Any, list[Row]]]:
    """Rows apart by the values of a field, in the order of their first rows; numbers by size."""
    if by is None:
        return [(None, rows)]
    kinds = list(dict.fromkeys(row[by] for row in rows))
    if all(isinstance(kind, int | float) for kind in kinds):
        kinds.sort()
    return [(kind, [row for row in rows if row[by] == kind]) for kind in kinds]


def _show(found: dict[str, Any], by: str | None) -> None:
    """The figures of one part as a table."""
    groups = "" if found["groups"] == found["n"] else f" in {show.many(found['groups'], 'group')}"
    print(f"{'' if by is None else f'{by} {found[by]}: '}{show.many(found['n'], 'text')}{groups}")
    made = show.grid("figure", "value", "95 % interval", right=("value", "95 % interval"))
    compared = "pearson" in found  # a limit of correlations says nothing where there is none
    for name, text in WORDS.items():
        if name in found and found[name]["mean"] is not None and (compared or name != "ceiling"):
            value, low, high = (found[name][part] for part in ("mean", "low", "high"))
            made.add_row(text, _number(value), "" if low is None else f"{_number(low)}–{_number(high)}")
    show.console().print(made)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.{max(0, 4 - int(math.log10(abs(value))))}f}"


def _export(args: Namespace) -> None:
    if args.files:
        raise InputError("--export judges nothing", "leave the files out")
    judge = _load(args)
    files = export(judge, args.export, args.bits or 16, PART if args.part is None else args.part)
    sizes = [file.stat().st_size for file in files]
    if args.json:
        print(json.dumps({"judge": judge.name, "directory": args.export, "files": [file.name for file in files]}))
    else:
        most = max(sizes) / 2**20
        print(f"{args.export}: {show.many(len(files), 'file')}, {sum(sizes) / 2**20:.1f} MiB, none over {most:.1f} MiB")


def add_judge(parser: ArgumentParser) -> None:
    parser.usage = "unmask judge FILE... [flags]"
    add = parser.add_argument
    about = ".json or .jsonl: a text in each line's field; others: one text each; - reads JSON lines"
    add("files", nargs="*", metavar="FILE", help=about)
    flag(parser, "--field NAME", "of JSON lines: where the text is [text]")
    flag(parser, "--lines", "other files: each line is a text")
    flag(parser, "--limit N", "only the first N texts")
    flag(parser, "--rows FILE", "a row for each judged text (JSONL); the same command resumes from there")
    flag(parser, "--by FIELD", "figures apart for each value of this field")
    about = "rows with the same value are not independent: intervals are over groups [group or seed, if there]"
    flag(parser, "--group FIELD", about)
    flag(parser, "--json", "print one JSON object")
    group = parser.add_argument_group("how it is judged")
    about = "sample: ln PPL of each text; mdlm: MDLM's generative perplexity; both cost twice as much [sample]"
    group.add_argument("--convention", default="sample", choices=CONVENTIONS, help=about)
    flag(group, "--length N", f"of mdlm: tokens of a text that are read, at most [{LENGTH}]")
    flag(group, "--stride N", "of sample: how far windows of long texts move on [half the judge's context]")
    flag(group, "--start TOKEN", "the token that texts are read after [<|endoftext|>, else BOS]")
    flag(group, "--ends", "of sample: of rows whose finish is end, the end of the text counts too")
    flag(group, "--batch N", "tokens read together: bounds memory [2048; 16384 on a GPU]")
    group = parser.add_argument_group("the judge")
    about = f"a directory, a hub id like openai-community/gpt2-large, a .gguf file, {SOURCE} or its file [{DEFAULT}]"
    flag(group, "--judge NAME", about, DEFAULT)
    flag(group, "--device NAME", "cpu, a GPU like cuda, or auto [cpu]", "cpu")
    flag(group, "--dtype NAME", f"{', '.join(DTYPES)} [float32; on a GPU the checkpoint's own]", kind=dtype_name)
    flag(group, "--revision NAME", "branch, tag or commit of a hub id")
    flag(group, "--trust-remote-code", "run the checkpoint's own Python code, with your rights")
    flag(group, "--export DIR", "judge nothing: write the judge there as safetensors in parts")
    group.add_argument("--bits", type=int, choices=(16, 8), help="of --export: float16, or int8 for half the size [16]")
    group.add_argument("--part", type=int, metavar="MIB", help=f"of --export: the most that a file may have [{PART}]")
    models.add_fleet(parser)
