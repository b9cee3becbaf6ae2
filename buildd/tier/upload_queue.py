"""The results of one store that are still to be written to a tier: a folder with an empty-handed file for each.

A file outlives the process, so an upload goes on after a restart. A queue belongs to one tier: results do not go to
another one because the user's settings have changed. Knows no record.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.messages import Digest

FOLDER = "tier"
MOST_WAITING = 20_000
"""Results beyond these are not written: the tier has been away for too long."""
_ENTRY = re.compile(r"([0-9a-f]{64})(\.sure)?")
_WRITTEN = ".sure"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A result in the queue."""

    key: Digest
    first: Digest
    """A first-level key that leads to it."""
    is_written: bool
    """It was written, and is looked at once more."""
    since_s: float
    """The wall clock's time when it came into this state."""


class UploadQueue:
    """The queue of one store for one tier. Every method may be called from any thread and any process."""

    def __init__(self, store: Path, url: str) -> None:
        self.folder = store / FOLDER / hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:16]
        self._lock = threading.Lock()
        self._numbers: dict[Digest, int] = {}
        """In the order of coming, by key: file systems give one time to files that come soon after one another."""
        self._next = itertools.count(1)
        self._count = len(self.waiting())

    def __len__(self) -> int:
        return self._count

    def add(self, key: Digest, first: Digest) -> bool:
        """Add a result; False where there are too many already, or it cannot be noted."""
        with self._lock:
            if self._count >= MOST_WAITING:
                return False
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(self.folder / key, first)
                self._numbers[key] = next(self._next)
            except OSError:
                return False
            self._count += 1
        return True

    def written(self, one: Waiting) -> None:
        """Note that a result was written, and is to be looked at once more."""
        with suppress(OSError):
            self._write(self.folder / f"{one.key}{_WRITTEN}", one.first)
            (self.folder / one.key).unlink(missing_ok=True)

    def drop(self, one: Waiting) -> None:
        """Take a result out."""
        with self._lock, suppress(OSError):
            (self.folder / (one.key + (_WRITTEN if one.is_written else ""))).unlink()
            self._count = max(0, self._count - 1)
            self._numbers.pop(one.key, None)

    def waiting(self) -> list[Waiting]:
        """All results in the queue, the oldest first."""
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                match = _ENTRY.fullmatch(entry.name)
                if match is None:
                    continue
                with suppress(OSError, UnicodeDecodeError):
                    first = Path(entry.path).read_bytes().decode("ascii").strip()
                    if re.fullmatch("[0-9a-f]{64}", first):
                        since_s = entry.stat().st_mtime
                        found.append(Waiting(Digest(match[1]), Digest(first), match[2] is not None, since_s))
        self._count = len(found)
        return sorted(found, key=lambda one: (one.since_s, self._numbers.get(one.key, 0)))

    def _write(self, place: Path, first: Digest) -> None:
        temporary = place.with_name(f".{place.name}-{os.getpid()}-{threading.get_ident()}")
        temporary.write_text(first, encoding="ascii")
        os.replace(temporary, place)


def is_due(one: Waiting, after_s: float) -> bool:
    """Whether a written result may be looked at again. A clock that was set back does not make it wait for ever."""
    return not one.is_written or not 0 <= time.time() - one.since_s < after_s
