"""`unmask train` and `unmask merge`: data -> a trained model, which can be resumed; models -> their mean."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmask.cli import show
from unmask.errors import InputError, unknown
from unmask.models import MODELS, on_device
from unmask.models.network import Network
from unmask.train import countdown, sudoku, text
from unmask.train.init import FREE, fresh, merge, save, sizes, take, weights_at
from unmask.train.log import LOG, PLOT
from unmask.train.loop import STATE, Plan, reached, train
from unmask.train.optim import OPTIMIZERS
from unmask.train.process import SCHEDULES, WEIGHTINGS
from unmask.train.task import DataOptions, TrainTask

TASKS: dict[str, tuple[Callable[[DataOptions], TrainTask], dict[str, Any], dict[str, Any]]] = {
    "sudoku": (sudoku.task, sudoku.PLAN, sudoku.CONFIG),  # the fields of a Plan that suit it, and its usual network
    "countdown": (countdown.task, countdown.PLAN, countdown.CONFIG),
    "text": (text.task, text.PLAN, text.CONFIG),
}
SAID = (
    "steps",
    "seconds",
    "batch",
    "optimizer",
    "rate",
    "average",
    "tilt",
    "schedule",
    "weighting",
    "seed",
    "check",
    "log",
    "workers",
)


def run_train(args: Namespace) -> None:
    """Train the model of a task, or resume its training."""
    if args.task not in TASKS:
        raise unknown("task", args.task, TASKS)
    directory, device, given = Path(args.directory).expanduser(), on_device(args.task, args.device), _shape(args.shape)
    lists = {name: tuple(getattr(args, name) or ()) for name in ("exclude", "corpus")}
    gpu, (make, suits, usual) = device.type == "cuda", TASKS[args.task]
    said = {name: getattr(args, name) for name in SAID if getattr(args, name) is not None}
    plan = Plan(**{**suits, "half": gpu, "compile": gpu, **said})
    _check_place(directory, args.weights)
    held = args.held if args.held is not None else 256 if gpu else 16
    weights = None if args.weights is None else weights_at(args.weights)
    shape = {**sizes(directory if weights is None else weights.parent, usual), **given}
    task = make(
        DataOptions(directory, held, heldout=args.heldout, tokenizer=args.tokenizer_file, weights=weights, **lists)
    )
    config = {**task.config, **shape}
    network = fresh(config, device, plan.seed)
    task.begin(network)
    if weights is not None:
        take(network, weights)

    def keep(place: Path, trained: Network) -> None:
        save(place, config, trained, bits=args.bits)

    try:
        with show.training() as tell:
            train(
                network,
                task.data,
                plan,
                directory,
                mask=task.mask,
                about=task.about,
                prepare=task.prepare,
                save=keep,
                on_event=tell,
            )
    except KeyboardInterrupt:
        step = reached(directory)
        if step is not None:
            print(f"stopped at step {step}: the same command goes on")
        raise
    name = f"./{args.directory}" if args.directory in MODELS else args.directory
    print(f"{name}: load it as a model; {LOG} says how it went, {PLOT} shows it")


def _check_place(directory: Path, weights: str | None) -> None:
    """Refuse a directory whose model is no training that could go on: it would be overwritten."""
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
        raise InputError(f"--shape {text!r} is no JSON object", """write it like '{"layers": 2}'""")
    for name in given:
        if name not in FREE:
            raise unknown("size", name, FREE)
    return given


def add_train(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "directory", metavar="DIR", help="for the model, the log and the state; goes on with what is there"
    )
    parser.add_argument("--seconds", type=float, metavar="X", help="of training, after which it ends")
    parser.add_argument("--steps", type=int, metavar="N", help="after which it ends")
    parser.add_argument("--batch", type=int, metavar="N", help="examples in a step [1024; text: 128]")
    parser.add_argument("--optimizer", metavar="NAME", help=f"{' or '.join(OPTIMIZERS)} [{OPTIMIZERS[0]}]")
    parser.add_argument("--rate", type=float, metavar="X", help=f"the highest learning rate [{Plan.rate}]")
    parser.add_argument("--average", type=float, metavar="X", help=f"of the moving average [{Plan.average}]")
    parser.add_argument("--tilt", type=float, metavar="X", help="more of many masks: 0 is even [0; countdown: 1]")
    about = "examples to validate on, of each kind [256; on a CPU, where they take long, 16]"
    parser.add_argument("--held", type=int, metavar="N", help=about)
    parser.add_argument(
        "--schedule", metavar="NAME", help=f"how fast tokens are masked: {' or '.join(SCHEDULES)} [linear]"
    )
    parser.add_argument("--weighting", metavar="NAME", help=f"{' or '.join(WEIGHTINGS)} [even; text: nelbo]")
    parser.add_argument("--check", type=float, metavar="X", help="seconds between validations [60]")
    parser.add_argument("--log", type=int, metavar="N", help="steps between lines of the log [50]")
    parser.add_argument("--seed", type=int, metavar="N", help="of weights, data and noise [0]")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that make data [0: a thread]")
    about = "start from a trained model: its model.safetensors or directory, or a name like text"
    parser.add_argument("--weights", metavar="FILE", help=about)
    parser.add_argument("--bits", type=int, default=16, choices=(8, 16), help="of a weight in the written model [16]")
    parser.add_argument("--exclude", nargs="+", metavar="FILE", help="countdown: problems never to train on")
    about = "text: what to train on, .txt, .txt.xz or .txt.gz; sudoku: puzzles with one solution, to train on as well"
    parser.add_argument("--corpus", nargs="+", metavar="FILE", help=about)
    parser.add_argument("--heldout", metavar="FILE", help="text: what to validate on")
    parser.add_argument(
        "--tokenizer", dest="tokenizer_file", metavar="FILE", help="text: a tokenizer.json, not one of the corpus"
    )
    parser.add_argument(
        "--shape", default="{}", metavar="JSON", help="other sizes of the network, like '{\"layers\": 2}'"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU like cuda [cpu]")


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
    parser.add_argument(
        "--group", type=int, metavar="N", help="8 bits: columns under one scale, where it divides a row [all of it]"
    )
