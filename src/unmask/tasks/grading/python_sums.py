"""An arithmetic text -> the number that Python makes of it, without running anything else."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

LONGEST = 1000  # characters
WIDEST = 4096  # bits of a power: a float holds 1,024


def python_sum(text: str) -> complex | None:
    """What `eval` gives for digits, signs, points and brackets; None for anything else, and where it fails."""
    if len(text) > LONGEST or not re.fullmatch(r"[0-9+\-*/%()._\s]+", text):
        return None
    try:
        found: complex = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else +_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > WIDEST:
        raise OverflowError("no float is as large")
    return base**exponent


OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
