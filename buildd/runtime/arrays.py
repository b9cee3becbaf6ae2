"""The arrays that callers pass to generated kernels: their address in a GPU's memory, type and shape.

Reads arrays of torch and CuPy, and of any library with CUDA's array interface or DLPack. Standard library only:
programs that use nothing else of buildd import it. Knows no kernel, and copies nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_TORCH = {
    **{"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32"},
    **{"torch.int8": "int8", "torch.int32": "int32"},
    **{"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2"},
}
_TYPESTR = {"<f2": "fp16", "<V2": "bf16", "<f4": "fp32", "|i1": "int8", "<i4": "int32"}
_DLPACK = {
    **{(2, 16): "fp16", (4, 16): "bf16", (2, 32): "fp32", (0, 8): "int8", (0, 32): "int32"},
    **{(10, 8): "fp8_e4m3", (12, 8): "fp8_e5m2"},
}
"""Code and bits, as dlpack.h numbers them."""
_ON_GPU = (2, 10, 13)
"""kDLCUDA, kDLROCM, kDLCUDAManaged."""
_NAMES = {
    **{"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8", "int32": "int32"},
    **{"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"},
}


@dataclass(frozen=True, slots=True)
class GpuArray:
    """An array that a caller passed."""

    pointer: int
    dtype: str
    """buildd's name of the type; if it has none, the library's own."""
    shape: tuple[int, ...]
    size_bytes: int


def gpu_array(name: str, value: Any) -> GpuArray:
    """Read an array's address, type and shape.

    Args:
        name: for errors.

    Raises:
        ValueError: it is not an array, not on a GPU, or not contiguous.
    """
    # torch's array interface has no bf16, so its tensors are read directly.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ValueError(f"{name} has to be contiguous: x.contiguous()")
        if not value.is_cuda:
            raise ValueError(f"{name} has to be on a GPU, not on {value.device}")
        dtype, shape = _TORCH.get(str(value.dtype)) or str(value.dtype), tuple(value.shape)
        return GpuArray(value.data_ptr(), dtype, shape, value.numel() * value.element_size())
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        shape, typestr = tuple(interface["shape"]), interface["typestr"]
        size_bytes = int(typestr[2:])
        _check_contiguous(name, shape, interface.get("strides"), size_bytes)
        return GpuArray(interface["data"][0], _TYPESTR.get(typestr) or str(typestr), shape, prod(shape) * size_bytes)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value)
    raise ValueError(f"{name} is a {type(value).__name__}, which does not tell where in a GPU's memory it is")


def _check_contiguous(name: str, shape: tuple[int, ...], strides: Sequence[int] | None, unit: int) -> None:
    expected = []
    for size in reversed(shape):
        expected.append(unit)
        unit *= size
    if strides is not None and tuple(strides) != tuple(reversed(expected)) and 0 not in shape:
        raise ValueError(f"{name} has to be contiguous")


class _Tensor(ctypes.Structure):
    """DLTensor, the first field of a DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset_bytes", ctypes.c_uint64),
    )


def _from_dlpack(name: str, value: Any) -> GpuArray:
    # An unconsumed capsule frees its tensor with itself; the caller holds the array for as long as the kernel runs.
    capsule = value.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.device_type not in _ON_GPU:
        raise ValueError(f"{name} has to be on a GPU, not on a device of DLPack's type {tensor.device_type}")
    shape = tuple(tensor.shape[: tensor.dimensions])
    strides = tuple(tensor.strides[: tensor.dimensions]) if tensor.strides else None
    _check_contiguous(name, shape, strides, 1)
    dtype = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return GpuArray(
        (tensor.data or 0) + tensor.offset_bytes,
        dtype or f"DLPack's type {tensor.code} of {tensor.bits} bits",
        shape,
        prod(shape) * tensor.bits * tensor.lanes // 8,
    )


def new_array(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array from the library of `like`, on its device; None for an unknown library."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(like, torch.Tensor):
        return like.new_empty(shape, dtype=getattr(torch, _NAMES[dtype]))
    if cupy is not None and isinstance(like, cupy.ndarray) and hasattr(cupy, _NAMES[dtype]):
        with like.device:
            return cupy.empty(shape, dtype=_NAMES[dtype])
    return None


def stream_of(like: Any) -> int:
    """The current stream of the library of `like`; 0, the default stream, for an unknown library."""
    for library in ("torch", "cupy"):
        module = sys.modules.get(library)
        if module is None:
            continue
        if library == "torch" and isinstance(like, module.Tensor):
            return int(module.cuda.current_stream(like.device).cuda_stream)
        if library == "cupy" and isinstance(like, module.ndarray):
            return int(module.cuda.get_current_stream().ptr)
    return 0
