"""[target.NAME.measure]: names and expressions become numbers, and each mistake is refused with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codegen.errors import RequestError
from codegen.plan import Knowledge
from codegen.project.project_file import load_project
from codegen.tuning.own_problem import OwnCall, own_calls
from codegen.tuning.size_expression import computed
from codegen.tuning.survey import check_watched, survey
from tests.support.carry_out import request_for

MEASURE: dict[str, Any] = {
    "sizes": {"n": 5000, "rows": 3},
    "arguments": {"x": {"shape": ["rows", "n * 2"]}, "out": {"shape": ["rows"], "output": True}, "n": "n"},
    "reference": "ref.py:scale",
}
TRITON: dict[str, Any] = {
    "kind": "triton",
    "source": "scale.py",
    "kernel": "scale",
    "signature": {"x": "*fp16", "out": "*fp32", "n": "i32"},
    "constants": {"BLOCK": [512, 1024]},
    "arch": ["sm_80", "sm_90"],
    "measure": {**MEASURE, "grid": ["cdiv(n, BLOCK)", "rows"]},
}
CUDA: dict[str, Any] = {
    "kind": "cuda",
    "sources": ["a.cu"],
    "arch": ["sm_90"],
    "measure": {**MEASURE, "symbol": "launch", "operations": "2 * rows * n", "tolerance": 0.5},
}


def calls(folder: Path, table: dict[str, Any]) -> tuple[OwnCall, ...]:
    return own_calls(load_project(request_for(folder, "t", specs={"t": table}, file="")).targets[0])


def changed(table: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A table with other keys of `measure`; None removes one."""
    measure = {key: value for key, value in {**table["measure"], **changes}.items() if value is not None}
    return {**table, "measure": measure}


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("n", 10), ("n * 2 + 1", 21), ("-n // 3", -4), ("cdiv(n, 4)", 3), ("min(n, 3) * max(1, n)", 30)],
)
def test_an_expression_is_a_number(text: str, value: int) -> None:
    assert computed(text, {"n": 10}) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m", "names m, which is no size: there are n"),
        ("n // (n - n)", "divides by 0"),
        ("cdiv(1, 0)", "divides by 0"),
        ("n ** 9", "may have"),
        ("n / 2", "may have"),
        ("__import__('os').system('true')", "may have"),
        ("n.real", "may have"),
        ("True", "may have"),
        ("(" * 150, "not an expression"),
        ("n *", "not an expression"),
        ("n" * 201, "longer than"),
        ("*".join(["99999999999"] * 6), "too large"),
    ],
)
def test_another_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        computed(text, {"n": 10})
    assert why in str(caught.value)


def test_a_triton_kernel_has_a_call_for_each_configuration_and_architecture(tmp_path: Path) -> None:
    found = calls(tmp_path, TRITON)
    assert [(call.arch, call.grid, call.label) for call in found] == [
        ("sm_80", (10, 3), "n=5000,rows=3 BLOCK=512"),
        ("sm_90", (10, 3), "n=5000,rows=3 BLOCK=512"),
        ("sm_80", (5, 3), "n=5000,rows=3 BLOCK=1024"),
        ("sm_90", (5, 3), "n=5000,rows=3 BLOCK=1024"),
    ]
    first = found[0]
    assert first.path == "t/scale.BLOCK-512.sm_80.cubin" and first.source == "scale.py"
    x, out, n = first.arguments
    assert (x.dtype, x.shape, out.dtype, out.output, n.value, n.dtype) == (
        *("float16", (3, 10000), "float32", True),
        *(5000, "int32"),
    )
    assert first.tolerance == 1e-4


def test_a_library_is_called_with_its_arguments_in_their_order(tmp_path: Path) -> None:
    arguments = {**MEASURE["arguments"], "scale": 0.5, "far": {"value": "n", "dtype": "int64"}}
    (call,) = calls(tmp_path, changed(CUDA, arguments=arguments))
    assert [(each.name, each.dtype, each.value) for each in call.arguments[2:]] == [
        ("n", "int32", 5000),
        ("scale", "float32", 0.5),
        ("far", "int64", 5000),
    ]
    assert (call.symbol, call.path, call.grid, call.operations, call.tolerance) == ("launch", "", (), 30000.0, 0.5)


X, OUT, N = MEASURE["arguments"]["x"], MEASURE["arguments"]["out"], "n"


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (TRITON, {"arguments": {"x": X, "out": OUT}}, "lack n"),
        (TRITON, {"arguments": {"x": X, "out": OUT, "n": N, "m": 1}}, "name m, which is not in the signature"),
        (TRITON, {"arguments": {"x": 1, "out": OUT, "n": N}}, "x is a tensor in the signature"),
        (TRITON, {"arguments": {"x": {**X, "dtype": "float32"}, "out": OUT, "n": N}}, "cannot have the dtype"),
        (TRITON, {"arguments": {"x": X, "out": OUT, "n": 1 << 31}}, "does not fit in 32 bits"),
        (TRITON, {"arguments": {"x": X, "out": OUT, "n": 1.5}}, "not a whole number"),
        (TRITON, {"arguments": {"x": X, "out": OUT, "n": "k"}}, 'n: "k" names k, which is no size'),
        (TRITON, {"arguments": {"x": X, "out": {**OUT, "shape": [0]}, "n": N}}, "[0] is not a shape"),
        (TRITON, {"arguments": {"x": X, "out": {**OUT, "shape": [1 << 40]}, "n": N}}, "is not a shape"),
        (TRITON, {"arguments": {"x": X, "out": {"shape": [3]}, "n": N}}, "no argument is an output"),
        (TRITON, {"grid": None}, "grid [] is not a grid"),
        (TRITON, {"grid": ["n - n"]}, "grid [0] is not a grid"),
        (TRITON, {"symbol": "launch"}, "symbol is for libraries"),
        (TRITON, {"reference": "ref.txt:f"}, "must name a function of a Python file or of a library"),
        (TRITON, {"reference": "../ref.py:f"}, "leaves the project"),
        (TRITON, {"sizes": {"n": 0, "rows": 1}}, "n = 0 is not a size"),
        (TRITON, {"tolerance": -1.0}, "must not be below 0"),
        (TRITON, {"operations": "k"}, "operations"),
        (CUDA, {"symbol": None}, "symbol must name a function"),
        (CUDA, {"grid": [1]}, "grid is for kind triton"),
        (CUDA, {"arguments": {"x": {**X, "dtype": "complex64"}, "out": OUT}}, "cannot have the dtype"),
        (CUDA, {"arguments": {"out": {**OUT, "in_place": True}}}, "output or in_place"),
        (CUDA, {"arguments": {"out": OUT, "n": {"value": 1, "output": True}}}, "which no kernel writes"),
        ({**CUDA, "output": "ptx"}, {}, "only a shared library"),
        ({**TRITON, "arch": ["gfx942"]}, {}, "only NVIDIA's GPUs"),
        ({**TRITON, "num_ctas": 2}, {}, "num_ctas"),
        ({**TRITON, "signature": {**TRITON["signature"], "n": "i32:16"}}, {}, "not a multiple of 16"),
        ({**TRITON, "signature": {**TRITON["signature"], "n": "i32:1"}}, {}, "is not 1"),
        ({**TRITON, "signature": {**TRITON["signature"], "x": "tensordesc<fp16>"}}, {}, "cannot be measured"),
    ],
)
def test_a_mistake_is_refused(table: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        calls(tmp_path, changed(table, **changes))
    assert message in caught.value.message and caught.value.message.startswith('measure of target "t": ')
    assert caught.value.next_step


def test_an_unknown_key_is_refused_with_the_table(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        calls(tmp_path, changed(TRITON, grids=[1]))
    assert "grids" in caught.value.message


def test_a_watch_takes_such_targets_and_its_survey_needs_no_nvcc(tmp_path: Path) -> None:
    request = request_for(tmp_path, "t", specs={"t": TRITON}, file="", environment={"PATH": str(tmp_path)})
    check_watched(request)
    found = survey(request, Knowledge(), ranks=False)
    assert len(found.own) == 4 and not found.cases and found.build == "build"
    with pytest.raises(RequestError) as caught:
        survey(request, Knowledge())  # as `buildd profile` does
    assert caught.value.code == "not-profilable"
