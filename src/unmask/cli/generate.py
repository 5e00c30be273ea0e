"""`unmask generate` and `unmask frequencies`: prompts or canvases -> texts; texts -> the background table of pc."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from unmask.cli import flags, models, show
from unmask.cli.parser import flag
from unmask.decoding.background import count
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.prompt import MARKER, fitting_length
from unmask.decoding.settings import ALIASES, spelled
from unmask.errors import InputError
from unmask.models import load_tokenizer
from unmask.tasks import files

DEFAULT = "text"
NOTES = f"""\
A canvas is masked where {MARKER} stands; [MASK*8] is eight masks.
Without --recipe the model's default recipe holds, which `unmask models NAME` shows; flags override it.
A recipe file holds settings as TOML or JSON, with names as in `unmask samplers`; flags override it.
Brackets name the samplers or searches that take a setting, with its default; elsewhere it is an error.
Names of other projects work too:
{chr(10).join(f"  {spelled(alias)} is {spelled(name)}" for alias, name in ALIASES.items())}"""


def run_generate(args: Namespace) -> None:
    """Decode one prompt or canvas, or a file of prompts."""
    recipe = None if args.recipe is None else flags.to_recipe(args)
    if sum(given is not None for given in (args.prompt, args.prompts, args.canvas)) > 1:
        raise InputError("a prompt, --prompts and --canvas exclude each other", "give one of them")
    if args.system is not None and not args.chat:
        raise InputError("--system is a message of a chat", "add --chat")
    if args.chat and args.canvas is not None:
        raise InputError("--chat writes a prompt, a canvas is written as it is", "leave one of them out")
    canvases = None if args.canvas is None else [_text(args.canvas)]
    prompts = _prompts(args) if canvases is None else None
    texts = prompts if prompts is None or not args.chat else [_messages(prompt, args.system) for prompt in prompts]
    name = _model_name(args)
    length = flags.for_model(args, models.default_settings(args, name), name, canvases is not None).length
    model = models.as_run(args, models.load_model(args, name))
    given = {} if args.recipe is not None else flags.given(args)
    given |= {"length": fitting_length(model, texts)} if texts and length is None else {}
    with show.following() as on_event:
        results = decode_batch(
            model, texts, canvases=canvases, recipe=recipe, stop=args.stop, trace=args.trace, on_event=on_event, **given
        )
    if args.json:
        for place, result in enumerate(results):
            given = {"canvas": canvases[place]} if canvases else {"prompt": (prompts or [])[place]}
            asked = {"chat": True, "system": args.system} if args.chat else {}
            print(json.dumps({"model": model.name, **given, **asked, **result.to_dict(), "memory": models.used(model)}))
    else:
        _show(results, prompts if args.prompts else None, bool(model.vocab.eos) and canvases is None)
        if model.device.type == "cuda":
            print(show.memory_used(models.used(model)))


def _model_name(args: Namespace) -> str:
    """The model that was asked for; a named recipe has one of its own in mind."""
    named = RECIPES.get(args.recipe or "")
    if named is None:
        return args.model or DEFAULT
    if args.model is None:
        way = f"--model {named.model}{' --chat' if named.chat else ''}"
        raise InputError(f"the recipe {named.name} is for {named.model}", f"add {way}, or another model")
    if named.chat and not args.chat:
        print(f"unmask: note: the paper has {named.name} with --chat", file=sys.stderr)
    return str(args.model)


def _show(results: Sequence[Result], prompts: Sequence[str] | None, ends: bool) -> None:
    for place, result in enumerate(results):
        if prompts is not None:
            print(f"{chr(10) if place else ''}{place + 1}: {show.one_line(prompts[place])}")
        show.result(result, ends)


def _prompts(args: Namespace) -> list[str]:
    if args.prompts is None:
        return [_text(args.prompt or "")]
    lines = files.read(args.prompts).split("\n")
    return lines if lines[-1] else lines[:-1]


def _text(given: str) -> str:
    """A prompt or canvas; `-` is standard input without its last newline."""
    return files.read("-").removesuffix("\n") if given == "-" else given


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    """A dialogue of one question, after what the system is told."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]


def add_generate(parser: ArgumentParser) -> None:
    parser.usage = "unmask generate [PROMPT] [flags]"
    parser.epilog = f"{NOTES}\n\n{parser.epilog}"
    parser.set_defaults(too_many=_too_many)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue; - reads standard input")
    about = "text with masks instead of a prompt, like 'Tom has a[MASK*2].'; - reads standard input"
    flag(parser, "--canvas TEXT", about)
    flag(parser, "--prompts FILE", "a prompt on each line, decoded together; - reads standard input")
    flag(parser, "--chat", "the prompt is a question: apply the chat template")
    flag(parser, "--system TEXT", "with --chat: the system message")
    about = "the text ends before this string; several times for several"
    parser.add_argument("--stop", action="append", metavar="TEXT", help=about)
    flag(parser, "--recipe NAME", "settings from `unmask recipes`, a .toml or .json file, or none: no defaults")
    flag(parser, "--json", "print one JSON object for each prompt")
    flag(parser, "--trace FILE", "write every step to this file (JSONL)")
    models.add_model(parser, DEFAULT)
    models.add_running(parser)
    flags.add(parser)


def _too_many(args: Namespace, extra: list[str]) -> InputError:
    return InputError(
        f"unexpected {extra[0]!r}", "put quotes around a text of several words; --prompts FILE takes several prompts"
    )


def run_frequencies(args: Namespace) -> None:
    """Count the tokens of texts: the background table of the sampler pc."""
    if not Path(args.output).resolve().parent.is_dir():  # known before the counting, not after
        raise InputError(f"there is no folder for {args.output!r}", "make it first")
    words = load_tokenizer(args.model, tokenizer=args.tokenizer, revision=args.revision)
    names = None if args.fields is None else [name for name in args.fields.split(",") if name]
    with show.progress() as bar:
        task = bar.add_task("", total=None)

        def on_progress(path: str, done: int, total: int) -> None:
            bar.update(task, description=path, completed=done, total=total)

        def encode(found: tuple[str, str]) -> list[int]:
            place, text = found
            try:
                return words.encode(text)
            except InputError as error:
                raise InputError(f"{place}: {error.message}", error.hint) from None

        table = count(files.texts(args.files, names, on_progress), encode, args.model)
    table.save(args.output)
    print(f"{args.output}: {show.many(table.total, 'token')}, {len(table.counts)} different ones")


def add_frequencies(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="TEXTFILE", help="UTF-8; each line is a text of its own")
    parser.add_argument("--model", required=True, metavar="NAME", help="whose tokens are counted; no weights are read")
    flag(parser, "--tokenizer NAME", "directory or hub id of another tokenizer")
    flag(parser, "--revision NAME", "branch, tag or commit of a hub id")
    flag(parser, "--fields NAMES", "lines are JSON objects: the text is in these fields")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the table")
