"""What one layer hands to the next -> the same on the device of the next layer."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def carried(value: Any, device: torch.device) -> Any:
    """The same with all tensors in it on a device; kept keys and values stay where their `layers` are."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(carried(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value) if one.name != "layers"]
        return replace(value, **{name: carried(getattr(value, name), device) for name in names})
    return value
