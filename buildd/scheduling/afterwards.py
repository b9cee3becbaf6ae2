"""Work that no build waits for and that only later builds profit from: it is done when no request is open.

Knows neither requests nor what the work is. On a machine whose processors all compile, such work would take its time
from the compilers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

MOST = 256
"""So much work is put off; some 20 KB of memory each. With more of it, the oldest is done at once."""
_log = logging.getLogger(__name__)


class Afterwards:
    """Work that waits, in the order in which it came. Everything runs on the event loop.

    Args:
        in_pool: runs a function in a worker thread.
        is_busy: whether a request is open.
    """

    def __init__(self, in_pool: Callable[..., Awaitable[Any]], is_busy: Callable[[], bool]) -> None:
        self._in_pool = in_pool
        self._is_busy = is_busy
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_going_on = False

    def add(self, work: Callable[[], None]) -> None:
        """Put work off until `go_on` finds time for it."""
        self._waiting.append(work)

    async def go_on(self) -> None:
        """Do the work that waits, one piece after another, while no request is open or too much of it waits."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._waiting and (len(self._waiting) > MOST or not self._is_busy()):
                try:
                    await self._in_pool(self._waiting.popleft())
                except Exception:  # the edge: it would only have saved time
                    _log.exception("what a later build would profit from was not kept")
        finally:
            self._is_going_on = False
