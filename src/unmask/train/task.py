"""Task: what `unmask train` needs to know of a model, and the options that tasks take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.models.network import Network
from unmask.train.batches import Source


@dataclass(frozen=True)
class Options:
    """What a user may say about the data of a task; a task refuses what it has no use for."""

    directory: Path
    held: int = 256  # examples to validate on, of each kind
    exclude: tuple[str, ...] = ()  # files of problems that must not be trained on
    corpus: tuple[str, ...] = ()  # files of texts or puzzles to train on
    heldout: str | None = None  # a text file to validate on
    tokenizer: str | None = None  # a tokenizer.json instead of one made of the corpus
    weights: Path | None = None  # the model.safetensors that training starts from

    def __post_init__(self) -> None:
        if self.held < 1:
            raise InputError(f"held is {self.held}", "it must be at least 1")

    def only(self, task: str, *names: str) -> None:
        """Refuse what other tasks take."""
        for name in ("exclude", "corpus", "heldout", "tokenizer"):
            if getattr(self, name) and name not in names:
                raise InputError(f"--{name} has no effect on {task}", "leave it out")


@dataclass(frozen=True)
class Task:
    """A model to train."""

    source: Source
    config: Mapping[str, Any]  # config.json of the model
    mask: int
    about: Mapping[str, Any] = field(default_factory=dict)  # what the log says of the data
    prepare: Callable[[], Mapping[str, Any]] = dict  # the long work on the data, in the end; more of `about`
    begin: Callable[[Network], None] = lambda network: None  # sets weights that random ones do not suit
