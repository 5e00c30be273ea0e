"""`unmask report`: a trace file -> a page that replays it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from unmask.cli.parser import flag
from unmask.core.denoiser import Tokenizer
from unmask.decoding import trace as traces
from unmask.decoding.trace import Event
from unmask.errors import InputError, many
from unmask.models import MODELS, load_tokenizer
from unmask.report.page import report


def run_report(args: Namespace) -> None:
    """Write the report of a trace."""
    if args.output == "":
        raise InputError("the name of the report is empty", "give --output FILE, or leave it out")
    events = traces.load(args.trace)
    target = Path(args.trace).with_suffix(".html") if args.output is None else Path(args.output)
    if args.output != "-" and target.exists() and target.samefile(args.trace):
        raise InputError(f"the report would overwrite its trace {str(target)!r}", "give another --output")
    text = report(events, _tokenizer(events, args.model)).encode("utf-8", errors="replace")
    why = traces.ending(events)
    if why is not None:
        print(f"unmask: warning: {args.trace!r} is unfinished: {why}", file=sys.stderr)
    if args.output == "-":
        sys.stdout.buffer.write(text)
        return
    try:
        target.write_bytes(text)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot write {str(target)!r}", reason) from None
    steps = many(sum(event["event"] == "step" for event in events), "step")
    print(f"{target}: {steps}, {len(text) / 2**20:.2f} MiB")


def _tokenizer(events: list[Event], name: str | None) -> Tokenizer | None:
    """Whose strings an older trace, which has none, is shown with: a named model's, or that of a bundled one."""
    if any("words" in event for event in events):
        if name is not None:
            raise InputError("--model has no effect on this trace, which holds its strings", "leave it out")
        return None
    named = str(events[0].get("model"))
    if name is None and named not in MODELS:
        return None
    return load_tokenizer(named if name is None else name)


def add_report(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a file that --trace wrote")
    flag(parser, "-o, --output FILE", "where the page goes, - for standard output [the trace's name, as .html]")
    about = "whose tokens an older trace holds, which has no strings of its own [the bundled model that it names]"
    flag(parser, "--model NAME", about)
