"""The entries of one store that are still to be written to a tier: a folder with an empty file for each.

As `upload_queue`, it outlives the process, and belongs to one URL. An entry has one record for each writer, which says
all of it, so nothing is looked at once more. Knows no record.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from buildd.store.shared_kernels import is_place
from buildd.tier.upload_queue import MOST_WAITING

FOLDER = "entries"


class EntryQueue:
    """The queue. Every method may be called from any thread and any process.

    Args:
        folder: the folder of the queue of results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._lock = threading.Lock()
        self._waiting = dict.fromkeys(self._noted())

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, place: str) -> bool:
        """Add an entry by its place in the store; False where there are too many already, or it cannot be noted."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                return False
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file(place).touch(mode=0o600)
            except OSError:
                return False
            self._waiting[place] = None
        return True

    def drop(self, place: str) -> None:
        """Take an entry out."""
        with self._lock:
            self._waiting.pop(place, None)
            with suppress(OSError):
                self._file(place).unlink(missing_ok=True)

    def waiting(self) -> list[str]:
        """The places of all entries in the queue, also of those that another process has added."""
        with self._lock:
            self._waiting |= dict.fromkeys(self._noted())
            return list(self._waiting)

    def _noted(self) -> list[str]:
        found = []
        with suppress(OSError):
            for file in self._folder.iterdir():
                if is_place(place := file.name.replace("-", "/", 1)):
                    found.append(place)
        return found

    def _file(self, place: str) -> Path:
        return self._folder / place.replace("/", "-", 1)
