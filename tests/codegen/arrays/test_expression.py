"""The language of elementwise expressions: what C it becomes, and that nothing else gets through."""

from __future__ import annotations

import pytest

from codegen.arrays.expression import FUNCTIONS, MOST_CHARACTERS, parse
from codegen.errors import RequestError

NAMES = ("x", "y", "bias")


def wrong(what: str, next_step: str) -> RequestError:
    return RequestError("bad-kernel", what, next_step=next_step)


@pytest.mark.parametrize(
    ("text", "c", "names"),
    [
        ("x + y * 2", "(v0 + (v1 * 2.0f))", ("x", "y")),
        ("(x + y) * 2", "((v0 + v1) * 2.0f)", ("x", "y")),
        ("y - x - y", "((v0 - v1) - v0)", ("y", "x")),
        ("-x ** 2", "(-powf(v0, 2.0f))", ("x",)),
        ("+x / 1e-5", "(v0 / 1e-05f)", ("x",)),
        ("gelu(x + bias)", "op_gelu((v0 + v1))", ("x", "bias")),
        ("where(x < y or not x == 0, exp(x), 1)", "(((v0 < v1) || (!(v0 == 0.0f))) ? expf(v0) : 1.0f)", ("x", "y")),
        ("max(x,\n    min(y, 1))", "op_max(v0, op_min(v1, 1.0f))", ("x", "y")),
    ],
)
def test_an_expression_becomes_c(text: str, c: str, names: tuple[str, ...]) -> None:
    found = parse(text, NAMES, wrong)
    assert (found.text, found.names) == (c, names)


def test_only_the_functions_that_are_used_are_defined_each_once() -> None:
    found = parse("relu(x) + relu(y) + silu(bias)", NAMES, wrong)
    assert [line.partition("(")[0].split()[-1] for line in found.functions] == ["op_relu", "op_silu"]
    assert parse("exp(x)", NAMES, wrong).functions == ()


def test_every_function_can_be_called() -> None:
    for name in FUNCTIONS:
        arguments = {"where": "x > 0, x, y", "pow": "x, y", "max": "x, y", "min": "x, y"}.get(name, "x")
        assert "v0" in parse(f"{name}({arguments})", NAMES, wrong).text


@pytest.mark.parametrize(
    ("text", "what", "allowed"),
    [
        ("x +", "cannot be read", "gelu(x + bias)"),
        ("", "cannot be read", "gelu"),
        ("z + 1", 'no input "z"', "x, y, bias"),
        ("gleu(x)", 'did you mean "gelu"', "gelu"),
        ("gelu(x, y)", "gelu has 2 arguments", "takes 1"),
        ("where(x, 1, 2)", '"x" is a number, not a truth value', "x > 0"),
        ("x > 0", "truth value, not a number", "where"),
        ("(x > y) + 1", "truth value, not a number", "where"),
        ("1 < x < 2", "is not possible", "comparisons"),
        ("x if y > 0 else 1", "is not possible", "where"),
        ("x // y", "is not possible", "functions"),
        ("x.real", "is not possible", "functions"),
        ("(x, y)", "is not possible", "functions"),
        ("max(*x)", "has 1 argument", "takes 2"),
        ("exp(x)(y)", "is not possible", "functions"),
        ("True", "is not possible", "numbers"),
        ("1j * x", "is not possible", "numbers"),
        ("x[0]", "character '['", "gelu"),
        ("x; y", "character ';'", "gelu"),
        ("x) + (y", "cannot be read", "gelu"),
        ("1e39 * x", "too large", "fp32"),
        ("9" * 400 + " * x", "too large", "fp32"),
        ("-" * 3000 + "x", "deeply nested", ""),
        ("-" * 150 + "x", "too deeply nested", "two targets"),
        ("x" * (MOST_CHARACTERS + 1), "characters", "two targets"),
    ],
)
def test_what_is_none_is_refused_with_what_is(text: str, what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text, NAMES, wrong)
    assert what in caught.value.message and allowed in caught.value.next_step
