"""Decides whether the tier is asked at all: not for a while after it failed several times in a row.

Pure: the caller gives the time. Each look after a pause that fails doubles the next pause.
"""

from __future__ import annotations

FAILURES = 3
"""So many failures in a row open the breaker."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


class Breaker:
    """A breaker. Not safe from several threads."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._until_s: float | None = None
        """Open until then; None while it is closed."""
        self._looking = False
        """A caller was let through to see whether the tier is well again."""

    def allows(self, now_s: float) -> bool:
        """Whether the tier may be asked now. After a pause one caller may, and the others wait for its answer."""
        if self._until_s is None:
            return True
        if now_s < self._until_s:
            return False
        self._until_s = now_s + self._pause_s
        self._looking = True
        return True

    def succeeded(self) -> None:
        """Note an answer, also that something is not there."""
        self._failures, self._pause_s, self._until_s, self._looking = 0, FIRST_PAUSE_S, None, False

    def failed(self, now_s: float, *, at_once: bool = False) -> None:
        """Note a failure.

        Args:
            at_once: open it now, because asking again cannot help: the tier refused access.
        """
        self._failures += 1
        if self._until_s is not None:
            if self._looking:  # what was under way when the breaker opened does not count
                self._looking = False
                self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
                self._until_s = now_s + self._pause_s
        elif at_once or self._failures >= FAILURES:
            self._until_s = now_s + self._pause_s

    def open_for_s(self, now_s: float) -> float:
        """How long it stays open; 0 where it is closed."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - now_s)

    @property
    def is_open(self) -> bool:
        return self._until_s is not None
