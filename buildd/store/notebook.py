"""A notebook of what finished jobs teach: gathered in memory, and written to the store a few dozen at a time.

A killed process loses the last lines of the history and of explanations, never a result.
"""

from __future__ import annotations

import threading

from buildd.errors import StoreError
from buildd.store import job_history
from buildd.store.store import Store
from protocol.messages import Digest

MOST = 64


class Notebook:
    """The notebook of one store. Every method may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._jobs: list[job_history.FinishedJob] = []
        self._components: dict[Digest, bytes] = {}

    def add_job(self, job: job_history.FinishedJob) -> None:
        """Note the time and memory of a job, for estimates."""
        with self._lock:
            self._jobs.append(job)
            full = len(self._jobs) >= MOST
        if full:
            self.write()

    def note_components(self, name_key: Digest, components: bytes) -> None:
        """Note the components of an action's last result, for explanations."""
        with self._lock:
            self._components[name_key] = components

    def components_of(self, name_key: Digest) -> bytes | None:
        """The components noted under a name and not yet written; None where there are none."""
        with self._lock:
            return self._components.get(name_key)

    def write(self) -> None:
        """Write everything to the store; a store that is full or read-only loses it. What another thread writes at the
        same time is in the store as well, at the end."""
        with self._writing:
            with self._lock:
                jobs, self._jobs = self._jobs, []
                components, self._components = self._components, {}
            job_history.record_all(self._store, jobs)
            try:
                self._store.remember_actions(list(components.items()))
            except StoreError:
                pass  # an explanation will be poorer
