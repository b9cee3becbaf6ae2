"""Calls generated kernels (kinds `rowwise`, `elementwise`, `conv2d`) from Python, on arrays of torch, CuPy and whoever
has CUDA's array interface.

    from buildd.loader import load
    softmax = load("build/softmax/libsoftmax.so")
    y = softmax(x)                  # on the current stream

A library says itself what it takes; types and shapes are checked before anything runs. Standard library only: programs
import it that know nothing else of buildd. Does not know whether arrays share memory with the result.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

INTERFACE = 1
_TORCH = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32"}
_TYPESTR = {"<f2": "fp16", "<V2": "bf16", "<f4": "fp32"}
_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class KernelError(RuntimeError):
    """A kernel could not be run.

    Args:
        status: what it returned: a cudaError_t or hipError_t, or -4 where sizes are not those of the project file.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Array:
    """What a kernel takes or writes."""

    name: str
    dtype: str
    axes: tuple[int, ...]
    """Its dimensions, as numbers of the kernel's sizes; -1 where it has size 1."""


@dataclass(frozen=True, slots=True)
class _Given:
    """What a caller gave for one."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]


class Kernel:
    """A generated kernel; see `load`."""

    def __init__(self, library: ctypes.CDLL, symbol: str, described: dict[str, Any]) -> None:
        self.name = symbol
        self.shape: tuple[int, ...] = tuple(described["shape"])
        """Sizes; 0 stands for: known at run time."""
        self.inputs = tuple(_array(one) for one in described["inputs"])
        self.output = _array(described["output"])
        self._derived: tuple[tuple[int, int, int, int], ...] = tuple(map(tuple, described.get("derived", ())))
        self._run = library[f"{symbol}_run"]
        pointers, sizes = len(self.inputs) + 1, len(self.shape)
        self._run.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_longlong] * sizes + [ctypes.c_void_p]
        self._run.restype = ctypes.c_int

    def __call__(self, *arrays: Any, out: Any = None, stream: int | None = None) -> Any:
        """Run it; returns `out`.

        Args:
            arrays: the inputs in order, contiguous, on one device, which is the current one.
            out: what is written to; by default a new tensor where the first input is one of torch.
            stream: by default the current one of torch or CuPy, whose the first array is; else 0, the default stream.

        Raises:
            ValueError: number, type, shape or layout of the arrays.
            KernelError: it could not be started.
        """
        if len(arrays) != len(self.inputs):
            wanted = ", ".join(array.name for array in self.inputs)
            raise ValueError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), and was given {len(arrays)}")
        sizes: dict[int, int] = {}
        given = [self._checked(array, value, sizes) for array, value in zip(self.inputs, arrays, strict=True)]
        # Sizes that no input has are fixed, or made of those of inputs, or those of `out`.
        fixed = {number: size for number, size in enumerate(self.shape) if size}
        for number, other, add, divide in self._derived:
            sizes[number] = max(0, ({**fixed, **sizes}[other] + add) // divide + 1)
        if out is None:
            out = self._new(arrays[0], {**fixed, **sizes})
        given.append(self._checked(self.output, out, sizes))
        numbers = {**fixed, **sizes}
        status = self._run(
            *(one.pointer for one in given),
            *(numbers[number] for number in range(len(self.shape))),
            _stream(arrays[0]) if stream is None else stream,
        )
        if status:
            raise KernelError(f"{self.name} could not be run: status {status}", status)
        return out

    def _checked(self, array: Array, value: Any, sizes: dict[int, int]) -> _Given:
        """What was given for an array; `sizes` learns its dimensions."""
        given = _given(array.name, value)
        what = f"{self.name}: {array.name}"
        if given.dtype != array.dtype:
            raise ValueError(f"{what} has to be {array.dtype}, not {given.dtype}")
        if len(given.shape) != len(array.axes):
            raise ValueError(f"{what} has to have {len(array.axes)} dimensions, not {len(given.shape)}")
        for number, (axis, size) in enumerate(zip(array.axes, given.shape, strict=True)):
            wanted = 1 if axis < 0 else self.shape[axis] or sizes.setdefault(axis, size)
            if size != wanted:
                raise ValueError(f"{what} has to have size {wanted} in dimension {number}, not {size}")
        return given

    def _new(self, like: Any, sizes: dict[int, int]) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(like, torch.Tensor):
            raise ValueError(f"{self.name}: name the array to write to, out=...")
        shape = tuple(1 if axis < 0 else sizes[axis] for axis in self.output.axes)
        return like.new_empty(shape, dtype=getattr(torch, _NAMES[self.output.dtype]))


def load(path: str | os.PathLike[str], name: str = "") -> Kernel:
    """A generated kernel in a shared library.

    Args:
        name: of the target; by default as the file's name has it.

    Raises:
        OSError: the library cannot be loaded.
        ValueError: it has no such kernel, or one of another interface.
    """
    path = os.fspath(path)
    symbol = re.sub(r"\W", "_", name or re.sub(r"^lib|\.so$", "", os.path.basename(path)))
    library = ctypes.CDLL(os.path.abspath(path))
    try:
        describe = library[f"{symbol}_describe"]
    except AttributeError as error:
        raise ValueError(
            f"{path} has no kernel {symbol} of kind rowwise, elementwise or conv2d; name its target: load(path, name)"
        ) from error
    describe.restype = ctypes.c_char_p
    described = json.loads(describe())
    if described["interface"] != INTERFACE:
        raise ValueError(f"{path} is of another buildd (interface {described['interface']}): build it again")
    return Kernel(library, symbol, described)


def _array(said: dict[str, Any]) -> Array:
    return Array(said["name"], said["dtype"], tuple(said["axes"]))


def _given(name: str, value: Any) -> _Given:
    """Where an array is and how it looks. torch's array interface knows no bf16, so its tensors are asked directly."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ValueError(f"{name} has to be contiguous: x.contiguous()")
        if not value.is_cuda:
            raise ValueError(f"{name} has to be on a GPU, not on {value.device}")
        return _Given(value.data_ptr(), _TORCH.get(str(value.dtype)) or str(value.dtype), tuple(value.shape))
    interface = getattr(value, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise ValueError(f"{name} is a {type(value).__name__}, which does not tell where in a GPU's memory it is")
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    expected, size_bytes = [], int(typestr[2:])
    for size in reversed(shape):
        expected.append(size_bytes)
        size_bytes *= size
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != tuple(reversed(expected)) and 0 not in shape:
        raise ValueError(f"{name} has to be contiguous")
    return _Given(interface["data"][0], _TYPESTR.get(typestr) or str(typestr), shape)


def _stream(like: Any) -> int:
    for library in ("torch", "cupy"):
        module = sys.modules.get(library)
        if module is None:
            continue
        if library == "torch" and isinstance(like, module.Tensor):
            return int(module.cuda.current_stream(like.device).cuda_stream)
        if library == "cupy" and isinstance(like, module.ndarray):
            return int(module.cuda.get_current_stream().ptr)
    return 0
