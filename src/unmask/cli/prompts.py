"""`unmask prompts`: a copy of PC-Sampler's repository -> its prompts as files for `--prompt`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from unmask.cli.parser import flag
from unmask.errors import InputError
from unmask.tasks import TASKS
from unmask.tasks.pc_sampler import FUNCTIONS, templates


def run_prompts(args: Namespace) -> None:
    """Write one file for each prompt, and print how it is used."""
    found = templates(args.source)
    folder = Path(args.output)
    there = [path for path in (folder / f"{name}.txt" for name in found) if path.exists()]
    if there:
        raise InputError(f"{str(there[0])!r} is there already", "give another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / f"{name}.txt").write_bytes(text.encode())
    except OSError as error:
        raise InputError(f"cannot write to {args.output!r}", str(error.strerror)) from None
    for name in found:
        chat = "" if TASKS[name].chat else " --chat"  # PC-Sampler sends all of them as one user turn
        print(f"unmask eval {name} --prompt {folder / f'{name}.txt'}{chat} --data FILE --model NAME")
    missing = [task for task, _ in FUNCTIONS.values() if task not in found]
    if missing:
        print(f"not in this copy: {', '.join(missing)}")


def add_prompts(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="DIRECTORY", help="a copy of github.com/NEUIR/PC-Sampler; its code is not run"
    )
    flag(parser, "-o, --output DIR", "for the files, one for each task [prompts]", "prompts")
