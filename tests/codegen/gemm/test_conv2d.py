"""Targets of kind conv2d: what is refused, what of two is one kernel, that kernels compile; how they are called."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.loader import load
from buildd.profiling.harness import question
from codegen.arrays.array_kernel import INVALID_PROBLEM, Kernel, generated
from codegen.errors import RequestError
from codegen.gemm.best_kernels import Best, Published, Setting
from codegen.gemm.candidates import Ranked, estimate_us
from codegen.gemm.conv2d import conv2d_kernel
from codegen.gemm.convolution import gemm_sizes, implicit_gemm
from codegen.gemm.decision import declared_sizes
from codegen.gemm.kernel_options import Candidate
from codegen.gemm.spec import kernel_for
from codegen.project.target import Conv2dTarget
from codegen.tuning.pick import likely_of, shared
from codegen.tuning.survey import candidate_spec, survey
from protocol.messages import Request
from tests.support.carry_out import KNOWLEDGE, answered, carry_out_all, plan_for, request_for
from tests.support.cutlass import cutlass_in

KEYS = {"shape": [0, 0, 0, 64], "filters": 96, "kernel": [3, 3]}
MISALIGNED = -1


def conv(*archs: str, **keys: Any) -> Kernel:
    table = {"name": "c", "where": "buildd.toml:2", **KEYS, **keys}
    return conv2d_kernel(msgspec.convert(table, Conv2dTarget), archs or ("sm_80",))


def texts(kernel: Kernel) -> tuple[bytes, bytes]:
    entry, shared = generated("c", kernel, "build", hip=False)
    return entry.content, shared.content


def test_sizes_are_the_entry_points_and_types_the_kernels() -> None:
    one = conv(epilogue="bias_relu")
    others = (
        {"kernel": [5, 1]},
        {"stride": [2, 1], "padding": [1, 0]},
        {"dilation": [2, 2]},
        {"filters": 128, "shape": [1, 8, 8, 32]},
    )
    for keys in others:
        other = conv(epilogue="bias_relu", **keys)
        assert texts(other)[1] == texts(one)[1] and texts(other)[0] != texts(one)[0]
    names = {one.name}
    for keys in (
        {"epilogue": "bias"},
        {"dtype": "bf16"},
        {"output_dtype": "fp32"},
        {"shape": [0, 0, 0, 12]},
        {"filters": 6},
    ):
        other = conv(**{"epilogue": "bias_relu", **keys})
        names.add(other.name)
        assert texts(other)[1] != texts(one)[1]
    assert len(names) == 6


def left(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Places of the kernel, each tried."""
    reach = dilation * (kernel - 1) + 1
    return sum(1 for begin in range(-padding, size + padding - reach + 1) if (begin + padding) % stride == 0)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_how_large_the_result_is(stride: int) -> None:
    for size in range(5, 20):
        for kernel, padding, dilation in ((1, 0, 1), (3, 1, 1), (3, 0, 2), (5, 2, 1)):
            found = conv(
                shape=[1, size, 9, 64],
                kernel=[kernel, 1],
                stride=[stride, 1],
                padding=[padding, 0],
                dilation=[dilation, 1],
            )
            assert found.shape[7:] == (left(size, kernel, stride, padding, dilation), 9)


@pytest.mark.parametrize(
    ("keys", "what", "allowed"),
    [
        ({"dtype": "fp8"}, "dtype", "fp16, bf16, tf32"),
        ({"output_dtype": "bf16"}, "output_dtype", "fp16, fp32"),
        ({"epilogue": "bias_rleu"}, 'did you mean "bias_relu"', "bias_gelu"),
        ({"epilogue": "bias_add"}, "bias_add", "bias_gelu"),
        ({"shape": [0, -1, 0, 64]}, "negative", "run time"),
        ({"shape": [0, 0, 0, 3]}, "3 channels", "a multiple of 2"),
        ({"shape": [0, 0, 0, 0]}, "0 channels", "give the number"),
        ({"filters": 0}, "filters = 0", "1 or more"),
        ({"kernel": [0, 3]}, "kernel = [0, 3]", "1 to 32"),
        ({"kernel": [3, 33]}, "kernel = [3, 33]", "1 to 32"),
        ({"stride": [1, 0]}, "stride", "from 1"),
        ({"padding": [-1, 0]}, "padding", "from 0"),
        ({"dilation": [0, 1]}, "dilation", "from 1"),
        ({"shape": [1, 8, 4, 64], "dilation": [1, 2]}, "larger than the width 4", "padding"),
        ({"tile": [100, 128, 32]}, "tile [100, 128, 32]", "multiples of 32"),
        ({"stages": 1}, "stages = 1", "2 or more"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(keys: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        conv(**keys)
    assert caught.value.code == "bad-kernel" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


def test_every_architecture_has_to_have_it() -> None:
    assert conv("sm_80", "sm_90a").name == conv().name
    large = {"tile": [128, 256, 32], "stages": 4, "warps": [2, 4, 1]}
    assert conv("sm_80", "sm_90", **large)
    with pytest.raises(RequestError, match="shared memory"):
        conv("sm_80", "sm_86", tile=[256, 128, 64], stages=3, warps=[4, 2, 1])
    for arch in ("gfx90a", "sm_75"):
        with pytest.raises(RequestError, match=arch):
            conv(arch)


def gemm_of(**keys: Any) -> Any:
    return implicit_gemm(msgspec.convert({"name": "c", **KEYS, **keys}, Conv2dTarget))


def test_the_gemm_that_a_convolution_is() -> None:
    gemm = gemm_of(stride=[2, 1], padding=[1, 0], shape=[0, 9, 9, 64])
    assert gemm_sizes(gemm, (2, 9, 9, 64)) == (2 * 5 * 7, 96, 9 * 64)
    one = {kernel_for(gemm, arch) for arch in ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a")}
    assert len(one) == 1, "of CUTLASS 2.x, and one text for all"
    shapes = {"true": True, "sizes": [4, 9, 9, 64]}
    assert declared_sizes(gemm_of(shape=[4, 9, 9, 64], profile=True)) == (4, 9, 9, 64)
    assert declared_sizes(gemm_of(profile=shapes["sizes"])) == (4, 9, 9, 64)
    for keys, words in (
        ({"profile": True}, "needs a size for each of n, height, width, channels"),
        ({"profile": [4, 9, 9, 32]}, "is not what shape says"),
        ({"profile": [4, 9, 9, 64], "stages": 3}, "names a kernel"),
    ):
        with pytest.raises(RequestError, match=words) as caught:
            declared_sizes(gemm_of(**keys))
        assert caught.value.code == "bad-kernel" and caught.value.next_step


def test_a_tile_that_is_deeper_than_the_channels_computes_for_nothing() -> None:
    def time_us(channels: int, depth: int) -> float:
        gemm = gemm_of(shape=[0, 0, 0, channels])
        kernel = kernel_for(Candidate(tile=(128, 64, depth), warps=(2, 2, 1), stages=3).of(gemm), "sm_90")
        return estimate_us(kernel, gemm, "sm_90", gemm_sizes(gemm, (64, 56, 56, channels)))

    assert time_us(32, 64) > 1.5 * time_us(32, 32) and time_us(64, 64) < 1.1 * time_us(64, 32)
    deep, flat = (gemm_of(kernel=[size, size]) for size in (3, 1))
    assert deep.again == 9.0 and flat.again == 1.0 and gemm_of(stride=[3, 3]).again == 1.0


CONV = """\
[target.c]
kind = "conv2d"
shape = [0, 28, 28, 64]
filters = 96
kernel = [3, 3]
padding = [1, 1]
epilogue = "bias_relu"
profile = [8, 28, 28, 64]
arch = ["sm_86", "sm_90a"]

[target.d]
kind = "conv2d"
shape = [8, 56, 56, 64]
filters = 96
kernel = [1, 1]
epilogue = "bias_relu"
arch = ["sm_90a"]

[target.net]
kind = "model"
arch = ["sm_90a"]
profile = true
sizes = { n = [1, 8] }
inputs = { x = { shape = ["n", 28, 28, 64] } }
constants = { w = { shape = [96, 3, 3, 64] }, b = { shape = [96] }, v = { shape = [96, 3, 3, 64] } }
outputs = ["y", "z"]

[target.net.ops.y]
kind = "conv2d"
inputs = ["x", "w", "b"]
epilogue = "bias_relu"
padding = [1, 1]

[target.net.ops.z]
kind = "conv2d"
inputs = ["x", "v"]
tile = [64, 64, 32]
"""


@pytest.mark.cuda
def test_convolutions_are_ranked_and_take_the_best_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(CONV)
    environ = {"PATH": os.defpath, "CACHE_DIR": str(tmp_path), "CUTLASS_PATH": str(cutlass_in(tmp_path))}

    def request(*names: str, **variables: str) -> Request:
        return request_for(tmp_path, *names, environment={**environ, **variables}, interpreter=sys.executable)

    found = answered(lambda: survey(request(), KNOWLEDGE))
    assert [(case.target, case.arch) for case in found.cases] == [
        ("c", "sm_86"), ("c", "sm_90a"), ("d", "sm_90a"), ("net.ops.y", "sm_90a"),
    ]  # fmt: skip
    small, case, other, inner = found.cases
    assert case.sizes == (8 * 28 * 28, 96, 9 * 64) and case.operations == 2.0 * 8 * 28 * 28 * 96 * 576
    assert case.dimensions == "8x28x28x64*96x3x3x64" and inner.problem == case.problem != other.problem
    words = ("lib.so", "t", "8x28x28x64", "96", "3x3", "fp16", "fp16", "conv2d:1,1,1,1,1,1", "bias_relu", "0.002")
    assert question(case, "lib.so", "t") == words
    assert len(small.ranked) < len(case.ranked), "shared memory"

    # What a candidate is built of is what the target is built of; another problem has it too.
    ranked = case.ranked[0]
    name, table = candidate_spec(case, ranked)
    tried = plan_for(request_for(tmp_path, environment=environ, file="", specs={name: table}))
    first = msgspec.structs.replace(other, ranked=(ranked,))
    last: Ranked = msgspec.structs.replace(ranked, estimate_us=1e9)
    second = msgspec.structs.replace(case, ranked=(case.ranked[1], ranked))
    both = [first, second]
    assert shared(both, likely_of(both, 1)) == [(), (ranked,)]
    apart = [first, msgspec.structs.replace(second, ranked=(case.ranked[1], last))]
    assert shared(apart, likely_of(apart, 1)) == [(), ()]

    guessed = plan_for(request("d"))
    assert guessed.unmeasured == (), "nobody has asked for that"
    assert plan_for(request("c")).unmeasured[0].wanted == ("sm_86", "sm_90a")
    setting = Setting(gpu="A", driver="1", toolkit=found.toolkit, library=found.library, flags="")
    known = [Best(setting=setting, problem=case.problem, candidate=ranked.candidate.name, time_us=1.0)]
    (tmp_path / "buildd").mkdir()
    (tmp_path / "buildd/best.json").write_bytes(msgspec.json.encode(Published(best=tuple(known))))
    plan = plan_for(request("net"))
    assert plan.notices[0].startswith(f"net.ops.y: {ranked.candidate.name} for sm_90a, the best on A")
    kernel = next(file for file in tried.files if "/kernels/" in file.path)
    assert kernel in plan.files and plan.unmeasured == ()
    both = plan_for(request("c"))
    fits = kernel in both.files
    assert fits == (ranked.kernel in {one.kernel for one in small.ranked}), "it is one kernel for all"
    assert (both.unmeasured == ()) == fits
    with pytest.raises(RequestError, match="nothing was measured for conv2d sm_90a"):
        plan_for(request("d", AIT_FORCE_PROFILER_CACHE="1"))
    assert any("_64x64x32_" in file.path for file in plan_for(request("d", CI_FLAG="CIRCLECI")).files)


class FakeArray:
    """Says what an array on a GPU would say; there is no memory behind it."""

    def __init__(self, typestr: str, *shape: int) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": None}


EVERY: dict[str, dict[str, Any]] = {
    "conv": {"epilogue": "bias_relu", "stride": [2, 1], "padding": [1, 0]},
    "odd": {"shape": [0, 0, 0, 6], "filters": 31, "epilogue": "bias_gelu"},
    "tf32": {"dtype": "tf32", "shape": [0, 0, 0, 12], "filters": 20},
    "wide": {"dtype": "bf16", "output_dtype": "fp32", "epilogue": "sigmoid"},
}


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.timeout(600)
def test_convolutions_compile_and_check_their_arrays(tmp_path: Path) -> None:
    tables = {name: {"kind": "conv2d", "arch": ["sm_80"], **KEYS, **keys} for name, keys in EVERY.items()}
    plan = plan_for(request_for(tmp_path, file="", specs=tables))
    for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"):
        assert "warning" not in ran.said, ran.said
    library = tmp_path / "build/conv/libconv.so"
    run: Callable[..., int] = ctypes.CDLL(str(library)).conv_run
    run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 9 + [ctypes.c_void_p]  # type: ignore[attr-defined]

    def status(*sizes: int, place: int = 4096) -> int:
        return run(place, place, place, place, *sizes, None)

    assert status(0, 9, 9, 64, 96, 3, 3, 5, 7) == 0, "nothing to do"
    assert status(2, 9, 9, 64, 96, 3, 3, 5, 6) == status(2, 9, 9, 64, 96, 3, 3, 4, 7) == INVALID_PROBLEM
    assert status(2, 9, 0, 64, 96, 3, 3, 5, 7) == status(2, 9, 9, 62, 96, 3, 3, 5, 7) == INVALID_PROBLEM
    assert status(1 << 40, 9, 9, 64, 96, 3, 3, 5, 7) == status(1 << 18, 9, 9, 64, 96, 3, 3, 5, 7) == INVALID_PROBLEM
    assert status(2, 9, 9, 64, 96, 3, 3, 5, 7, place=4098) == MISALIGNED
    kernel = load(library)
    x, weight, bias = FakeArray("<f2", 0, 9, 9, 64), FakeArray("<f2", 96, 3, 3, 64), FakeArray("<f2", 96)
    y = FakeArray("<f2", 0, 5, 7, 96)
    assert kernel(x, weight, bias, out=y) is y
    with pytest.raises(ValueError, match="y has to have size 5 in dimension 1, not 6"):
        kernel(x, weight, bias, out=FakeArray("<f2", 0, 6, 7, 96))
    with pytest.raises(ValueError, match="weight has to have size 3 in dimension 2, not 2"):
        kernel(x, FakeArray("<f2", 96, 3, 2, 64), bias, out=y)
