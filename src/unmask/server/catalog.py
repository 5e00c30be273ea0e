"""The registries and the server's defaults -> what a request may choose from: samplers, searches and their settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unmask.decoding.settings import Setting, describe, explained, known, registries
from unmask.models import BUNDLED


def catalog(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The body of `/v1/recipes`; `defaults` are the server's own."""
    rows, tables = known(), registries()
    general = [row for row in rows.values() if row.general and row.name not in ("sampler", "search")]
    return {
        "samplers": [_entry(name, build, rows, defaults) for name, build in tables["sampler"].table.items()],
        "searches": [_entry(name, build, rows, defaults) for name, build in tables["search"].table.items()],
        "general": [_setting(row, row.default, "", defaults) for row in general],
        "usual": dict(defaults),
    }


def _entry(name: str, build: Any, rows: Mapping[str, Setting], defaults: Mapping[str, Any]) -> dict[str, Any]:
    entry = describe(name, build)
    return {
        **entry,
        "settings": [_setting(rows[one["name"]], one["default"], name, defaults) for one in entry["settings"]],
    }


def _setting(row: Setting, default: Any, taker: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """One setting, as the sampler or search of this name takes it."""
    low, high, closed = row.range
    choices = row.names(taker)
    if row.name == "background":  # a request names no files but the server's own
        choices = list(dict.fromkeys([*BUNDLED, *([defaults[row.name]] if row.name in defaults else [])]))
    return {
        "name": row.name,
        "kind": "list" if row.kind is tuple else row.kind.__name__,
        "default": list(default) if isinstance(default, tuple) else default,
        "help": explained(row),
        "unset": "auto" if row.unset else "off",
        "minimum": low if closed and low > -math.inf else None,
        "above": None if closed else low,
        "maximum": high if high < math.inf else None,
        "choices": choices,
    }
