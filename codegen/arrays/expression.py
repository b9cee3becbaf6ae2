"""Translates fused elementwise expressions into C. Pure.

Python's own parser reads an expression. Only numbers, names, arithmetic, comparisons and the functions below are
accepted, each with its type (number or truth value), and nothing is ever evaluated. Knows no arrays: a name is an fp32
value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from codegen.errors import RequestError, nearest

MOST_CHARACTERS = 4096
MOST_DEPTH = 100
_CHARACTERS = re.compile(r"[A-Za-z0-9_+\-*/().,<>=! ]*")
_LARGEST = 3.4028234663852886e38
"""Largest number of fp32."""


class Type(Enum):
    NUMBER = "number"
    TRUTH = "truth value"


@dataclass(frozen=True, slots=True)
class Expression:
    """A translated expression."""

    text: str
    """The expression in C; its names are v0, v1, ..."""
    names: tuple[str, ...]
    """The original names, in the order of their first use."""
    functions: tuple[str, ...]
    """Definitions of the functions that the text calls."""


_PLAIN = {
    **{name: f"{name}f" for name in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil")},
    "abs": "fabsf",
}
_OURS = {
    "relu": "float op_relu(float v) { return v < 0.0f ? 0.0f : v; }",
    "sigmoid": "float op_sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }",
    "silu": "float op_silu(float v) { return v / (1.0f + expf(-v)); }",
    "gelu": "float op_gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }",
    "gelu_tanh": "float op_gelu_tanh(float v)"
    " { return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v))); }",
}
_PAIRS = {
    # NaN is kept: fmaxf would hide it.
    "max": "float op_max(float a, float b) { return a > b || a != a ? a : b; }",
    "min": "float op_min(float a, float b) { return a < b || a != a ? a : b; }",
}
FUNCTIONS = (*_PLAIN, *_OURS, *_PAIRS, "pow", "where")
_BINARY: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_Wrong = Callable[[str, str], RequestError]


def parse(text: str, known: tuple[str, ...], wrong: _Wrong) -> Expression:
    """Read an expression.

    Args:
        known: names that it may use.
        wrong: makes an error from a message and a next step.

    Raises:
        RequestError: the text is not an expression, or its types do not fit.
    """
    text = " ".join(text.split())
    if len(text) > MOST_CHARACTERS:
        raise wrong(
            f"expression has {len(text)} characters", f"use at most {MOST_CHARACTERS}: split it into two targets"
        )
    if not _CHARACTERS.fullmatch(text):
        character = next(letter for letter in text if not _CHARACTERS.fullmatch(letter))
        raise wrong(f"expression has the character {character!r}", 'write it as in "gelu(x + bias) * 0.5"')
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else "it is too deeply nested"
        raise wrong(
            f'expression "{text[:80]}" cannot be read: {what}', 'write it as in "gelu(x + bias) * 0.5"'
        ) from error
    reader = _Reader(text, known, wrong)
    found = reader.number(tree.body, 0)
    return Expression(found, tuple(reader.names), tuple(reader.functions))


class _Reader:
    """Translates one syntax tree."""

    def __init__(self, text: str, known: tuple[str, ...], wrong: _Wrong) -> None:
        self._text, self._known, self._wrong = text, known, wrong
        self.names: dict[str, str] = {}
        """Name -> its name in C."""
        self.functions: dict[str, None] = {}

    def number(self, node: ast.expr, depth: int) -> str:
        return self._typed(node, depth, Type.NUMBER)

    def _typed(self, node: ast.expr, depth: int, wanted: Type) -> str:
        text, found = self._read(node, depth + 1)
        if found is not wanted:
            hint = "turn it into a number: where(x > 0, x, 0)" if found is Type.TRUTH else "compare it: x > 0"
            raise self._wrong(f'expression: "{self._shown(node)}" is a {found.value}, not a {wanted.value}', hint)
        return text

    def _read(self, node: ast.expr, depth: int) -> tuple[str, Type]:
        if depth > MOST_DEPTH:
            raise self._wrong(
                "expression is too deeply nested", f"use at most {MOST_DEPTH} levels: split it into two targets"
            )
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._literal(value), Type.NUMBER
            case ast.Name(id=name):
                if name not in self._known:
                    raise self._wrong(
                        f'expression: there is no input "{name}"{nearest(name, (*self._known, *FUNCTIONS))}',
                        "inputs: " + ", ".join(self._known),
                    )
                return self.names.setdefault(name, f"v{len(self.names)}"), Type.NUMBER
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return f"(-{self.number(inner, depth)})", Type.NUMBER
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return self.number(inner, depth), Type.NUMBER
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return f"(!{self._typed(inner, depth, Type.TRUTH)})", Type.TRUTH
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return f"powf({self.number(left, depth)}, {self.number(right, depth)})", Type.NUMBER
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
                return f"({self.number(left, depth)} {_BINARY[type(op)]} {self.number(right, depth)})", Type.NUMBER
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return f"({self.number(left, depth)} {_COMPARED[type(op)]} {self.number(right, depth)})", Type.TRUTH
            case ast.BoolOp(op=op, values=values):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(self._typed(value, depth, Type.TRUTH) for value in values)})", Type.TRUTH
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, arguments, depth), Type.NUMBER
        raise self._wrong(
            f'expression: "{self._shown(node)}" is not possible',
            "use numbers, inputs, + - * / **, comparisons, and, or, not, and the functions " + ", ".join(FUNCTIONS),
        )

    def _call(self, name: str, arguments: list[ast.expr], depth: int) -> str:
        if name not in FUNCTIONS:
            known = nearest(name, FUNCTIONS)
            raise self._wrong(f'expression: there is no function "{name}"{known}', "functions: " + ", ".join(FUNCTIONS))
        count = {"where": 3, "pow": 2, "max": 2, "min": 2}.get(name, 1)
        if len(arguments) != count:
            raise self._wrong(
                f"expression: {name} has {len(arguments)} argument{'s'[: len(arguments) != 1]}", f"it takes {count}"
            )
        if name == "where":
            truth = self._typed(arguments[0], depth, Type.TRUTH)
            return f"({truth} ? {self.number(arguments[1], depth)} : {self.number(arguments[2], depth)})"
        texts = ", ".join(self.number(argument, depth) for argument in arguments)
        if definition := _OURS.get(name) or _PAIRS.get(name):
            self.functions[f"static __device__ inline {definition}"] = None
            return f"op_{name}({texts})"
        return f"{_PLAIN.get(name, 'powf')}({texts})"

    def _shown(self, node: ast.expr) -> str:
        return self._text[node.col_offset : node.end_col_offset][:80]

    def _literal(self, value: int | float) -> str:
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if not abs(number) <= _LARGEST:
            raise self._wrong("expression: a number is too large", f"the largest number of fp32 is {_LARGEST:.6g}")
        return f"{number!r}f"
