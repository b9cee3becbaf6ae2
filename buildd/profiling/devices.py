"""GPU descriptions: which GPUs a request may use, and which GPUs the last query found.

Asks no driver and imports next to nothing: a build uses it before it knows whether there is anything to measure.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from protocol.described import described

_MEMORY = "profiles/gpus.json"
_FAR_MEMORY = "profiles/cluster-gpus.json"
_FAR_AGE_S = 3600.0
"""Nothing here shows that a cluster has other GPUs; it is asked again after so long."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    index: int
    uuid: str
    name: str
    driver: str
    capability: str
    """"9.0"; of AMD's "gfx90a"."""
    node: str = ""
    """Id of the node of a cluster that has it; empty: this machine has it."""
    host: str = ""
    """That node's name."""

    @property
    def shown_as(self) -> str:
        """Value for `*_VISIBLE_DEVICES` that shows a process this GPU only: CUDA takes a UUID, HIP an index."""
        return str(self.index) if self.capability.startswith("gfx") else self.uuid

    @property
    def where(self) -> str:
        """Its index; before that the name of its node."""
        return f"{self.host}/{self.index}" if self.node else str(self.index)


def driver_program(environ: Mapping[str, str]) -> str:
    """Path of nvidia-smi; empty if it is not installed, so there is no GPU."""
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", "nvidia-smi")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def visible(gpus: Sequence[Gpu], devices: Sequence[str] | None) -> tuple[Gpu, ...]:
    """The GPUs that a request may use, in its order; a device that does not exist ends the list (CUDA's rule).

    Args:
        devices: indices, or UUIDs, which may be shortened; None means all.
    """
    if devices is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for device in devices:
        if device.isdecimal():
            matching = [gpu for gpu in gpus if gpu.index == int(device)]
        else:
            matching = [gpu for gpu in gpus if gpu.uuid.startswith(device)]
        if len(matching) != 1 or matching[0] in found:
            break
        found += matching
    return tuple(found)


class _Seen(msgspec.Struct, frozen=True):
    machine: str
    gpus: tuple[Gpu, ...]


def remember(store: str, environ: Mapping[str, str], gpus: Sequence[Gpu], *, cluster: str = "") -> None:
    """Store the GPUs that `find_gpus` found, for `recall`; does nothing if the file cannot be written.

    Args:
        cluster: address of the cluster that has them; empty: this machine has them.
    """
    place = os.path.join(store, _FAR_MEMORY if cluster else _MEMORY)
    aside = f"{place}-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(msgspec.json.encode(_Seen(cluster or _machine(environ), tuple(gpus))))
        os.replace(aside, place)


def recall(store: str, environ: Mapping[str, str], *, cluster: str = "") -> tuple[Gpu, ...] | None:
    """The GPUs that `remember` stored; None if the machine, driver or cluster may have changed."""
    try:
        with open(os.path.join(store, _FAR_MEMORY if cluster else _MEMORY), "rb") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            seen = msgspec.json.decode(file.read(), type=described(_Seen))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if cluster and not 0 <= age_s < _FAR_AGE_S:
        return None
    return seen.gpus if seen.machine == (cluster or _machine(environ)) else None


def _machine(environ: Mapping[str, str]) -> str:
    """A description that changes with a reboot, with the driver, and with the GPUs that a container gets."""
    program = driver_program(environ)
    words: list[object] = [program]
    with contextlib.suppress(OSError):
        status = os.stat(program)
        words += [status.st_ino, status.st_size, status.st_mtime_ns]
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            words.append(file.read().strip())
        words += sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    return " ".join(map(str, words))
