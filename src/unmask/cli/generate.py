"""The commands: parsed flags -> library call -> print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.cli import demo, flags, show
from unmask.cli.models import Namespace, as_run, check_unused, load_model, used
from unmask.decoding.background import count
from unmask.decoding.decode import Result, decode_batch
from unmask.decoding.named_recipes import RECIPES
from unmask.decoding.prompt import default_length
from unmask.decoding.settings import describe
from unmask.errors import InputError, unknown
from unmask.models import FAMILIES, MODELS, load_tokenizer
from unmask.samplers import SAMPLERS
from unmask.search import SEARCHES
from unmask.tasks import files

DEFAULT = "text"


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
    model = as_run(args, load_model(args, _model_name(args)))
    if texts and recipe.length is None:
        recipe = recipe.replace(length=default_length(model, texts))
    with show.following() as on_event:
        results = decode_batch(model, texts, canvases=canvases, recipe=recipe, trace=args.trace, on_event=on_event)
    if args.json:
        for place, result in enumerate(results):
            given = {"canvas": canvases[place]} if canvases else {"prompt": (prompts or [])[place]}
            asked = {"chat": True, "system": args.system} if args.chat else {}
            _print_json({"model": model.name, **given, **asked, **result.to_dict(), "memory": used(model)})
    else:
        _show(results, prompts if args.prompts else None)
        if model.device.type == "cuda":
            print(show.memory_used(used(model)))


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


def _show(results: Sequence[Result], prompts: Sequence[str] | None) -> None:
    for place, result in enumerate(results):
        if prompts is not None:
            print(f"{chr(10) if place else ''}{place + 1}: {show.one_line(prompts[place])}")
        show.result(result)


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


def samplers(args: Namespace) -> None:
    """List the samplers, or say all about one."""
    entries = {name: describe(name, build) for name, build in SAMPLERS.items()}
    _list("sampler", entries, args)


def searches(args: Namespace) -> None:
    """List the searches, or say all about one."""
    entries = {name: describe(name, build) for name, build in SEARCHES.items()}
    _list("search", entries, args)


def models(args: Namespace) -> None:
    """List the models, or load one and say all about it."""
    entries = {name: describe(name, build, MODEL_HELP) for name, build in MODELS.items()}
    if args.name is None:
        check_unused(args)
    else:
        model = load_model(args, args.name)
        about = {"name": args.name, "summary": "a checkpoint", "more": "", "settings": []}
        entries = {args.name: {**entries.get(args.name, about), "facts": show.facts(model)}}
    _list("model", entries, args)
    if args.name is None and not args.json:
        kinds = ", ".join(f"{family.name} ({family.about})" for family in FAMILIES.values())
        print(f"Besides these, a directory or hub id with a checkpoint of: {kinds}.")


def recipes(args: Namespace) -> None:
    """List the named recipes, or say all about one."""
    if args.name is not None and args.name not in RECIPES:
        raise unknown("recipe", args.name, RECIPES, "`unmask recipes` lists them")
    chosen = list(RECIPES.values()) if args.name is None else [RECIPES[args.name]]
    if args.json:
        found = [{**vars(one), "command": one.command()} for one in chosen]
        _print_json(found if args.name is None else found[0])
    elif args.name is None:
        show.console().print(show.recipes(chosen))
    else:
        show.recipe(chosen[0])


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


def lm_eval(args: Namespace) -> int:
    """Run lm-evaluation-harness with the words that follow."""
    from unmask.evaluate.lm_eval import model as lmeval  # lm-eval is optional

    return lmeval.main(args.words)


def show_demo(args: Namespace) -> None:
    """Solve Sudokus in front of the user, and compare searches."""
    demo.run(args.puzzles, args.trace)


def _print_json(value: Any) -> None:
    print(json.dumps(value))
