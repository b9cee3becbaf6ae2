"""Calls generated kernels (kinds `rowwise`, `elementwise`, `conv2d`) and models (kind `model`) from Python, on arrays
of torch, CuPy and any library with CUDA's array interface or DLPack; and functions of kind `jax`, on JAX's.

    from buildd.loader import load, load_model
    softmax = load("build/softmax/libsoftmax.so")
    y = softmax(x)                  # on the current stream
    mlp = load_model("build/mlp/libmlp.so", {"w1": w1, "w2": w2})
    y = mlp(x)
    step = load_jax("build/step/step.jax")
    parameters, loss = step(parameters, batch)

The library describes its own arguments; types and shapes are checked before anything runs. Standard library only:
programs that use nothing else of buildd import it. Does not know whether arrays share memory with the result.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buildd.runtime.arrays import GpuArray, gpu_array, new_array, stream_of
from buildd.runtime.loaded_model import KernelError, Model

if TYPE_CHECKING:
    from buildd.runtime.jax_program import JaxProgram

__all__ = ["Kernel", "KernelError", "Model", "load", "load_jax", "load_model"]

INTERFACE = 1


@dataclass(frozen=True, slots=True)
class Array:
    """An input or the output of a kernel."""

    name: str
    dtype: str
    axes: tuple[int, ...]
    """For each dimension the number of one of the kernel's sizes; -1 stands for size 1."""


class Kernel:
    """A generated kernel; see `load`."""

    def __init__(self, library: ctypes.CDLL, symbol: str, described: dict[str, Any]) -> None:
        self.name = symbol
        self.shape: tuple[int, ...] = tuple(described["shape"])
        """Sizes; 0: known only at run time."""
        self.inputs = tuple(_array(one) for one in described["inputs"])
        self.output = _array(described["output"])
        self._derived: tuple[tuple[int, int, int, int], ...] = tuple(map(tuple, described.get("derived", ())))
        self._run = library[f"{symbol}_run"]
        pointers, sizes = len(self.inputs) + 1, len(self.shape)
        self._run.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_longlong] * sizes + [ctypes.c_void_p]
        self._run.restype = ctypes.c_int

    def __call__(self, *arrays: Any, out: Any = None, stream: int | None = None) -> Any:
        """Run the kernel; returns `out`.

        Args:
            arrays: the inputs in order, contiguous, on the current device.
            out: the array to write to; by default a new one, if the first input is from torch or CuPy.
            stream: by default the current stream of the first array's library (torch or CuPy), or else 0, the default
                stream.

        Raises:
            ValueError: wrong number, type, shape or layout of arrays.
            KernelError: the kernel could not be started.
        """
        if len(arrays) != len(self.inputs):
            wanted = ", ".join(array.name for array in self.inputs)
            raise ValueError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), and was given {len(arrays)}")
        sizes: dict[int, int] = {}
        pointers = [self._checked(one, value, sizes).pointer for one, value in zip(self.inputs, arrays, strict=True)]
        # A size that no input has is fixed, derived from the inputs' sizes, or taken from `out`.
        fixed = {number: size for number, size in enumerate(self.shape) if size}
        for number, other, add, divide in self._derived:
            sizes[number] = max(0, ({**fixed, **sizes}[other] + add) // divide + 1)
        if out is None:
            out = self._new(arrays[0], {**fixed, **sizes})
        pointers.append(self._checked(self.output, out, sizes).pointer)
        numbers = {**fixed, **sizes}
        status = self._run(
            *pointers,
            *(numbers[number] for number in range(len(self.shape))),
            stream_of(arrays[0]) if stream is None else stream,
        )
        if status:
            raise KernelError(f"{self.name} could not be run: status {status}", status)
        return out

    def _checked(self, array: Array, value: Any, sizes: dict[int, int]) -> GpuArray:
        """Check the array that was passed for `array`, and enter its dimensions into `sizes`."""
        found = gpu_array(array.name, value)
        what = f"{self.name}: {array.name}"
        if found.dtype != array.dtype:
            raise ValueError(f"{what} has to be {array.dtype}, not {found.dtype}")
        if len(found.shape) != len(array.axes):
            raise ValueError(f"{what} has to have {len(array.axes)} dimensions, not {len(found.shape)}")
        for number, (axis, size) in enumerate(zip(array.axes, found.shape, strict=True)):
            wanted = 1 if axis < 0 else self.shape[axis] or sizes.setdefault(axis, size)
            if size != wanted:
                raise ValueError(f"{what} has to have size {wanted} in dimension {number}, not {size}")
        return found

    def _new(self, like: Any, sizes: dict[int, int]) -> Any:
        shape = tuple(1 if axis < 0 else sizes[axis] for axis in self.output.axes)
        made = new_array(like, shape, self.output.dtype)
        if made is None:
            raise ValueError(f"{self.name}: name the array to write to, out=...")
        return made


def load(path: str | os.PathLike[str], name: str = "") -> Kernel:
    """Load a generated kernel from a shared library.

    Args:
        name: of the target; by default taken from the file's name.

    Raises:
        OSError: the library cannot be loaded.
        ValueError: the library has no such kernel, or one with another interface.
    """
    library, symbol, described = _opened(path, name)
    if "kind" in described:
        raise ValueError(f"{os.fspath(path)} is a {described['kind']}: use load_model(path, constants)")
    return Kernel(library, symbol, described)


def load_model(path: str | os.PathLike[str], constants: Mapping[str, Any] | None = None, *, name: str = "") -> Model:
    """Load a generated model from a shared library, for the current device.

    Args:
        constants: by name; missing ones have to be set before the first run.
        name: of the target; by default taken from the file's name.

    Raises:
        OSError: the library cannot be loaded.
        ValueError: the library has no such model, or one with another interface; or a constant does not fit.
        KernelError: the model cannot be created on this device.
    """
    library, symbol, described = _opened(path, name)
    if described.get("kind") != "model":
        raise ValueError(f"{os.fspath(path)} is not a model: use load(path)")
    return Model(library, symbol, described, constants or {})


def load_jax(
    path: str | os.PathLike[str], *, device: Any = None, devices: Sequence[Any] | None = None, untuned: bool = False
) -> JaxProgram:
    """Load a function that kind `jax` compiled: native code, so load only packages that you trust.

    Args:
        device: one of jax.devices(); by default the first one of the package's platform.
        devices: those of the mesh, if the package was compiled for one; by default the first ones.
        untuned: load it although XLA had no timings of such a GPU: it may run several times slower.

    Raises:
        OSError: the file cannot be read.
        buildd.runtime.jax_program.PackageError: the package is damaged, untuned, or for another jaxlib, GPU,
            processor or number of devices.
    """
    from buildd.runtime import jax_program

    return jax_program.load(path, device=device, devices=devices, untuned=untuned)


def _opened(path: str | os.PathLike[str], name: str) -> tuple[ctypes.CDLL, str, dict[str, Any]]:
    """The library, the prefix of its functions' names, and its description of itself."""
    path = os.fspath(path)
    symbol = re.sub(r"\W", "_", name or re.sub(r"^lib|\.so$", "", os.path.basename(path)))
    library = ctypes.CDLL(os.path.abspath(path))
    try:
        describe = library[f"{symbol}_describe"]
    except AttributeError as error:
        raise ValueError(
            f"{path} has no kernel {symbol} of kind rowwise, elementwise or conv2d, and no model; name its target:"
            " load(path, name)"
        ) from error
    describe.restype = ctypes.c_char_p
    described = json.loads(describe())
    if described["interface"] != INTERFACE:
        raise ValueError(
            f"{path} was built by another version of buildd (interface {described['interface']}): build it again"
        )
    return library, symbol, described


def _array(said: dict[str, Any]) -> Array:
    return Array(said["name"], said["dtype"], tuple(said["axes"]))
