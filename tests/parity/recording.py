"""Folders of recordings -> their contents: NAME.json, or NAME.json.xz."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

PACKED = ".json.xz"


def names(folder: Path) -> list[str]:
    """The recordings of a folder, in order."""
    files = [path.name for kind in (".json", PACKED) for path in folder.glob(f"*{kind}")]
    return sorted({name.removesuffix(PACKED).removesuffix(".json") for name in files})


@cache
def recorded(folder: Path, name: str) -> Any:
    """One recording."""
    plain, packed = folder / f"{name}.json", folder / f"{name}{PACKED}"
    return json.loads(plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes()))
