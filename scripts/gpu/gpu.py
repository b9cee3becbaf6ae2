"""Device 0 through the driver's own interface, with the standard library alone.

Knows memory and nothing of kernels: they come in libraries, which share its primary context.
"""

from __future__ import annotations

import ctypes


class Gpu:
    """The first device of this machine."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.driver, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: CUDA driver error {status}")

    def name(self) -> str:
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, 0)
        return text.value.decode()

    def put(self, data: bytes) -> ctypes.c_void_p:
        there = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(max(1, len(data))))
        self.call("cuMemcpyHtoD_v2", there, data, ctypes.c_size_t(len(data)))
        return ctypes.c_void_p(there.value)

    def get(self, there: ctypes.c_void_p, size_bytes: int) -> bytes:
        self.call("cuCtxSynchronize")
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(there.value), ctypes.c_size_t(size_bytes))
        return data.raw
