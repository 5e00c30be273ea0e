"""Tensors and tables -> files of a new checkpoint; a failure takes back what was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import ModelError
from unmask.models.files.checkpoint import said


def vacant(directory: Path) -> None:
    """Refuse a directory with files in it."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ModelError(f"{str(directory)!r} is there already", "give a new or an empty directory")
    except OSError as error:
        raise ModelError(f"cannot read {str(directory)!r}", said(error)) from None


@contextmanager
def new_checkpoint(directory: Path) -> Iterator[list[Path]]:
    """A directory to write into, with those above it; the list takes the files that were begun, config.json last."""
    vacant(directory)
    begun: list[Path] = []
    new: list[Path] = []
    try:
        new += [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        yield begun
    except BaseException as error:
        with suppress(OSError):
            for path in begun:
                path.unlink(missing_ok=True)
            for path in new:
                path.rmdir()
        if isinstance(error, OSError | SafetensorError):
            reason = getattr(error, "strerror", None) or said(error)
            raise ModelError(f"cannot write {str(directory)!r}", reason) from None
        raise


def write_weights(path: Path, tensors: dict[str, Tensor], begun: list[Path]) -> None:
    """One safetensors file."""
    begun.append(path)
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library leaves it to the owner alone


def write_json(path: Path, values: Mapping[str, Any], begun: list[Path]) -> None:
    begun.append(path)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
