"""The command line's half for the server: flags -> models, settings, limits -> a server that runs until Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.cli import flags
from unmask.cli.models import add_model, as_run, load_model
from unmask.cli.parser import flag
from unmask.errors import AlikeWarning, InputError
from unmask.models import BUNDLED, Denoiser
from unmask.server.limits import Limits

if TYPE_CHECKING:  # its packages are optional
    from unmask.server.replicas import Plan
    from unmask.server.request import ServeConfig
    from unmask.server.run import Server

RAY = ("replicas", "gpus", "cpus")  # flags that need --ray
TOKEN = "UNMASK_TOKEN"
# flag: (field of Limits, default, help)
LIMITS: dict[str, tuple[str, Any, str]] = {
    one.metadata["flag"]: (one.name, one.default, one.metadata["help"]) for one in fields(Limits)
}

# help of settings that read otherwise here: each is what holds where a request says nothing
HELP = {
    "seed": "of every request that names none; by default a random one for each, which its answer tells",
    "temperature": "of the tokens; 0 takes the most probable one [the model's own, else 1]",
}


def run_serve(args: Namespace) -> None:
    """Serve models over HTTP."""
    try:
        from unmask.server.batcher import Batcher  # fastapi and uvicorn are optional
        from unmask.server.run import serve
    except ModuleNotFoundError as error:
        if str(error.name).startswith("unmask"):
            raise
        raise InputError(f"serving needs {error.name}", "pip install 'unmask[serve]'") from None
    plan = _plan(args)
    token = _token(args.token)
    if args.seconds is not None and not 0 < args.seconds <= threading.TIMEOUT_MAX:
        raise InputError(f"--seconds is {args.seconds:g}", "it must be more than 0; leave it out to serve until Ctrl-C")
    limits, names = _limits(args), ", ".join(_names(args))
    flags.to_recipe(args)  # refuses what goes with nothing
    threads: list[threading.Thread] = []

    def ready(url: str, server: Server) -> None:
        if isinstance(server.batcher, Batcher):
            threads.append(server.batcher.thread)
        print(f"{names} at {url} (Ctrl-C stops)", flush=True)

    try:
        how: dict[str, Any] = {"token": token, "seconds": args.seconds, "on_ready": ready}
        if plan is None:
            serve(config_of(args), args.host, args.port, **how)
        else:
            from unmask.evaluate.fleet.cluster import connected
            from unmask.server.replicas import serve_replicas

            connect = partial(connected, args.ray, _most(plan), plan.gpus, plan.cpus)
            there = Namespace(**{**vars(args), "token": None, "device": _device(plan), "run": None})
            serve_replicas(connect, partial(config_of, there), limits, plan, args.host, args.port, **how)
    finally:
        if any(thread.is_alive() for thread in threads):  # in a step that nobody can stop: Python would wait, or crash
            sys.stdout.flush()
            print("unmask: stopped in the middle of a step", file=sys.stderr, flush=True)
            os._exit(0 if sys.exc_info()[0] is None else 130)


def config_of(args: Namespace) -> ServeConfig:
    """The models that the flags name, loaded, with the defaults and limits of the server; a replica calls it too."""
    from unmask.server.request import ServeConfig, standing

    warnings.simplefilter("ignore", AlikeWarning)  # requests choose their temperature
    defaults, names = flags.to_settings(args), _names(args)
    models = {name: as_run(args, load_model(args, name)) for name in names}
    config = ServeConfig(models, defaults, _limits(args), args.plain_chat, complete=args.recipe is not None)
    for name in names:
        standing(config, name)  # refuses a default recipe that is wrong
    _check_length(defaults, config.models.values())
    return config


def _names(args: Namespace) -> list[str]:
    return list(dict.fromkeys(args.model or BUNDLED))


def _limits(args: Namespace) -> Limits:
    return Limits(**{field: getattr(args, f"limit_{field}") for field, _, _ in LIMITS.values()})


def _plan(args: Namespace) -> Plan | None:
    """The replicas that the flags ask for; None: this process decodes."""
    given = [one for one in RAY if getattr(args, one) is not None]
    if args.ray is None and given:
        raise InputError(f"--{given[0]} has no effect without --ray", "add --ray")
    if args.ray is None:
        return None
    if args.device not in ("cpu", "auto"):
        raise InputError("--device has no effect with --ray", "--gpus says where replicas run")
    from unmask.server.replicas import Plan, to_replicas

    cpus = 1 if args.cpus is None else args.cpus
    if cpus < 1 or (args.gpus is not None and args.gpus < 0):
        raise InputError(f"cpus is {cpus}, gpus is {args.gpus}", "give at least 1 CPU, and no less than 0 GPUs")
    return Plan(to_replicas(args.replicas or "1"), 1.0 if args.gpus is None else args.gpus, cpus)


def _most(plan: Plan) -> int:
    return plan.replicas if isinstance(plan.replicas, int) else plan.replicas[1]


def _device(plan: Plan) -> str:
    return "cpu" if not plan.gpus else "auto" if plan.gpus > 1 else "cuda"  # of several, layers may be on each


def _token(given: str | None) -> str | None:
    """The token of the flag, or of the environment; None: everybody may ask."""
    if given == "":
        raise InputError("the token is empty", f"give one, or set {TOKEN}")
    token = given or os.environ.get(TOKEN) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the token cannot stand in a header", "use ASCII letters, digits and signs, without blanks")
    return token


def _check_length(defaults: Mapping[str, Any], models: Iterable[Denoiser]) -> None:
    """Refuse a default length that no model takes: every request without a length would fail."""
    length, limits = defaults.get("length"), [model.limit for model in models]
    known = [limit for limit in limits if limit is not None]
    if length is not None and len(known) == len(limits) and length > max(known):
        raise InputError(f"--length is {length:,}", f"the models that are served allow {max(known):,} positions")


def add_serve(parser: ArgumentParser) -> None:
    parser.set_defaults(own_signals=True)  # SIGTERM, too, has it finish the requests in progress
    about = f"a name of `unmask models`, a directory or a hub id; several times for several [{', '.join(BUNDLED)}]"
    parser.add_argument("--model", action="append", metavar="NAME", help=about)
    flag(parser, "--host NAME", "where to listen [127.0.0.1: only here]", "127.0.0.1")
    flag(parser, "--port N", "0 takes a free one [8000]", 8000)
    flag(parser, "--token TEXT", f"that clients must send as api_key; better in ${TOKEN}")
    flag(parser, "--plain-chat", "models without a chat template: messages as text")
    flag(parser, "--seconds X", "stop by itself after so long")
    flag(parser, "--recipe NAME", "default settings instead of the models' own: of `unmask recipes`, or a file")
    flag(parser, "--max-rows N", "rows through the network at a time: bounds memory")
    flag(parser, "--compile", "compile the networks first")
    group = parser.add_argument_group("limits")
    for option, (name, default, text) in LIMITS.items():
        kind = float if isinstance(default, float) else int
        group.add_argument(
            option, dest=f"limit_{name}", type=kind, default=default, metavar="N", help=f"{text} [{_plain(default)}]"
        )
    add_model(parser)
    group = parser.add_argument_group("on many GPUs or machines (`unmask help serving-many`)")
    about = "replicas of Ray Serve decode: on this machine, on a running cluster (auto) or on one at HOST:PORT"
    group.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=about)
    flag(group, "--replicas N|MIN-MAX", "how many; of a range, as many as the requests in progress ask for [1]")
    group.add_argument("--gpus", type=float, metavar="X", help="GPUs of each replica; 0: it runs on CPUs [1]")
    group.add_argument("--cpus", type=int, metavar="N", help="CPUs of each replica, and its threads [1]")
    flags.add(parser, help=HELP, below=True)


def _plain(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"
