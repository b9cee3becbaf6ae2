"""A generated model (kind `model`) in a shared library, called from Python; `buildd.loader.load_model` makes it.

Finds the arrays' addresses and makes outputs and workspace; the library itself checks types and shapes. Standard
library only, like `buildd.loader`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buildd.runtime.arrays import GpuArray, gpu_array, new_array, stream_of

_ALIGNMENT_BYTES = 256
_CALLERS_FAULT = range(-104, -100)
"""Statuses for missing arrays, wrong types and wrong shapes."""


class KernelError(RuntimeError):
    """A kernel or model could not be run.

    Args:
        status: its return value: a cudaError_t or hipError_t; below 0: the kernel refused its arguments; -4: the sizes
            are not those of the project file.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ModelArray:
    """An input, output or constant of a model."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """Sizes; a name is a key of the model's `sizes`."""


class _Array(ctypes.Structure):
    """NAME_array of the library's header."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("dimensions", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_longlong)),
        ("data", ctypes.c_void_p),
    )


class Model:
    """A generated model; see `buildd.loader.load_model`. Runs on one stream follow one another."""

    def __init__(
        self, library: ctypes.CDLL, symbol: str, described: dict[str, Any], constants: Mapping[str, Any]
    ) -> None:
        self.name = symbol
        self.sizes: dict[str, tuple[int, int]] = {name: (ends[0], ends[1]) for name, ends in described["sizes"].items()}
        """The sizes that are known only at run time -> smallest and largest value."""
        self.constants, self.inputs, self.outputs = (
            tuple(ModelArray(one["name"], one["dtype"], tuple(one["shape"])) for one in described[what])
            for what in ("constants", "inputs", "outputs")
        )
        self._message = library[f"{symbol}_message"]
        self._message.restype = ctypes.c_char_p
        self._set = library[f"{symbol}_set_constant"]
        self._run = library[f"{symbol}_run"]
        self._bytes = library[f"{symbol}_workspace_bytes"]
        self._bytes.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._held: dict[str, Any] = {}
        """The arrays of constants; the library reads them at each run."""
        self._workspaces: dict[int, Any] = {}
        """Stream -> workspace of its runs."""
        self._lock = threading.Lock()
        self._checked(library[f"{symbol}_create"](None, 0, ctypes.byref(self._handle)))
        destroy = library[f"{symbol}_destroy"]
        weakref.finalize(self, destroy, ctypes.c_void_p(self._handle.value))
        for name, value in constants.items():
            self.set_constant(name, value)

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the largest run needs, besides inputs, outputs and constants."""
        return int(self._bytes(self._handle))

    def set_constant(self, name: str, value: Any) -> None:
        """Set a constant for all following runs. The model keeps the array, and each run reads it.

        Raises:
            ValueError: the constant does not exist, or has another type or shape.
        """
        array, _ = _as_array(name, gpu_array(name, value))
        self._checked(self._set(self._handle, ctypes.byref(array)))
        self._held[name] = value

    def __call__(self, *arrays: Any, out: Any = None, stream: int | None = None, workspace: Any = None) -> Any:
        """Run the model; returns the output, or a tuple of outputs.

        Args:
            arrays: the inputs in order, contiguous, on the current device.
            out: the array to write to, or a tuple of arrays; by default new ones of torch or CuPy.
            stream: by default the current stream of the first array's library (torch or CuPy), or else 0, the default
                stream.
            workspace: an array of `workspace_bytes` that no other run uses; by default the model keeps one for each
                stream.

        Raises:
            ValueError: wrong number, type, shape or layout of arrays, or a constant that was never set.
            KernelError: the model could not be started.
        """
        if len(arrays) != len(self.inputs):
            wanted = ", ".join(array.name for array in self.inputs)
            raise ValueError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), and was given {len(arrays)}")
        named = {array.name: gpu_array(array.name, value) for array, value in zip(self.inputs, arrays, strict=True)}
        outputs = self._outputs(named, arrays[0] if arrays else None, out)
        named |= {array.name: gpu_array(array.name, value) for array, value in zip(self.outputs, outputs, strict=True)}
        if stream is None:
            stream = stream_of(arrays[0]) if arrays else 0
        built = [_as_array(name, found) for name, found in named.items()]
        where, size_bytes = self._workspace(arrays[0] if arrays else None, stream, workspace)
        table = (_Array * len(built))(*(array for array, _ in built))
        status = self._run(
            self._handle,
            table,
            ctypes.c_int(len(built)),
            ctypes.c_void_p(where),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )
        self._checked(status)
        return outputs[0] if len(outputs) == 1 and not isinstance(out, tuple) else outputs

    def _outputs(self, inputs: Mapping[str, GpuArray], like: Any, out: Any) -> tuple[Any, ...]:
        if out is not None:
            outputs = out if isinstance(out, tuple) else (out,)
            if len(outputs) != len(self.outputs):
                raise ValueError(f"{self.name} makes {len(self.outputs)} arrays, and `out` has {len(outputs)}")
            return outputs
        sizes: dict[int | str, int] = {}
        for array in self.inputs:
            # The library reports a wrong number of dimensions.
            sizes.update(zip(array.shape, inputs[array.name].shape, strict=False))
        made = []
        for array in self.outputs:
            shape = tuple(size if isinstance(size, int) else sizes.get(size, 1) for size in array.shape)
            one = new_array(like, shape, array.dtype)
            if one is None:
                raise ValueError(f"{self.name}: name the arrays to write to, out=...")
            made.append(one)
        return tuple(made)

    def _workspace(self, like: Any, stream: int, workspace: Any) -> tuple[int | None, int]:
        needed = self.workspace_bytes
        if workspace is None and needed:
            with self._lock:
                workspace = self._workspaces.get(stream)
                if workspace is None or gpu_array("workspace", workspace).size_bytes < needed + _ALIGNMENT_BYTES:
                    workspace = new_array(like, (needed + _ALIGNMENT_BYTES,), "int8")
                    if workspace is None:
                        raise ValueError(f"{self.name}: name {needed} bytes of device memory, workspace=...")
                    self._workspaces[stream] = workspace
        if workspace is None:
            return None, 0
        found = gpu_array("workspace", workspace)
        skipped = -found.pointer % _ALIGNMENT_BYTES
        return found.pointer + skipped, max(0, found.size_bytes - skipped)

    def _checked(self, status: int) -> None:
        if not status:
            return
        said = f"{self.name}: {self._message().decode(errors='replace')}"
        if status in _CALLERS_FAULT:
            raise ValueError(said)
        raise KernelError(said, status)


def _as_array(name: str, found: GpuArray) -> tuple[_Array, Any]:
    """The library's struct for an array, and the object that must be kept as long as it."""
    shape = (ctypes.c_longlong * max(1, len(found.shape)))(*found.shape)
    return _Array(name.encode(), found.dtype.encode(), len(found.shape), shape, found.pointer), shape
