"""Reading of blobs: every byte that leaves the store was checked against its digest.

Knows nothing of results and of puts. A blob that is found damaged is removed, inside a write transaction of the index.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import zstandard
from blake3 import blake3

from buildd.errors import StoreError
from buildd.store.batch import ROW_BYTES
from buildd.store.database import Database
from buildd.store.packing import CHUNK_BYTES, Encoding, unpacked, write_all, write_error
from buildd.store.tally import Counter, Tally
from buildd.store.values import as_int, decompress, raw_digest
from protocol.messages import Digest

MEMORY_BYTES = 8 << 20
"""Larger contents are streamed; blobs inside the index are never larger than this when unpacked."""

_SELECT_ROW = "SELECT size, stored, encoding, data FROM blobs WHERE digest = ?"
_FICLONE = 0x40049409


class BadBlob(Exception):
    """A blob's bytes are not those of its digest, or are gone."""


class BlobReader:
    """Gets and restores blobs. Every method may be called from any thread.

    Args:
        database: the index.
        tally: counts damaged blobs.
    """

    def __init__(self, database: Database, tally: Tally) -> None:
        self._database = database
        self._tally = tally
        self._folder = database.folder

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, checked; None where there is no sound blob (a bad one is counted and removed)."""
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            return None
        try:
            return b"".join(self._chunks(raw, row))
        except BadBlob:
            self.drop_bad(raw)
            return None

    def restore(self, digest: Digest, destination: Path, *, executable: bool, umask: int | None = None) -> bool:
        """Make `destination` a private copy of the blob, whole or not at all; False where there is no sound blob.

        A symlink at `destination` is replaced, not followed. Missing folders are made.

        Args:
            umask: decides the mode; None: this process's own.

        Raises: `StoreFull`, and `StoreError` where the destination cannot be written.
        """
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            return False
        folder = os.path.dirname(destination)
        temporary = os.path.join(folder, f".buildd-{os.getpid()}-{secrets.token_hex(6)}.tmp")
        mode = 0o777 if executable else 0o666
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                fd = os.open(temporary, flags, mode)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                fd = os.open(temporary, flags, mode)
            try:
                with open(fd, "w+b", buffering=0) as file:
                    if not self._clone(raw, row, file):
                        for chunk in self._chunks(raw, row):
                            write_all(file, chunk)
                    if umask is not None:
                        os.fchmod(fd, mode & ~umask)
                os.rename(temporary, destination)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        except BadBlob:
            self.drop_bad(raw)
            return False
        except OSError as error:
            raise write_error(error, Path(destination), store=self._folder) from error
        return True

    def chunks(self, digest: Digest) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB. They are right only if the iterator ends without `BadBlob`."""
        raw = raw_digest(digest)
        row = self._row(raw) if raw is not None else None
        if raw is None or row is None:
            raise BadBlob(digest)
        yield from self._chunks(raw, row)

    def size_bytes(self, digest: Digest) -> int | None:
        """Size of the unpacked bytes, from the index (not checked); None where there is no such blob."""
        rows = self._database.rows("SELECT size FROM blobs WHERE digest = ?", (raw_digest(digest),))
        return as_int(rows[0][0]) if rows else None

    def has(self, digest: Digest) -> bool:
        """Whether the index knows a blob; its bytes are not looked at."""
        return self.size_bytes(digest) is not None

    def is_sound(self, raw: bytes) -> bool:
        """Read a blob to its end; whether it is what its digest says."""
        row = self._row(raw)
        try:
            if row is not None:
                for _ in self._chunks(raw, row):
                    pass
        except BadBlob:
            return False
        return row is not None

    def drop_bad(self, raw: bytes) -> bool:
        """Remove a blob that was found bad, unless another process has replaced it meanwhile."""

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT size, stored, encoding, data FROM blobs WHERE digest = ?", (raw,)
            ).fetchone()
            if row is None:
                return False  # collected in the meantime
            try:
                for _ in self._chunks(raw, row):
                    pass
                return False
            except BadBlob:
                self.delete(connection, raw, as_int(row[1]))
                return True

        if self._database.read_only:
            self._tally.count(Counter.BAD_BLOBS)
            return False
        try:
            removed = self._database.transact(work)
        except StoreError:
            removed = False  # the disk is full or the index busy: it stays a miss
        if removed:
            self._tally.count(Counter.BAD_BLOBS)
        return removed

    def delete(self, connection: sqlite3.Connection, raw: bytes, stored: int) -> None:
        """Remove a blob's row and file inside the caller's transaction."""
        connection.execute("DELETE FROM blobs WHERE digest = ?", (raw,))
        with contextlib.suppress(OSError):
            os.unlink(self.path_of(raw.hex()))
        add_bytes(connection, -stored - ROW_BYTES)

    def path_of(self, digest: str) -> Path:
        """The path of a large blob's file."""
        return self._folder / "blobs" / digest[:2] / digest

    def _row(self, raw: bytes) -> tuple[int, int, int, bytes | None] | None:
        rows = self._database.rows(_SELECT_ROW, (raw,))
        if not rows:
            return None
        size, stored, encoding, data = rows[0]
        return as_int(size), as_int(stored), as_int(encoding), data

    def _chunks(self, raw: bytes, row: tuple[int, int, int, bytes | None]) -> Iterator[bytes]:
        """Unpacked pieces; `BadBlob` at the latest after the last one."""
        size, _, encoding, data = row
        if data is not None and size <= MEMORY_BYTES:
            yield _inline(raw, row)
            return
        hasher, count = blake3(), 0
        try:
            with open(self.path_of(raw.hex()), "rb") as source:
                for chunk in unpacked(source, encoding):
                    count += len(chunk)
                    if count > size:
                        raise BadBlob(raw.hex())
                    hasher.update(chunk)
                    yield chunk
        except (OSError, zstandard.ZstdError, MemoryError) as error:
            raise BadBlob(raw.hex()) from error
        if count != size or hasher.digest() != raw:
            raise BadBlob(raw.hex())

    def _clone(self, raw: bytes, row: tuple[int, int, int, bytes | None], file: io.FileIO) -> bool:
        """Share the blocks of a blob file with `file`, if the file system can, and check the shared bytes."""
        if row[3] is not None or row[2] != Encoding.RAW:
            return False
        try:
            with open(self.path_of(raw.hex()), "rb", buffering=0) as source:
                fcntl.ioctl(file.fileno(), _FICLONE, source.fileno())
        except OSError:
            return False
        hasher = blake3()
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
        if hasher.digest() != raw:
            raise BadBlob(raw.hex())
        return True


def add_bytes(connection: sqlite3.Connection, delta: int) -> int:
    """Add to the running total of the store's size, inside a transaction; the new total."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'bytes'").fetchone()
    total = max(0, min((as_int(row[0]) if row else 0) + delta, 1 << 62))
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('bytes', ?)", (total,))
    return total


def _inline(raw: bytes, row: tuple[int, int, int, bytes | None]) -> bytes:
    size, _, encoding, data = row
    content = decompress(data, size) if encoding == Encoding.ZSTD and isinstance(data, bytes) else data
    if not isinstance(content, bytes) or len(content) != size or blake3(content).digest() != raw:
        raise BadBlob(raw.hex())
    return content
