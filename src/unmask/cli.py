"""Command line -> Recipe -> library call -> print. Every failure is one line on standard error."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import torch

from unmask import __version__, corpus, demo, flags, show
from unmask.background import count
from unmask.decode import Result, decode_batch
from unmask.errors import InputError, UnmaskError, unknown
from unmask.modelcli import (
    add_check,
    add_convert,
    add_fabricate,
    add_model,
    chunked,
    load_model,
    run_check,
    run_convert,
    run_fabricate,
    used,
)
from unmask.models import FAMILIES, MODELS, Denoiser
from unmask.prompt import MARKER, Text, encode
from unmask.recipe import ALIASES, KINDS
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES

USUAL = 64  # positions to generate where neither the user nor the model sets a limit: a few lines of text
Namespace = argparse.Namespace


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - closed by the caller: nobody listens
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        status = args.run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has left: nobody wants the rest; 1, as rich does it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnmaskError as error:
        return _fail(_as_flags(str(error)))
    except (MemoryError, torch.OutOfMemoryError):
        return _fail("out of memory: lower particles, length or the number of prompts")
    except OSError as error:
        return _fail(f"{error.filename!r}: {error.strerror}" if error.filename else str(error))
    return int(status or 0)


def _fail(message: str) -> int:
    print("unmask: error:", " ".join(message.splitlines()), file=sys.stderr)
    return 2


def _as_flags(message: str) -> str:
    """Settings of several words as they are spelled here, block-length; what is quoted stays."""
    names = "|".join(name for name in KINDS if "_" in name)
    return re.sub(rf"(?<![\w'/.-])({names})(?![\w'/.-])", lambda found: found[0].replace("_", "-"), message)


# --- the commands ----------------------------------------------------------------------------------------------------


def generate(args: Namespace) -> None:
    """Decode one prompt or canvas, or a file of prompts."""
    recipe = flags.to_recipe(args)
    if sum(given is not None for given in (args.prompt, args.prompts, args.canvas)) > 1:
        raise InputError("a prompt, --prompts and --canvas exclude each other", "give one of them")
    if args.system is not None and not args.chat:
        raise InputError("--system is a message of a chat", "add --chat")
    if args.chat and args.canvas is not None:
        raise InputError("--chat writes a prompt, a canvas is written as it is", "leave one of them out")
    canvases = None if args.canvas is None else [_text(args.canvas)]
    prompts = _prompts(args) if canvases is None else None
    texts = prompts if prompts is None or not args.chat else [_messages(prompt, args.system) for prompt in prompts]
    model = chunked(load_model(args, args.model), args.max_rows)
    if texts and recipe.length is None:
        recipe = recipe.replace(length=_usual_length(model, texts))
    with show.following() as watch:
        results = decode_batch(model, texts, canvases=canvases, recipe=recipe, trace=args.trace, watch=watch)
    if args.json:
        for place, result in enumerate(results):
            given = {"canvas": canvases[place]} if canvases else {"prompt": (prompts or [])[place]}
            _print_json({"model": model.name, **given, **result.to_dict(), "memory": used(model)})
    else:
        _show(results, prompts if args.prompts else None)
        if model.device.type == "cuda":
            print(show.memory_used(used(model)))


def _show(results: Sequence[Result], prompts: Sequence[str] | None) -> None:
    for place, result in enumerate(results):
        if prompts is not None:
            print(f"{chr(10) if place else ''}{place + 1}: {show.one_line(prompts[place])}")
        show.result(result)


def _prompts(args: Namespace) -> list[str]:
    if args.prompts is None:
        return [_text(args.prompt or "")]
    lines = corpus.read(args.prompts).split("\n")
    return lines if lines[-1] else lines[:-1]


def _text(given: str) -> str:
    """A prompt or canvas; `-` is standard input without its last newline."""
    return corpus.read("-").removesuffix("\n") if given == "-" else given


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    """A dialogue of one question, after what the system is told."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]


def _usual_length(model: Denoiser, prompts: Sequence[Text]) -> int:
    longest = max(len(encode(model, prompt)) for prompt in prompts)
    return USUAL if model.limit is None else max(1, min(USUAL, model.limit - longest))


def samplers(args: Namespace) -> None:
    """List the samplers, or say all about one."""
    entries = {name: show.entry(name, build, flags.HELP) for name, build in SAMPLERS.items()}
    _list("sampler", entries, args)


def searches(args: Namespace) -> None:
    """List the searches, or say all about one."""
    entries = {name: show.entry(name, build, flags.HELP) for name, build in SEARCHES.items()}
    _list("search", entries, args)


def models(args: Namespace) -> None:
    """List the models, or load one and say all about it."""
    entries = {name: show.entry(name, build, MODEL_HELP) for name, build in MODELS.items()}
    if args.name is not None:
        model = load_model(args, args.name)
        about = {"name": args.name, "summary": "a checkpoint", "more": "", "settings": []}
        entries = {args.name: {**entries.get(args.name, about), "facts": show.facts(model)}}
    _list("model", entries, args)
    if args.name is None and not args.json:
        kinds = ", ".join(f"{family.name} ({family.about})" for family in FAMILIES.values())
        print(f"Besides these, a directory or hub id with a checkpoint of: {kinds}.")


MODEL_HELP = {"device": "where it runs; the flag --device", "dtype": "of its numbers; the flag --dtype"}


def _list(kind: str, entries: dict[str, dict[str, Any]], args: Namespace) -> None:
    if args.name is not None and args.name not in entries:
        raise unknown(kind, args.name, entries)
    if args.json:
        _print_json(list(entries.values()) if args.name is None else entries[args.name])
    elif args.name is None:
        show.console().print(show.registry(list(entries.values())))
    else:
        show.detail(entries[args.name])


def frequencies(args: Namespace) -> None:
    """Count the tokens of texts: the background table of the sampler pc."""
    if not Path(args.output).resolve().parent.is_dir():  # known before the counting, not after
        raise InputError(f"there is no folder for {args.output!r}", "make it first")
    model = load_model(args, args.model)
    names = None if args.fields is None else [name for name in args.fields.split(",") if name]
    with show.progress() as bar:
        texts = corpus.Texts(args.files, names, bar)
        table = count(texts, texts.blamed(model.tokenizer.encode))
    table.save(args.output)
    print(f"{args.output}: {table.total} tokens, {len(table.counts)} different ones")


def show_demo(args: Namespace) -> None:
    """Compare searches on a small exact model."""
    demo.run(args.seeds, args.trace)


def _print_json(value: Any) -> None:
    print(json.dumps(value))


# --- the parser ------------------------------------------------------------------------------------------------------

FOLLOW = f"""\
A canvas has a hole where {MARKER} stands; [MASK*8] is eight holes.
A recipe file holds settings as TOML or JSON, with names as in `unmask samplers`; flags go over it.
Brackets say which samplers or searches take a setting, with its default; elsewhere it is an error.
Names of other projects work too:
{chr(10).join(f"  {flags.spelled(alias)} is {flags.spelled(name)}" for alias, name in ALIASES.items())}"""

# command: (function, help, examples); the tests run the examples
COMMANDS: dict[str, tuple[Callable[[Namespace], int | None], str, str]] = {
    "generate": (
        generate,
        "Generate text after a prompt, or fill the holes of a canvas.",
        """\
  unmask generate se
  unmask generate se --temperature 1 --seed 3 --json
  unmask generate --canvas 't[MASK*4]t'
  unmask generate --sampler uniform --steps 3 --temperature 1 --search best-of-n --particles 8
  unmask generate --sampler uniform --steps 3 --temperature 1 --search smc --every 1 --trace path.jsonl
  unmask generate 'once upon' --model random --sampler eb --bound 0.5 --length 32""",
    ),
    "samplers": (
        samplers,
        "List the samplers with their settings, or say all about one.",
        "  unmask samplers\n  unmask samplers fast-dllm\n  unmask samplers --json",
    ),
    "searches": (
        searches,
        "List the searches with their settings, or say all about one.",
        "  unmask searches\n  unmask searches smc\n  unmask searches --json",
    ),
    "models": (
        models,
        "List the models, or load one and say all about it.",
        "  unmask models\n  unmask models table\n  unmask models ./tiny-llada --json",
    ),
    "check": (
        run_check,
        "Check that a model keeps the laws that decoding relies on: rows, padding, head, time, cache.",
        "  unmask check random\n  unmask check ./tiny-llada --dtype float64",
    ),
    "fabricate": (
        run_fabricate,
        "Write a random checkpoint in a family's published layout, for tests, benchmarks and bug reports.",
        "  unmask fabricate llada ./tiny-llada\n  unmask generate hello --chat --model ./tiny-llada --length 16",
    ),
    "convert": (
        run_convert,
        "Turn a Lightning checkpoint of MDLM into a directory that unmask loads. No code of the file runs.",
        "  unmask convert best.ckpt ./my-mdlm\n  unmask generate --model ./my-mdlm --tokenizer openai-community/gpt2",
    ),
    "frequencies": (
        frequencies,
        "Count the tokens of texts: the background table that the sampler pc needs.",
        """\
  unmask frequencies words.txt --model table -o table.json
  unmask frequencies words.jsonl --fields text,title --model random -o random.json
  unmask generate --sampler pc --background table.json""",
    ),
    "demo": (
        show_demo,
        "Compare vanilla decoding, best-of-n and SMC on a model whose every probability is known.",
        "  unmask demo\n  unmask demo --seeds 50",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are UnmaskErrors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, f"see `{self.prog} --help`")


def _parse(argv: list[str]) -> Namespace:
    parser = _parser()
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    args, extra = parser.parse_known_args(argv)
    if extra:
        raise _unexpected(args.parser, extra)
    return args


def _unexpected(parser: argparse.ArgumentParser, extra: list[str]) -> UnmaskError:
    """An option that does not exist, with the nearest that does; or a word too many."""
    word = next((word for word in extra if word.startswith("-")), extra[0]).partition("=")[0]
    if not word.startswith("-"):
        return InputError(f"unexpected {word!r}", "put quotes around a text of several words")
    wanted, options = word.replace("_", "-"), list(parser._option_string_actions)
    near = [option for option in options if len(wanted) > 3 and option.startswith(wanted)]
    near = near or get_close_matches(wanted, options, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"see `{parser.prog} --help`"
    return InputError(f"unknown option {word!r}", hint)


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    about = "Decode masked diffusion language models along low-uncertainty paths."
    start = "start with:\n  unmask demo\n  unmask generate se\n  unmask generate --help"
    parser = _Parser("unmask", description=about, epilog=start, formatter_class=layout, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"unmask {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help(), parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    made: dict[str, argparse.ArgumentParser] = {}
    for name, (run, text, examples) in COMMANDS.items():
        epilog = f"examples:\n{examples}"
        made[name] = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=layout, allow_abbrev=False
        )
        made[name].set_defaults(run=run, parser=made[name])
    made["generate"].usage = "unmask generate [PROMPT] [flags]"
    made["generate"].epilog = f"{FOLLOW}\n\n{made['generate'].epilog}"
    _add_generate(made["generate"])
    for name in ("samplers", "searches", "models"):
        made[name].add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
        made[name].add_argument("--json", action="store_true", help="print JSON")
    add_model(made["models"])
    add_check(made["check"])
    add_fabricate(made["fabricate"])
    add_convert(made["convert"])
    _add_frequencies(made["frequencies"])
    made["demo"].add_argument("--seeds", type=int, default=demo.SEEDS, metavar="N", help="answers of each method")
    made["demo"].add_argument("--trace", default=demo.TRACE, metavar="FILE", help="where one path is written")
    return parser


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to go on from; - reads standard input")
    parser.add_argument("--canvas", metavar="TEXT", help="text with holes instead of a prompt, like 't[MASK*4]t'")
    parser.add_argument(
        "--prompts", metavar="FILE", help="a prompt on each line, decoded together; - reads standard input"
    )
    parser.add_argument("--chat", action="store_true", help="the prompt is a question: write it as the model's chat")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the system is told first")
    parser.add_argument("--recipe", metavar="NAME", help="settings from `unmask recipes`, or a .toml or .json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each prompt")
    parser.add_argument("--trace", metavar="FILE", help="write every step to this file (JSONL)")
    add_model(parser, "table")
    parser.add_argument("--max-rows", type=int, metavar="N", help="rows through the network at a time: bounds memory")
    flags.add(parser)


def _add_frequencies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="TEXTFILE", help="UTF-8; each line is a text of its own")
    parser.add_argument("--model", required=True, metavar="NAME", help="whose tokens are counted")
    add_model(parser)
    parser.add_argument("--fields", metavar="NAMES", help="lines are JSON objects: the text is in these fields")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the table goes")
