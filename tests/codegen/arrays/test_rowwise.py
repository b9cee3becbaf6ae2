"""Row-wise and elementwise targets: what is refused, that equal ones share a text, that they compile; the loader."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.loader import KernelError, load, load_model
from codegen.arrays.array_kernel import INVALID_PROBLEM, Kernel, generated
from codegen.arrays.elementwise import elementwise_kernel
from codegen.arrays.rowwise import OPS, REDUCTIONS, rowwise_kernel
from codegen.errors import RequestError
from codegen.project.target import ElementwiseTarget, RowwiseTarget
from tests.support.carry_out import carry_out_all, plan_for, request_for
from tests.support.paths import FAKES

FUSED = {
    "expression": "gelu(x + bias) * gate",
    "inputs": {"x": "fp16", "bias": "fp32", "gate": "bf16"},
    "shape": [0, 64],
    "shapes": {"bias": [64], "gate": [0, 1]},
}
ROWS = """
[target.my-norm]
kind = "rowwise"
op = "layer_norm"
shape = [0, 3, 0]
dtype = "bf16"
output_dtype = "fp32"
"""


def rows(**keys: Any) -> Kernel:
    table = {"name": "r", "where": "buildd.toml:2", "op": "softmax", "shape": [0, 64], **keys}
    return rowwise_kernel(msgspec.convert(table, RowwiseTarget))


def fused(**keys: Any) -> Kernel:
    table = {"name": "e", "where": "buildd.toml:2", **FUSED, **keys}
    return elementwise_kernel(msgspec.convert(table, ElementwiseTarget))


def texts(name: str, kernel: Kernel, *, hip: bool = False) -> tuple[str, str]:
    entry, shared = generated(name, kernel, "build", hip=hip)
    return entry.content.decode(), shared.content.decode()


def test_equal_ops_of_two_targets_are_one_text() -> None:
    one, other = (
        generated(name, rows(shape=shape), "build", hip=False) for name, shape in (("a", [64]), ("b", [0, 9]))
    )
    assert one[1] == other[1] and one[0] != other[0]
    assert one[1].path == "build/kernels/softmax_fp16_fp16.cu" and one[0].path == "build/a/gen/a.cu"
    renamed = fused(
        expression="gelu( a+b )*c",
        inputs={"c": "bf16", "b": "fp32", "a": "fp16"},
        shapes={"b": [64], "c": [0, 1]},
        output_dtype="fp16",
    )
    assert texts("f", renamed)[1] == texts("e", fused())[1], "names and the order of inputs are the target's own"
    assert texts("e", fused(shape=[0, 32], shapes={"bias": [32], "gate": [0, 1]}))[1] == texts("e", fused())[1]


@pytest.mark.parametrize(
    "keys",
    [{"dtype": "bf16"}, {"output_dtype": "fp32"}, {"op": "sum"}, {"op": "max"}, {"op": "max", "axes": [0]}],
)
def test_other_ops_have_other_kernels(keys: dict[str, Any]) -> None:
    assert rows(**keys).name != rows().name
    assert texts("r", rows(**keys))[1] != texts("r", rows())[1]


def test_every_op_and_vendor_has_a_text() -> None:
    for hip in (False, True):
        for op in OPS:
            for dtype in ("fp16", "bf16", "fp32"):
                assert "{{" not in "".join(texts("r", rows(op=op, dtype=dtype), hip=hip))
        entry, shared = texts("e", fused(), hip=hip)
        for text in (entry, shared):
            assert ("hipStream_t" in text, "cudaStream_t" in text) == (hip, not hip)


@pytest.mark.parametrize("axes", [[-1], [0]])
def test_of_nothing_there_is_a_sum_and_no_largest(axes: list[int]) -> None:
    for op in REDUCTIONS:
        refuses = f"== 0) return {INVALID_PROBLEM};" in texts("r", rows(op=op, axes=axes))[1]
        assert refuses == (op == "max"), "torch: 0, not a number, and an error"


@pytest.mark.parametrize(
    ("axes", "groups", "name"),
    [
        ([-1], ((0, 1, 2), (3,)), "sum_fp16_fp16"),
        ([2, 3], ((0, 1), (2, 3)), "sum_fp16_fp16"),
        ([0, 1, 2, 3], ((), (0, 1, 2, 3)), "sum_fp16_fp16"),
        ([1, 2], ((0,), (1, 2), (3,)), "sum_fp16_fp16_krk"),
        ([0, -2], ((0,), (1,), (2,), (3,)), "sum_fp16_fp16_rkrk"),
    ],
)
def test_neighbouring_axes_are_one(axes: list[int], groups: tuple[tuple[int, ...], ...], name: str) -> None:
    kernel = rows(op="sum", shape=[2, 3, 4, 5], axes=axes)
    assert (kernel.groups, kernel.name) == (groups, name)


def test_where_a_broadcast_inputs_elements_are() -> None:
    kernel = fused(shape=[0, 8, 0], shapes={"bias": [8, 1], "gate": [0]})
    assert kernel.groups == ((0,), (1,), (2,))
    offsets = {item.dtype: (item.offset, item.wide) for item in kernel.values["inputs"]}  # type: ignore[attr-defined]
    assert offsets == {"fp16": ("at", True), "fp32": ("p1", False), "bf16": ("p2", True)}
    assert fused(shape=[0, 4, 64], shapes={"bias": [64], "gate": [1]}).groups == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("keys", "what", "allowed"),
    [
        ({"op": "sotfmax"}, 'did you mean "softmax"', "layer_norm"),
        ({"dtype": "fp8"}, "dtype", "fp16, bf16, fp32"),
        ({"output_dtype": "int8"}, "output_dtype", "fp16, bf16, fp32"),
        ({"shape": []}, "0 dimensions", "shape ="),
        ({"shape": [1] * 9}, "9 dimensions", "1 to 8"),
        ({"shape": [-1, 4]}, "negative", "run time"),
        ({"axes": [2]}, "axes has 2", "-2 to 1"),
        ({"axes": []}, "axes is empty", "axes"),
        ({"axes": [1, -1]}, "twice", "axes"),
        ({"axes": [0]}, "softmax over axes", "transpose"),
        ({"weight": True}, "no weight", "remove `weight`"),
        ({"op": "rms_norm", "bias": True}, "no bias", "remove `bias`"),
        ({"op": "rms_norm", "eps": 0.0}, "eps", "1e-5"),
        ({"eps": float("nan")}, "eps", "1e-5"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_what_can(keys: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        rows(**keys)
    assert caught.value.code == "bad-kernel" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


@pytest.mark.parametrize(
    ("keys", "what", "allowed"),
    [
        ({"expression": "gelu(x + bais) * gate"}, 'did you mean "bias"', "x, bias, gate"),
        ({"expression": "x + bias"}, 'does not use the input "gate"', "remove"),
        ({"inputs": {}}, "0 inputs", "1 to 32"),
        ({"inputs": {"x": "fp16", "bias": "fp64", "gate": "fp16"}}, 'type for "bias"', "fp32"),
        ({"inputs": {"x!": "fp16"}, "shapes": {}}, "is not a valid name of an input", "letter"),
        ({"inputs": {"exp": "fp16"}, "shapes": {}}, "name of a function", "another"),
        ({"shapes": {"bais": [64]}}, "not an input", "x, bias, gate"),
        ({"shapes": {"bias": [32]}}, "32 where shape has 64", "1 or 64"),
        ({"shapes": {"bias": [0]}}, "0 where shape has 64", "run time"),
        ({"shapes": {"gate": [7, 1]}}, "7 where shape has 0", "run time"),
        ({"shapes": {"bias": [1, 1, 64]}}, "3 dimensions", "at most"),
        ({"output_dtype": "fp8"}, "output_dtype", "fp16"),
        ({"shape": []}, "0 dimensions", "shape ="),
    ],
)
def test_expressions_that_cannot_be_are_refused_with_what_can(keys: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        fused(**keys)
    assert caught.value.code == "bad-kernel" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


def test_architectures_say_the_vendor(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(ROWS + 'arch = ["sm_80", "gfx90a"]\n')
    with pytest.raises(RequestError, match="two vendors"):
        plan_for(request_for(tmp_path))
    (tmp_path / "buildd.toml").write_text(ROWS)
    with pytest.raises(RequestError, match="names no architecture"):
        plan_for(request_for(tmp_path))


def build(tmp_path: Path, text: str, name: str) -> tuple[Path, str]:
    """The library, and what the compilers said."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "buildd.toml").write_text(text)
    plan = plan_for(request_for(folder))
    assert [artifact.path for artifact in plan.artifacts] == [f"build/{name}/lib{name}.so"]
    said = "".join(ran.said for ran in carry_out_all(plan, folder, tmp_path / "scratch"))
    assert "warning" not in said
    return folder / f"build/{name}/lib{name}.so", said


class FakeArray:
    """Says what an array on a GPU would say; there is no memory behind it."""

    def __init__(self, typestr: str, *shape: int, strides: tuple[int, ...] | None = None) -> None:
        data = (4096, False)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": data, "strides": strides}


def check_launches(library: Path, said: str, folder: Path) -> None:
    """No block is larger than what every GPU has: the objects of a norm, with a runtime that tells what is asked.

    Args:
        said: by ptxas -v: which kernels have shared memory of their own, which comes on top.
    """
    assert said.count("Used ") == 4 and "smem" not in said
    told = folder / "told.so"
    objects = [*library.parent.rglob("*.o"), FAKES / "fake-launch.c"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", told, *objects, "-lstdc++"], check=True)
    loaded = ctypes.CDLL(str(told))
    run = loaded.my_norm_run
    run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 3 + [ctypes.c_void_p]

    def asked(count: int, columns: int, place: int) -> list[int]:
        assert run(place, place, place, place, count, 3, columns, None) == 0
        return [ctypes.c_longlong.in_dll(loaded, name).value for name in ("blocks", "threads", "memory_bytes")]

    most_bytes = 0
    for place in (4096, 4098):
        for columns in (*range(1, 12300), 13000, 100003):
            blocks, threads, memory_bytes = asked(5, columns, place)
            assert blocks in (4, 15) and threads in (128, 256, 512), columns
            assert memory_bytes <= 48 << 10, columns
            most_bytes = max(most_bytes, memory_bytes)
    assert most_bytes == 48 << 10, "as much as there is"
    launches = ctypes.c_longlong.in_dll(loaded, "launches").value
    asked(0, 64, 4096), asked(5, 0, 4096)
    assert ctypes.c_longlong.in_dll(loaded, "launches").value == launches, "of nothing nothing is launched"


@pytest.mark.cuda
def test_a_norm_compiles_and_its_arrays_are_checked(tmp_path: Path) -> None:
    path, said = build(tmp_path, ROWS + 'arch = ["sm_80"]\nflags = ["-Xptxas=-v"]\n', "my-norm")
    check_launches(path, said, tmp_path)
    raw = ctypes.CDLL(str(path)).my_norm_run
    sizes = [ctypes.c_longlong(size) for size in (0, 3, 64)]
    assert raw(None, None, None, None, *sizes, None) == 0, "nothing to do"
    assert raw(None, None, None, None, sizes[0], ctypes.c_longlong(4), sizes[2], None) == INVALID_PROBLEM
    assert raw(None, None, None, None, ctypes.c_longlong(1 << 40), sizes[1], ctypes.c_longlong(1 << 40), None) == -4
    norm = load(path)
    x, weight, bias, y = (FakeArray("<V2", 0, 3, 64), *(FakeArray("<V2", 64),) * 2, FakeArray("<f4", 0, 3, 64))
    assert norm(x, weight, bias, out=y) is y
    with pytest.raises(ValueError, match="takes 3 arrays"):
        norm(x, out=y)
    with pytest.raises(ValueError, match="x has to be bf16, not fp16"):
        norm(FakeArray("<f2", 0, 3, 64), weight, bias, out=y)
    with pytest.raises(ValueError, match="bias has to have size 64 in dimension 0, not 63"):
        norm(x, weight, FakeArray("<V2", 63), out=y)
    with pytest.raises(ValueError, match="y has to have size 3 in dimension 1, not 4"):
        norm(x, weight, bias, out=FakeArray("<f4", 0, 4, 64))
    with pytest.raises(ValueError, match="y has to have 3 dimensions"):
        norm(x, weight, bias, out=FakeArray("<f4", 0, 64))
    with pytest.raises(ValueError, match="contiguous"):
        norm(FakeArray("<V2", 2, 3, 64, strides=(2, 4, 12)), weight, bias, out=y)
    with pytest.raises(ValueError, match="out="):
        norm(x, weight, bias)
    with pytest.raises(ValueError, match="does not tell where"):
        norm([1.0], weight, bias, out=y)
    with pytest.raises(ValueError, match="no kernel other"):
        load(path, "other")
    with pytest.raises(ValueError, match="is not a model"):
        load_model(path)
    many, parameter = FakeArray("<V2", 1 << 40, 3, 1 << 40), FakeArray("<V2", 1 << 40)
    with pytest.raises(KernelError) as caught:
        norm(many, parameter, parameter, out=FakeArray("<f4", 1 << 40, 3, 1 << 40))
    assert caught.value.status == INVALID_PROBLEM


EVERY = {op: {"op": op} for op in OPS} | {
    "fp32": {"op": "softmax", "dtype": "fp32"},
    "plain-norm": {"op": "layer_norm", "weight": False, "bias": False},
    "axes": {"op": "max", "axes": [0, 2], "shape": [0, 0, 0], "output_dtype": "fp32"},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "arch", [pytest.param("sm_80", marks=pytest.mark.cuda), pytest.param("gfx90a", marks=pytest.mark.hip)]
)
def test_every_op_compiles(tmp_path: Path, arch: str) -> None:
    tables: dict[str, dict[str, Any]] = {
        name: {"kind": "rowwise", "shape": [0, 0], "arch": [arch], **keys} for name, keys in EVERY.items()
    }
    tables["fused"] = {"kind": "elementwise", "arch": [arch], **FUSED}
    plan = plan_for(request_for(tmp_path, file="", specs=tables))
    assert len(plan.artifacts) == len(tables)
    for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"):
        assert "warning" not in ran.said, ran.said


@pytest.mark.hip
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sources_for_amd_as_headers_for_editors_compile(tmp_path: Path, compiles: bool) -> None:
    """AIT_ENABLE_CUDA_SOURCE_NAVIGATION_FIX. A GEMM with it is compiled each time, by nvcc."""
    specs = {"r": {"kind": "rowwise", "op": "softmax", "shape": [0, 64], "arch": ["gfx90a"]}}
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    plain = plan_for(request_for(tmp_path, file="", specs=specs, environment=environment))
    environment["AIT_ENABLE_CUDA_SOURCE_NAVIGATION_FIX"] = "1"
    plan = plan_for(request_for(tmp_path, file="", specs=specs, environment=environment))
    assert plan.actions == plain.actions
    files = {file.path: file.content for file in plan.files}
    for file in plain.files:
        assert file.path.endswith(".hip") and files[f"{file.path}.h"] == file.content
        assert files[file.path].decode() == f'#include "{Path(file.path).name}.h"\n'
    if compiles:
        assert not any("warning" in ran.said for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"))
