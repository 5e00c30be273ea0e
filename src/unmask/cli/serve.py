"""The command line's half for the server: flags -> models, settings, limits -> a server that runs until Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from unmask.cli import flags
from unmask.cli.models import add_model, as_run, load_model
from unmask.cli.parser import flag
from unmask.errors import AlikeWarning, InputError
from unmask.models import BUNDLED, Denoiser
from unmask.server.limits import Limits

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
        from unmask.server.request import ServeConfig, standing  # fastapi and uvicorn are optional
        from unmask.server.run import Server, serve
    except ModuleNotFoundError as error:
        if str(error.name).startswith("unmask"):
            raise
        raise InputError(f"serving needs {error.name}", "pip install 'unmask[serve]'") from None
    warnings.simplefilter("ignore", AlikeWarning)  # requests choose their temperature
    defaults = flags.to_settings(args)
    flags.to_recipe(args)  # refuses what goes with nothing
    names = list(dict.fromkeys(args.model or BUNDLED))
    token = _token(args.token)
    if args.seconds is not None and not 0 < args.seconds <= threading.TIMEOUT_MAX:
        raise InputError(f"--seconds is {args.seconds:g}", "it must be more than 0; leave it out to serve until Ctrl-C")
    given = {field: getattr(args, f"limit_{field}") for field, _, _ in LIMITS.values()}
    limits = Limits(**given)
    config = ServeConfig(
        {name: as_run(args, load_model(args, name)) for name in names},
        defaults,
        limits,
        args.plain_chat,
        complete=args.recipe is not None,
    )
    for name in names:
        standing(config, name)  # refuses a default recipe that is wrong
    _check_length(defaults, config.models.values())
    threads: list[threading.Thread] = []

    def ready(url: str, server: Server) -> None:
        threads.append(server.batcher.thread)
        print(f"{', '.join(names)} at {url} (Ctrl-C stops)", flush=True)

    try:
        serve(config, args.host, args.port, token=token, seconds=args.seconds, on_ready=ready)
    finally:
        if any(thread.is_alive() for thread in threads):  # in a step that nobody can stop: Python would wait, or crash
            sys.stdout.flush()
            print("unmask: stopped in the middle of a step", file=sys.stderr, flush=True)
            os._exit(0 if sys.exc_info()[0] is None else 130)


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
    flags.add(parser, help=HELP, below=True)


def _plain(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"
