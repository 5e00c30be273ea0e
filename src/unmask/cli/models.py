"""The command line's half for models: flags that say which one is loaded; check, fabricate, convert, train, merge."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unmask.cli import show
from unmask.errors import InputError, unknown
from unmask.models import FAMILIES, MODELS, Denoiser, load, memory, on_device
from unmask.models.compiled import compiled
from unmask.models.files.checkpoint import DTYPES
from unmask.models.files.convert import convert
from unmask.models.laws import check
from unmask.models.made.fabricate import SIZES, fabricate
from unmask.models.network import Network
from unmask.models.transformer import Transformer
from unmask.models.wrap import Chunked, layers
from unmask.train import countdown, sudoku, text
from unmask.train.init import FREE, fresh, merge, save, sizes, take, weights_at
from unmask.train.log import LOG, PLOT
from unmask.train.loop import STATE, Plan, reached, train
from unmask.train.optim import OPTIMIZERS
from unmask.train.process import SCHEDULES, WEIGHTINGS
from unmask.train.task import DataOptions, TrainTask

Namespace = argparse.Namespace
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


# --- which model, and how --------------------------------------------------------------------------------------------


def add_model(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The flags that say which model is loaded."""
    if default is not None:
        about = f"a name of `unmask models`, a directory with a checkpoint, or a hub id [{default}]"
        parser.add_argument("--model", metavar="NAME", help=about)
    group = parser.add_argument_group("loading a model")
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU like cuda or cuda:1 [cpu]")
    group.add_argument("--dtype", metavar="NAME", help=f"{', '.join(DTYPES)}; by default the checkpoint's own")
    group.add_argument("--mask-id", type=int, metavar="ID", help="the mask token, where the checkpoint does not say it")
    group.add_argument("--tokenizer", metavar="NAME", help="directory or hub id with the tokenizer, if not its own")
    group.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a hub id")
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the checkpoint's own Python code, with your rights, for layouts that unmask does not know",
    )
    group.add_argument("--shift", action="store_true", help="with remote code: output i belongs to token i + 1")


def check_unused(args: Namespace) -> None:
    """Refuse flags about loading where nothing is loaded."""
    usual = {"device": "cpu", "dtype": None, "mask_id": None, "tokenizer": None, "revision": None}
    for flag, value in {**usual, "trust_remote_code": False, "shift": False}.items():
        if getattr(args, flag) != value:
            raise InputError(f"--{flag.replace('_', '-')} has no effect on a list", "give the name of a model")


def load_model(args: Namespace, name: str) -> Denoiser:
    """The model that the flags name, with a progress bar."""
    with show.progress() as bar:
        task = bar.add_task(f"loading {name}", total=None)
        return load(
            name,
            args.device,
            args.dtype,
            mask_id=args.mask_id,
            tokenizer=args.tokenizer,
            revision=args.revision,
            trust_remote_code=args.trust_remote_code,
            shift=args.shift,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def chunked(model: Denoiser, rows: int | None) -> Denoiser:
    """At most so many rows at a time; None: all at once."""
    if rows is None:
        return model
    return Chunked(model, rows)


def as_run(args: Namespace, model: Denoiser) -> Denoiser:
    """The model in the way that the flags ask it to be run."""
    return compiled(chunked(model, args.max_rows)) if args.compile else chunked(model, args.max_rows)


def used(model: Denoiser) -> dict[str, int]:
    """Bytes: the weights, and the most that was held on the device and on the host."""
    found = {"host_peak": memory.host_peak()}
    for layer in layers(model):
        if isinstance(layer, Transformer):
            found["weights"] = layer.bytes
    if model.device.type == "cuda":
        found["device_peak"] = torch.cuda.max_memory_allocated(model.device)
    return found


# --- the commands ----------------------------------------------------------------------------------------------------


def run_check(args: Namespace) -> int:
    """Check the laws of a model; the exit status."""
    verdicts = check(load_model(args, args.name), args.seed)
    if args.json:
        print(json.dumps([vars(verdict) for verdict in verdicts]))
    else:
        show.verdicts(verdicts)
    return 1 if any(verdict.held is False for verdict in verdicts) else 0


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", help="a name, directory or hub id; exit status 1: a law is broken")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random canvases [0]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model(parser)


def run_fabricate(args: Namespace) -> None:
    """Write a random checkpoint in a family's published layout."""
    with show.progress() as bar:
        task = bar.add_task(f"writing {args.directory}", total=None)
        files = fabricate(
            args.family,
            Path(args.directory).expanduser(),
            args.size,
            args.seed,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    for file in files:
        print(f"{file}  {file.stat().st_size:,} bytes")


def add_fabricate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", metavar="FAMILY", help=", ".join(f"{f.name} ({f.about})" for f in FAMILIES.values()))
    parser.add_argument("directory", metavar="DIR", help="a new directory")
    parser.add_argument("--size", default="tiny", metavar="NAME", help=f"{' or '.join(SIZES)} [tiny]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="equal seeds give equal weights [0]")


def run_train(args: Namespace) -> None:
    """Train a bundled model, or go on with it."""
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


def add_train(parser: argparse.ArgumentParser) -> None:
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


def run_convert(args: Namespace) -> None:
    """Turn a Lightning checkpoint of MDLM into a directory that unmask loads."""
    made = convert(
        Path(args.checkpoint),
        Path(args.directory).expanduser(),
        ema=not args.plain,
        length=args.length,
        time_conditioning=args.time_conditioning,
        mask_id=args.mask_id,
    )
    kind = "moving averages (EMA)" if made.ema else "plain weights"
    print(f"{made.directory}: {made.parameters:,} parameters, {kind}")
    if made.ignored:
        print(f"left out, as nothing of it was run: {', '.join(made.ignored)}")


def add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a file that Lightning wrote, with training code of MDLM")
    parser.add_argument("directory", metavar="DIR", help="a new directory")
    parser.add_argument("--plain", action="store_true", help="the last weights instead of their moving average (EMA)")
    parser.add_argument("--length", type=int, default=1024, metavar="N", help="longest canvas it was trained on [1024]")
    parser.add_argument("--time-conditioning", action="store_true", help="it was trained with its time input")
    parser.add_argument("--mask-id", type=int, metavar="ID", help="the mask token, where it is not the last one")


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


def add_merge(parser: argparse.ArgumentParser) -> None:
    about = "directories with models of one network, or names like text; one alone is only written again"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=about)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--bits", type=int, default=16, choices=(8, 16), help="of a weight [16]")
    parser.add_argument(
        "--group", type=int, metavar="N", help="8 bits: columns under one scale, where it divides a row [all of it]"
    )
