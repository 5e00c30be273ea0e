"""A device -> where figures come from: versions, machine, date and commit."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path

import torch

from unmask._version import __version__
from unmask.evaluate.speed import clock


def origin(device: torch.device) -> dict[str, str | None]:
    """What a run should say about itself."""
    return {
        "version": __version__,
        "torch": torch.__version__,
        "device": str(device),
        "machine": clock.machine(device),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of this code, with a + where files were changed since; None where it is in no repository."""
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # not of a repository that holds our install
    found = None if tracked is None else _git(folder, "rev-parse", "HEAD")
    return found and found + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else "")


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
