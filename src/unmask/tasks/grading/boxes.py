"""A text with LaTeX -> what its last box holds."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")


def boxed(text: str) -> str | None:
    """The inside of the last \\boxed{…} whose braces match; None without one."""
    for found in reversed(list(BOX.finditer(text))):
        depth = 1
        for at in range(found.end(), len(text)):
            if text[at] in "{}" and text[at - 1] != "\\":
                depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[found.end() : at]
    return None
