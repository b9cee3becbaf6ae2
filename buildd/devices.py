"""GPUs as they were seen: which of them a request may use, and which there were when they were asked for last.

Knows no driver and imports next to nothing: builds ask it before they know whether there is anything to measure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import msgspec

from protocol.described import described

_MEMORY = "profiles/gpus.json"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    index: int
    uuid: str
    name: str
    driver: str
    capability: str
    """"9.0"; of AMD's "gfx90a"."""

    @property
    def shown_as(self) -> str:
        """What shows a process this one alone: HIP counts where CUDA takes a UUID too."""
        return str(self.index) if self.capability.startswith("gfx") else self.uuid


def driver_program(environ: Mapping[str, str]) -> str:
    """Path of nvidia-smi; empty where there is none, so no GPU."""
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", "nvidia-smi")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def visible(gpus: Sequence[Gpu], devices: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Those that a request may use, in its order; one that is not there hides itself and all that follow (CUDA's rule).

    Args:
        devices: numbers or UUIDs, which may be cut short; None means all.
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


def remember(store: str, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
    """Note what `find_gpus` has found, for `recall`. Nobody may rely on it: where it cannot be written, it is not."""
    place = os.path.join(store, _MEMORY)
    aside = f"{place}-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(msgspec.json.encode(_Seen(_machine(environ), tuple(gpus))))
        os.replace(aside, place)


def recall(store: str, environ: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """The GPUs that were found here last, without asking; None where this may be another machine or driver."""
    try:
        with open(os.path.join(store, _MEMORY), "rb") as file:
            seen = msgspec.json.decode(file.read(), type=described(_Seen))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return seen.gpus if seen.machine == _machine(environ) else None


def _machine(environ: Mapping[str, str]) -> str:
    """What is another one after a restart, with another driver, or in a container that is given other GPUs."""
    program = driver_program(environ)
    words: list[object] = [program]
    with contextlib.suppress(OSError):
        status = os.stat(program)
        words += [status.st_ino, status.st_size, status.st_mtime_ns]
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            words.append(file.read().strip())
        words += sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    return " ".join(map(str, words))
