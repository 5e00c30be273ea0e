"""`unmask train` and `unmask merge`: data -> a trained model, which can be resumed; models -> their mean."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.cli import show
from unmask.cli.parser import flag
from unmask.errors import InputError, unknown
from unmask.models import MODELS, on_device
from unmask.models.network import Network
from unmask.train import countdown, documents, prose, sudoku
from unmask.train.initial import FREE, bring_recipe, fresh, merge, save, sizes, take, weights_at
from unmask.train.log import LOG, PLOT
from unmask.train.loop import STATE, Plan, reached, train
from unmask.train.optim import OPTIMIZERS
from unmask.train.process import SCHEDULES, WEIGHTINGS
from unmask.train.task import DataOptions, TrainTask

TASKS: dict[str, tuple[Callable[[DataOptions], TrainTask], dict[str, Any], dict[str, Any]]] = {
    "sudoku": (sudoku.task, sudoku.PLAN, sudoku.CONFIG),  # the fields of a Plan that suit it, and its default network
    "countdown": (countdown.task, countdown.PLAN, countdown.CONFIG),
    "text": (documents.task, documents.PLAN, documents.CONFIG),
    "prose": (prose.task, prose.PLAN, prose.CONFIG),
}


def run_train(args: Namespace) -> None:
    """Train the model of a task, or resume its training."""
    if args.task not in TASKS:
        raise unknown("task", args.task, TASKS)
    directory, device, given = Path(args.directory).expanduser(), on_device(args.task, args.device), _shape(args.shape)
    lists = {name: tuple(getattr(args, name) or ()) for name in ("exclude", "corpus")}
    gpu, (make, suits, default) = device.type == "cuda", TASKS[args.task]
    own = {field.name: getattr(args, field.name, None) for field in fields(Plan)}
    own = {name: value for name, value in own.items() if value is not None}
    plan = Plan(**{**suits, "half": gpu, "compile": gpu, **own})
    _check_place(directory, args.weights)
    held = args.held if args.held is not None else 256 if gpu else 16
    weights = None if args.weights is None else weights_at(args.weights)
    shape = {**sizes(directory if weights is None else weights.parent, default), **given}
    task = make(
        DataOptions(
            directory,
            held,
            heldout=args.heldout,
            tokenizer=args.tokenizer_file,
            stories=args.stories,
            device=str(device),
            weights=weights,
            seed=plan.seed,
            **lists,
        )
    )
    config = {**task.config, **shape}
    network = fresh(config, device, plan.seed)
    task.begin(network)
    if weights is not None:
        take(network, weights)

    def keep(place: Path, trained: Network) -> None:
        save(place, config, trained, bits=args.bits)
        bring_recipe(place, args.task)

    try:
        with show.training() as on_event:
            train(
                network,
                task.data,
                plan,
                directory,
                mask=task.mask,
                block_size=task.block_size,
                about=task.about,
                prepare=task.prepare,
                save=keep,
                on_event=on_event,
                on_check=lambda step: on_event({"event": "validating", "step": step}),
            )
    except KeyboardInterrupt:
        step = reached(directory)
        if step is not None:
            print(f"stopped at step {step}: the same command resumes it")
        raise
    finally:
        task.close()
    name = f"./{args.directory}" if args.directory in MODELS else args.directory
    print(f"{name}: load it as a model; {LOG} says how it went, {PLOT} shows it")


def _check_place(directory: Path, weights: str | None) -> None:
    """Refuse a directory with a model but no training to resume: the model would be overwritten."""
    if (directory / STATE).exists():
        if weights is not None:
            raise InputError(f"--weights has no effect on {str(directory)!r}, which is begun", "give another directory")
    elif any((directory / name).exists() for name in ("config.json", "model.safetensors")):
        raise InputError(f"{str(directory)!r} holds a model", f"give another DIR; --weights {directory}")


def _shape(text: str) -> dict[str, object]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InputError(f"--shape {text!r} is not a JSON object", """write it like '{"layers": 2}'""")
    for name in given:
        if name not in FREE:
            raise unknown("size", name, FREE)
    return given


def add_train(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "directory", metavar="DIR", help="for the model, the log and the state; a training that is there is resumed"
    )
    flag(parser, "--seconds X", "of training, after which it ends")
    flag(parser, "--steps N", "after which it ends")
    flag(parser, "--batch N", "examples in a step [1024; text: 512, prose: 128]")
    flag(parser, "--optimizer NAME", f"{' or '.join(OPTIMIZERS)} [{OPTIMIZERS[0]}]")
    flag(parser, "--rate X", f"the highest learning rate [{Plan.rate}]")
    flag(parser, "--average X", f"of the moving average [{Plan.average}]")
    flag(parser, "--tilt X", "more of many masks: 0 is even [0; countdown: 1]")
    flag(parser, "--held N", "examples to validate on, of each kind [256; on a CPU, where they take long, 16]")
    flag(parser, "--schedule NAME", f"how fast tokens are masked: {' or '.join(SCHEDULES)} [linear]")
    flag(parser, "--weighting NAME", f"{' or '.join(WEIGHTINGS)} [even; text and prose: nelbo]")
    flag(parser, "--mixture X", "text: the share of steps with block-causal attention [0.5]")
    flag(parser, "--check X", "seconds between validations [60]")
    flag(parser, "--log N", "steps between lines of the log [50]")
    flag(parser, "--seed N", "of weights, data and noise [0]")
    flag(parser, "--workers N", "processes that make data [0: a thread]")
    about = "start from a trained model: its model.safetensors or directory, or a name like text"
    flag(parser, "--weights FILE", about)
    parser.add_argument("--bits", type=int, default=16, choices=(8, 16), help="of a weight in the written model [16]")
    parser.add_argument("--exclude", nargs="+", metavar="FILE", help="countdown: problems never to train on")
    about = "prose: what to train on, .txt, .txt.xz or .txt.gz; sudoku: puzzles with one solution, to train on as well"
    parser.add_argument("--corpus", nargs="+", metavar="FILE", help=about)
    about = "text: the weights of stories15M, from which stories are sampled, llama2.data; or another training's DIR"
    flag(parser, "--stories FILE", about)
    flag(parser, "--heldout FILE", "prose: what to validate on")
    parser.add_argument(
        "--tokenizer",
        dest="tokenizer_file",
        metavar="FILE",
        help="text and prose: a tokenizer.json, not one of the data",
    )
    flag(parser, "--shape JSON", "other sizes of the network, like '{\"layers\": 2}'", "{}")
    flag(parser, "--device NAME", "cpu, a GPU like cuda, or auto [cpu]", "cpu")


def run_merge(args: Namespace) -> None:
    """Write the mean of models of one network as a new model."""
    if args.group is not None and args.bits != 8:
        raise InputError("--group has no effect on 16 bits, which have no scales", "add --bits 8")
    if args.group is not None and args.group < 1:
        raise InputError(f"--group is {args.group}", "it is a number of columns, at least 1")
    out = Path(args.out).expanduser()
    merge([weights_at(name).parent for name in args.models], out, args.bits, args.group)
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{out}: {show.many(len(args.models), 'model')} in {args.bits} bits, {size / 1e6:.1f} MB")


def add_merge(parser: ArgumentParser) -> None:
    about = "directories with models of one network, or names like text; one alone is only written again"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=about)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--bits", type=int, default=16, choices=(8, 16), help="of a weight [16]")
    flag(parser, "--group N", "8 bits: columns under one scale, where it divides a row [all of it]")
