"""A denoiser -> the same with its network compiled: slower to begin, faster in long runs on a GPU."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import torch

from unmask.core.denoiser import Denoiser
from unmask.errors import SettingError
from unmask.models.transformer import Transformer
from unmask.models.wrap import innermost


def compiled(denoiser: Denoiser) -> Denoiser:
    """Calls with all rows of a batch run compiled, once for each size of batch; others run as before.

    Numbers may differ in their last bits from those of the network as it is.
    """

    def change(inner: Denoiser) -> Denoiser:
        if not isinstance(inner, Transformer):
            raise SettingError(f"{inner.name} has no network of ours to compile", "leave compile out")
        if not can_compile(inner.device):
            raise SettingError("there is no C++ compiler, which compiling for a CPU takes", "leave compile out")
        return replace(inner, compiled=torch.compile(inner.network, dynamic=False))

    return innermost(denoiser, change)


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for the device; for a CPU it is one of C++."""
    return device.type != "cpu" or any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))
