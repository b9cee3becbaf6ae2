"""Notes of direct hits, which shims write (answer.c): one file a build, with records of 40 bytes.

Knows no answer. The process that carries out a build keeps its file locked and reads the build's hits from it. A file
that no process has locked is counted in the store and removed. A shim that finds a file locked for counting, or gone,
tries again with a new one, so that every hit is counted exactly once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from buildd.store import answers
from buildd.store.areas import Area

if TYPE_CHECKING:
    from buildd.store.parts import Parts

_RECORD = struct.Struct("<32sQ")
"""The result's key; milliseconds that its job took."""
_PLAIN = re.compile(rb"[^0-9A-Za-z-]")
_MOST_NAME_BYTES = 64
DIRECT = "direct"
"""The kind of these hits in statistics."""


class Notes:
    """The hits of one running build.

    Args:
        store: the store's folder.
        build: the value of BUILDD_BUILD_ID.

    Raises: OSError.
    """

    def __init__(self, store: Path, build: str) -> None:
        self._descriptor = held(answers.prepare(store) / answers.NOTES / name_of(build))

    def figures(self) -> tuple[int, float]:
        """How many direct hits there were so far, and how many seconds they saved."""
        size = os.fstat(self._descriptor).st_size
        records = list(_records(os.pread(self._descriptor, size, 0)))
        return len(records), sum(saved_ms for _, saved_ms in records) / 1000

    def keys(self) -> list[bytes]:
        """The keys of the results that were hit, oldest first."""
        size = os.fstat(self._descriptor).st_size
        return [key for key, _ in _records(os.pread(self._descriptor, size, 0))]

    def close(self) -> None:
        """Unlock the file: from now on any process may count its hits."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Notes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def held(path: Path) -> int:
    """Open a build's file, made where it is missing, and lock it until the descriptor is closed. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        descriptor = os.open(path, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # counted and removed just before it was locked


@contextlib.contextmanager
def left(path: Path) -> Iterator[int]:
    """Open a file that no build holds, and lock builds out until the end. Raises OSError, also where one holds it."""
    # NFS grants an exclusive lock only to those who may write: flock(2).
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def noted(store: str, build: str) -> int:
    """The number of direct hits of a build that goes on; 0 where nothing is noted."""
    with contextlib.suppress(OSError):
        return os.stat(os.path.join(store, answers.FOLDER, answers.NOTES, name_of(build))).st_size // _RECORD.size
    return 0


def noted_so_far(store: Path) -> dict[str, int]:
    """The number of direct hits of each build that goes on, by the name of its file (`name_of`)."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(store / answers.FOLDER / answers.NOTES) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it was just counted
                found[entry.name] = entry.stat().st_size // _RECORD.size
    return found


def name_of(build: str) -> str:
    """The name of a build's file, by the same rule as in answer.c."""
    return _PLAIN.sub(b"_", build.encode(errors="surrogateescape"))[:_MOST_NAME_BYTES].decode() or "shims"


def count(store: Parts) -> int:
    """Add the hits of all finished builds to the store's counters; how many there were."""
    from buildd.store.tally import Counter, Reasoned

    if store.read_only:
        return 0
    hits = saved = 0
    for path in _files(store.folder):
        with contextlib.suppress(OSError):
            for key, saved_ms in _taken(path):
                store.tally.touch("results", (key,))
                hits, saved = hits + 1, saved + saved_ms
    if hits:
        store.count(Counter.HITS, hits)
        store.tally.count_reasoned(Reasoned.HIT, DIRECT, hits)
        store.count(Counter.SAVED_MS, saved)
    return hits


class HitArea(Area):
    """The hits that shims have noted and that are not yet in the store's counters."""

    name = "hits"

    def __init__(self, store: Parts) -> None:
        self._store = store

    def settle(self) -> None:
        count(self._store)


def _taken(path: Path) -> list[tuple[bytes, int]]:
    """Read and remove a file; its records. Empty where another process has just removed it. Raises OSError."""
    with left(path) as descriptor:
        status = os.fstat(descriptor)
        if not status.st_nlink:
            return []
        found = list(_records(os.pread(descriptor, status.st_size, 0)))
        os.unlink(path)
        return found


def _files(store: Path) -> list[Path]:
    try:
        return list((store / answers.FOLDER / answers.NOTES).iterdir())
    except OSError:
        return []


def _records(content: bytes) -> Iterator[tuple[bytes, int]]:
    whole = len(content) - len(content) % _RECORD.size
    for key, saved_ms in _RECORD.iter_unpack(content[:whole]):
        # Bounded, so that a damaged record cannot make the figures absurd.
        yield key, min(saved_ms, 1 << 32)
