"""How much of their time GPUs measured, and how much of it they could have.

Knows a clock and counts, no GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class GpuUse:
    """The GPUs of one call.

    Args:
        count: so many.
        clock_s: as time.monotonic.
    """

    def __init__(self, count: int, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock_s = count, clock_s
        self._ready = self._in_use = 0
        """Candidates that are ready and not measured yet, and GPUs that measure one."""
        self._unused_s = self._noted_s = self._first_s = self._last_s = 0.0
        self.busy_s = 0.0

    def note(self, *, ready: int = 0, in_use: int = 0) -> None:
        """Something got ready or was measured, or a GPU is used or free."""
        now_s = self._clock_s()
        self._first_s = self._first_s or now_s
        self._unused_s += (now_s - self._noted_s) * max(0, min(self._ready, self._count) - self._in_use)
        self._noted_s = now_s
        self._ready += ready
        self._in_use += in_use

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One candidate on one GPU."""
        begun_s = self._clock_s()
        self.note(in_use=1)
        try:
            yield
        finally:
            self.note(in_use=-1)
            self._last_s = self._clock_s()
            self.busy_s += self._last_s - begun_s

    @property
    def idle(self) -> float:
        """Share of the GPUs' time, from the first candidate that was ready to the last that was measured."""
        return max(0.0, 1 - self.busy_s / self._span_s) if self._span_s else 0.0

    @property
    def unused(self) -> float:
        """Share of the same time in which a candidate was ready and a GPU did not measure one."""
        return min(1.0, self._unused_s / self._span_s) if self._span_s else 0.0

    @property
    def _span_s(self) -> float:
        return max(0.0, self._last_s - self._first_s) * self._count
