"""Flags -> a loaded model; and the commands about models: `unmask models`, `check`, `fabricate` and `convert`."""

from __future__ import annotations

import json
import shlex
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from unmask.cli import show
from unmask.cli.parser import flag, refuse
from unmask.core.denoiser import Chats
from unmask.errors import InputError
from unmask.models import FAMILIES, MODELS, Denoiser, default_recipe, fingerprint, hashed, load, memory
from unmask.models.files.checkpoint import DTYPES, dtype_name
from unmask.models.files.convert import convert
from unmask.models.laws import check
from unmask.models.made.fabricate import SIZES, fabricate
from unmask.models.packed import WEIGHTS, packed_of
from unmask.models.transformer import Transformer, compiled
from unmask.models.wrap import Chunked, layers

if TYPE_CHECKING:
    from unmask.evaluate.fleet import Fleet, Source
    from unmask.evaluate.parts import Numbered
Item = TypeVar("Item", bound="Numbered")

# flags of add_model
LOADING = (
    "device",
    "dtype",
    "weights",
    "adapter",
    "mask_id",
    "tokenizer",
    "revision",
    "blocks",
    "trust_remote_code",
    "shift",
)
CHANGING = (
    "weights",
    "adapter",
    "mask_id",
    "tokenizer",
    "blocks",
    "trust_remote_code",
    "shift",
)  # those that change what a model says
WORKERS = ("workers", "gpus", "cpus")  # flags of add_fleet that need --ray
HELP = {
    "device": "where it runs; the flag --device",
    "dtype": "of its numbers; the flag --dtype",
    "weights": "float, int8 or int4; the flag --weights",
}

# --- which model, and how --------------------------------------------------------------------------------------------


def add_model(parser: ArgumentParser, default: str | None = None) -> None:
    """The flags that say which model is loaded."""
    if default is not None:
        about = f"a name of `unmask models`, a directory with a checkpoint, or a hub id [{default}]"
        parser.add_argument("--model", metavar="NAME", help=about)
    group = parser.add_argument_group("loading a model")
    about = "cpu, a GPU like cuda or cuda:1, several for the layers of one model, or auto: a GPU if there is one [cpu]"
    flag(group, "--device NAME[,NAME…]", about, "cpu")
    flag(group, "--dtype NAME", f"{', '.join(DTYPES)}; by default the checkpoint's own", kind=dtype_name)
    about = "int8 or int4: matrices of the layers in as few bits, which takes less memory; float: as they are [float]"
    group.add_argument("--weights", choices=WEIGHTS, help=about)
    about = "a LoRA adapter of PEFT, which is merged into the weights"
    group.add_argument("--adapter", action=Once, metavar="DIR", help=about)
    group.add_argument("--mask-id", type=int, metavar="ID", help="the mask token, where the checkpoint does not say it")
    flag(group, "--tokenizer NAME", "directory or hub id with the tokenizer, if not its own")
    flag(group, "--revision NAME", "branch, tag or commit of a hub id")
    group.add_argument("--blocks", type=int, metavar="N", help="positions to a block of attention, if not the config's")
    flag(
        group,
        "--trust-remote-code",
        "run the checkpoint's own Python code, with your rights, where unmask lacks its layout",
    )
    flag(group, "--shift", "with remote code: output i belongs to token i + 1")


class Once(Action):
    """A flag that is refused a second time."""

    def __call__(self, parser: ArgumentParser, args: Namespace, value: Any, option: str | None = None) -> None:
        if getattr(args, self.dest) is not None:
            parser.error(f"{option} is given twice: only one can be merged")
        setattr(args, self.dest, value)


def add_running(parser: ArgumentParser) -> None:
    """The flags that say how its network is run."""
    flag(parser, "--max-rows N", "rows through the network at a time: bounds memory")
    flag(parser, "--compile", "compile the network first: takes a minute, pays in long runs on a GPU")


def add_shard(parser: ArgumentParser) -> None:
    """The flag that divides a run over several commands."""
    about = "only every Nth batch from the Ith on, as 3/16; `unmask join` makes one file of all shards"
    flag(parser, "--shard I/N", about)


def add_fleet(parser: ArgumentParser, skips: bool = False) -> None:
    """The flags that have a run done by many processes; `skips`: its questions can be left out."""
    group = parser.add_argument_group("on many GPUs or machines (`unmask help scale`)")
    about = "workers of Ray do the batches: those of this machine, of a running cluster (auto) or of one at HOST:PORT"
    group.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=about)
    flag(group, "--workers N|MIN-MAX", "how many; a range waits for a cluster that grows [all that there is room for]")
    group.add_argument("--gpus", type=float, metavar="X", help="GPUs of each worker; 0: it runs on CPUs [1]")
    group.add_argument("--cpus", type=int, metavar="N", help="CPUs of each worker, and its threads [1]")
    if skips:
        flag(group, "--skip-lost", "leave out questions whose workers were lost three times, instead of ending the run")


def check_fleet(args: Namespace) -> None:
    """Refuse flags that have no effect without workers, or with them."""
    given = [one for one in WORKERS if getattr(args, one) is not None]
    given += ["skip_lost"] if getattr(args, "skip_lost", False) else []
    if args.ray is None and given:
        raise InputError(f"--{given[0].replace('_', '-')} has no effect without --ray", "add --ray")
    if args.ray is None:
        return
    if args.device not in ("cpu", "auto"):
        raise InputError("--device has no effect with --ray", "--gpus says where workers run")
    if getattr(args, "shard", None) is not None:
        raise InputError("--shard and --ray exclude each other", "workers take all batches: leave --shard out")


def loading(args: Namespace, name: str) -> Source:
    """What workers load, by the flags that a command has."""
    from unmask.evaluate.fleet import Loading

    some = (one for one in (*LOADING, "max_rows", "compile") if one != "device" and hasattr(args, one))
    return Loading(name, **{one: getattr(args, one) for one in some})


def fleet(args: Namespace, model: Source | str) -> Fleet | None:
    """The fleet that the flags ask for; it begins with the first part that there is to do."""
    check_fleet(args)
    if args.ray is None:
        return None
    from unmask.evaluate.fleet import Fleet, to_workers

    gpus, cpus = 1.0 if args.gpus is None else args.gpus, 1 if args.cpus is None else args.cpus
    source = loading(args, model) if isinstance(model, str) else model
    return Fleet(args.ray, source, to_workers(args.workers), gpus, cpus, skip_lost=getattr(args, "skip_lost", False))


def tell_lost(crew: Fleet) -> None:
    """Name the questions that --skip-lost left out."""
    for part in crew.given_up:
        show.note(f"unmask: warning: workers were lost while they did questions {part.named()}, which are left out")


def fleet_header(crew: Fleet | None, weights: str | None) -> dict[str, Any]:
    """What differs in the header of a run that others do; they are told the hash of its weights."""
    if crew is None:
        return {}
    crew.loading = replace(crew.loading, sha256=weights)
    return dict(crew.origin)


def shard(args: Namespace, items: Sequence[Item], size: int) -> tuple[list[Item], dict[str, Any]]:
    """The items that this command decodes, and the fields of its header that say which they are."""
    from unmask.evaluate.parts import to_shard  # a list of models needs no rows

    if args.shard is None:
        return list(items), {}
    found = to_shard(args.shard)
    mine = found.of(items, size)
    return mine, {"shard": f"{found} of batches of {size}", "whole": len(items), "n": len(mine)}


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
            blocks=args.blocks,
            weights=args.weights,
            adapter=args.adapter,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def given(args: Namespace, name: str) -> str:
    """The flags that load this model as it was loaded."""
    words = ["--model", str(args.model or name)]
    for option in LOADING:
        value = getattr(args, option)
        if value not in (None, False, "cpu"):
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def default_settings(args: Namespace, name: str) -> Mapping[str, Any]:
    """The default settings of the model that the flags name, before it is loaded; foreign code brings none."""
    return {} if args.trust_remote_code else default_recipe(name, args.revision)


def header(
    args: Namespace,
    task: str,
    model: str,
    data: str | None,
    file: str | Path | None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Where the rows of a run come from: model, data and device, with a progress bar for the hash of the weights."""
    from unmask.evaluate.header import header as made  # a list of models needs no rows

    with show.progress() as bar:
        shown = bar.add_task(f"weights of {model}", total=None)
        weights = fingerprint(model, args.revision, lambda done, total: bar.update(shown, completed=done, total=total))
    return made(
        task,
        model,
        weights=weights,
        dtype=args.dtype,
        device=args.device,
        data=data,
        file=file,
        limit=limit,
        loading={name: getattr(args, name) for name in CHANGING if getattr(args, name)} | _sha256(args.adapter),
    )


def _sha256(adapter: str | None) -> dict[str, str | None]:
    """The hash of an adapter, for the header of a run."""
    if adapter is None:
        return {}
    return {"adapter_sha256": hashed(sorted(Path(adapter).expanduser().glob("adapter_model*.safetensors")))}


def as_run(args: Namespace, model: Denoiser) -> Denoiser:
    """The model, run in the way that the flags ask for."""
    bounded = model if args.max_rows is None else Chunked(model, args.max_rows)
    return compiled(bounded) if args.compile else bounded


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


def run_models(args: Namespace) -> None:
    """List the models, or load one and describe it."""
    from unmask.decoding.settings import describe  # who judges texts needs no samplers

    entries = {name: describe(name, build, HELP) for name, build in MODELS.items()}
    if args.name is None:
        refuse(args, LOADING, "a list", "give the name of a model")
    else:
        model = load_model(args, args.name)
        about = {"name": args.name, "summary": "a checkpoint", "more": "", "settings": []}
        entries = {args.name: {**entries.get(args.name, about), "facts": facts(model)}}
    show.listed("model", list(entries.values()), args)
    if args.name is None and not args.json:
        kinds = ", ".join(f"{family.name} ({family.about})" for family in FAMILIES.values())
        print(f"Besides these, a directory or hub id with a checkpoint of: {kinds}.")


def facts(model: Denoiser) -> dict[str, Any]:
    """What a loaded model says about itself."""
    from unmask.decoding.defaults import default_of  # a list of models needs no samplers

    more: dict[str, Any] = {}
    if isinstance(model, Transformer):
        more = {
            "family": model.family,
            "parameters": memory.parameters(model.network.shape),
            **(
                {} if model.network.shape.experts is None else {"active parameters": memory.active(model.network.shape)}
            ),
            "weights": f"{model.bytes / 2**30:.2f} GiB as {_kinds(model)}",
            "attention": f"in blocks of {model.blocks}" if model.block_causal else "full",
            "shifted": model.shift,
            "timed": model.timed,
        }
    kinds = {"Numbers": "none: text is token ids with spaces between them", "Characters": "single characters"}
    return {
        **more,
        "tokenizer": kinds.get(type(model.tokenizer).__name__, "from its files"),
        "chat template": isinstance(model.tokenizer, Chats) and model.tokenizer.template is not None,
        "vocabulary": model.head.width,
        "mask": model.vocab.mask,
        "eos": list(model.vocab.eos),
        "absent": list(model.head.absent),
        "limit": model.limit,
        "device": str(model.device),
        "default recipe": default_of(model).to_dict(),
    }


def _kinds(model: Transformer) -> str:
    """The type of the weights, and the bits of packed ones."""
    bits = sorted({one.bits for one in packed_of(model.network).values()})
    kind = str(model.network.like.dtype).removeprefix("torch.")
    return kind if not bits else f"{kind}, layers in {bits[0]} bits"


def add_models(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")
    flag(parser, "--json", "print JSON")
    add_model(parser)


def run_check(args: Namespace) -> int:
    """Check the laws of a model; the exit status."""
    verdicts = check(load_model(args, args.name), args.seed)
    if args.json:
        print(json.dumps([vars(verdict) for verdict in verdicts]))
    else:
        show.verdicts(verdicts)
    return 1 if any(verdict.held is False for verdict in verdicts) else 0


def add_check(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", help="a name, directory or hub id; exit status 1: a law is broken")
    flag(parser, "--seed N", "of the random canvases [0]", 0)
    flag(parser, "--json", "print JSON")
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


def add_fabricate(parser: ArgumentParser) -> None:
    parser.add_argument("family", metavar="FAMILY", help=", ".join(f"{f.name} ({f.about})" for f in FAMILIES.values()))
    parser.add_argument("directory", metavar="DIR", help="a new directory")
    flag(parser, "--size NAME", f"{' or '.join(SIZES)} [tiny]", "tiny")
    flag(parser, "--seed N", "equal seeds give equal weights [0]", 0)


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


def add_convert(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a file that Lightning wrote, with training code of MDLM")
    parser.add_argument("directory", metavar="DIR", help="a new directory")
    flag(parser, "--plain", "the last weights instead of their moving average (EMA)")
    flag(parser, "--length N", "longest canvas it was trained on [1024]", 1024)
    flag(parser, "--time-conditioning", "it was trained with its time input")
    parser.add_argument("--mask-id", type=int, metavar="ID", help="the mask token, where it is not the last one")
