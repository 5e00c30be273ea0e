"""MODELS: name -> function that loads a denoiser. `load` takes a name."""

from __future__ import annotations

from collections.abc import Callable

from unmask.errors import unknown
from unmask.models.denoiser import Denoiser, Head, Tokenizer
from unmask.models.table import Table
from unmask.models.transformer import random_transformer
from unmask.models.words import words

__all__ = ["MODELS", "Denoiser", "Head", "Table", "Tokenizer", "load"]

MODELS: dict[str, Callable[[], Denoiser]] = {
    "table": words,
    "random": random_transformer,
}


def load(name: str) -> Denoiser:
    """The denoiser of this name."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]()
