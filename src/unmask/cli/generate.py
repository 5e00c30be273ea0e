"""`unmask generate` and `unmask frequencies`: prompts or canvases -> texts; texts -> the background table of pc."""

from __future__ import annotations

import json
import os
import stat
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from unmask.cli import flags, models, show
from unmask.cli.parser import flag
from unmask.decoding.background import count
from unmask.decoding.decode import OnResults, Result
from unmask.decoding.elsewhere import Elsewhere
from unmask.decoding.form import Form, form
from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.prompt import HOLE, MARKER
from unmask.decoding.recipe import Recipe
from unmask.decoding.settings import ALIASES, spelled
from unmask.decoding.slices import check_slices, sliced
from unmask.errors import AlikeWarning, InputError
from unmask.evaluate import batch, bulk, rows
from unmask.evaluate.crew import Here, resumed
from unmask.evaluate.crew import run as run_works
from unmask.models import Denoiser, load_tokenizer, on_device
from unmask.models.tokenizers import FileTokenizer
from unmask.tasks import files

DEFAULT = "text"
MOST = 10_000_000  # answers of one command
NOTES = f"""\
A canvas is masked where {MARKER} stands; [MASK*8] is eight masks.
Without --recipe the model's default recipe holds, which `unmask models NAME` shows; flags override it.
A recipe file holds settings as TOML or JSON, with names as in `unmask samplers`; flags override it.
Brackets name the samplers or searches that take a setting, with its default; elsewhere it is an error.
Names of other projects work too:
{chr(10).join(f"  {spelled(alias)} is {spelled(name)}" for alias, name in ALIASES.items())}"""


@dataclass(frozen=True)
class Asked:
    """The texts of a command line, and how they are decoded."""

    texts: list[str]  # prompts, or canvases
    canvas: bool
    several: bool  # they are of a file, or --n asks for several answers

    @property
    def items(self) -> list[bulk.Prompt]:
        return [bulk.Prompt(number, text) for number, text in enumerate(self.texts)]

    def check_letters(self, model: Denoiser) -> None:
        """Warn of texts in a script that a model has no tokens for; its answer makes no sense."""
        words, texts = model.tokenizer, dict.fromkeys(self.texts)
        if isinstance(words, FileTokenizer):
            with suppress(InputError):  # what cannot be encoded is refused later
                foreign = sum(words.foreign(HOLE.sub("", text)) for text in texts)
                whose = "the prompt" if len(texts) == 1 else show.many(foreign, "prompt")
                what = f"{model.name} has no tokens for most letters of {whose}, only for their bytes"
                if foreign:
                    warnings.warn(f"{what}: give text in a language that it was trained on", stacklevel=2)

    def given(self, number: int) -> dict[str, str]:
        return {"canvas" if self.canvas else "prompt": self.texts[number]}


def run_generate(args: Namespace) -> None:
    """Decode one prompt or canvas, or a file of prompts."""
    warnings.simplefilter("ignore", AlikeWarning)  # it is noted below the answer
    _check(args)
    args.form = _form(args)
    asked = _asked(args)
    name = _model_name(args)
    recipe = flags.for_model(args, models.default_settings(args, name), name, asked.canvas)
    check_slices(args.slice, recipe)
    if args.output is not None:
        _write(args, asked, name, recipe)
        return
    fleet = models.fleet(args, name)
    if fleet is not None:
        with show.fleet_at_work(fleet) as crew:
            _decode(args, asked, recipe, sliced(crew, args.slice))
        return
    _decode(args, asked, recipe, sliced(models.as_run(args, models.load_model(args, name)), args.slice))


def _decode(args: Namespace, asked: Asked, recipe: Recipe, model: Denoiser) -> None:
    """Decode the texts and show them as they come."""
    in_slices = isinstance(model, Elsewhere)
    asked.check_letters(model)
    size = 1 if in_slices else len(asked.texts) if args.trace else _size(args, model.device, recipe)
    items = asked.items
    job = _job(args, asked, recipe, size).prepared(model, items)
    waiting: dict[int, Result] = {}
    shown_so_far: list[int] = []

    def decode(numbers: Sequence[int], size: int | None, on_results: OnResults | None) -> list[Result]:
        with nullcontext() if in_slices else show.following() as watch:
            return job.results(model, [items[number] for number in numbers], on_results, watch, args.trace)

    def shown(part: list[bulk.Done]) -> None:
        """Show results in the order of their prompts."""
        waiting.update((one.number, one.result) for one in part)
        while (number := len(shown_so_far)) in waiting:
            shown_so_far.append(number)
            _show(args, asked, model, number, waiting.pop(number))

    bulk.run(len(asked.texts), size, decode, shown, refills=job.refills)
    if model.device.type == "cuda" and not args.json:
        show.note(show.memory_used(models.used(model)))


def _check(args: Namespace) -> None:
    """Refuse flags that do not go together, before anything is read."""
    if sum(given is not None for given in (args.prompt, args.prompts, args.canvas)) > 1:
        raise InputError("a prompt, --prompts and --canvas exclude each other", "give one of them")
    if args.system is not None and not args.chat:
        raise InputError("--system is a message of a chat", "add --chat")
    if args.chat and args.canvas is not None:
        raise InputError("--chat writes a prompt, a canvas is written as it is", "leave one of them out")
    for name in ("n", "batch"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise InputError(f"{name} is {getattr(args, name)}", "it must be at least 1")
    if args.batch is not None and args.prompts is None and args.n is None:
        raise InputError("--batch has no effect on one text", "leave it out")
    if args.logprobs is not None and not args.json and args.output is None:
        raise InputError("--logprobs has no effect on text", "add --json, or -o FILE with --prompts")
    if args.trace is not None and args.batch is not None:
        raise InputError("a trace holds one batch, of all texts", "leave --batch or --trace out")
    if args.shard is not None and args.output is None:
        raise InputError("--shard divides the rows of a run over files", "add --prompts FILE and -o FILE")
    models.check_fleet(args)
    _check_slices(args)
    if args.output is None:
        return
    if args.prompts is None:
        raise InputError("-o takes the answers to a file of prompts", "add --prompts FILE, or use > for one answer")
    if args.json or args.trace is not None:
        raise InputError(f"{'--json' if args.json else '--trace'} has no effect with -o", "the file has JSON lines")
    if Path(args.output).resolve() == Path(args.prompts).resolve():
        raise InputError(f"{args.output!r} holds the prompts", "give another file for the answers")
    rows.check_place(args.output)


def _check_slices(args: Namespace) -> None:
    """Refuse what does not go with slices of a prompt's particles: those of --slice, and of --ray without a file."""
    if args.slice is not None and args.output is not None:
        raise InputError("--slice has no effect with -o", "workers take whole batches: leave it out")
    if args.output is not None or (args.ray is None and args.slice is None):
        return
    if args.prompts is not None and args.ray is not None:
        raise InputError("--ray decodes one prompt, or a file of prompts into a file", "add -o FILE")
    what = "a prompt in slices is decoded by itself, and none of them can be left out"
    for name in ("batch", "skip_lost"):
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} has no effect: {what}", "leave it out")
    for name in ("trace", "logprobs"):
        if getattr(args, name) is not None:
            what = "has what happens in each step, which slices do not send"
            raise InputError(f"--{name} {what}", "leave it out, or decode without slices")


# --- decoding --------------------------------------------------------------------------------------------------------


def _job(args: Namespace, asked: Asked, recipe: Recipe, size: int) -> bulk.Generating:
    """What is done with the texts."""
    whole = args.recipe is not None
    given = {} if whole else flags.given(args)
    said = (args.chat, args.system, args.stop, args.logprobs, args.form)
    return bulk.Generating(recipe, size, whole, given, asked.canvas, *said)


def _size(args: Namespace, device: torch.device, recipe: Recipe) -> int:
    return int(args.batch or batch.size("prompt", device, recipe.build_search().particles))


def _show(args: Namespace, asked: Asked, model: Denoiser, number: int, result: Result) -> None:
    if args.json:
        more = {"chat": True, "system": args.system} if args.chat else {}
        about = {"model": model.name, **asked.given(number), **more, **result.to_dict(), "memory": models.used(model)}
        print(json.dumps(about), flush=True)
        return
    if asked.several:
        show.note(f"{chr(10) if number else ''}{number + 1}: {show.one_line(asked.texts[number], stream=sys.stderr)}")
    show.result(result, bool(model.vocab.eos) and not asked.canvas)


# --- rows ------------------------------------------------------------------------------------------------------------


def _write(args: Namespace, asked: Asked, name: str, recipe: Recipe) -> None:
    """Write a row for each prompt, as soon as its batch is decoded; what the file has already is not decoded again."""
    n = len(asked.texts)
    about = models.header(args, "generate", name, args.prompts, args.prompts) | {"recipe": recipe.to_dict(), "n": n}
    about |= {"chat": args.chat, "system": args.system, "stop": args.stop, "samples": args.n, "logprobs": args.logprobs}
    about |= {} if args.form is None else {"form": [None if one is None else list(one) for one in args.form.parts]}
    crew = models.fleet(args, name)
    size = _size(args, on_device(name, args.device) if crew is None else crew.device, recipe)
    mine, shard = models.shard(args, asked.items, size)
    about |= {"batch": size, **shard, **models.fleet_header(crew, about["weights"])}
    n = len(mine)
    with rows.opened(args.output, about) as kept:
        done = {int(row["number"]) for row in kept.kept}
        if kept.missing and crew is not None:
            with crew, show.fleet(crew, kept.kept, n, show.many(n, "prompt")):
                run_works(crew, [resumed(_job(args, asked, recipe, size), mine, crew, kept)])
            models.tell_lost(crew)
        elif kept.missing:
            model = models.as_run(args, models.load_model(args, name))
            asked.check_letters(model)
            with show.evaluating(n, len(done), show.many(n, "prompt")) as watch:
                tell, here = show.paced(), Here(model, watch)
                job = _job(args, asked, recipe, size).prepared(model, asked.items)  # all of them say the length

                def on_rows() -> None:
                    tell(f"{args.output}: {len(kept.kept)} of {n}")

                run_works(here, [resumed(job, mine, here, kept, on_rows)])
        there = f", {len(done)} of them from before" if done else ""
    show.note(f"{args.output}: {show.many(len(kept.kept), 'row')}{there}")


# --- the texts -------------------------------------------------------------------------------------------------------


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


def _asked(args: Namespace) -> Asked:
    """The texts to decode, each as often as --n asks; a text with holes is a canvas."""
    if args.prompts is not None:
        texts, canvas = _prompts(args.prompts), False
        holes = [number for number, text in enumerate(texts, 1) if HOLE.search(text)]
        if holes and not args.chat:
            way = "give a text with holes with --canvas; with --chat the letters are part of the message"
            raise InputError(f"prompt {holes[0]} of {args.prompts!r} holds {MARKER}", way)
    else:
        text = _text(args.canvas if args.canvas is not None else _prompt(args))
        texts, canvas = [text], args.canvas is not None or bool(HOLE.search(text) and not args.chat)
    several = args.prompts is not None or args.n is not None
    if len(texts) * (args.n or 1) > MOST:
        what = f"{len(texts)} × {args.n} answers" if len(texts) > 1 else f"n is {args.n}"
        raise InputError(what, f"ask for at most {MOST:,} in one command")
    return Asked([text for text in texts for _ in range(args.n or 1)], canvas, several)


def _prompt(args: Namespace) -> str:
    """The prompt; without one, what is piped into the command."""
    if args.prompt is None and _piped():
        show.note("unmask: note: the prompt is standard input")
        return "-"
    return args.prompt or ""


def _piped() -> bool:
    """Whether standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed, or replaced
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _prompts(path: str) -> list[str]:
    """The prompts of a file: its lines, but for blank ones; of a .jsonl file the field `prompt`, which may be empty."""
    if path.removesuffix(".gz").endswith(".jsonl"):
        found = [row["prompt"] for row in files.rows(Path(path), "prompt")]
        for number, prompt in enumerate(found, 1):
            if not isinstance(prompt, str):
                raise InputError(f"the prompt of row {number} of {path!r} is not text", "give a string")
    else:
        lines = files.read(path).removesuffix("\n").split("\n")
        found = [line for line in lines if line.strip()]
        if found and len(found) < len(lines):
            blank = show.many(len(lines) - len(found), "blank line is not a prompt", "blank lines are not prompts")
            show.note(f"unmask: note: {path!r}: {blank}")
    if not found:
        raise InputError(f"there is no prompt in {path!r}", "give one on each line")
    return found


def _text(given: str) -> str:
    """A prompt or canvas; `-` is standard input without its last newline."""
    return files.read("-").removesuffix("\n") if given == "-" else given


def _form(args: Namespace) -> Form | None:
    """The constraint of the flags; a schema is read from its file."""
    patterns, schema = args.matches, None
    if args.schema is not None:
        try:
            schema = json.loads(files.read(args.schema))
        except ValueError as error:
            raise InputError(f"{args.schema!r} is not JSON", str(error)) from None
    return form(patterns[0] if patterns and len(patterns) == 1 else patterns, args.choices, schema)


def add_generate(parser: ArgumentParser) -> None:
    parser.usage = "unmask generate [PROMPT] [flags]"
    parser.epilog = f"{NOTES}\n\n{parser.epilog}"
    parser.set_defaults(too_many=_too_many)
    about = f"text to continue, or with {MARKER} in it to fill in; - reads standard input, as does a pipe without it"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=about)
    about = "text with masks instead of a prompt, like 'Tom has a[MASK*2].'; - reads standard input"
    flag(parser, "--canvas TEXT", about)
    about = (
        "a prompt on each line that is not blank, or JSON lines with a field prompt (.jsonl); - reads standard input"
    )
    flag(parser, "--prompts FILE", about)
    about = "with --prompts: write a row for each prompt to this file (JSONL); the same command resumes a run"
    flag(parser, "-o, --output FILE", about)
    flag(parser, "--n N", "answers to each prompt, with seeds one after another [1]")
    flag(parser, "--batch N", "prompts decoded together; answers do not depend on it [8 rows on a CPU, 32 on a GPU]")
    flag(parser, "--chat", "the prompt is a question: apply the chat template")
    flag(parser, "--system TEXT", "with --chat: the system message")
    about = "the text ends before this string; several times for several"
    parser.add_argument("--stop", action="append", metavar="TEXT", help=about)
    about = "the whole text matches this regular expression; several times for the holes of a canvas"
    parser.add_argument("--matches", action="append", metavar="REGEX", help=about)
    about = "the text is one of several; once for each of them"
    parser.add_argument("--choices", action="append", metavar="TEXT", help=about)
    flag(parser, "--schema FILE", "the text is JSON of the JSON Schema in this file; of a list of them, each hole")
    flag(parser, "--recipe NAME", "settings from `unmask recipes`, a .toml or .json file, or none: no defaults")
    flag(parser, "--json", "print one JSON object for each prompt")
    flag(parser, "--logprobs N", "with --json or -o: every token when it was written, and the N most probable ones")
    flag(parser, "--trace FILE", "write every step to this file (JSONL)")
    models.add_shard(parser)
    models.add_fleet(parser, skips=True)
    about = "with --ray and one prompt, or without: particles of it that go through the network together [32]"
    flag(parser, "--slice N", about)
    models.add_model(parser, DEFAULT)
    models.add_running(parser)
    flags.add(parser, below=True)


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
