"""Figures of the tier in one process: what it was asked and how it answered.

Knows no carrier. The store's counters keep the sums over time (`tally.Reasoned.TIER`).
"""

from __future__ import annotations

import threading
from enum import Enum

_WEIGHT = 0.2
"""The part that the newest time has in the mean."""


class TierAnswer(Enum):
    """How a look-up in the tier ended."""

    HIT = "hits"
    ABSENT = "not there"
    REFUSED = "refused entries"
    LATE = "not waited for"
    FAILED = "failures"
    MEASUREMENTS = "measurements"
    """Rows about kernels that were new here."""
    KEPT = "results written"
    UNKEPT = "results not written"


class TierFigures:
    """Counts, the usual time of an answer, and the last problem. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(TierAnswer, 0)
        self._usual_s = 0.0
        self._problem = ""
        self._received_bytes = 0

    def received(self, size_bytes: int) -> None:
        """Note an object that came from the tier."""
        with self._lock:
            self._received_bytes += size_bytes

    @property
    def received_bytes(self) -> int:
        """Size of all objects that came from the tier."""
        return self._received_bytes

    def count(self, answer: TierAnswer, problem: str = "", amount: int = 1) -> None:
        with self._lock:
            self._counts[answer] += amount
            self._problem = problem or self._problem

    def took(self, seconds: float) -> None:
        """Note how long the tier took to answer."""
        with self._lock:
            self._usual_s += (seconds - self._usual_s) * _WEIGHT if self._usual_s else seconds

    @property
    def usual_s(self) -> float:
        """How long an answer takes; 0 before the first one."""
        return self._usual_s

    @property
    def problem(self) -> str:
        """The last problem, in words; empty where there was none."""
        return self._problem

    def counts(self) -> dict[TierAnswer, int]:
        with self._lock:
            return dict(self._counts)
