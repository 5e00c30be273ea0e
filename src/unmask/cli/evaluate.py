"""`unmask eval`: a task's questions through a model, resumable -> rows and a table."""

from __future__ import annotations

import json
import time
import warnings
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.cli import flags, models, show
from unmask.cli.compare import share
from unmask.cli.parser import flag, refuse
from unmask.core.denoiser import Chats
from unmask.decoding.defaults import canonical
from unmask.decoding.named_recipes import RECIPES, NamedRecipe
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError, UnmaskError, unknown
from unmask.evaluate import header, rows
from unmask.evaluate.compare import summary
from unmask.evaluate.fleet import Fleet
from unmask.evaluate.inputs import Inputs, gathered
from unmask.evaluate.run import Question, asked, check, default, resume, together
from unmask.models import family_name, on_device
from unmask.models.tokenizers import FileTokenizer
from unmask.models.transformer import Transformer
from unmask.tasks import TASKS, Task, in_form, with_prompt
from unmask.tasks.own import is_file, questions_sha256, read_task
from unmask.tasks.task import located
from unmask.train import documents, prose
from unmask.train.words import END, MASK

NAMES = {**{name: task.about for name, task in TASKS.items()}, "text": "bits a byte of texts"}
LISTED = "tasks:\n" + "\n".join(f"  {name:16} {about}" for name, about in NAMES.items())
LISTED += "\n  my_task.py       questions and a grader of your own: a file that runs with your rights, in no sandbox"


def run_eval(args: Namespace) -> None:
    """Put the questions of a task to a model and grade what it answers; for text, report bits a byte."""
    if args.task not in NAMES and not is_file(args.task):
        raise _unknown(args.task)
    for name in ("limit", "batch"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise InputError(f"{name} is {getattr(args, name)}", "it must be at least 1")
    if args.rows is not None and args.data is not None and Path(args.rows).resolve() == Path(args.data).resolve():
        raise InputError(f"{args.rows!r} holds the data", "give another file for the rows")
    if args.shard is not None and args.rows is None:
        raise InputError("--shard divides the rows of a run over files", "add --rows FILE")
    rows.check_place(args.rows)
    if args.task == "text":
        _eval_text(args)
        return
    task = _task(args)
    _check_flags(args, task)
    named = RECIPES.get(args.recipe or "")
    if named is not None and not args.any_recipe:
        named.check(task.name, None)
    _find(args, task, named)
    recipe = flags.to_recipe(args)
    if task.puzzle is None and recipe.length is None:
        recipe = recipe.replace(length=task.length)
    questions, skipped = _questions(args, task)
    name = _model(args, task)
    if named is not None and not args.any_recipe and not args.trust_remote_code:
        named.check(task.name, family_name(name, args.revision))
    recipe = _default(args, name, task, recipe)
    crew = models.fleet(args, name)
    size = args.batch or together(task, recipe, on_device(name, args.device) if crew is None else crew.device)
    about = _header(args, name, task) | {"recipe": recipe.to_dict(), "batch": size}
    about |= header.asked(task, recipe, args.shots) | ({"constrained": task.form} if task.constrained else {})
    mine, shard = models.shard(args, questions, size)
    about |= (
        {"chat": _chat(args, task), "n": len(mine), "skipped": skipped}
        | shard
        | models.fleet_header(crew, about["weights"])
    )
    with rows.opened(args.rows, about) as kept:
        if kept.missing:
            _run(args, task, mine, recipe, kept, crew)
        graded = kept.graded(args.rows or "memory")
    found = summary(graded) | {"skipped": skipped}
    print(json.dumps(_about(kept) | found) if args.json else _measured(found, own=task.defined_in is not None))


def _default(args: Namespace, name: str, task: Task, recipe: Recipe) -> Recipe:
    """The model's default recipe, where neither --recipe nor a flag says how to decode; else exactly those."""
    given = flags.given(args)
    if args.recipe is not None or set(canonical(given)) - {"length", "seed"}:
        return recipe
    found = default(task, given, models.default_settings(args, name), name)
    return found if recipe.length is None else found.replace(length=recipe.length)


def _run(
    args: Namespace, task: Task, questions: list[Question], recipe: Recipe, kept: rows.Rows, crew: Fleet | None
) -> None:
    """Decode and grade what is missing."""
    check(task, args.insist)
    if crew is not None:
        began = time.monotonic()
        with crew, show.fleet(crew, kept.kept, len(questions), show.many(len(questions), "question")):
            resume(task, crew, questions, recipe, kept, batch=args.batch, insist=args.insist)
        kept.header |= {"wall_seconds": time.monotonic() - began}
        models.tell_lost(crew)
        return
    model = models.as_run(args, models.load_model(args, _model(args, task)))
    words = model.tokenizer
    if _chat(args, task) and not (isinstance(words, Chats) and words.template is not None):
        raise InputError(f"{model.name} has no chat template", "add --no-chat to ask in plain text")
    with show.evaluating(len(questions), len(kept.kept)) as watch:
        resume(task, model, questions, recipe, kept, batch=args.batch, insist=args.insist, on_event=watch)


# --- the questions ---------------------------------------------------------------------------------------------------


def _task(args: Namespace) -> Task:
    """The task of this name or in this file, with the prompt that was given."""
    task = TASKS[args.task] if args.task in TASKS else read_task(args.task)
    for name in ("chat", "prompt"):
        if task.puzzle is not None and getattr(args, name) is not None:
            raise InputError(f"--{name} has no effect on {task.name}, whose model is given a canvas", "leave it out")
    task = in_form(task) if args.constrained else task
    return task if args.prompt is None else with_prompt(task, args.prompt)


def _check_flags(args: Namespace, task: Task) -> None:
    """Refuse flags that the task has no use for."""
    if args.shots is not None and (task.shown or not task.shots):
        raise InputError(f"--shots has no effect on {task.name}, which has its own worked examples", "leave it out")
    if args.insist and not task.programs:
        raise InputError(f"--insist has no effect on {task.name}, which runs no programs", "leave it out")
    if args.any_recipe and args.recipe not in RECIPES:
        raise InputError("--any-recipe has no effect without a recipe of the paper", "leave it out")
    if args.data_dir is not None and (task.bundled is not None or task.defined_in is not None):
        raise InputError(f"--data-dir has no effect on {task.name}", "give its questions with --data FILE")


def _find(args: Namespace, task: Task, named: NamedRecipe | None) -> None:
    """Fill in the files that were not given; all that is missing is asked for at once."""
    if task.bundled is not None or task.defined_in is not None:
        return
    wants = named.family if named is not None and named.needs else None
    (found,) = gathered([(task, wants)], Inputs(args.data, args.shots, args.background), args.data_dir)
    args.data, args.shots = found.data, found.shots
    args.background = args.background if wants is None else found.background


def _questions(args: Namespace, task: Task) -> tuple[list[Question], int]:
    """The questions as they are asked, and how many were left out."""
    if task.bundled is not None and args.data is None:
        raise InputError(f"{task.name} needs --data FILE", f"`unmask puzzles {task.name} -o FILE` makes one")
    sifted = asked(task, args.data, args.shots, args.limit, _chat(args, task))
    remark = sifted.remark()
    if remark is not None:
        warnings.warn(f"{args.data!r}: {remark}", stacklevel=2)
    return sifted.fit, len(sifted.skipped)


def _chat(args: Namespace, task: Task) -> bool:
    return task.chat if args.chat is None else bool(args.chat)


def _model(args: Namespace, task: Task) -> str:
    """The model that was asked for, or the bundled one for the task."""
    if args.model is not None or task.bundled is not None:
        return str(args.model or task.bundled)
    shipped = RECIPES.get(args.recipe or "")
    some = shipped.model if shipped else "NAME: text is bundled, else a directory or a hub id"
    raise InputError(f"{task.name} needs a language model", f"add --model {some}")


def _unknown(name: str) -> UnmaskError:
    """A task that does not exist; a file of questions is not one."""
    if Path(name).is_file():
        return InputError(f"{name!r} is not a task", "give its questions with --data, or a task of yours in a .py file")
    return unknown("task", name, NAMES)


# --- the header ------------------------------------------------------------------------------------------------------


def _header(args: Namespace, model: str, task: Task) -> dict[str, Any]:
    """Where the figures come from."""
    if task.held and task.defined_in is not None:  # its questions are in its code
        file = task.defined_in.file
        made = models.header(args, task.name, model, file, None, args.limit)
        return made | {"sha256": questions_sha256(task.held)}
    named = args.data if args.data is not None else f"{task.source.repo}/{task.source.file}"
    return models.header(args, task.name, model, named, located(task, args.data), args.limit)


def _about(kept: rows.Rows) -> dict[str, Any]:
    return {name: value for name, value in kept.header.items() if name != "kind"}


# --- text ------------------------------------------------------------------------------------------------------------


NO_TEXT = "data_dir shots prompt chat batch constrained insist any_recipe max_rows compile".split()  # without effect
FEW = 10  # documents or windows below which an interval by the normal distribution does not hold what it says


@dataclass(frozen=True)
class Window:
    """A window of text or a document, by its number."""

    number: int


def _eval_text(args: Namespace) -> None:
    """Measure the bits a byte of texts."""
    _check_text(args)
    name = args.model or "text"
    model = _text_model(args, name)
    windows, sizes, full = _windows(args, model)
    some, shard = models.shard(args, [Window(number) for number in range(len(windows))], prose.TOGETHER)
    mine, whole = [one.number for one in some], len(windows)
    windows, sizes = windows[mine], sizes[mine]
    about = models.header(args, "text", name, args.data, args.data, args.limit) | {"n": len(windows)} | shard
    about |= {"batch": prose.TOGETHER}
    kind = "window" if model.blocks is None else "document"
    with rows.opened(args.rows, about) as kept, show.progress() as bar:
        task = bar.add_task(show.many(len(windows), kind), total=len(windows))
        values = {int(row["number"]): float(row["nats"]) for row in kept.kept}
        known = {place: values[number] for place, number in enumerate(mine) if number in values}
        last = time.perf_counter()

        def on_batch(begin: int, nats: NDArray[np.float64]) -> None:
            nonlocal last
            share, last = (time.perf_counter() - last) / len(nats), time.perf_counter()
            new = [(place, value) for place, value in enumerate(nats.tolist(), begin) if place not in known]
            kept.add(
                {"task": "text", "number": mine[at], "nats": value, "bytes": int(sizes[at]), "seconds": share}
                for at, value in new
            )
            bar.update(task, completed=begin + len(nats))

        each = prose.nelbo(model.network, windows, on_batch=on_batch, known=known, numbers=mine, count=whole)
    middle, low, high = prose.bits_per_byte(each, sizes)
    found = {"n": len(windows), "unit": kind, "bits_per_byte": middle, "low": low, "high": high}
    found |= {"bytes": int(sizes.sum()), "evaluations": len(windows) * prose.DRAWS}
    found |= {"seconds": sum(row["seconds"] for row in kept.kept)}
    print(json.dumps(_about(kept) | found) if args.json else _bits(found, windows.shape[1]))
    _note_text(len(windows), kind, full, windows.shape[1])


def _check_text(args: Namespace) -> None:
    """Refuse flags that have no effect on text, and a command without its file."""
    models.check_fleet(args)
    refuse(args, ("ray",), "text, which one process measures", "use --shard")
    flags.none(args, "text, whose NELBO needs no decoding")
    refuse(args, NO_TEXT, "text")
    if args.data is None:
        raise InputError("text needs --data FILE", "give a file of documents")


def _text_model(args: Namespace, name: str) -> Transformer:
    """The model, if it is one of ours for text."""
    model = models.load_model(args, name)
    if not (
        isinstance(model, Transformer)
        and isinstance(model.tokenizer, FileTokenizer)
        and model.network.shape.tied
        and model.vocab.mask == MASK
    ):
        raise InputError(f"{model.name} was not made by `unmask train text` or `prose`", "give such a model")
    return model


def _windows(args: Namespace, model: Transformer) -> tuple[NDArray[Any], NDArray[Any], int]:
    """The tokens of windows, or of documents; their bytes, and how many documents fill all of their tokens."""
    assert isinstance(model.tokenizer, FileTokenizer)
    words, full = model.tokenizer.fast, 0
    if model.blocks is not None:  # it was trained on one document a row
        windows = documents.text_rows(args.data, words, model.limit or documents.LENGTH)[: args.limit]
        full = int(np.count_nonzero(windows[:, -1] != END))
    else:
        windows = prose.windows(prose.pack([args.data], words), model.limit or prose.LENGTH)[: args.limit]
    return windows, prose.widths(words)[windows].sum(1), full


def _bits(found: Mapping[str, Any], width: int) -> str:
    """The figures of texts, in one line."""
    sure = "" if found["low"] is None else f" ({found['low']:.4f}–{found['high']:.4f})"
    tokens = f"of {width} tokens" if found["unit"] == "window" else f"of up to {width} tokens"
    texts = f"{show.many(found['n'], found['unit'])} {tokens}"
    return f"{found['bits_per_byte']:.4f} bits a byte{sure} · {texts} · {found['seconds']:.1f} s"


def _note_text(n: int, kind: str, full: int, width: int) -> None:
    """Note what is cut, and what is too little."""
    if full:
        what = show.many(full, "document fills", "documents fill")
        show.note(f"unmask: note: {what} all {width} tokens; what is longer is cut there")
    if n < FEW:
        what = show.many(n, f"{kind} is", f"{kind}s are")
        show.note(f"unmask: note: {what} too few for an interval: it goes by how {kind}s differ, so give {FEW} or more")


# --- what is printed -------------------------------------------------------------------------------------------------


def _measured(found: Mapping[str, Any], own: bool) -> str:
    """The shares that are right, path entropy, cost, and what could not be graded, a line each.

    A task of the user's `own` has one grader.
    """
    sure = "" if found["auroc"] is None else f" · AUROC {found['auroc']:.3f}"
    sure += "" if found["auroc_surprise"] is None else f", of surprise {found['auroc_surprise']:.3f}"
    many = f"{found['n']}, {found['skipped']} skipped" if found.get("skipped") else found["n"]
    rate = "" if found["tokens_per_second"] is None else f" · {found['tokens_per_second']:.1f} tokens/s"
    counts = [show.many(found[name], name[:-1]) for name in ("steps", "calls", "evaluations")]
    lines = [
        f"solved {share(found, 'strict')} of {many} · "
        + ("" if own else f"as published {share(found, 'as_published')} · ")
        + f"path entropy {found['path_entropy_bits']:.3f} bits{sure}",
        f"{' · '.join(counts)} · {found['seconds']:.1f} s{rate}",
    ]
    if found.get("groups"):
        parts = [f"{name} {one['strict']:.3f} of {one['n']}" for name, one in found["groups"].items()]
        lines.append(f"solved by size: {' · '.join(parts)}")
    failed = found["failures"]
    if failed:
        some = ", ".join(f"{one['id']} ({one['fault']})" for one in failed[:4])
        more = f" and {len(failed) - 4} more" if len(failed) > 4 else ""
        lines.append(show.safe(f"{show.many(len(failed), 'answer')} not graded to the end: {some}{more}"))
    return "\n".join(lines)


# --- flags -----------------------------------------------------------------------------------------------------------


def add_eval(parser: ArgumentParser) -> None:
    parser.usage = "unmask eval TASK [flags]"
    parser.epilog = f"{LISTED}\n\n{parser.epilog}"
    about = "a name of the list below, or a Python file with a task of your own (`unmask help own-task`): it is run"
    parser.add_argument("task", metavar="TASK", help=about)
    about = "its questions, as in `unmask help tasks`; - is standard input; the hub's by default, where it has them"
    flag(parser, "--data FILE", about)
    about = "a folder with the files of the tasks and background tables, under the names of `unmask help tasks`"
    flag(parser, "--data-dir DIR", about)
    flag(parser, "--shots FILE", "questions to draw worked examples from: gsm8k's training file")
    flag(parser, "--prompt FILE", "ask with this prompt instead of ours, as in `unmask help prompts`")
    flag(
        parser,
        "--limit N",
        "only the first N questions, or documents or windows of text (a CPU reads about one a second) [all]",
    )
    flag(parser, "--rows FILE", "write every answer to this file (JSONL); the same command resumes a run")
    flag(parser, "--batch N", "questions decoded together; rows do not depend on it")
    models.add_shard(parser)
    models.add_fleet(parser, skips=True)
    about = "ask through the model's chat template, or not; by default as the benchmark is published"
    parser.add_argument("--chat", action=BooleanOptionalAction, default=None, help=about)
    about = "decode answers in the form of right ones only: countdown and problems"
    flag(parser, "--constrained", about)
    flag(parser, "--insist", "run programs that models write even where the kernel cannot confine them")
    about = "settings from `unmask recipes`, or a .toml or .json file; without it and without flags the model's default"
    flag(parser, "--recipe NAME", about)
    flag(parser, "--any-recipe", "take a recipe of the paper for another task or another family of models")
    flag(parser, "--json", "print one JSON object")
    models.add_model(parser, "for sudoku, countdown, problems and text a bundled one")
    models.add_running(parser)
    flags.add(parser)
