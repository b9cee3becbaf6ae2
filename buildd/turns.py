"""Work that several threads are about to do alike is done by one; the others find it done.

A build begins with jobs that want the same headers, all at once. Threads that read them side by side share one
interpreter lock and hand it over with each file: that takes twice as long as one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0
"""A file may be on a server that does not answer."""


class Turns:
    """Like a lock, but nobody waits for longer than `PATIENCE_S`: then they go on beside each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        alone = self._lock.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            if alone:
                self._lock.release()
