"""The compiler calls of this process below a `buildd run`: which of them the store answered.

Reads what shims and the daemon note while the run goes on: the daemon names the output of each job and of each hit
before it replies, a shim that answers by itself adds to a file. A call that neither of them noted went to the plain
compiler. Knows no compiler. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading

FOLDER = os.path.join("answers", "failed")
"""Below the store: the files of runs that go on."""
JOBS = ".jobs"
"""Ends the name of the file to which the daemon notes the jobs of a run."""
DIRECT = os.path.join("answers", "notes")
"""Below the store: a file for each run, to which shims add their hits."""


class CompilerCalls:
    """The calls of one run.

    Args:
        store: the store's folder.
        build: the run's id.
    """

    def __init__(self, store: str, build: str) -> None:
        self._jobs = os.path.join(store, FOLDER, build + JOBS)
        self._direct = os.path.join(store, DIRECT, build)
        self._lock = threading.Lock()
        self._read = self._size(self._jobs)
        self._ends: dict[str, bool] = {}
        """Output -> whether its last call was a hit, as far as the daemon's notes have been read."""

    def mark(self) -> int:
        """Call this before a compiler is called, and give the result to `found`."""
        return self._size(self._direct)

    def found(self, output: str, mark: int) -> bool:
        """Whether the call that has just written an output was a hit. Calls in other threads may run meanwhile."""
        with self._lock:
            self._look()
            noted = self._ends.pop(output, None)
        return self._size(self._direct) > mark if noted is None else noted

    def _look(self) -> None:
        content = b""
        with contextlib.suppress(OSError), open(self._jobs, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self._read += whole
        for line in content[:whole].splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                for event in json.loads(line):
                    body = event["body"]
                    if body["type"] in ("finished", "cache_hit"):
                        self._ends[body["action"]] = body["type"] == "cache_hit"

    @staticmethod
    def _size(path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError:
            return 0
