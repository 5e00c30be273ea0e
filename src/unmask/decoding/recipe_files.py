"""TOML or JSON, as text or in a file -> names and values of settings, before they are a Recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmask.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


MOST_TEXT = 1 << 20  # characters of a recipe file; a long one has some hundred


def read_settings(path: str | Path) -> dict[str, Any]:
    """The names and values of a .toml or .json file."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MOST_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingError(f"cannot read the recipe {str(path)!r}", str(reason)) from None
    if len(text) > MOST_TEXT:
        raise SettingError(f"the recipe {str(path)!r} is larger than {MOST_TEXT} characters", "it is another file")
    return from_json(text) if Path(path).suffix == ".json" else from_toml(text)


def from_json(text: str) -> dict[str, Any]:
    return _table(json.loads, text, "JSON")


def from_toml(text: str) -> dict[str, Any]:
    return _table(tomllib.loads, text, "TOML")


def _table(read: Callable[[str], Any], text: str, layout: str) -> dict[str, Any]:
    try:
        values = read(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the recipe is not {layout}", str(error).splitlines()[0]) from None
    if not isinstance(values, dict):
        raise SettingError("a recipe is a table of names and values", f"this {layout} is a {type(values).__name__}")
    return values
