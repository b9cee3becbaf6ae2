"""Blobs: bytes by their digest, small ones inside the index, large ones as files beside it.

Knows nothing of results. Promises: bytes that are read have been checked against their digest, and a blob is in the
store with all its bytes or not at all. A blob file is renamed into place, replaced and unlinked only inside a write
transaction of the index, so a collection in one process and a put of the same blob in another cannot interfere.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zstandard
from blake3 import blake3

from buildd.errors import StoreError
from buildd.store.batch import Batch, Ready, size_of
from buildd.store.blob_reader import MEMORY_BYTES, BlobReader, add_bytes
from buildd.store.database import Database
from buildd.store.packing import (
    CHUNK_BYTES,
    PAYS,
    SAMPLE_BYTES,
    Encoding,
    read_up_to,
    sample_pays,
    write_all,
    write_error,
)
from buildd.store.scratch import Scratch
from buildd.store.sessions import FolderLock, Session, boottime_s
from buildd.store.tally import Counter, Tally
from buildd.store.values import compress, digest_of
from protocol.messages import Digest

INLINE_BYTES = 64 << 10
"""Largest blob, as stored, inside the index: larger ones are faster as files."""
_temporaries = itertools.count(1)


class Blobs(BlobReader):
    """The blobs of one store: puts, and what `BlobReader` does. Every method may be called from any thread.

    Args:
        database: the index.
        tally: counts what was stored and what was bad.
        limit_reached: called after a put with the store's size in bytes.
    """

    def __init__(self, database: Database, tally: Tally, limit_reached: Callable[[int], None]) -> None:
        super().__init__(database, tally)
        self._limit_reached = limit_reached
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.scratch = Scratch(self._folder, self._scratch_folder)

    # ------------------------------------------------------------ putting

    def put_bytes(self, data: bytes, batch: Batch | None = None) -> Digest:
        """Store `data`; pinned against collection until it is published. Raises `StoreFull`, `StoreError`.

        Args:
            batch: takes the blob instead, and stores it when the batch is published.
        """
        digest = digest_of(data)
        if self._database.read_only:
            self._tally.count(Counter.DROPPED_PUTS)
            return digest
        raw = bytes.fromhex(digest)
        if batch is None:
            if self._pin_existing(raw, len(data)):
                return digest
        elif raw in batch.ready or self._is_there(raw, len(data)):
            return digest
        encoding, stored = Encoding.RAW, data
        packed = compress(data) if len(data) <= MEMORY_BYTES or sample_pays(data[:SAMPLE_BYTES]) else data
        if len(packed) < len(data) * PAYS:
            encoding, stored = Encoding.ZSTD, packed
        with contextlib.ExitStack() as ours:
            target, path = self.path_of(digest), None
            inline: bytes | None = stored
            if len(stored) > INLINE_BYTES or len(data) > MEMORY_BYTES:
                file, path = (ours if batch is None else batch.files).enter_context(self._temporary())
                self._fill(file, path, stored)
                inline = None
            ready = Ready(raw, len(data), len(stored), encoding, inline, path, target)
            if batch is None:
                self._adopt(ready)
            else:
                batch.ready[raw] = ready
        return digest

    def put_file(self, path: Path, *, expect: Digest | None = None, batch: Batch | None = None) -> tuple[Digest, int]:
        """Store a file's bytes as they are read, even if the file changes meanwhile; their digest and size in bytes.

        Args:
            expect: the digest that the bytes must have.
            batch: see `put_bytes`.

        Raises `StoreFull`, and `StoreError` where the file cannot be read or has another digest than `expect`.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd, "rb", buffering=0) as source:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise StoreError("only regular files can be stored", file=str(path))
                head = read_up_to(source, MEMORY_BYTES + 1)
                if len(head) > MEMORY_BYTES:
                    return self._put_stream(head, source, path, expect)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", file=str(path)) from error
        if expect is not None and digest_of(head) != expect:
            raise _changed(path)
        return self.put_bytes(head, batch), len(head)

    def _put_stream(self, head: bytes, source: io.FileIO, path: Path, expect: Digest | None) -> tuple[Digest, int]:
        if self._database.read_only:
            hasher = blake3(head)
            while chunk := source.read(CHUNK_BYTES):
                hasher.update(chunk)
            self._tally.count(Counter.DROPPED_PUTS)
            return Digest(hasher.hexdigest()), os.fstat(source.fileno()).st_size
        encoding = Encoding.ZSTD if sample_pays(head[:SAMPLE_BYTES]) else Encoding.RAW
        packer = zstandard.ZstdCompressor(level=1).compressobj() if encoding is Encoding.ZSTD else None
        hasher, size, stored = blake3(), 0, 0
        with self._temporary() as (file, temporary):
            chunk = head
            while chunk:
                hasher.update(chunk)
                size += len(chunk)
                packed = packer.compress(chunk) if packer else chunk
                stored += len(packed)
                self._fill(file, temporary, packed)
                chunk = source.read(CHUNK_BYTES) or b""
            if packer:
                packed = packer.flush()
                stored += len(packed)
                self._fill(file, temporary, packed)
            digest = Digest(hasher.hexdigest())
            if expect is not None and digest != expect:
                raise _changed(path)
            if not self._pin_existing(hasher.digest(), size):
                self._adopt(Ready(hasher.digest(), size, stored, encoding, None, temporary, self.path_of(digest)))
        return digest, size

    def _pin_existing(self, raw: bytes, size: int) -> bool:
        """Pin a blob that is already there; False where it has to be written."""
        if not self._database.rows("SELECT 1 FROM blobs WHERE digest = ?", (raw,)):
            return False
        session = self.session()

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT stored, data IS NULL FROM blobs WHERE digest = ? AND size = ?", (raw, size)
            ).fetchone()
            if row is None:
                return False
            if row[1] and size_of(self.path_of(raw.hex())) != row[0]:
                return False
            _pin(connection, raw, session)
            return True

        there = self._database.transact(work)
        if there:
            self._tally.count(Counter.SHARED_BLOBS)
        return there

    def _is_there(self, raw: bytes, size: int) -> bool:
        """As `_pin_existing`, for a blob that is published in a moment and needs no pin."""
        rows = self._database.rows("SELECT stored, data IS NULL FROM blobs WHERE digest = ? AND size = ?", (raw, size))
        there = bool(rows) and not (rows[0][1] and size_of(self.path_of(raw.hex())) != rows[0][0])
        if there:
            self._tally.count(Counter.SHARED_BLOBS)
        return there

    def _adopt(self, ready: Ready) -> None:
        session = self.session()

        def work(connection: sqlite3.Connection) -> int:
            grown = ready.place(connection)
            _pin(connection, ready.raw, session)
            return add_bytes(connection, grown)

        try:
            total = self._database.transact(work)
        except OSError as error:
            raise write_error(error, ready.target) from error
        self.placed([ready], total)

    def placed(self, several: Iterable[Ready], total: int) -> None:
        """Count blobs that have just got their rows; the store holds `total` bytes now."""
        for ready in several:
            self._tally.count(Counter.STORED_BLOBS)
            self._tally.count(Counter.STORED_BYTES, ready.size)
        self._limit_reached(total)

    # ------------------------------------------------------------ the session

    def session(self) -> Session:
        """This process's session as a writer, made at its first write."""
        with self._lock:
            if self._session is None:
                try:
                    with FolderLock(self._folder):
                        session = Session(self._folder)
                except OSError as error:
                    raise write_error(error, self._folder / "sessions") from error
                try:
                    self._database.transact(
                        lambda connection: connection.execute(
                            "INSERT OR REPLACE INTO sessions (name, pid, start_ticks, boot_id) VALUES (?, ?, ?, ?)",
                            (session.name, session.pid, session.start_ticks, session.boot_id),
                        )
                    )
                except BaseException:
                    session.close()
                    raise
                self._session = session
            return self._session

    def _scratch_folder(self) -> Path:
        """This process's folder in the store; it is removed when the process ends. Raises OSError, `StoreError`."""
        if self._database.read_only:
            raise StoreError("the store may not be written", file=str(self._folder))
        folder = self._folder / "tmp" / f"{self.session().name}.scratch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        self.scratch.close()
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return

            def work(connection: sqlite3.Connection) -> None:
                for table in ("pins", "leases"):
                    connection.execute(f"DELETE FROM {table} WHERE session = ?", (session.name,))
                connection.execute("DELETE FROM sessions WHERE name = ?", (session.name,))

            with contextlib.suppress(StoreError):  # the next garbage collection does it
                self._database.transact(work, wait=False)
            shutil.rmtree(self._folder / "tmp" / f"{session.name}.scratch", ignore_errors=True)
            session.close()

    # ------------------------------------------------------------ inside

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[io.FileIO, Path]]:
        """A new file in <store>/tmp, named after the session so that its leftovers can be told from live ones."""
        folder = self._folder / "tmp"
        path = folder / f"{self.session().name}.{next(_temporaries)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise write_error(error, path) from error
        try:
            with open(fd, "wb", buffering=0) as file:
                yield file, path
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def _fill(file: io.FileIO, path: Path, data: bytes) -> None:
        try:
            write_all(file, data)
        except OSError as error:
            raise write_error(error, path) from error


def missing(connection: sqlite3.Connection, wanted: Iterable[bytes]) -> list[bytes]:
    """The digests in `wanted` that have no row."""
    return [
        raw for raw in wanted if connection.execute("SELECT 1 FROM blobs WHERE digest = ?", (raw,)).fetchone() is None
    ]


def _pin(connection: sqlite3.Connection, raw: bytes, session: Session) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO pins (digest, session, boottime_s) VALUES (?, ?, ?)", (raw, session.name, boottime_s())
    )


def _changed(path: Path) -> StoreError:
    return StoreError("changed while it was being stored", file=str(path), next_step="build it again")
