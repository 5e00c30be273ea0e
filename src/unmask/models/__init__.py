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


def random(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Denoiser:
    """A small network of random weights over letters, digits and a few signs: no sense, but every code path."""
    return random_transformer(device, dtype)


MODELS: dict[str, Callable[..., Denoiser]] = {"table": words, "random": random}


def load(name: str, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Denoiser:
    """The denoiser of this name; `dtype` None is the model's own."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ModelError(f"dtype is {dtype!r}", "give a floating point type like torch.float32")
    try:
        return MODELS[name](device) if dtype is None else MODELS[name](device, dtype)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        raise ModelError(f"cannot load {name} on {device}", str(error).splitlines()[0]) from None
