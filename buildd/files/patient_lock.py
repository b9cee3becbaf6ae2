"""A lock for work that several threads would otherwise all do: one thread does it, and the others find it done.

A build begins with jobs that want the same headers, all at once. Threads that read them side by side share one
interpreter lock and hand it over with each file, which takes twice as long as one thread after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0
"""A file may be on a server that does not answer."""


class PatientLock:
    """A lock that a thread waits for no longer than `PATIENCE_S`: then it goes on without the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        alone = self._lock.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            if alone:
                self._lock.release()
