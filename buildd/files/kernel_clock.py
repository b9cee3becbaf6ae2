"""The clock by which the kernel stamps files, and how far a file system's stamps may lie behind it.

The kernel stamps files with the time of its last tick. Asked by that clock, and not by the finer one, a write after
`now_ns` never has an older stamp, also where a virtual machine's ticks come late. Knows no file.
"""

from __future__ import annotations

import os
import threading
import time

STEP_NS = 20_000_000
"""For file systems that take their times from elsewhere, as from another machine or process, or round them."""
_COARSE = 5
"""CLOCK_REALTIME_COARSE of Linux, for which Python has no name; see clock_gettime(2)."""
_BY_TICK = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"))
"""Not overlay: its upper folder may lie on a file system of the host's."""
_TICK_NS = min(STEP_NS, round(time.clock_getres(_COARSE) * 1e9))
_LOOK_AGAIN_S = 5.0
"""A device number may come to another file system once its own is unmounted."""


class _Devices:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_s = -_LOOK_AGAIN_S
        self._by_tick: frozenset[int] = frozenset()

    def are_stamped_by_tick(self, device: int) -> bool:
        if time.monotonic() - self._looked_s >= _LOOK_AGAIN_S:
            with self._lock:
                self._by_tick, self._looked_s = _stamped_by_tick(), time.monotonic()
        return device in self._by_tick


class _Moments:
    """Numbers the moments within one tick, so that of two moments in a process the earlier one is less."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tick_ns = self._count = 0

    def next_ns(self) -> int:
        with self._lock:
            tick_ns = time.clock_gettime_ns(_COARSE)
            self._count = self._count + 1 if tick_ns == self._tick_ns else 0
            self._tick_ns = tick_ns
            return tick_ns + self._count


_devices, _moments = _Devices(), _Moments()


def now_ns() -> int:
    """The time that a file would be stamped with now, in nanoseconds, and a little more: each call tells another."""
    return _moments.next_ns()


def step_ns(device: int) -> int:
    """How much older than `now_ns` the stamp of a write may be that comes later, on a device (`st_dev`)."""
    return _TICK_NS if _devices.are_stamped_by_tick(device) else STEP_NS


def step_below(folder: str) -> int:
    """`step_ns` of a folder's device; the longer one where the folder cannot be looked at."""
    try:
        return step_ns(os.stat(folder).st_dev)
    except OSError:
        return STEP_NS


def _stamped_by_tick() -> frozenset[int]:
    """The devices whose file systems the kernel stamps by itself (proc(5), /proc/PID/mountinfo)."""
    found: set[int] = set()
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
            lines = stream.readlines()
    except OSError:
        return frozenset()
    for line in lines:
        head, _, tail = line.partition(" - ")
        major, _, minor = head.split()[2].partition(":")
        if tail.partition(" ")[0] in _BY_TICK:
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)
