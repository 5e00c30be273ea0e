"""Names of devices and dtypes, as users write them -> those of torch."""

from __future__ import annotations

import torch

from unmask.errors import ModelError, first_line
from unmask.models.files.checkpoint import DTYPES, dtype_name


def on_device(name: str, device: str | torch.device) -> torch.device:
    """The device, if torch has it; `auto` is a GPU if there is one. `name` is the model, for the error."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ModelError(f"cannot load {name} on {device}", "give cpu, a GPU like cuda or cuda:1, or auto") from None
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # torch raises any of them
        reason = first_line(error).split(". ")[0]
        raise ModelError(f"cannot load {name} on {device}", f"{reason}; cpu is always there") from None
    if place.type == "meta":
        raise ModelError("the device meta holds no numbers", "give cpu, or a GPU like cuda")
    return place


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype; None, and auto, is the model's own."""
    dtype = dtype_name(dtype) if isinstance(dtype, str) else dtype
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ModelError(f"dtype is {dtype!r}", f"choose from {', '.join(DTYPES)} or auto")
    return found


def moved(
    name: str, device: str | torch.device | torch.dtype | None, dtype: torch.dtype | str | None
) -> tuple[torch.device | None, torch.dtype | None]:
    """The arguments of a tensor's `to`, from those of a model's: a device, a dtype, or both."""
    if isinstance(device, torch.dtype):
        device, dtype = None, device
    return None if device is None else on_device(name, device), as_dtype(dtype)
