"""A model, its data and a device -> the header of a run: what was run, where and when."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

from unmask._version import __version__
from unmask.decoding import background
from unmask.decoding.recipe import Recipe
from unmask.errors import InputError
from unmask.models import on_device
from unmask.tasks import Task, files
from unmask.tasks.task import Wording


def header(
    task: str,
    model: str,
    *,
    weights: str | None,  # their SHA-256
    dtype: str | None,
    device: str,
    data: str | None,  # how the data is named
    file: str | Path | None,  # where it is
    limit: int | None,
    loading: Mapping[str, Any] | None = None,  # settings that change the loaded model
    batch: int | None = None,  # questions that are decoded together; the caller may add it
) -> dict[str, Any]:
    """What every run says about itself; the caller adds the recipe and the number of rows."""
    return {
        "task": task,
        "model": model,
        "weights": weights,
        "dtype": dtype,
        **({} if loading is None else {"loading": dict(loading)}),
        "data": data,
        "sha256": sha256(file),
        "limit": limit,
        **origin(on_device(model, device)),
        **({"device": device} if "," in device else {}),  # the layers are on several
        "threads": torch.get_num_threads(),
        "batch": batch,
        "workers": None,
    }


def asked(task: Task, recipe: Recipe, shots: str | Path | None) -> dict[str, str | None]:
    """The user's task file, the prompt, the worked examples and the background table of a run, by their contents."""
    defined = task.defined_in
    inside = defined is not None and task.wording == Wording(defined.file, defined.sha256)  # its own prompts
    return {
        "task_file": None if defined is None else defined.file,
        "task_sha256": None if defined is None else defined.sha256,
        "template": task.wording.name if task.puzzle is None else None,
        "template_sha256": None if inside else task.wording.sha256,
        "shots": sha256(shots),
        "background": table_sha256(recipe),
    }


def table_sha256(recipe: Recipe) -> str | None:
    """The hash of the background table that a recipe names, where it names one."""
    return None if recipe.background is None else sha256(background.located(recipe.background))


def sha256(file: str | Path | None) -> str | None:
    """The hash of a file; `-` is standard input."""
    return None if file is None else hashlib.sha256(files.raw(Path(file))).hexdigest()


def origin(device: torch.device) -> dict[str, str | None]:
    """Where figures come from: versions, machine, date and commit."""
    return {
        "version": __version__,
        "torch": torch.__version__,
        "device": str(device),
        "machine": machine(device),
        "date": date(),
        "commit": commit(),
    }


def date() -> str:
    """Now, in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def machine(device: torch.device) -> str:
    """The name of a GPU, or of the processor with the number of threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:  # not Linux
        found = None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} of {os.cpu_count()} threads"


NAMED = "UNMASK_COMMIT"  # of a copy without a repository: COMMIT:TREE


def commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of this code, with a + where files were changed since; None outside a repository.

    A copy that is not one can name it: `export UNMASK_COMMIT=$(git rev-parse HEAD):$(git rev-parse HEAD:src/unmask)`.
    The second hash is compared with that of the copy's files, so that a name that does not fit them gets the +.
    """
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # not of a repository that holds our install
    if tracked is None:
        return _named(folder, os.environ.get(NAMED))
    found = _git(folder, "rev-parse", "HEAD")
    return found and found + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else "")


def _named(folder: Path, given: str | None) -> str | None:
    """The commit that the environment names, with a + where the files are not those of the tree beside it."""
    if given is None:
        return None
    words = re.fullmatch(r"([0-9a-f]{40}):([0-9a-f]{40})", given)
    if words is None:
        hint = "give two hashes: $(git rev-parse HEAD):$(git rev-parse HEAD:src/unmask)"
        raise InputError(f"{NAMED} is {given!r}, which is not COMMIT:TREE", hint)
    return words[1] + ("" if _tree(folder) == words[2] else "+")


@cache
def _tree(folder: Path) -> str:
    """The hash that git gives a folder whose files are not executable; without what Python and tools leave there."""
    lines = []
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        if path.is_dir():
            lines += [(f"{path.name}/", b"40000 ", _tree(path))] if _tree(path) != EMPTY else []
        else:
            lines.append((path.name, b"100644 ", _object(b"blob", path.read_bytes())))
    lines.sort(key=lambda line: line[0].encode())  # git sorts a folder as if its name ended with a slash
    parts = (mode + name.rstrip("/").encode() + b"\0" + bytes.fromhex(key) for name, mode, key in lines)
    return _object(b"tree", b"".join(parts))


def _object(kind: bytes, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind, len(content)) + content, usedforsecurity=False).hexdigest()


EMPTY = _object(b"tree", b"")  # a folder that git does not keep


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
