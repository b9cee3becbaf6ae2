"""Targets of kind conv2d: what is refused, what of two is one kernel, that kernels compile; how they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from carry_out import carry_out_all, plan_for, request_for

from buildd.loader import load
from codegen.conv2d import conv2d_kernel
from codegen.plain import INVALID_PROBLEM, Kernel, generated
from codegen.plan import RequestError
from codegen.target import Conv2dTarget

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
        ({"shape": [0, 0, 0, 0]}, "0 channels", "known"),
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
