"""Computes expressions of named whole numbers: "cdiv(n, BLOCK) * heads". PURE.

Python's own parser reads an expression. Only numbers, names, + - * // and cdiv, min and max are accepted; no code runs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

MOST_CHARACTERS = 200
_MOST = 1 << 62


def computed(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression. Raises ValueError with the reason, in words that follow the expression."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"is longer than {MOST_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("is not an expression of sizes") from None
    return _value(tree.body, names)


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            found = value
        case ast.Name(id=name):
            if name not in names:
                known = f"there are {', '.join(names)}" if names else "there are none"
                raise ValueError(f"names {name}, which is no size: {known}")
            found = names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand, names)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() as op, right=right):
            found = _combined(op, _value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id="cdiv" | "min" | "max" as name), args=[left, right], keywords=[]):
            a, b = _value(left, names), _value(right, names)
            found = -_combined(ast.FloorDiv(), -a, b) if name == "cdiv" else min(a, b) if name == "min" else max(a, b)
        case _:
            raise ValueError("may have numbers, names of sizes, + - * //, cdiv(a, b), min(a, b) and max(a, b)")
    if abs(found) > _MOST:
        raise ValueError("is too large")
    return found


def _combined(op: ast.operator, left: int, right: int) -> int:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case _:
            if right == 0:
                raise ValueError("divides by 0")
            return left // right
