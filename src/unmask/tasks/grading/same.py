"""What a function gave and what was wanted -> whether they are equal, as EvalPlus compares them.

The text of this file goes into the programs that a sandbox runs: it imports the standard library only.
"""

from __future__ import annotations

import math
from typing import Any

SETS = (
    "similar_elements find_char_long common_in_nested_lists extract_singly larg_nnum intersection_array "
    "find_dissimilar Diff"
).split()  # the order of the elements does not count
TRUTHS = "check_str text_match_three text_starta_endb".split()  # a match counts as True
RELATIVE = 1e-7


def same(name: str, given: Any, got: Any, want: Any, tolerance: float) -> bool:
    """Whether `name(*given)` gave what was wanted; a few functions have rules of their own."""
    if name == "find_zero":  # any root of the polynomial
        return bool(abs(sum(factor * got**power for power, factor in enumerate(given[0]))) <= tolerance)
    if name in SETS:
        return set(got) == set(want)
    if name in TRUTHS:
        return bool(got == _truth(want)) if isinstance(got, bool) else _truth(want) == (got is not None)
    equal = bool(got == want) or other(name, given, got, tolerance)
    if equal or not (tolerance or floats(want)):
        return equal
    return type(got) is type(want) and near(got, want, tolerance or 1e-6)


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else value is not None


def other(name: str, given: Any, got: Any, tolerance: float) -> bool:
    """Whether another reading of an ambiguous problem allows the result."""
    if name == "are_equivalent":
        return True
    if name == "sum_div":
        return bool(got == 0)
    if name == "surface_Area":
        edge, height = given
        slant = math.sqrt((edge / 2) ** 2 + height**2)
        return bool(abs(got - round(edge**2 + 2 * edge * slant)) <= tolerance)
    if name == "digit_distance_nums":
        one, two = map(str, given)
        wide = max(len(one), len(two))
        pairs = zip(one.zfill(wide), two.zfill(wide), strict=True)
        return bool(got == sum(abs(int(a) - int(b)) for a, b in pairs))
    return False


def floats(value: Any) -> bool:
    """A float, or a list or tuple of nothing else."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(part, float) for part in value)
    return isinstance(value, float)


def near(got: Any, want: Any, tolerance: float) -> bool:
    """Numbers that are close, in lists of the same length."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(near(a, b, tolerance) for a, b in zip(got, want, strict=True))
    return bool(got == want) or abs(got - want) <= tolerance + RELATIVE * abs(want)
