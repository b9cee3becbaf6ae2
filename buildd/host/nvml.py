"""NVIDIA's management library (NVML), asked through ctypes: which GPUs there are, and which processes compute on one.

Makes no context on a GPU, so that it disturbs no measurement. Calls may block for as long as the driver does: ask from
a thread that nothing waits for (`gpu_watch`). Source of the structures and numbers: nvml.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

LIBRARY = "libnvidia-ml.so.1"
_OK, _NOT_FOUND, _SMALL, _LOST = 0, 6, 7, 15
_ENABLED = 1
_TEXT_BYTES = 96
_MOST_PROCESSES = 1 << 16


class NvmlError(Exception):
    """NVML is missing, or a call of it failed."""


class GpuLost(NvmlError):
    """The GPU fell off the bus, or there is none of that UUID."""


class GpuDivided(NvmlError):
    """The GPU is divided (MIG): no program can use it as a whole."""


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The library, initialised. Close it: an open one keeps the driver loaded.

    Raises: NvmlError if there is no driver, or it does not work.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"{library} cannot be loaded: {error}") from error
        self._call("nvmlInit_v2")

    def close(self) -> None:
        self._call("nvmlShutdown")

    def uuids(self) -> tuple[str, ...]:
        """UUIDs of what a program can be given: GPUs, or the parts of a divided one (MIG). Raises NvmlError."""
        found: list[str] = []
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            parts = tuple(self._parts(device)) if self._is_divided(device) else (device,)
            found += map(self._uuid, parts)
        return tuple(found)

    def pids(self, uuid: str) -> tuple[int, ...]:
        """The processes that compute on a GPU, or on a part of one, as the driver numbers them.

        Raises: GpuLost, GpuDivided, NvmlError.
        """
        device = ctypes.c_void_p()
        with _of(uuid):
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))
            if not uuid.startswith("MIG-") and self._is_divided(device):
                parts = ", ".join(map(self._uuid, self._parts(device))) or "none has been made yet"
                raise GpuDivided(f"{uuid} is divided (MIG); lease one of its parts: {parts}")
            room = 32
            while room <= _MOST_PROCESSES:
                count, rows = ctypes.c_uint(room), (_Process * room)()
                status = self._status(
                    "nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), ctypes.byref(rows)
                )
                if status == _OK:
                    return tuple(sorted(row.pid for row in rows[: count.value]))
                if status != _SMALL:
                    self._check("nvmlDeviceGetComputeRunningProcesses_v3", status)
                room = max(2 * room, count.value)
        raise NvmlError(f"{uuid}: more than {_MOST_PROCESSES} processes")

    def _is_divided(self, device: ctypes.c_void_p) -> bool:
        now, later = ctypes.c_uint(), ctypes.c_uint()
        # GPUs that cannot be divided answer with an error.
        status = self._status("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(later))
        return status == _OK and now.value == _ENABLED

    def _parts(self, device: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(count))
        for index in range(count.value):
            part = ctypes.c_void_p()
            place = ctypes.c_uint(index)
            status = self._status("nvmlDeviceGetMigDeviceHandleByIndex", device, place, ctypes.byref(part))
            if status == _OK:
                yield part
            elif status != _NOT_FOUND:  # places may be empty
                self._check("nvmlDeviceGetMigDeviceHandleByIndex", status)

    def _uuid(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlDeviceGetUUID", device, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode("ascii", "replace")

    def _status(self, name: str, *arguments: object) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError as error:
            raise NvmlError(f"this driver's NVML has no {name}") from error

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, self._status(name, *arguments))

    def _check(self, name: str, status: int) -> None:
        if status in (_LOST, _NOT_FOUND):
            raise GpuLost(f"{name}: the GPU is lost, or there is none of that UUID (NVML error {status})")
        if status:
            raise NvmlError(f"{name}: NVML error {status}")


@contextmanager
def _of(uuid: str) -> Iterator[None]:
    """Name the GPU in errors."""
    try:
        yield
    except GpuLost as error:
        raise GpuLost(f"{uuid}: {error}") from error
