"""MODELS: name -> function that loads a denoiser. `load` takes a name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unmask.errors import ModelError, unknown
from unmask.models.denoiser import Denoiser, Head, Tokenizer
from unmask.models.table import Table
from unmask.models.transformer import random_transformer
from unmask.models.words import words

__all__ = ["MODELS", "Denoiser", "Head", "Table", "Tokenizer", "load"]

MODELS: dict[str, Callable[..., Denoiser]] = {
    "table": words,
    "random": random_transformer,
}


def load(name: str, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Denoiser:
    """The denoiser of this name; `dtype` None is the model's own."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    try:
        return MODELS[name](device) if dtype is None else MODELS[name](device, dtype)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        raise ModelError(f"cannot load {name} on {device}", str(error).splitlines()[0]) from None
