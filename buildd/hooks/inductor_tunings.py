"""Keeps in the store which configuration of a kernel Inductor's tuner found to be the fastest.

Runs in the user's own process and in Inductor's compile workers; standard library only. Inductor writes such a result
beside the kernel in its cache folder, and asks a remote cache where that folder is empty. The keys are Inductor's: the
kernel's text, its configurations, torch and Triton. They do not name the GPU, so the names of this machine's GPUs are
added here. `entries` stores and checks. If anything goes wrong, Inductor times the configurations.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from typing import Any

from . import tier_door
from .entries import Entry, Shelf, is_on, tell

FOLDER = "inductor"
"""The shelf of `inductor_cache`."""
GROUP = "tuning"
LIBRARY = "libnvidia-ml.so.1"
_THEIRS = "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE"
_NAME_BYTES = 96
_log = logging.getLogger("buildd.inductor")


def is_wanted() -> bool:
    """Whether results of this process are kept."""
    # While kernels are recorded, a result from the store would hide the other configurations.
    return not any(name in os.environ for name in (_THEIRS, "BUILDD_RECORD"))


def begin(autotune_cache: Any, remote_cache: Any, store: str) -> None:
    """Keep results from now on.

    Args:
        autotune_cache: the module torch._inductor.runtime.autotune_cache, just imported.
        remote_cache: the module torch._inductor.remote_cache.
        store: the folder of the store.
    """
    kind, theirs = remote_cache.RemoteAutotuneCache, autotune_cache._should_use_remote_autotune_cache
    if kind.backend_override_cls is not None:
        return

    class Tunings(remote_cache.RemoteCacheBackend):  # type: ignore[misc]
        """The results of one store."""

        def _get(self, key: str) -> Any:
            try:
                shelf = _shelf(store) if not is_on("BUILDD_RECACHE") else None
                found = shelf.take(_here(key), GROUP) if shelf is not None else None
                if found is None and shelf is not None and tier_door.fetch(shelf, _here(key), GROUP):
                    found = shelf.take(_here(key), GROUP)
                return found.files[GROUP] if found is not None else None
            except Exception as error:
                # The edge to the user's program: Inductor times.
                tell(_log, "not looked up", error)
                return None

        def _put(self, key: str, data: Any) -> None:
            try:
                shelf = _shelf(store)
                if shelf is not None:
                    shelf.put(Entry(_here(key), GROUP, {GROUP: bytes(data)}))
                    tier_door.offer(shelf, _here(key), GROUP)
            except Exception as error:
                # As above.
                tell(_log, "not kept", error)

    def _should_use_remote_autotune_cache(meta: Any) -> bool:
        """Whether buildd keeps a kernel's result: it does, unless the kernel's code says something about remote or
        local caches."""
        if meta.get("autotune_remote_cache") is not None or not meta.get("autotune_local_cache", True):
            return bool(theirs(meta))
        return not meta.get("is_fbcode") and bool(gpus())

    kind.backend_override_cls = Tunings
    autotune_cache._should_use_remote_autotune_cache = _should_use_remote_autotune_cache


def _shelf(store: str) -> Shelf | None:
    if is_on("BUILDD_DISABLE"):
        return None
    shelf = Shelf(store, FOLDER)
    return shelf if shelf.open() else None


def _here(key: str) -> str:
    return "\n".join((key, *gpus()))


@functools.cache
def gpus(library: str = LIBRARY) -> tuple[str, ...]:
    """The names of this machine's NVIDIA GPUs, each once; none if the driver does not tell.

    Asks NVML, because a compile worker of Inductor must not touch a GPU: it was forked, or has no memory there.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return ()
    count, names = ctypes.c_uint(), set[str]()
    if nvml.nvmlInit_v2():
        return ()
    try:
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        for index in range(count.value):
            device, text = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                return ()
            if nvml.nvmlDeviceGetName(device, text, ctypes.c_uint(_NAME_BYTES)):
                return ()
            names.add(text.value.decode(errors="replace"))
    finally:
        nvml.nvmlShutdown()
    return tuple(sorted(names))
