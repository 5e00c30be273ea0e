"""A decode with a cache, once watched -> its floor, the step of public loops with a cache, and what both cost.

The floor of a step is the network on the columns between two refreshes, and on those of a refresh in as many steps as
the decode has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from unmask.core.denoiser import Denoiser
from unmask.core.state import State
from unmask.evaluate.speed import baselines, blocks
from unmask.evaluate.speed.baselines import Backbones
from unmask.evaluate.speed.blocks import Pace, Watch
from unmask.models.transformer import Transformer
from unmask.models.wrap import layers

Work = Callable[[], object]
INNER, REFRESH = "inner", "refresh"
PUBLIC, ROW = "public_cached_ms", "public_cached_row_ms"


@dataclass(frozen=True)
class Cached:
    """What the steps of a decode with a cache are compared with."""

    pace: Pace
    inner: Backbones  # the columns between two refreshes
    refresh: Backbones
    kept: dict[str, int] | None  # bytes of keys and values
    public: dict[str, tuple[Work, Work]] = field(default_factory=dict)  # a step, and what comes once a block

    @property
    def names(self) -> list[str]:
        """The ways to run both."""
        return [name for name in self.inner.runs if name in self.refresh.runs]

    @property
    def works(self) -> dict[str, Work]:
        """All that is timed, by name."""
        found: dict[str, Work] = {}
        for name in self.names:
            found |= {f"{INNER} {name}": self.inner.runs[name], f"{REFRESH} {name}": self.refresh.runs[name]}
        for name, (step, once) in self.public.items():
            found |= {f"{INNER} {name}": step, f"{REFRESH} {name}": once}
        return found

    def backbones_ms(self, times: dict[str, float]) -> dict[str, float]:
        """The mean step of each way to run the network."""
        share = self.pace.refreshed
        return {
            name: (1 - share) * times[f"{INNER} {name}"] + share * times[f"{REFRESH} {name}"] for name in self.names
        }

    def figures(self, times: dict[str, float], best: str) -> dict[str, Any]:
        """Of the parts of the floor, of public loops, and of what is kept."""
        pace, share = self.pace, self.pace.entered
        usual = 1 - share if pace.refresh is None else 1  # a full pass is a step; keeping a finished block is not
        public = {
            name: usual * times[f"{INNER} {name}"] + share * times[f"{REFRESH} {name}"] if name in self.public else None
            for name in (PUBLIC, ROW)
        }
        return {
            "inner_ms": times[f"{INNER} {best}"],
            "inner_columns": pace.inner.width,
            "inner_kept": pace.inner.kept,
            "refresh_ms": times[f"{REFRESH} {best}"],
            "refresh_columns": None if pace.refresh is None else pace.refresh.width,  # None: all
            "refresh_share": pace.refreshed,
            **public,
            "kept": self.kept,
        }


def set_up(denoiser: Denoiser, watch: Watch, timed: int, half: State, whole: Backbones, compile: bool) -> Cached:
    """The floor of a decode that was watched, after its first `timed` steps; `whole` is the network on all columns."""
    *_, network = layers(denoiser)
    assert isinstance(network, Transformer)
    pace, cost = blocks.pace(watch.scheme, watch.steps, timed), denoiser.cost
    inner = baselines.column_backbones(network, half, cost, pace.inner, compile)
    refresh = whole
    if pace.refresh is not None:
        refresh = baselines.column_backbones(network, half, cost, pace.refresh, compile)
    return Cached(pace, inner, refresh, blocks.kept(denoiser, watch))


def public(
    cached: Cached, denoiser: Denoiser, half: State, temperature: float, reveal: int, fits: bool
) -> dict[str, tuple[Work, Work]]:
    """Public loops with a cache, eager: on all rows, where a full pass of them `fits` into the memory, and on one."""
    *_, network = layers(denoiser)
    assert isinstance(network, Transformer)
    found: dict[str, tuple[Work, Work]] = {}
    for name, state in ((PUBLIC, half), (ROW, half.take(torch.zeros(1, dtype=torch.int64, device=half.tokens.device)))):
        step, once = baselines.public_columns(network, state, cached.pace.public, temperature, reveal)
        if cached.pace.refresh is None:
            if name == PUBLIC and not fits:
                continue
            once = baselines.public_step(baselines.eager(network, state), network.head, state, temperature, reveal)
        found[name] = step, once
    return found
