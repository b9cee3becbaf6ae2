"""Address, type and shape of arrays, through CUDA's array interface and DLPack; and the arrays that are refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from buildd.runtime.arrays import GpuArray, gpu_array, new_array, stream_of


class Interface:
    def __init__(self, typestr: str, *shape: int, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": strides}


class Managed(ctypes.Structure):
    """DLManagedTensor, as dlpack.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Exchanged:
    """An array with DLPack only."""

    def __init__(self, shape: tuple[int, ...], code: int, bits: int, **fields: Any) -> None:
        self.sizes = (ctypes.c_int64 * len(shape))(*shape)
        strides = fields.pop("strides", None)
        self.steps = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        values = {"data": 8192, "device_type": 2, "lanes": 1, **fields}
        self.managed = Managed(ndim=len(shape), code=code, bits=bits, shape=self.sizes, **values)
        if self.steps is not None:
            self.managed.strides = self.steps

    def __dlpack__(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        capsule: object = new(ctypes.addressof(self.managed), b"dltensor", None)
        return capsule


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Interface("<f2", 3, 4), GpuArray(4096, "fp16", (3, 4), 24)),
        (Interface("<V2", 3, 4, strides=(8, 2)), GpuArray(4096, "bf16", (3, 4), 24)),
        (Interface("|i1"), GpuArray(4096, "int8", (), 1)),
        (Interface("<f8", 2), GpuArray(4096, "<f8", (2,), 16)),
        (Interface("<f4", 0, 5, strides=(1, 1)), GpuArray(4096, "fp32", (0, 5), 0)),
        (Exchanged((3, 4), 2, 16), GpuArray(8192, "fp16", (3, 4), 24)),
        (Exchanged((3, 4), 4, 16, strides=(4, 1), byte_offset=64), GpuArray(8256, "bf16", (3, 4), 24)),
        (Exchanged((5,), 10, 8, device_type=10), GpuArray(8192, "fp8_e4m3", (5,), 5)),
        (Exchanged((5,), 2, 64), GpuArray(8192, "DLPack's type 2 of 64 bits", (5,), 40)),
        (Exchanged((5,), 2, 32, lanes=4), GpuArray(8192, "DLPack's type 2 of 32 bits", (5,), 80)),
    ],
)
def test_what_an_array_says_of_itself(value: Any, found: GpuArray) -> None:
    assert gpu_array("x", value) == found


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Interface("<f2", 3, 4, strides=(2, 6)), "x has to be contiguous"),
        (Exchanged((3, 4), 2, 16, strides=(1, 3)), "x has to be contiguous"),
        (Exchanged((3, 4), 2, 16, device_type=1), "on a GPU, not on a device of DLPack's type 1"),
        ([1.0], "x is a list, which does not tell where"),
    ],
)
def test_what_is_no_array_of_a_gpu_is_refused(value: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        gpu_array("x", value)


def test_of_arrays_of_no_library_nothing_is_made() -> None:
    assert new_array(Interface("<f2", 3), (3,), "fp16") is None
    assert stream_of(Interface("<f2", 3)) == 0


@pytest.mark.torch
def test_tensors_of_torch() -> None:
    import torch

    with pytest.raises(ValueError, match="x has to be on a GPU, not on cpu"):
        gpu_array("x", torch.zeros(3, 4))
    with pytest.raises(ValueError, match="contiguous"):
        gpu_array("x", torch.zeros(3, 4).T)
    for ours in ("fp16", "bf16", "fp32", "int8", "int32", "fp8_e4m3", "fp8_e5m2"):
        made = new_array(torch.zeros(1), (2, 3), ours)
        assert tuple(made.shape) == (2, 3)
