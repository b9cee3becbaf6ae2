"""What is learned from jobs while they run, gathered and written a few dozen at a time.

Knows what may be lost: with a killed process go the last lines of a history and of explanations, never a result.
"""

from __future__ import annotations

import threading

from buildd import history
from buildd.errors import StoreError
from buildd.store import Store
from protocol.messages import Digest

MOST = 64


class Notebook:
    """For one store. Every method may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: list[history.Measured] = []
        self._components: dict[Digest, bytes] = {}

    def measured(self, job: history.Measured) -> None:
        with self._lock:
            self._jobs.append(job)
            full = len(self._jobs) >= MOST
        if full:
            self.write()

    def ran_with(self, name_key: Digest, components: bytes) -> None:
        """The components that an action's last result was filed under, for explanations."""
        with self._lock:
            self._components[name_key] = components

    def components_of(self, name_key: Digest) -> bytes | None:
        """What is gathered under a name and not yet written down."""
        with self._lock:
            return self._components.get(name_key)

    def write(self) -> None:
        """Write down what was gathered; a store that takes no more learns nothing."""
        with self._lock:
            jobs, self._jobs = self._jobs, []
            components, self._components = self._components, {}
        history.record_all(self._store, jobs)
        try:
            self._store.remember_actions(list(components.items()))
        except StoreError:
            pass  # an explanation will be poorer
