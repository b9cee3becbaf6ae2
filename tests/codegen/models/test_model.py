"""Models: what is refused, where tensors lie and when operations run, that kernels are shared; the library and loader.

Drivers run on the host: tests/fakes/host-cuda is CUDA's runtime as queues that are worked off in any order that events
allow, and kernels are functions of this file.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.loader import KernelError, load, load_model
from buildd.profiling.gpus import find_gpus
from codegen.arrays.array_kernel import kernel_file as plain_kernel_file
from codegen.errors import RequestError
from codegen.gemm import best_kernels
from codegen.gemm.gemm import sources_of
from codegen.gemm.spec import kernel_for
from codegen.models.operations import GemmLaunch, PlainLaunch
from codegen.models.source_text import Streams, Texts, texts_of
from codegen.models.spec import read_model
from codegen.models.workspace import ALIGNMENT_BYTES, Life, grouped, packed
from codegen.project.target import ModelTarget
from codegen.tuning.survey import survey
from protocol.messages import Request
from tests.support.carry_out import KNOWLEDGE, answered, carry_out_all, plan_for, request_for
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.paths import FAKES
from tests.support.toolkit import host_compiler

HOST = FAKES / "host-cuda"
_CXX = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wunused-const-variable", "-Wno-unused-parameter")
MLP: dict[str, Any] = {
    "sizes": {"batch": [1, 256]},
    "inputs": {"x": {"shape": ["batch", 64]}},
    "constants": {
        "w": {"shape": [128, 64]},
        "b": {"shape": [128]},
        "gain": {"shape": [128]},
        "shift": {"shape": [128]},
    },
    "outputs": ["y"],
    "ops": {
        "y": {"kind": "rowwise", "op": "softmax", "inputs": ["s"], "output_dtype": "fp32"},
        "h": {"kind": "gemm", "inputs": ["x", "w", "b"], "epilogue": "bias_gelu"},
        "n": {"kind": "rowwise", "op": "layer_norm", "inputs": ["h", "gain", "shift"]},
        "s": {"kind": "elementwise", "inputs": ["n", "h"], "expression": "n * 0.5 + h"},
    },
}


def target(table: Mapping[str, Any]) -> ModelTarget:
    return msgspec.convert({"name": "mlp", "where": "buildd.toml:2", **table}, ModelTarget)


def changed(*path: str, to: Any) -> dict[str, Any]:
    """MLP with another value at a path; None removes it."""
    table: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(MLP))
    inner = table
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return table


def test_sizes_and_types_come_from_the_tensors() -> None:
    model = read_model(target(MLP), ("sm_80",))
    assert [(op.name, str(op.output)) for op in model.ops] == [
        ("h", "fp16 [batch, 128]"),
        ("n", "fp16 [batch, 128]"),
        ("s", "fp16 [batch, 128]"),
        ("y", "fp32 [batch, 128]"),
    ]
    gemm = model.ops[0].launch
    assert isinstance(gemm, GemmLaunch)
    assert (gemm.target.m, gemm.target.n, gemm.target.k, gemm.target.batched) == (0, 128, 64, False)
    assert gemm.sizes == (("batch",), (128,), (64,)) and (gemm.bias, gemm.c) == (True, False)
    norm = model.ops[1].launch
    assert isinstance(norm, PlainLaunch) and norm.kernel.name == "layer_norm_fp16_fp16_weight_bias"
    assert norm.groups == (("batch",), (128,)) and norm.operands == ("h", "gain", "shift")


@pytest.mark.parametrize(
    ("a", "b", "keys", "sizes", "result"),
    [
        (["n", 7, 64], [8, 64], {}, (("n", 7), (8,), (64,)), "fp16 [n, 7, 8]"),
        (["n", 64], [64, 8], {"layout": "rrr"}, (("n",), (8,), (64,)), "fp16 [n, 8]"),
        ([64, "n"], [64, 8], {"layout": "crr"}, None, '"crr" is not a valid layout; did you mean "rrr"'),
        ([64, "n"], [8, 64], {"layout": "ccr"}, (("n",), (8,), (64,)), "fp16 [n, 8]"),
        (["n", 3, 64], ["n", 8, 64], {}, ((3,), (8,), (64,), ("n",)), "fp16 [n, 3, 8]"),
        (["n", 64, 3], ["n", 8, 64], {"layout": "ccr"}, ((3,), (8,), (64,), ("n",)), "fp16 [n, 3, 8]"),
        (["n", 64], [8, 64], {"output_dtype": "fp32"}, (("n",), (8,), (64,)), "fp32 [n, 8]"),
        (["n", 64], [8, 32], {}, None, '"w" (B) is fp16 [8, 32]'),
        ([2, 3, 64], ["n", 8, 64], {}, None, '"w" (B) is fp16 [n, 8, 64]'),
        ([64], [8, 64], {}, None, "A is fp16 [64]"),
        (["n", 64], [8, 64], {"epilogue": "bias"}, None, "2 inputs but takes 3"),
        (["n", 64], [8, 64], {"epilogue": "bais"}, None, 'did you mean "bias"'),
        (["n", 64], [8, 64], {"dtype": "bf16"}, None, '"x" (A) is fp16 [n, 64]'),
        (["n", 1 << 30, 64], [8, 64], {}, None, "m may be"),
    ],
)
def test_shapes_of_a_gemm(a: list[Any], b: list[Any], keys: dict[str, Any], sizes: Any, result: str) -> None:
    table = {
        "sizes": {"n": [1, 4]},
        "inputs": {"x": {"shape": a}, "w": {"shape": b}, "n": {"shape": ["n"]}},
        "ops": {
            "y": {"kind": "gemm", "inputs": ["x", "w"], **keys},
            "z": {"kind": "elementwise", "inputs": ["n"], "expression": "n"},
        },
        "outputs": ["y", "z"],
    }
    if sizes is None:
        with pytest.raises(RequestError) as caught:
            read_model(target(table), ("sm_80",))
        assert result in caught.value.message
        return
    op = next(op for op in read_model(target(table), ("sm_80",)).ops if op.name == "y")
    assert isinstance(op.launch, GemmLaunch)
    assert op.launch.sizes == sizes and str(op.output) == result


CONV = {
    "sizes": {"n": [1, 8]},
    "inputs": {"x": {"shape": ["n", 9, 8, 8]}},
    "constants": {"w": {"shape": [16, 3, 2, 8]}, "b": {"shape": [16]}, "scale": {"shape": [16], "dtype": "fp32"}},
    "ops": {
        "c": {
            "kind": "conv2d",
            "inputs": ["x", "w", "b"],
            "stride": [2, 1],
            "padding": [1, 0],
            "epilogue": "bias_relu",
        },
        "y": {"kind": "elementwise", "inputs": ["c", "scale"], "expression": "c * scale"},
        "m": {"kind": "rowwise", "op": "max", "inputs": ["y"], "axes": [1, 2]},
    },
    "outputs": ["m"],
}


def test_shapes_of_a_convolution_and_of_what_follows() -> None:
    model = read_model(target(CONV), ("sm_80",))
    assert [str(op.output) for op in model.ops] == ["fp16 [n, 5, 7, 16]", "fp16 [n, 5, 7, 16]", "fp16 [n, 16]"]
    launch = model.ops[0].launch
    assert isinstance(launch, PlainLaunch) and launch.groups[0] == ("n",) and launch.groups[-2:] == ((5,), (7,))
    with pytest.raises(RequestError, match="NVIDIA's GPUs only") as caught:
        read_model(target(CONV), ())
    assert caught.value.code == "bad-arch"


@pytest.mark.parametrize(
    ("table", "what", "allowed"),
    [
        (changed("ops", "n", "inputs", to=["g", "gain", "shift"]), 'no tensor "g"', "tensors: x, w"),
        (changed("ops", "h", "inputs", to=["s", "w", "b"]), "it depends on itself: s <- n <- h <- s", "break"),
        (changed("ops", "n", "inputs", to=["h", "gain"]), "2 inputs but takes 3", "x, weight, bias"),
        (changed("constants", "gain", "shape", to=[64]), '"gain" (weight) is fp16 [64]', "fp16 [128]"),
        (changed("constants", "gain", "dtype", to="fp32"), '"gain" (weight) is fp32 [128]', "fp16 [128]"),
        (changed("constants", "extra", to={"shape": [1]}), 'nothing uses the constant "extra"', "remove"),
        (changed("ops", "t", to=MLP["ops"]["s"]), 'nothing uses the op "t"', "`outputs`"),
        (changed("ops", "x", to=MLP["ops"]["s"]), '"x" is also an input', "another name"),
        (changed("constants", "x", to={"shape": [1]}), '"x" is an input and a constant', "another name"),
        (changed("outputs", to=["z"]), 'there is no op "z"', "outputs are ops: y, h, n, s"),
        (changed("outputs", to=["x"]), 'output "x" is an input or a constant of the model', "ops"),
        (changed("outputs", to=[]), "no outputs", "outputs ="),
        (changed("outputs", to=["y", "y"]), "twice", "once"),
        (changed("ops", to={}), "0 ops", "[target.mlp.ops.NAME]"),
        (changed("inputs", "x", "shape", to=["bacth", 64]), 'no size "bacth"; did you mean "batch"', "sizes ="),
        (changed("inputs", "x", "shape", to=[0, 64]), "has the size 0", "in `sizes`"),
        (changed("inputs", "x", "shape", to=[1] * 9), "9 dimensions", "1 to 8"),
        (changed("inputs", "x", "dtype", to="fp17"), 'not a dtype; did you mean "fp16"', "int8"),
        (changed("inputs", "x!", to={"shape": [1]}), "is not a valid name of a tensor", "letters"),
        (changed("constants", "w", "shape", to=[128, "batch"]), "known only at run time", "input"),
        (changed("sizes", "batch", to=[0, 4]), "from 0 to 4", "1 to"),
        (changed("sizes", "batch", to=[5, 4]), "from 5 to 4", "1 to"),
        (changed("sizes", "other", to=[1, 4]), 'no input has the size "other"', "remove"),
        (changed("ops", "h", "kind", to="gem"), 'unknown kind "gem"; did you mean "gemm"', "elementwise"),
        (changed("ops", "h", "kind", to=None), "has no kind", "gemm"),
        (changed("ops", "h", "epilog", to="bias"), 'unknown key "epilog"; did you mean "epilogue"', "layout"),
        (changed("ops", "h", "m", to=7), '"m" is not a key of an operation: it follows from the inputs', "layout"),
        (changed("ops", "h", "stages", to="3"), 'expected int, got str for "stages"', "correct"),
        (changed("ops", "h", "inputs", to=None), "`inputs` must be a list", "inputs ="),
        (changed("ops", "n", "op", to="layernorm"), 'no op; did you mean "layer_norm"', "softmax"),
        (changed("ops", "s", "inputs", to=["n", "n"]), "twice", "once"),
        (changed("ops", "s", "inputs", to=["n", "x"]), "shapes do not fit together: n [batch, 128], x", "equal or 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(table: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_model(target(table), ("sm_80",))
    assert caught.value.code == "bad-model" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


def test_an_error_names_the_operations_line(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(
        '[target.m]\nkind = "model"\narch = ["sm_80"]\noutputs = ["y"]\ninputs = { x = { shape = [4] } }\n\n'
        '[target.m.ops.y]\nkind = "rowwise"\ninputs = ["z"]\nop = "sum"\n'
    )
    with pytest.raises(RequestError, match=r'target "m\.ops\.y": there is no tensor "z"') as caught:
        plan_for(request_for(tmp_path))
    assert caught.value.file == "buildd.toml:7"


def test_tensors_that_live_at_the_same_time_do_not_overlap() -> None:
    rng = random.Random(5)
    for _ in range(40):
        lives = []
        for number in range(rng.randrange(1, 40)):
            first = rng.randrange(30)
            lives.append(Life(f"t{number}", rng.choice([1, 255, 256, 4096, rng.randrange(1, 99999)]), first, first))
            lives[-1] = Life(lives[-1].name, lives[-1].size_bytes, first, first + rng.randrange(8))
        offsets, total_bytes = packed(lives)
        assert all(offset % ALIGNMENT_BYTES == 0 for offset in offsets.values())
        ends = {life.name: offsets[life.name] + life.size_bytes for life in lives}
        assert max(ends.values()) <= total_bytes < max(ends.values()) + ALIGNMENT_BYTES
        for one in lives:
            for other in lives:
                if one is not other and one.first <= other.last and other.first <= one.last:
                    assert ends[one.name] <= offsets[other.name] or ends[other.name] <= offsets[one.name]
    chain = [Life(f"t{number}", 1000, number, number + 1) for number in range(20)]
    assert packed(chain)[1] == 2048, "two of a chain at a time"
    assert packed([]) == ({}, 0)


def test_independent_operations_are_grouped() -> None:
    needs = {"a": (), "b": (), "c": (), "d": ("a", "b"), "e": ("d",), "f": ("c",)}
    assert grouped(needs, 1) == (("a",), ("b",), ("c",), ("d",), ("e",), ("f",))
    assert grouped(needs, 9) == (("a", "b", "c"), ("d", "f"), ("e",))
    assert grouped(needs, 2) == (("a", "b"), ("c",), ("d", "f"), ("e",))


def texts(table: Mapping[str, Any], streams: Streams | None = None, *, hip: bool = False) -> Texts:
    """Texts of a model without GEMMs."""
    model = read_model(target(table), () if hip else ("sm_80",))
    return texts_of("mlp", "mlp", model, {}, streams or Streams(), hip=hip)


def compiled(folder: Path, kernels: str) -> Path:
    """Kernels of C++ and the runtime that they run on, as an object."""
    folder.mkdir(exist_ok=True)
    (folder / "kernels.inc").write_text(kernels)
    made = folder / "kernels.o"
    subprocess.run(["g++", *_CXX, "-I", folder, "-c", "-o", made, HOST / "runtime.cpp"], check=True)
    return made


def host_library(made: Texts, kernels: Path, folder: Path) -> Path:
    """A driver for the host, linked with kernels."""
    folder.mkdir()
    (folder / "mlp.h").write_bytes(made.header())
    (folder / "mlp.cpp").write_bytes(made.driver())
    subprocess.run(
        ["g++", *_CXX, "-shared", "-I", HOST, "-o", folder / "libmlp.so", folder / "mlp.cpp", kernels], check=True
    )
    return folder / "libmlp.so"


class HostArray:
    """Says that it is on a GPU; what it holds is here."""

    def __init__(self, typestr: str, *shape: int, fill: bytes = b"\x5a", aligned: int = 1) -> None:
        count = int(typestr[2:])
        for size in shape:
            count *= size
        self._memory = ctypes.create_string_buffer(fill * (count + aligned), count + aligned)
        self._start = -ctypes.addressof(self._memory) % aligned
        self.count_bytes = count
        place = (ctypes.addressof(self._memory) + self._start, False)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": place, "strides": None}

    def put(self, values: list[Any], kind: Any) -> HostArray:
        (kind * len(values)).from_buffer(self._memory, self._start)[:] = values
        return self

    def get(self, kind: Any) -> list[Any]:
        return list((kind * (self.count_bytes // ctypes.sizeof(kind))).from_buffer(self._memory, self._start))


def mixed(values: list[int]) -> int:
    found = 17
    for value in values:
        found = (found * 31 + value * 2654435761) % 2**32
    return found


MIX = """\
static void mix(std::vector<const void*> inputs, void* result, long long count) {
    for (long long i = 0; i < count; ++i) {
        uint32_t found = 17;
        for (const void* input : inputs) found = found * 31 + static_cast<const uint32_t*>(input)[i] * 2654435761u;
        static_cast<uint32_t*>(result)[i] = found;
    }
}
"""


def random_graph(rng: random.Random) -> dict[str, Any]:
    """Operations on whatever there is; what nobody uses is an output."""
    names, ops = ["x0", "x1"], {}
    for number in range(30):
        inputs = rng.sample(names[-8:], rng.randrange(1, min(4, len(names) + 1)))
        expression = " + ".join(f"{name} * {factor}" for factor, name in enumerate(inputs, 2))
        ops[f"t{number}"] = {"kind": "elementwise", "inputs": inputs, "expression": expression}
        names.append(f"t{number}")
    used = {name for op in ops.values() for name in op["inputs"]}
    x = {"shape": ["rows", 4], "dtype": "fp32"}
    return {
        "sizes": {"rows": [1, 9]},
        "inputs": {name: x for name in names[:2] if name in used},
        "ops": ops,
        "outputs": [name for name in ops if name not in used] + ["t3"],
    }


def mixing(made: Texts) -> str:
    """Kernels that mix what they are given."""
    kernels = MIX
    for kernel, pointers in dict.fromkeys(
        re.findall(r'"C" int (elementwise_\w+)_run\(((?:const void\*, )+)void', made.driver().decode())
    ):
        given = [f"a{number}" for number in range(pointers.count("const"))]
        taken = ", ".join(f"const void* {name}" for name in given)
        kernels += (
            f'extern "C" int {kernel}_run({taken}, void* y, long long count, cudaStream_t stream) {{\n'
            f"    launch(stream, [=] {{ mix({{{', '.join(given)}}}, y, count); }});\n    return 0;\n}}\n"
        )
    return kernels


@pytest.mark.skipif(not host_compiler(), reason="no host compiler")
def test_a_random_graph_computes_what_its_operations_do(tmp_path: Path) -> None:
    """In any order that streams and events allow; memory that is used again too early would show."""
    rng = random.Random(11)
    table = random_graph(rng)
    plain, beside = texts(table), texts(table, Streams(extra=2, most=5))
    assert (plain.streams, beside.streams) == (1, 3)
    object_file = compiled(tmp_path, mixing(plain))
    for name, made in (("plain", plain), ("beside", beside)):
        assert made.tensor_bytes < 256 * len(made.ops), "memory is used again"
        path = host_library(made, object_file, tmp_path / name)
        library, model = ctypes.CDLL(str(path)), load_model(path)
        for seed, rows in enumerate((9, 1, 4, 9, 7, 9)):
            values = {one: [rng.randrange(2**32) for _ in range(4 * rows)] for one in table["inputs"]}
            inputs = [HostArray("<f4", rows, 4).put(values[array.name], ctypes.c_uint32) for array in model.inputs]
            outputs = tuple(HostArray("<f4", rows, 4) for _ in model.outputs)
            workspace = HostArray("|i1", model.workspace_bytes, aligned=256)
            assert model(*inputs, out=outputs, workspace=workspace) is outputs
            library.drain(seed)
            for one, op in table["ops"].items():
                read = [values[each] for each in op["inputs"]]
                values[one] = [mixed(list(items)) for items in zip(*read, strict=True)]
            for array, output in zip(model.outputs, outputs, strict=True):
                assert output.get(ctypes.c_uint32) == values[array.name], array.name
        if made is beside:
            library.use_device(1)
            with pytest.raises(KernelError, match="the model is for device 0, and device 1 is current") as caught:
                model(*inputs, out=outputs, workspace=workspace)
            assert caught.value.status == -106
            assert library.left() == 2 + 3
            del caught  # it holds the model
        del model
        gc.collect()
        assert library.left() == 0, "streams and events end with the model"


def view(kind: str, *inputs: str, **keys: Any) -> dict[str, Any]:
    return {"kind": kind, "inputs": list(inputs), **keys}


def again(*inputs: str) -> dict[str, Any]:
    return view("elementwise", *inputs, expression=" + ".join(inputs))


VIEWS: dict[str, Any] = {
    "sizes": {"n": [2, 5]},
    "inputs": {name: {"shape": shape, "dtype": "fp32"} for name, shape in {"x": ["n", 4], "z": [2, "n"]}.items()},
    "constants": {"k": {"shape": [12, 4], "dtype": "fp32"}},
    "ops": {
        "first": view("slice", "x", stop=2),
        "a": again("first"),
        "parts": view("split", "k", sizes=[3, 1, 8]),
        "flat": view("reshape", "parts_2", shape=[2, -1]),
        "b": again("flat"),
        "tall": view("reshape", "b", shape=[8, 4]),
        "below": view("slice", "tall", start=6),
        "c": again("below", "a"),
        "d": again("parts_1"),
        "joined": view("concat", "c", "d", "tall"),
        "three": view("reshape", "joined", shape=[1, 11, 4]),
        "turned": view("permute", "three", axes=[1, 0, 2]),
        "y": view("reshape", "turned", shape=[44]),
        "e": again("turned"),
        "f": again("z"),
        "g": again("f"),
        "wide": view("concat", "f", "g"),
        "last": view("slice", "wide", start=3),
        "line": view("reshape", "last", shape=["n"]),
        "h": again("line"),
    },
    "outputs": ["y", "e", "h"],
}


def views_of(op: dict[str, Any], read: list[list[int]], row: int) -> list[int]:
    """What a view of the model above has; row: elements of a row of the first input."""
    if op["kind"] == "slice":
        return read[0][op.get("start", 0) * row : op.get("stop", len(read[0])) * row]
    return [value for values in read for value in values]


@pytest.mark.skipif(not host_compiler(), reason="no host compiler")
def test_views_are_the_memory_of_others(tmp_path: Path) -> None:
    plain, beside = texts(VIEWS), texts(VIEWS, Streams(extra=2, most=5))
    assert [op.name for op in plain.ops] == ["a", "b", "c", "d", "e", "f", "g", "h"], "nothing else is launched"
    assert plain.places["y"] == plain.places["three"] == plain.places["turned"] == "run.arrays[2]"
    assert plain.places["b"] == "static_cast<char*>(run.arrays[2]) + 48LL" == plain.places["tall"]
    assert plain.places["c"] == "run.arrays[2]" == plain.places["joined"]
    assert plain.places["parts_2"] == "static_cast<const char*>(run.constants[0]) + 64LL"
    assert plain.places["last"].endswith(" + 12LL * run.sizes[0]")
    rows = {name: 4 for name in ("x", "k", "tall")}
    object_file = compiled(tmp_path, mixing(plain))
    rng = random.Random(3)
    for name, made in (("plain", plain), ("beside", beside)):
        path = host_library(made, object_file, tmp_path / name)
        library, model = ctypes.CDLL(str(path)), load_model(path)
        weights = [rng.randrange(2**32) for _ in range(48)]
        model.set_constant("k", HostArray("<f4", 12, 4).put(weights, ctypes.c_uint32))
        for seed, n in enumerate((5, 2, 3, 5)):
            values = {one: [rng.randrange(2**32) for _ in range(count * n)] for one, count in (("x", 4), ("z", 2))}
            values |= {"k": weights}
            inputs = [
                HostArray("<f4", *shape).put(values[one], ctypes.c_uint32)
                for one, shape in (("x", (n, 4)), ("z", (2, n)))
            ]
            outputs = (HostArray("<f4", 44), HostArray("<f4", 11, 1, 4), HostArray("<f4", n))
            workspace = HostArray("|i1", model.workspace_bytes, aligned=256)
            model(*inputs, out=outputs, workspace=workspace)
            library.drain(seed)
            for one, op in VIEWS["ops"].items():
                if one == "parts":
                    values |= {"parts_1": weights[12:16], "parts_2": weights[16:]}
                    continue
                read = [values[each] for each in op["inputs"]]
                kernel = op["kind"] == "elementwise"
                row = rows.get(op["inputs"][0], n)
                values[one] = (
                    [mixed(list(each)) for each in zip(*read, strict=True)] if kernel else views_of(op, read, row)
                )
            for array, output in zip(model.outputs, outputs, strict=True):
                assert output.get(ctypes.c_uint32) == values[array.name], array.name
        del model
        gc.collect()


def viewed(outputs: list[str], **ops: dict[str, Any]) -> dict[str, Any]:
    """A model with two inputs and an operation "h" on the first."""
    inputs = {"x": {"shape": ["n", 2, 6]}, "z": {"shape": [8, 6]}}
    every = {"h": again("x"), "g": again("z"), **ops}
    return {"sizes": {"n": [2, 4]}, "inputs": inputs, "ops": every, "outputs": outputs}


@pytest.mark.parametrize(
    ("table", "what", "allowed"),
    [
        (viewed(["y"], y=view("reshape", "h", shape=[4, 6])), "which cannot be [4, 6]", "names of sizes"),
        (viewed(["y"], y=view("reshape", "h", shape=["n", -1, -1])), "which cannot be [n, -1, -1]", "one number"),
        (viewed(["y"], y=view("reshape", "h", shape=["n", 5, -1])), "which cannot be [n, 5, -1]", "number of elements"),
        (viewed(["y"], y=view("reshape", "h", shape=["n", 0])), "which cannot be [n, 0]", "number of elements"),
        (viewed(["y"], y=view("reshape", "h", shape="n")), 'expected array, got str for "shape"', "correct"),
        (viewed(["y"], y=view("reshape", "h", "x", shape=["n", 12])), "2 inputs but takes 1", "inputs: x"),
        (viewed(["y"], y=view("permute", "h", axes=[1, 0, 2])), "have to move its elements", "size 1 only"),
        (viewed(["y"], y=view("permute", "h", axes=[1, 0])), "axes = [1, 0] is not possible", "each of 0 to 2 once"),
        (viewed(["y"], s=view("slice", "h", stop=3), y=again("s")), "it has no rows 0 to 3", "the smallest n"),
        (viewed(["y"], s=view("slice", "h", start=1), y=again("s")), "rows 1 to n", "from 0 to 2"),
        (viewed(["y"], s=view("slice", "z", start=4, stop=4), y=again("s")), "rows 4 to 4", "from 0 to 8"),
        (viewed(["y"], s=view("split", "z", sizes=[4, 3]), y=again("s_0")), "the parts have 7 rows", "sum of `sizes`"),
        (viewed(["y"], s=view("split", "z", sizes=[]), y=again("s_0")), "sizes = [] is not possible", "of each part"),
        (viewed(["y"], s=view("split", "z", sizes=[8]), y=again("s_1")), 'no tensor "s_1"; did you mean "s_0"', "s_0"),
        (viewed(["y"], y=view("concat", "h", "h")), '"h" is fp16 [n, 2, 6]', "rows a number"),
        (viewed(["y"], y=view("concat", "g", "g")), '"g" lies in "y" already', "makes a copy"),
        (viewed(["y"], y=view("concat", "g", "z")), '"z" is an input or a constant of the model', 'expression = "z"'),
        (viewed(["y"], s=view("slice", "g", stop=2), y=view("concat", "s", "g")), '"s" lies in "g" already', "copy"),
        (viewed(["y"], y=view("reshape", "z", shape=[48])), 'would be "z", which is given', "makes a copy"),
        (viewed(["y"], y=view("slice", "g", stop=2)), 'output "y" would lie in "g"', "makes a copy"),
        (viewed(["y", "g"], y=view("reshape", "g", shape=[48])), 'outputs "y" and "g" would be one array', "copy"),
        (viewed(["g"], y=view("concat", "g"), w=again("y")), "nothing uses", "use it"),
        (viewed(["y"], y=view("concat", "g", axis=0)), 'unknown key "axis"', "keys: kind, inputs"),
        (viewed(["y"], s=view("slice", "z", start=1), w=again("s"), y=view("gemm", "s", "w")), "is not aligned to 16",
         "other rows"),
    ],
)  # fmt: skip
def test_views_that_cannot_be_are_refused_with_what_can(table: dict[str, Any], what: str, allowed: str) -> None:
    used = {name for op in table["ops"].values() for name in op["inputs"]} | set(table["outputs"])
    ops = {name: op for name, op in table["ops"].items() if name in used or "nothing" in what or op["kind"] == "split"}
    read = {name for op in ops.values() for name in op["inputs"]}
    inputs = {name: one for name, one in table["inputs"].items() if name in read} | {"n": {"shape": ["n"]}}
    table = {**table, "inputs": inputs, "ops": {**ops, "m": again("n")}, "outputs": [*table["outputs"], "m"]}
    with pytest.raises(RequestError) as caught:
        read_model(target(table), ("sm_80",))
    assert caught.value.code == "bad-model" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


GEMMS: dict[str, Any] = {
    "sizes": {"n": [1, 8]},
    "inputs": {"x": {"shape": ["n", 2, 16], "dtype": "fp32"}, "res": {"shape": ["n", 2, 24], "dtype": "fp32"}},
    "constants": {
        "w": {"shape": [24, 16], "dtype": "fp32"},
        "b": {"shape": [24], "dtype": "fp32"},
        "v": {"shape": [24, 24], "dtype": "fp32"},
    },
    "ops": {
        "both": {"kind": "gemm", "inputs": ["x", "w", "b", "res"], "epilogue": "bias_relu_add"},
        "bare": {"kind": "gemm", "inputs": ["both", "v"], "layout": "rrr"},
        "only_c": {"kind": "gemm", "inputs": ["bare", "v", "res"], "epilogue": "silu_multiply"},
        "split": {"kind": "gemm", "inputs": ["only_c", "v", "b"], "epilogue": "bias", "split_k": 2},
        "each": {"kind": "gemm", "inputs": ["split", "split"]},
        "y": {"kind": "rowwise", "op": "rms_norm", "inputs": ["each", "two"], "eps": 0.5},
    },
    "outputs": ["y"],
}
GEMMS["constants"]["two"] = {"shape": [2], "dtype": "fp32"}


def with_gemms(table: Mapping[str, Any], archs: tuple[str, ...] = ("sm_80",)) -> Texts:
    model = read_model(target(table), archs)
    kernels = {
        op.name: tuple(kernel_for(op.launch.target, arch) for arch in archs)
        for op in model.ops
        if isinstance(op.launch, GemmLaunch)
    }
    return texts_of("mlp", "mlp", model, kernels, Streams(), hip=False)


_TYPE = re.compile(r"\s*(const void\*|void\*|long long|int|float|(?=cudaStream_t|Stream))")


def prototypes(text: str) -> dict[str, list[str]]:
    """Functions of kernels that a source declares or defines: name -> types of what they take, "" for the stream."""
    found = {}
    for name, words in re.findall(r'"C" [^{;]*?(\w+_(?:run|workspace_bytes))\(([^()]*)\)', text):
        types = [_TYPE.match(word) for word in words.split(",")]
        found[name] = [kind[1] if kind is not None else "?" for kind in types]
    return found


@pytest.mark.parametrize("archs", [("sm_80",), ("sm_90a",), ("sm_80", "sm_90a")])
def test_the_driver_calls_kernels_as_they_are(archs: tuple[str, ...]) -> None:
    """They are C functions: no linker would notice."""
    for table in (MLP, CONV, GEMMS if archs == ("sm_80",) else changed("ops", "h", "epilogue", to="bias_silu")):
        made = with_gemms(table, archs)
        declared = prototypes(made.driver().decode().partition("struct mlp_model {")[0])
        assert len(declared) >= 3
        defined: dict[str, list[str]] = {}
        for op in made.ops:
            if isinstance(op.launch, PlainLaunch):
                defined |= prototypes(plain_kernel_file(op.launch.kernel, "build", hip=False).content.decode())
            else:
                for kernel in made.kernels[op.name]:
                    for file, _ in sources_of(kernel, "build"):
                        defined |= prototypes(file.content.decode())
        assert declared == {name: defined[name] for name in declared}


def recorded(made: Texts) -> str:
    """Kernels that tell how they were called; those that split k need memory."""
    text = "#include <cstdio>\n#include <cstring>\nstatic char told[4096];\n"
    text += 'extern "C" const char* calls() { return told; }\n'
    forms = {"long long": "%lld", "int": "%d", "float": "%g"}
    for name, types in prototypes(made.driver().decode().partition("struct mlp_model {")[0]).items():
        taken = ", ".join(f"{kind or 'cudaStream_t'} a{number}" for number, kind in enumerate(types))
        if name.endswith("bytes"):
            each = 4 if "_k2_" in name else 0
            text += f'extern "C" size_t {name}({taken}) {{ return {each} * a0 * (a1 + a2); }}\n'
            continue
        form = " ".join(forms.get(kind, "%p") for kind in types)
        given = [f"{'' if kind in forms else '(const void*)'}a{number}" for number, kind in enumerate(types)]
        text += (
            f'extern "C" int {name}({taken}) {{\n    const size_t used = strlen(told);\n'
            f'    return snprintf(told + used, sizeof told - used, "{form}\\n", {", ".join(given)}) < 0;\n}}\n'
        )
    return text


@pytest.mark.skipif(not host_compiler(), reason="no host compiler")
def test_the_librarys_interface(tmp_path: Path) -> None:
    made = with_gemms(GEMMS)
    path = host_library(made, compiled(tmp_path, recorded(made)), tmp_path / "host")
    library = ctypes.CDLL(str(path))
    library.calls.restype = ctypes.c_char_p
    f4 = "<f4"
    constants = {name: HostArray(f4, *one["shape"]) for name, one in GEMMS["constants"].items()}
    model = load_model(path, {name: one for name, one in constants.items() if name != "b"})
    assert (model.sizes, [one.name for one in model.outputs]) == ({"n": (1, 8)}, ["y"])
    scratch_bytes = -(-4 * 16 * (24 + 24) // 256) * 256
    assert model.workspace_bytes == made.tensor_bytes + scratch_bytes, "what the largest sizes need"
    x, res, y = HostArray(f4, 3, 2, 16), HostArray(f4, 3, 2, 24), HostArray(f4, 3, 2, 2)
    workspace = HostArray("|i1", model.workspace_bytes, aligned=256)

    def refused(what: str, *arrays: HostArray, out: HostArray = y, workspace: HostArray = workspace) -> int:
        with pytest.raises((ValueError, KernelError), match=what) as caught:
            model(*arrays, out=out, workspace=workspace)
        return getattr(caught.value, "status", 0)

    refused("the constant b is not set", x, res)
    with pytest.raises(ValueError, match="b has to have size 24 in dimension 0, not 23"):
        model.set_constant("b", HostArray(f4, 23))
    with pytest.raises(ValueError, match='mlp takes no "c" here'):
        model.set_constant("c", HostArray(f4, 24))
    model.set_constant("b", constants["b"])
    refused("takes 2 arrays", x)
    refused("x has to be fp32, not fp16", HostArray("<f2", 3, 2, 16), res)
    refused("x has to have 3 dimensions, not 2", HostArray(f4, 3, 16), res)
    refused("x has to have size 2 in dimension 1, not 3", HostArray(f4, 3, 3, 16), res)
    refused("x has size 9 in dimension 0; n goes from 1 to 8", HostArray(f4, 9, 2, 16), res)
    refused("x has size 0 in dimension 0", HostArray(f4, 0, 2, 16), res)
    refused("res has to have size 3 in dimension 0, not 4", x, HostArray(f4, 4, 2, 24))
    refused("y has to have size 3 in dimension 0, not 4", x, res, out=HostArray(f4, 4, 2, 2))
    small = HostArray("|i1", model.workspace_bytes - 1, aligned=256)
    assert refused("the workspace has .* bytes and needs", x, res, workspace=small) == -105
    assert refused("name .* bytes of device memory", x, res, workspace=None) == 0  # type: ignore[arg-type]
    assert library.calls() == b"", "nothing was launched"
    assert model(x, res, out=y, workspace=workspace, stream=0) is y

    def at(array: HostArray, offset: int = 0) -> str:
        return f"{array.__cuda_array_interface__['data'][0] + offset:#x}"

    place = {name: at(one) for name, one in {**constants, "x": x, "res": res, "y": y}.items()}
    for name in ("both", "bare", "only_c", "split", "each"):
        place[name] = at(workspace, int(made.places[name].removeprefix("run.workspace + ")))
    p, scratch = place, at(workspace, made.tensor_bytes)
    assert library.calls().decode().splitlines() == [
        f"{p['x']} {p['w']} {p['res']} {p['b']} {p['both']} 6 24 16 1 1 {scratch} (nil)",
        f"{p['both']} {p['v']} (nil) {p['bare']} 6 24 24 1 0 {scratch} (nil)",
        f"{p['bare']} {p['v']} {p['res']} {p['only_c']} 6 24 24 1 1 {scratch} (nil)",
        f"{p['only_c']} {p['v']} {p['b']} {p['split']} 6 24 24 1 0 {scratch} (nil)",
        f"{p['split']} {p['split']} (nil) {p['each']} 2 2 24 3 1 0 {scratch} (nil)",
        f"{p['each']} {p['two']} {p['y']} 6 2 0.5 (nil)",
    ]
    with pytest.raises(ValueError, match="is a model: use load_model"):
        load(path)


TWO = """
[target.norm]
kind = "rowwise"
op = "rms_norm"
shape = [0, 8]
arch = ["sm_80"]

[target.one]
kind = "model"
arch = ["sm_80"]
sizes = { n = [1, 4] }
inputs = { x = { shape = ["n", 64] } }
constants = { w = { shape = [64] } }
outputs = ["y", "z"]
[target.one.ops.y]
kind = "rowwise"
op = "rms_norm"
inputs = ["x", "w"]
[target.one.ops.z]
kind = "elementwise"
expression = "silu(x) * y"
inputs = ["x", "y"]

[target.two]
kind = "model"
arch = ["sm_80"]
inputs = { a = { shape = [3, 32] }, b = { shape = [32] } }
outputs = ["d"]
[target.two.ops.c]
kind = "rowwise"
op = "rms_norm"
inputs = ["a", "b"]
[target.two.ops.d]
kind = "elementwise"
expression = "silu(a) * c"
inputs = ["a", "c"]
"""


@pytest.mark.skipif(not host_compiler(), reason="no host compiler")
def test_models_share_what_they_have_in_common(developer: Developer) -> None:
    developer.write("buildd.toml", TWO)
    alone = developer.build("norm")
    assert (alone.status, alone.compiled) == (0, 3), alone.text
    first = developer.build("one")
    assert (first.hits, first.compiled) == (1, 3), f"all but the norm: {first.text}"
    second = developer.build("two")
    assert (second.hits, second.compiled) == (2, 2), f"a driver and a link: {second.text}"
    developer.write("buildd.toml", TWO.replace("silu(a)", "relu(a)"))
    assert (edited := developer.build("two")).compiled == 3 and edited.hits == 1, edited.text
    developer.environ["AIT_ENABLE_STANDALONE"] = "1"
    test = developer.build("one")
    assert (test.hits, test.compiled) == (4, 2), f"one source and a link: {test.text}"
    assert (developer.project / "build/one-test/one-test").exists()


@pytest.mark.cuda
def test_a_model_compiles_loads_and_asks_for_a_gpu(tmp_path: Path) -> None:
    spec = {"kind": "model", "arch": ["sm_80"], **changed("ops", to={"y": {**MLP["ops"]["s"], "inputs": ["n", "h"]}})}
    spec |= {"inputs": {name: {"shape": ["batch", 8]} for name in ("n", "h")}, "constants": {}}
    plan = plan_for(request_for(tmp_path, file="", specs={"m.1": spec}))
    assert [artifact.path for artifact in plan.artifacts] == ["build/m.1/libm.1.so"]
    assert not any("warning" in ran.said for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"))
    model = load_model(tmp_path / "build/m.1/libm.1.so", name="m.1")
    assert model.workspace_bytes == 0
    given, y = HostArray("<f2", 4, 8), HostArray("<f2", 4, 8)
    with pytest.raises(ValueError, match="h has to have size 4 in dimension 0, not 3"):
        model(given, HostArray("<f2", 3, 8), out=y)
    if not find_gpus(os.environ)[0]:
        with pytest.raises(KernelError, match="y: cuda error") as caught:
            model(given, given, out=y)
        assert caught.value.status > 0


@pytest.mark.parametrize("hip", [False, True])
def test_equal_specs_give_equal_texts(hip: bool) -> None:
    table = changed("ops", "h", to={"kind": "elementwise", "inputs": ["x", "w"], "expression": "x + w"})
    table["inputs"]["x"]["shape"] = ["batch", 128, 64]
    table["constants"] = {"w": {"shape": [64]}, "gain": {"shape": [64]}, "shift": {"shape": [64]}}
    one, other = texts(table, hip=hip), texts(msgspec.json.decode(msgspec.json.encode(table)), hip=hip)
    assert (one.header(), one.driver(), one.standalone()) == (other.header(), other.driver(), other.standalone())
    for text in (one.driver().decode(), one.standalone().decode()):
        assert ("hipStream_t" in text, "cudaStream_t" in text) == (hip, not hip) and "{{" not in text


@pytest.mark.hip
def test_a_model_as_an_archive_and_for_what_depends_on_it(tmp_path: Path) -> None:
    table = {"kind": "model", "arch": ["gfx90a"], **random_graph(random.Random(11))}
    (tmp_path / "main.hip").write_text("int main() {}\n")
    user = {"kind": "hip", "arch": ["gfx90a"], "sources": ["main.hip"], "output": "executable", "deps": ["m"]}
    for output, library in (("static", "build/m/libm.a"), ("shared", "build/m/libm.so")):
        specs = {"m": {**table, "output": output}, "user": user}
        plan = plan_for(request_for(tmp_path, file="", specs=specs))
        assert [artifact.path for artifact in plan.artifacts] == [library, "build/user/user"]
        (link,) = (action for action in plan.actions if action.name == "user/user")
        assert library in link.inputs
    with pytest.raises(RequestError, match="is not a valid name of a model"):
        plan_for(request_for(tmp_path, file="", specs={"2m": table}))


@pytest.mark.hip
def test_variables_say_how_many_streams(tmp_path: Path) -> None:
    table = {"kind": "model", "arch": ["gfx90a"], **random_graph(random.Random(11))}

    def streams(**variables: str) -> str:
        environment = {f"AIT_MULTISTREAM_{name}": value for name, value in variables.items()} | {"PATH": os.defpath}
        request = request_for(tmp_path, file="", specs={"m": table}, environment=environment)
        driver = next(file for file in plan_for(request).files if file.path.endswith("gen/m.hip"))
        said = re.search(r"kStreams = (\d+)", driver.content.decode())
        groups = re.search(r"kGroups\[\] = \{(.*?)\}", driver.content.decode())
        return f"{said and said[1]} {max(map(int, groups[1].split(','))) if groups else 1}"

    assert streams() == "1 1"
    assert streams(MODE="0", EXTRA_STREAMS="3") == "1 1"
    assert streams(MODE="1") == "4 4"
    assert streams(MODE="1", EXTRA_STREAMS="2") == "3 4"
    assert streams(MODE="1", MAX_MEM_PARALLEL_OPS="2") == "2 2"
    assert streams(MODE="1", EXTRA_STREAMS="0") == "1 1"
    for name, value in (("EXTRA_STREAMS", "-1"), ("MAX_MEM_PARALLEL_OPS", "0"), ("MODE", "2")):
        with pytest.raises(
            RequestError, match=f'AIT_MULTISTREAM_{name}="{value}" cannot be read; accepted: '
        ) as caught:
            streams(**{"MODE": "1", name: value})
        assert caught.value.code == "bad-variable"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arch", "table"),
    [
        pytest.param("sm_80", MLP, marks=pytest.mark.cuda, id="sm_80"),
        pytest.param("sm_80", CONV, marks=pytest.mark.cuda, id="conv2d"),
        pytest.param("gfx90a", random_graph(random.Random(11)), marks=pytest.mark.hip, id="gfx90a"),
    ],
)
def test_models_and_their_standalone_tests_compile(tmp_path: Path, arch: str, table: dict[str, Any]) -> None:
    environment = {**os.environ, "AIT_ENABLE_STANDALONE": "1", "AIT_MULTISTREAM_MODE": "1"}
    spec = {"kind": "model", "arch": [arch], **table}
    plan = plan_for(request_for(tmp_path, file="", specs={"m": spec}, environment=environment))
    assert [artifact.path for artifact in plan.artifacts] == ["build/m/libm.so", "build/m-test/m-test"]
    for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"):
        assert "warning" not in ran.said, ran.said
    describe = ctypes.CDLL(str(tmp_path / "build/m/libm.so")).m_describe
    describe.restype = ctypes.c_char_p
    assert [array["name"] for array in json.loads(describe())["outputs"]] == list(table["outputs"])
    done = subprocess.run([tmp_path / "build/m-test/m-test", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "usage: " in done.stderr
    if arch.startswith("gfx") or not find_gpus(os.environ)[0]:
        done = subprocess.run([tmp_path / "build/m-test/m-test"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.startswith("m-test: "), done


@pytest.mark.cuda
def test_a_models_gemms_are_profiled_and_take_the_best(tmp_path: Path) -> None:
    """Those that can be measured, each problem once, with the largest sizes; their flags are the model's."""
    gemm = {"kind": "gemm", "inputs": ["x", "w", "b"], "epilogue": "bias_gelu"}
    table = changed("ops", "again", to=gemm)
    table["ops"] |= {
        "added": {"kind": "gemm", "inputs": ["x", "w", "h"], "epilogue": "relu_add"},
        "named": {**gemm, "tile": [64, 64, 32]},
    }
    table |= {"kind": "model", "arch": ["sm_80"], "flags": ["-O2"], "outputs": ["y", "again", "added", "named"]}
    environment = {"PATH": os.defpath, "CACHE_DIR": str(tmp_path), "CUTLASS_PATH": str(cutlass_in(tmp_path))}
    specs = {"mlp": table, "norm": {"kind": "rowwise", "op": "softmax", "shape": [4], "arch": ["sm_80"]}}

    def request(*targets: str) -> Request:
        return request_for(
            tmp_path, *targets, file="", specs=specs, environment=environment, interpreter=sys.executable
        )

    found = answered(lambda: survey(request(), KNOWLEDGE))
    (case,) = found.cases
    assert (case.target, case.sizes, found.flags) == ("mlp.ops.h", (256, 128, 64), {"mlp.ops.h": "-O2"})
    small = answered(lambda: survey(request("mlp"), KNOWLEDGE, ((7, 128, 32), (16, 128, 64)), ranks=True))
    assert small.cases[0].sizes == (16, 128, 64), "the first that fits"
    for name, ranks in (("norm", True), ("mlp", False)):
        with pytest.raises(RequestError, match=f'"{name}" has no GEMM or convolution that can'):
            answered(lambda name=name, ranks=ranks: survey(request(name), KNOWLEDGE, ranks=ranks))
    usual = {file.path for file in plan_for(request("mlp")).files}
    setting = best_kernels.Setting(gpu="A", driver="1", toolkit=found.toolkit, library=found.library, flags="-O2")
    known = best_kernels.Best(setting=setting, problem=case.problem, candidate="128x64x32_w2x2x1_s3", time_us=1.0)
    (tmp_path / "buildd").mkdir()
    (tmp_path / "buildd" / best_kernels.FILE).write_bytes(msgspec.json.encode(best_kernels.Published(best=(known,))))
    plan = plan_for(request("mlp"))
    assert plan.notices == ("mlp.ops.h: 128x64x32_w2x2x1_s3 for sm_80, the best on A, 1.0 us",)
    (new,) = {file.path for file in plan.files} - usual
    assert "_gelu_128x64x32_" in new
