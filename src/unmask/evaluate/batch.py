"""A kind of work and a device -> how many rows go through the network at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")

ROWS = {  # the largest batches; on a CPU larger ones are not faster
    "puzzle": {"cpu": 32, "cuda": 4096},
    "prompt": {"cpu": 8, "cuda": 32},  # longer canvases of larger models
    "sample": {"cpu": 8, "cuda": 512},  # text without a prompt
    "judged": {"cpu": 16, "cuda": 64},  # texts of a part, which a judge reads in smaller batches of as many tokens
    "known": {"cpu": 32, "cuda": 512},  # known texts, masked or revealed
}


def size(kind: str, device: torch.device, each: int = 1) -> int:
    """How many questions are decoded at once, where each needs `each` rows."""
    rows = ROWS[kind]
    return max(1, rows.get(device.type, rows["cpu"]) // each)


def parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in batches of `size`, the last perhaps smaller."""
    return (items[begin : begin + size] for begin in range(0, len(items), size))
