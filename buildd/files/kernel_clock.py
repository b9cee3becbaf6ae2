"""The clock by which the kernel stamps files, and how far a file system's stamps may lie behind it.

The kernel stamps files with the time of its last tick. Asked by that clock, and not by the finer one, a write after
`now_ns` never has an older stamp, also where a virtual machine's ticks come late. Knows no file.
"""

from __future__ import annotations

import os
import threading
import time

from buildd.files.devices import are_stamped_by_tick

STEP_NS = 20_000_000
"""For file systems that take their times from elsewhere, as from another machine or process, or round them."""
_COARSE = 5
"""CLOCK_REALTIME_COARSE of Linux, for which Python has no name; see clock_gettime(2)."""
_TICK_NS = min(STEP_NS, round(time.clock_getres(_COARSE) * 1e9))


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


_moments = _Moments()


def now_ns() -> int:
    """The time that a file would be stamped with now, in nanoseconds, and a little more: each call tells another."""
    return _moments.next_ns()


def step_ns(device: int) -> int:
    """How much older than `now_ns` the stamp of a write may be that comes later, on a device (`st_dev`)."""
    return _TICK_NS if are_stamped_by_tick(device) else STEP_NS


def step_below(folder: str) -> int:
    """`step_ns` of a folder's device; the longer one where the folder cannot be looked at."""
    try:
        return step_ns(os.stat(folder).st_dev)
    except OSError:
        return STEP_NS
