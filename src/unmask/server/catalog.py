"""The registries and what is usual here -> what a request may choose from: samplers, searches and their settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from unmask.cli import show
from unmask.cli.flags import HELP
from unmask.decoding.recipe import CHOICES, KINDS, RANGES, SPECIFIC, Recipe
from unmask.models import EMBEDDED
from unmask.samplers import DREAM_RULES, P2_RULES, SAMPLERS
from unmask.search import CHOOSERS, POTENTIALS, SCHEMES, SEARCHES

RULES = {"p2": tuple(P2_RULES), "dream": tuple(DREAM_RULES)}


def catalog(usual: Mapping[str, Any]) -> dict[str, Any]:
    """All that `/v1/recipes` tells; `usual` holds where a request says nothing, as far as it goes with it."""
    defaults = {field.name: field.default for field in fields(Recipe)}
    general = [name for name in KINDS if name not in SPECIFIC and name not in ("sampler", "search")]
    return {
        "samplers": _entries(SAMPLERS, usual),
        "searches": _entries(SEARCHES, usual),
        "general": [_setting(name, defaults[name], "", usual) for name in general],
        "usual": dict(usual),
    }


def _entries(registry: Mapping[str, Callable[..., Any]], usual: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, build in registry.items():
        entry = show.entry(name, build, HELP)
        settings = [_setting(one["name"], one["default"], name, usual) for one in entry["settings"]]
        found.append({"name": name, "summary": entry["summary"], "more": entry["more"], "settings": settings})
    return found


def _setting(name: str, default: Any, taker: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """One setting, as the sampler or search of this name takes it."""
    kind = KINDS[name].split(" ")[0].split("[")[0]
    low, high, closed = RANGES.get(name, (-math.inf, math.inf, True))
    return {
        "name": name,
        "kind": {"tuple": "list"}.get(kind, kind),
        "default": list(default) if isinstance(default, tuple) else default,
        "help": HELP[name],
        "minimum": low if closed and low > -math.inf else None,
        "above": None if closed else low,
        "maximum": high if high < math.inf else None,
        "choices": _choices(name, taker, usual),
    }


def _choices(name: str, taker: str, usual: Mapping[str, Any]) -> list[str] | None:
    if name == "background":  # a request names no files but the server's own
        return list(dict.fromkeys([*EMBEDDED, *([usual[name]] if name in usual else [])]))
    known = {**CHOICES, "potential": POTENTIALS, "scheme": SCHEMES, "choose": CHOOSERS, "rule": RULES.get(taker, ())}
    return list(known[name]) if name in known else None
