"""A text with worked steps like `5 + 3 = 8` -> its equations, and which of them are true."""

from __future__ import annotations

import re
from itertools import pairwise

from unmask.tasks.countdown import END, SIGNS, value

IGNORED = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))|\$|<<[^<>]*>>")  # 1,234 and $5, and GSM8K's annotations
RESULT = re.compile(rf" *(-?)([0-9]+(?:\.[0-9]+)?){END}")


def equations(text: str) -> list[tuple[str, bool]]:
    """Every equation, and whether it is true; an equals sign without arithmetic around it counts as a false one."""
    sides = [f"{side}=" for side in IGNORED.sub("", text.translate(SIGNS)).split("=")]
    sides[-1] = sides[-1][:-1]
    found = []
    for before, after in pairwise(sides):
        left = before[len(before.rstrip("0123456789.+-*/() =")) : -1]
        left = re.split(r"\.(?![0-9])", left)[-1].strip()
        right = RESULT.match(after)
        made = f"{right[1]}{right[2]}" if right else next(iter(after.rstrip("=").split()), "")
        found.append((f"{left} = {made}".strip(), right is not None and _holds(left, right[1], right[2])))
    return found


def _holds(left: str, sign: str, result: str) -> bool:
    one, two = value(_fractions(left)), value(_fractions(result))
    if one is None or two is None or not re.search("[0-9)] *[-+*/]", left):
        return False
    return one[0] == (-two[0] if sign else two[0])


def _fractions(text: str) -> str:
    """Decimals as fractions, 2.5 as (25/10), for exact arithmetic; without zeros in front, which Python refuses."""
    text = re.sub(r"([0-9]+)\.([0-9]+)", lambda found: f"({found[1]}{found[2]}/1{'0' * len(found[2])})", text)
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", text)
