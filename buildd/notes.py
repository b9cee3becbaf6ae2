"""Hits that stand-ins wrote down: a file a build, of records of 40 bytes (answer.c). Reads, counts and removes them.

Knows no answer. Whoever carries a build out has its file locked, and counts its hits by that; a file that nobody has
locked is counted in the store and goes. A stand-in that finds a file locked or gone tries again with a new one, so
that no hit is counted twice or never.
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

from buildd import answers

if TYPE_CHECKING:
    from buildd.shelf import Shelf

_RECORD = struct.Struct("<32sQ")
"""The result's key; milliseconds that its job took."""
_PLAIN = re.compile(rb"[^0-9A-Za-z-]")
_MOST_NAME_BYTES = 64


class Notes:
    """The hits of one build, for as long as somebody carries it out.

    Args:
        store: the store's folder.
        build: as in BUILDD_BUILD_ID.

    Raises: OSError.
    """

    def __init__(self, store: Path, build: str) -> None:
        self._descriptor = held(answers.prepare(store) / answers.NOTES / name_of(build))

    def figures(self) -> tuple[int, float]:
        """How many hits there were so far, and the seconds that they saved."""
        size = os.fstat(self._descriptor).st_size
        records = list(_records(os.pread(self._descriptor, size, 0)))
        return len(records), sum(saved_ms for _, saved_ms in records) / 1000

    def close(self) -> None:
        """From now on anybody may count them."""
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
    """A file of a build, made where it is not there and locked until its descriptor is closed. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        descriptor = os.open(path, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # counted and removed just before it was locked


@contextlib.contextmanager
def left(path: Path) -> Iterator[int]:
    """A file that no build holds any more, and none will until the end. Raises OSError, also where one holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def name_of(build: str) -> str:
    """The name of a build's file; as in answer.c."""
    return _PLAIN.sub(b"_", build.encode(errors="surrogateescape"))[:_MOST_NAME_BYTES].decode() or "stand-ins"


def count(store: Shelf) -> int:
    """Count the hits of all builds that are over as the store's; how many there were."""
    from buildd.tally import Counter

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
        store.count(Counter.SAVED_MS, saved)
    return hits


def _taken(path: Path) -> list[tuple[bytes, int]]:
    """A file's records, and the file is gone; nothing where somebody has it. Raises OSError."""
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
        # A record that is no such thing cannot make the figures absurd.
        yield key, min(saved_ms, 1 << 32)
