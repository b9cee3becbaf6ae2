"""The memory that the host really has left, for this process and its children.

psutil knows the host's memory; this module knows cgroups, version 2 and 1, also both mounted side by side, and the
pressure that the kernel reports. Knows neither jobs nor other daemons (`claims`). Swap does not count: a compiler that
swaps is slower than one that waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

PROC = "/proc"
CGROUP = "/sys/fs/cgroup"

_UNLIMITED_V1 = 1 << 60
"""Version 1 says LONG_MAX, rounded down to a page, where there is no limit."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A look at the host.

    Args:
        total_bytes: the smallest of the host's memory and the limits of the cgroups above this process.
        available_bytes: memory that can still be used without swapping or being killed.
        pressure: share of the last 10 s in which some task waited for memory, in percent (PSI "some avg10").
        limited_by: the source of `available_bytes`: "the host's memory", or the cgroup's file that sets the limit.
    """

    total_bytes: int
    available_bytes: int
    pressure: float = 0.0
    limited_by: str = "the host's memory"


def read(proc: str = PROC, cgroup: str = CGROUP, membership: str = "") -> HostMemory:
    """The memory now, within the limits of this cgroup and all above it. Takes 0.1 to 0.3 ms.

    Args:
        proc, cgroup: where the files of this process's cgroup and of pressure are.
        membership: /proc/PID/cgroup of another process, whose cgroups count instead.
    """
    import psutil  # when a job is admitted: it takes 20 ms, and builds that only find results need none

    host = psutil.virtual_memory()
    total, available = host.total, host.available
    limited_by = "the host's memory"
    pressure = _pressure(f"{proc}/pressure/memory")
    version_2, version_1 = folders_of(membership or text_of(f"{proc}/self/cgroup"), cgroup)
    for limit, left, name in (*_limits_v2(version_2), *_limits_v1(version_1)):
        total = min(total, limit)
        if left < available:
            available, limited_by = left, name
    if version_2:
        pressure = max(pressure, _pressure(f"{version_2[0]}/memory.pressure"))
    return HostMemory(total, max(0, min(available, total)), pressure, limited_by)


class OomCounter:
    """Counts the processes of this cgroup that the kernel has killed for memory. Finds the file once.

    Args:
        membership: as for `read`.
    """

    def __init__(self, proc: str = PROC, cgroup: str = CGROUP, membership: str = "") -> None:
        version_2, version_1 = folders_of(membership or text_of(f"{proc}/self/cgroup"), cgroup)
        candidates = [f"{folder}/memory.events" for folder in version_2[:1]]
        candidates += [f"{folder}/memory.oom_control" for folder in version_1[:1]]
        self._path = next((path for path in candidates if os.path.exists(path)), "")

    def read(self) -> int:
        """The count so far; 0 where the kernel has none."""
        return _fields(self._path).get("oom_kill", 0) if self._path else 0


def _limits_v2(folders: list[str]) -> Iterator[tuple[int, int, str]]:
    """(limit, bytes left under it, the file that sets it) of every cgroup that limits this process."""
    for folder in folders:
        for file in ("memory.max", "memory.high"):
            if (limit := _number(f"{folder}/{file}")) is not None:
                # The kernel drops file pages on the inactive list before it kills or throttles a process.
                reclaimable = _fields(f"{folder}/memory.stat").get("inactive_file", 0)
                used = (_number(f"{folder}/memory.current") or 0) - reclaimable
                yield limit, limit - max(0, used), f"{folder}/{file}"


def _limits_v1(folders: list[str]) -> Iterator[tuple[int, int, str]]:
    for folder in folders:
        limit = _number(f"{folder}/memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED_V1:
            reclaimable = _fields(f"{folder}/memory.stat").get("total_inactive_file", 0)
            used = (_number(f"{folder}/memory.usage_in_bytes") or 0) - reclaimable
            yield limit, limit - max(0, used), f"{folder}/memory.limit_in_bytes"


def limiting(version_2: list[str], version_1: list[str]) -> list[str]:
    """The folders among these that limit memory."""
    found = (*_limits_v2(version_2), *_limits_v1(version_1))
    return list(dict.fromkeys(os.path.dirname(file) for _, _, file in found))


def folders_of(membership: str, cgroup: str, controller: str = "memory") -> tuple[list[str], list[str]]:
    """A cgroup's folder and each above it, in version 2 and in version 1's hierarchy of a controller.

    Args:
        membership: a /proc/PID/cgroup.
        cgroup: where the hierarchies are mounted.
    """
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for name in controllers.split(","):
            paths[name] = path
    unified = f"{cgroup}/unified"
    version_2 = _upwards(unified if os.path.isdir(unified) else cgroup, paths[""]) if "" in paths else []
    version_1 = _upwards(f"{cgroup}/{controller}", paths[controller]) if controller in paths else []
    return version_2, version_1


def _upwards(root: str, path: str) -> list[str]:
    """A cgroup's folder, then each above it up to the mount.

    In a container without a cgroup namespace the path is the host's, while the mount shows only the container's part of
    the tree: missing folders are skipped, and the mount's root is the container's cgroup. ".." means that the process
    was moved out of its namespace.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    folders = ["/".join((root, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if os.path.isdir(folder)]


def _fields(path: str) -> dict[str, int]:
    """A file of lines "name number"; empty when it cannot be read."""
    found = {}
    for line in text_of(path).splitlines():
        words = line.split(None, 2)
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found


def _number(path: str) -> int | None:
    """A file of one number; None for "max" and when it cannot be read."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None


def _pressure(path: str) -> float:
    """The "some avg10" of a PSI file, in percent; 0 where there is none."""
    _, _, rest = text_of(path).partition("some avg10=")
    try:
        return float((rest.split(None, 1) or ["0"])[0])
    except ValueError:
        return 0.0


def text_of(path: str) -> str:
    """The beginning of a small file of the kernel's; empty when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no such controller, no permission
        return ""
    try:
        return os.read(descriptor, 65536).decode("ascii", "replace")
    except OSError:  # PSI switched off
        return ""
    finally:
        os.close(descriptor)
